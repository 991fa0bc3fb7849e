"""Streams: items flow to the consumer while the generator continues, as far as credits allow.

A producer that has used up its credits is parked: it counts as not under way, and whatever ran it is
free. Taking items gives new credits.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from fray._contracts.refs import ObjectStream
from fray._contracts.task_runner import CallRunner, Ready, StoredError
from fray._engine.calls import Call
from fray._engine.identity import reduce_by_identity
from fray._engine.locking import LOCK
from fray._engine.refs import NOTHING, EngineRef, Watcher, error_ref, stored_error, value_ref
from fray._engine.scope import Scope
from fray._engine.waiting import await_one
from fray._values.errors import TaskCancelledError
from fray._values.options import ActorOptions, TaskOptions

T_co = TypeVar("T_co", covariant=True)


class StreamCall(Call):
    """The producing side of a stream.

    Args:
        limit: Items that may be ahead of the consumer; 0: an item is made only when it is requested.
    """

    __slots__ = (
        "_buffer",
        "_handed_over",
        "_ready",
        "_watchers",
        "cancelled",
        "credits",
        "ended",
        "limit",
        "parked",
    )

    streaming = True

    def __init__(
        self,
        payload: Any,
        refs: Sequence[EngineRef[Any]],
        name: str | Callable[..., Any],
        options: TaskOptions | ActorOptions,
        runner: CallRunner,
        scope: Scope,
        limit: int,
    ) -> None:
        super().__init__(payload, refs, name, options, runner, scope)
        del self.ref._call  # a cycle: a dropped stream closes its generator at once, not when `gc` finds it
        self.limit = self.credits = limit
        self.parked = self.ended = self.cancelled = False
        self._buffer: deque[EngineRef[Any]] = deque()
        self._ready = self._handed_over = False
        self._watchers: list[Watcher] = []

    # Its start.

    def begin(self) -> None:
        """Start it when its arguments are there and an item may be made."""
        if not self.credits:
            with LOCK:
                self.parked = True
            self.scope.leave(self)
        super().begin()

    def hand_over(self) -> None:
        if self._may_start():
            super().hand_over()

    def _arrived(self, ready: list[Any]) -> None:
        arrived: list[Any] = []
        super()._arrived(arrived)
        if arrived and self._may_start():
            ready.append(self)

    def _may_start(self) -> bool:
        """Note that the arguments are there; True where it may start, and had not."""
        with LOCK:
            self._ready = True
            start = not self._handed_over and not self.parked
            self._handed_over = self._handed_over or start
        return start

    # The producer.

    @property
    def over(self) -> bool:
        """Whether its end, or its error, is known."""
        return self.ended

    @property
    def buffered(self) -> int:
        """Items that wait for the consumer."""
        return len(self._buffer)

    @property
    def retries_left(self) -> int:
        """None: items have been seen."""
        return 0

    def push(self, values: Sequence[Any]) -> bool:
        """Add items; True where these used up the last credit, and it is parked now."""
        items = [value_ref(value) for value in values]
        with LOCK:
            if self.ended:
                return False
            self._buffer.extend(items)
            self.credits -= len(items)
            parked = self.parked = self.credits <= 0
            watchers, self._watchers = self._watchers, []
            if parked:  # in here, because a consumer that takes an item next counts it again
                self.scope.open.discard(self)
        if parked:
            self.scope.check_drained()
        self._tell(watchers)
        return parked

    def _settle(self, state: int, content: Any) -> Ready:
        raise NotImplementedError

    def succeed(self, value: Any = None) -> Ready:
        """End the stream."""
        return self._finish(None)

    def fail(self, error: BaseException | StoredError) -> Ready:
        """Make an exception the last item."""
        return self._finish(stored_error(error))

    def _finish(self, error: StoredError | None) -> Ready:
        try:
            with LOCK:
                if self.ended:
                    return NOTHING
                if error is not None:
                    self._buffer.append(error_ref(error))
                self.ended, self.parked = True, False
        finally:
            if self.ended:  # also where an earlier call, which was interrupted, has said so
                self.payload, self.refs = None, ()
                self.scope.leave(self)
                watchers, self._watchers = self._watchers, []
                self._tell(watchers)
        return NOTHING

    def _tell(self, watchers: list[Watcher]) -> None:
        for watcher in watchers:
            watcher.notify(self, [])

    def _interrupt(self) -> bool:
        if self.runner.interrupts:
            return super()._interrupt()
        with LOCK:
            if self.ended:
                return False
            self.cancelled = True
        self._grant(1)  # so that a parked one closes its generator
        return True

    def abandon(self) -> None:
        """End it if it waits for its consumer: its context is closing."""
        if not self.parked:
            return
        if self.claim() or self.runner.interrupts:
            self.fail(TaskCancelledError(f"{self.label} was cancelled: its context was shut down"))
            if self.runner.interrupts:
                self.runner.interrupt(self)
        else:
            self.cancelled = True
            self._grant(1)

    # The consumer.

    @property
    def has_item(self) -> bool:
        """Whether the next item, the end or the error is there."""
        return bool(self._buffer) or self.ended

    def take(self) -> EngineRef[Any] | None:
        """Return the next item, where there is one, and resume the producer."""
        try:
            item = self._buffer.popleft()
        except IndexError:
            return None
        if not self.ended:
            room = self.limit - len(self._buffer) - self.credits
            if room > self.limit // 2:
                self._grant(room)
        return item

    def ask(self) -> None:
        """Let the producer make an item, where it makes none unasked."""
        if not self.credits and not self._buffer and not self.ended:
            self._grant(max(1, self.limit))

    def _grant(self, more: int) -> None:
        try:
            with LOCK:
                if self.ended:
                    return
                self.credits += more
                parked, self.parked = self.parked, False
                if parked:
                    self.scope.open.add(self)
                start = self._ready and not self._handed_over
                self._handed_over = self._handed_over or start
                waits = not self._ready
            if start:
                super().hand_over()
            elif not waits:
                self.runner.resume(self, more, parked)
        except BaseException as error:
            self.withdraw(error)  # nobody would resume it any more
            raise

    def watch(self, watcher: Watcher) -> bool:
        """Notify a watcher of the next item, or the end; False where that is there already."""
        with LOCK:
            if self.has_item:
                return False
            self._watchers.append(watcher)
            return True

    def unwatch(self, watcher: Watcher) -> None:
        """Take a watcher back."""
        with LOCK:
            if watcher in self._watchers:
                self._watchers.remove(watcher)


class EngineStream(ObjectStream[T_co]):
    """The consuming side of a stream."""

    __slots__ = ("__weakref__", "call")

    def __init__(self, call: StreamCall) -> None:
        self.call = call

    @property
    def state(self) -> bool:
        """Whether the next item, the end or the error is there."""
        return self.call.has_item

    def __next__(self) -> EngineRef[T_co]:
        call = self.call
        while True:
            item = call.take()
            if item is not None:
                return cast("EngineRef[T_co]", item)
            if call.ended and not call.buffered:
                raise StopIteration
            call.scope.check_owner()  # in a forked child nothing would ever come
            call.ask()
            if not call.has_item:
                await_one(call)

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_by_identity(self)

    def __repr__(self) -> str:
        return f"<stream of {self.call.label}>"
