"""The processes that actors run in, and what handles of one actor share."""

import itertools
import socket
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any

from fray import ActorDiedError
from fray.backend import EngineEndpoint, Ready, disown_in_children, dispatch, identity_of, note_kept
from fray_local._process.owner.actor_directory import ActorRecord
from fray_local._process.owner.actor_reservations import ActorReservation
from fray_local._process.owner.calls import CallState, packs_values
from fray_local._process.owner.event_loop import EventLoop
from fray_local._process.owner.interfaces import OwnerContext, Reserving, Runner
from fray_local._process.owner.resources import PLAIN, Needs, environment
from fray_local._process.owner.serial_queue import SerialQueue
from fray_local._process.owner.worker_connection import WorkerConnection
from fray_local._process.protocol.values import Budget
from fray_local._process.worker.proxies import revive

_EXIT_SECONDS = 5.0  # that an actor has to end by itself once its context is shut down


class ActorProcess:
    """The process of one actor: the engine's `ActorRunner`, and the owner of one worker.

    Calls are sent on as they come; the process keeps their order.

    Args:
        start_worker: Starts the process, or connects to one of another program.
        own: The process ends with the context.
        reserving: Where the actor's reservation is made.
        needs: What it reserves as long as it lives.
        label: Of the actor, in messages.
    """

    interrupts = True

    def __init__(
        self,
        loop: EventLoop,
        budget: Budget,
        start_worker: Callable[["ActorProcess"], WorkerConnection],
        *,
        own: bool,
        reserving: Reserving,
        needs: Needs = PLAIN,
        label: str = "",
    ) -> None:
        self.is_own, self._reserving, self._needs = own, reserving, needs
        self._reservation = (
            ActorReservation(needs, label, self._granted, self._refused) if needs.amounts else None
        )
        self._constructs: list[Any] = []  # which wait for that
        self.actor: Any = None  # set by who makes it, which needs this first
        self.listener: socket.socket | None = None  # where others call it; kept for the next process
        self.sock: socket.socket | None = None  # to the process of another context's actor
        self.restarts = 0  # after which `find_next` may find the next process of such an actor
        self.find_next: Callable[[ActorProcess, str], None]
        self.looking = False  # for that one
        self._loop, self._budget, self._start_worker = loop, budget, start_worker
        self._serial = SerialQueue()
        self._worker: WorkerConnection | None = None
        self._waiting: list[Any] = []  # for the next process: there is none now
        self._turns = itertools.count()
        self._retired = False
        self._gone = threading.Event()
        disown_in_children(self)

    # The engine's side; see `fray.backend.ActorRunner`.

    def start(self, calls: Sequence[Any]) -> None:
        """Send calls on; the constructor's starts the process."""
        self._serial.run(partial(self._start, calls))

    def resume(self, call: Any, more: int, parked: bool) -> None:
        """Resume a stream."""
        state: CallState | None = call.state
        if state is not None and state.worker is not None:
            state.worker.resume(state.number, more)

    def interrupt(self, call: Any) -> None:
        """Stop a call that the engine has settled."""
        state: CallState | None = call.state
        if state is not None and state.worker is not None:
            state.worker.cancel(state.number)

    def end(self, *, kill: bool) -> None:
        """Let the process end: at once, or after the calls that it has, as at the context's end."""
        self._serial.run(partial(self._end, kill))

    @property
    def environ(self) -> dict[str, str]:
        """The variables that the process is started with."""
        return environment(self._needs, [] if self._reservation is None else self._reservation.gpus)

    def close(self, *, wait: bool) -> None:
        """End at the context's end."""
        self.end(kill=False)
        if wait:
            self._gone.wait()

    def kill(self) -> None:
        """End the process now."""
        if self._worker is not None and self.is_own:
            self._worker.kill()

    def stop_listening(self) -> None:
        """Close the socket that is kept for the next process: there will be none."""
        if self.listener is not None:
            self.listener.close()

    def disown(self) -> None:
        """In a forked child: the actor is alive as long as a process listens for it."""
        self.stop_listening()

    def connect(self, sock: socket.socket) -> None:
        """Use a connection to a living actor; if its process ends, the actor dies or has another."""
        self._serial.run(partial(self._connect, sock))

    # One at a time, in the serial queue.

    def _start(self, calls: Sequence[Any]) -> None:
        """Give calls to the process, in the order in which they first came here."""
        if self._retired:
            return  # its end has answered them
        for call in calls:
            turn = next(self._turns) if call.state is None else call.state.order
            payload = call.payload  # None: it was killed meanwhile
            call.state = CallState(payload and payload.function, PLAIN, turn)
        self._waiting += [call for call in calls if call.kind != "construct"]
        self._constructs += [call for call in calls if call.kind == "construct"]
        reservation = self._reservation
        if reservation is not None and not reservation.held and self._constructs:
            self._reserving.reserve(reservation)
        else:
            self._send()

    def _granted(self) -> None:
        """There is room for the actor."""
        self._serial.run(self._send)

    def _refused(self, error: Exception) -> None:
        """There never will be."""
        dispatch(self.actor.die("it could not be made: {cause}", error))

    def _send(self) -> None:
        if self._retired:
            return
        constructs, self._constructs = self._constructs, []
        claimed = self._claimed(constructs)
        if claimed and not self._begin("started"):
            return
        if self._worker is not None:
            waiting, self._waiting = sorted(self._waiting, key=_turn), []
            claimed += self._claimed(waiting)
            if claimed:
                self._worker.give(claimed)

    def _begin(self, what: str) -> bool:
        try:
            self._worker = self._start_worker(self)
        except Exception as error:  # noqa: BLE001 - no more descriptors, say
            dispatch(self.actor.die(f"its process could not be {what}: {error}"))
            return False
        return True

    def _connect(self, sock: socket.socket) -> None:
        self.looking = False
        if self._retired:
            sock.close()
            return
        self.sock = sock
        if self._begin("reached"):
            self._send()

    def _claimed(self, calls: Iterable[Any]) -> list[Any]:
        return [call for call in calls if call.claim() and packs_values(call, self._budget)]

    def _end(self, kill: bool) -> None:
        worker, first = self._worker, not self._retired
        self._retired = True
        if self._reservation is not None:
            self._reservation.ends = True
        if worker is None:
            self._leave()  # never started
        elif kill:
            worker.kill()
            if not self.is_own:  # nobody but the process itself can end it, and this context may be ending
                self._loop.call_later(_EXIT_SECONDS, worker.retire)
        elif first:
            worker.retire()
            if self.is_own:
                self._loop.call_later(_EXIT_SECONDS, worker.kill)

    # The worker's side; see `WorkerOwner`.

    def done(self, worker: WorkerConnection, call: Any, seconds: float) -> None:
        """Nothing waits for a slot here."""

    def parked(self, worker: WorkerConnection, call: Any) -> None:
        """Between the items of a stream the actor answers other calls anyway."""

    def lend(self, worker: WorkerConnection, reason: Hashable) -> None:
        """One call at a time means that no other runs while it waits."""

    def reclaim(self, worker: WorkerConnection, reason: Hashable) -> None:
        """Nothing was lent."""

    def returned(self, worker: WorkerConnection, calls: list[Any]) -> None:
        """Keep calls for the next process, should there be one: this one is gone."""
        self._serial.run(partial(self._waiting.extend, calls))

    def ended(self, worker: WorkerConnection, how: str, started: list[Any], unstarted: list[Any]) -> None:
        """Let the actor die with its process, or construct it again."""
        self._serial.run(partial(self._ended, worker, how, started, unstarted))

    def _ended(self, worker: WorkerConnection, how: str, started: list[Any], unstarted: list[Any]) -> None:
        if worker is not self._worker:
            return
        self._worker = None  # calls that come now wait
        reason = f"{worker.pid} {how}" if worker.pid else how
        died = partial(self.actor.process_died, reason, started, unstarted)
        if worker.was_killed:  # whatever its `max_restarts`: a killed actor is not made again
            died = partial(self.actor.die, "another program has killed it")
        act = partial(self._process_died, died)
        if self.restarts > 0:
            act = partial(self._process_lost, f"its process {reason}", [*started, *unstarted])
        # Those that were on their way to it are returned before.
        worker.after_given(partial(self._serial.run, act))

    def _process_died(self, died: Callable[[], Ready]) -> None:
        dispatch(died())
        if self.actor.dead or self._retired:
            self._leave()

    def _process_lost(self, reason: str, sent: list[Any]) -> None:
        """Fail what the process may have run, and look for the next one, which another context starts.

        It is unknown here which calls had started, so none that was sent is sent again.
        """
        for call in sent:
            may_have_run = (
                f"{reason}, and may have run {call.label}; the actor may be made again, without its state"
            )
            dispatch(call.fail(ActorDiedError(self.actor.label, may_have_run)))
        if self.actor.dead or self._retired:
            self._leave()
            return
        self.restarts, self.looking = self.restarts - 1, True
        self.find_next(self, reason)

    def _leave(self) -> None:
        self.stop_listening()
        self._waiting.clear()  # they were answered
        self._constructs.clear()
        if self._reservation is not None:
            self._reserving.release(self._reservation)
        self._gone.set()


def _turn(call: Any) -> int:
    turn: int = call.state.order
    return turn


class ProcessEndpoint(EngineEndpoint):
    """What handles of one actor share, in the process that made it."""

    def __init__(
        self,
        actor: Any,
        process: ActorProcess,
        context: OwnerContext,
        runner: Runner,
        record: ActorRecord | None,
    ) -> None:
        super().__init__(actor, context.pack)
        self.process, self.record, self._runner = process, record, runner

    @property
    def address(self) -> tuple[str, str, str] | None:
        """Where processes that do not belong to the context find the actor; None where they cannot."""
        return None if self.record is None else self.record.address

    def _cancel_when_dropped(self, stream: Any) -> None:
        self._runner.close_when_dropped(stream)

    def __reduce__(self) -> tuple[Any, ...]:
        note_kept(self)
        return revive, (identity_of(self), self.label, dict(self.actor.methods), self.address)
