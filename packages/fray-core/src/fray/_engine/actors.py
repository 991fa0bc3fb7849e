"""Actors: the order of their calls, their one death, their restarts. What runs the calls is a runner's.

call() -> lane of its caller, while an earlier call of that caller waits for its arguments
       -> outbox, in order; closed until the constructor's call was handed over
       -> ActorRunner.start
"""

import threading
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from fray._contracts.task_runner import ActorRunner, PackedCall, Ready, StoredError
from fray._engine.actor_calls import ConstructCall, MethodCall, MethodStreamCall
from fray._engine.actor_death import DeathError
from fray._engine.calls import current_call, dispatch, inside
from fray._engine.locking import LOCK, OneAtATime
from fray._engine.refs import NOTHING, VALUE
from fray._engine.scope import Scope
from fray._engine.streams import EngineStream
from fray._values.errors import ActorDiedError
from fray._values.options import ActorOptions


class Actor:
    """One actor: waits for its constructor's arguments, is constructed, answers calls, dies once.

    It is the runner of its calls, and passes them on in order to the one that its context's runner made.

    Args:
        name: The class in messages.
        methods: What can be called, and whether it streams.
        limit: Items that a stream may be ahead of its consumer.
        asynchronous: Whether the class has async methods: all calls share one event loop.
    """

    def __init__(
        self,
        name: str,
        methods: Mapping[str, bool],
        options: ActorOptions,
        scope: Scope,
        limit: int,
        asynchronous: bool = False,
    ) -> None:
        self.asynchronous = asynchronous
        self.label = f"{name}({options.name!r})" if options.name else name
        self.methods, self.options, self.scope = methods, options, scope
        self.name = options.name
        self.on_death: list[Callable[[], None]] = []
        self.runner: ActorRunner
        self._class, self._limit = name, limit
        self._restarts = options.max_restarts
        self._packed: PackedCall | None = None  # of the constructor, while it may run again
        self._lanes: dict[Hashable, deque[Any]] = {}
        self._outbox: deque[Any] = deque()
        self._sending = OneAtATime()
        self._constructed = False  # the constructor's call was handed over
        self._retiring = False
        self.open_calls: set[Any] = set()
        self._death: DeathError | None = None

    @property
    def concurrency(self) -> int:
        """How many calls may run at the same time."""
        return self.options.concurrency(self.asynchronous)

    @property
    def dead(self) -> bool:
        """Whether calls raise ActorDiedError from now on."""
        return self._death is not None

    @property
    def may_restart(self) -> bool:
        """Whether it is constructed again when its process ends."""
        return self._restarts > 0 and self._death is None and not self.scope.cancelling

    def construct(self, packed: PackedCall, *, caller: Hashable = None) -> None:
        """Run the constructor when its arguments are there; calls wait for it."""
        if self._restarts:
            self._packed = packed
        call = self._construction(packed)
        try:
            self.scope.enter(call, caller is not None or inside(self.scope))
            with LOCK:
                self.open_calls.add(call)
                death = self._death
            if death is None:
                call.begin()
            else:  # another holder killed it by its name
                dispatch(call.fail(death))
        except BaseException:  # the maker lets the actor die, which ends the call where it came so far
            self.scope.leave(call)
            raise

    def open(self) -> None:
        """Pass calls on without a constructor's: the actor lives elsewhere already."""
        self._constructed = True
        self._send()

    def _construction(self, packed: PackedCall) -> "ConstructCall":
        refs: Any = packed.refs
        call = ConstructCall(packed.payload, refs, self._class, self.options, self, self.scope)
        call.actor = self
        return call

    def call(self, method: str, packed: PackedCall, *, caller: Hashable = None) -> Any:
        """Queue one call and return its reference or stream.

        Args:
            caller: The caller, where that is not the call that this thread runs: calls of one are in order.
        """
        call: Any
        refs: Any = packed.refs
        more = (packed.payload, refs, method, self.options, self, self.scope)
        call = MethodStreamCall(*more, self._limit) if self.methods[method] else MethodCall(*more)
        call.actor, call.method, call.arrived = self, method, False
        answer = EngineStream(call) if call.streaming else call.ref
        death = self._death
        try:
            if death is None:
                self.scope.enter(call, caller is not None or inside(self.scope))
                death = self._admit(call, caller)
            if death is not None:
                dispatch(call.fail(death))
            else:
                call.begin()
        except BaseException as error:
            call.withdraw(error)
            raise
        return answer

    def _admit(self, call: Any, caller: Hashable) -> "DeathError | None":
        pending = any(ref.state != VALUE for ref in call.refs)
        if caller is None:
            caller = current_call() or threading.get_ident()
        with LOCK:
            self.open_calls.add(call)
            lane = self._lanes.get(caller)
            if lane is None and pending:
                lane = self._lanes.setdefault(caller, deque())
            if lane is not None:
                lane.append(call)
                call.lane = caller
            return self._death

    # Its calls' runner.

    @property
    def interrupts(self) -> bool:
        """Whether a method that runs can be stopped."""
        return self.runner.interrupts

    def start(self, calls: Sequence[Any]) -> None:
        """Take calls whose arguments are there."""
        with LOCK:
            for call in calls:
                call.arrived = True
                if call.kind == "construct":
                    self._outbox.appendleft(call)
                    self._constructed = True
                elif call.lane is None:
                    self._outbox.append(call)
                else:
                    self._advance(call.lane)
        self._send()

    def resume(self, call: Any, more: int, parked: bool) -> None:
        """Pass on that a stream may continue."""
        self.runner.resume(call, more, parked)

    def interrupt(self, call: Any) -> None:
        """Pass on that a call is to be stopped."""
        self.runner.interrupt(call)

    def _advance(self, caller: Hashable) -> None:
        """Under LOCK: let the calls of a lane pass, up to the first that waits."""
        lane = self._lanes.get(caller)
        if lane is None:
            return
        while lane:
            head = lane[0]
            if not head.arrived and not head.over:
                return
            try:
                lane.remove(head)
            except ValueError:  # a signal handler let it pass between these lines
                continue
            self._outbox.append(head)
        if not lane:
            self._lanes.pop(caller, None)

    def _send(self) -> None:
        """Hand over what is in the outbox; one thread does it for all, so that order stays."""
        if self._constructed:
            self._sending.drain(self._outbox, self._hand_over)

    def _hand_over(self) -> None:
        outbox, calls = self._outbox, []
        try:
            while outbox:
                calls.append(outbox.popleft())
            self.runner.start(calls)
        except Exception as error:  # noqa: BLE001 - no process can be started, say
            dispatch(self.die("it could not be started: {cause}", error))

    # Its end.

    def closed(self, call: Any) -> None:
        """Forget a call that was answered, and let what waited behind it pass."""
        self.open_calls.discard(call)
        if call.lane is not None:
            with LOCK:
                self._advance(call.lane)
            self._send()
        if self._retiring and not self.open_calls:
            self.runner.end(kill=False)

    def retire(self) -> None:
        """Let it end after the calls that it has: nobody can call it any more. A finalizer may call this."""
        self._retiring = True
        if not self.open_calls:
            self.runner.end(kill=False)

    def die(
        self, reason: str, cause: BaseException | StoredError | None = None, *, kill: bool = True
    ) -> Ready:
        """Answer every open call and every later one with ActorDiedError; a second death is none.

        Args:
            reason: May name the cause: `{kind}`, `{cause}` and `{cause!r}` are filled in by the reader.
            kill: End whatever runs it; without it, as at the context's end, which a detached actor outlives.
        """
        death = DeathError(self.label, reason, cause)
        open_calls: set[Any] = set()
        try:
            with LOCK:
                if self._death is not None:
                    return NOTHING
                self._outbox.clear()
                self._lanes.clear()
                self._death = death
                open_calls, self.open_calls = self.open_calls, open_calls
            return self._end(open_calls, death, kill)
        except BaseException:  # Ctrl-C: once more, for what it left
            if self._death is death:
                dispatch(self._end(open_calls, death, kill))
            raise

    def _end(self, open_calls: set[Any], death: DeathError, kill: bool) -> Ready:
        """Do what follows on its death; what has been done already is not done twice."""
        for act in self.on_death:
            act()
        ready: list[Any] = []
        for call in open_calls:
            call.claim()
            ready.extend(call.fail(death))
        self.runner.end(kill=kill)
        return ready

    def process_died(self, how: str, started: Sequence[Any], unstarted: Sequence[Any]) -> Ready:
        """Construct it again, or let it die: its process is gone; see `RunnerActor.process_died`."""
        first = self._reconstruction(started)
        if first is None:
            return self.die(f"its process {how}")
        ready: list[Any] = []
        for call in started:
            if call.kind != "construct":
                reason = (
                    f"its process {how} while it ran {call.label}; it was started again, without its state"
                )
                ready.extend(call.fail(ActorDiedError(self.label, reason)))
        self.scope.open.add(first)
        if first.over:  # it was killed meanwhile
            self.scope.leave(first)
        for call in [*started, *unstarted]:
            if call.kind == "construct":
                ready.extend(call.superseded())
        kept = [call for call in unstarted if call.kind != "construct"]
        for call in kept:
            call.unclaim()
        with LOCK:
            if self._death is None:
                self._outbox.extendleft(reversed([first, *kept]))
        self._send()
        return ready

    def _reconstruction(self, started: Sequence[Any]) -> "ConstructCall | None":
        """Return the call that constructs it again; None where it may not be, or nobody waits for it."""
        with LOCK:
            again = self.may_restart
            if again:
                self._restarts -= 1
        if not again or self._packed is None:
            return None
        first = self._construction(self._packed)
        # Counted before the look, while `retire` says so before its own: one of the two sees the other.
        self.open_calls.add(first)
        if self._retiring and self.open_calls.issubset([first, *started]):
            self.open_calls.discard(first)
            return None
        return first
