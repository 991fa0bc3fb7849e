"""Generator tasks: items flow to the consumer while the generator goes on.

A producer is a job that runs until its buffer is full, and then simply returns: the suspended
generator is all that is left of it, so it holds no thread while it waits for its consumer. Taking
an item submits it again. A stream that is dropped takes its suspended generator with it, and
Python closes that.
"""

from collections import deque
from collections.abc import Generator
from typing import Any, TypeVar, cast

from fray._engine.pool import blocking, set_current_task
from fray._engine.refs import (
    LOCK,
    LocalRef,
    Settlement,
    Watcher,
    await_refs,
    error_ref,
    reduce_by_identity,
    value_ref,
)
from fray._engine.tasks import Call
from fray._values.errors import TaskCancelledError
from fray.job import ObjectStream

T_co = TypeVar("T_co", covariant=True)
_END = object()


class Producer(Call):
    """The producing side of a stream."""

    __slots__ = (
        "__weakref__",
        "_buffer",
        "_cancelled",
        "_counted",
        "_finished",
        "_generator",
        "_limit",
        "_parked",
        "_watchers",
    )

    def __init__(self, *args: Any, limit: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limit = limit
        self._buffer: deque[LocalRef[Any]] = deque()
        self._generator: Generator[Any, None, None] | None = None
        self._parked = self._finished = self._cancelled = False
        self._counted = True  # in the scope, which its maker has entered; not while it is parked
        self._watchers: list[Watcher] | None = None

    @property
    def _state(self) -> bool:
        """Whether the next item, the end or the error is there; what `watch` and `wait` ask."""
        return bool(self._buffer) or self._finished

    def fail(self, error: Any, worklist: list[Settlement]) -> None:
        """Make the argument's failure the only item."""
        if self.claim():
            self._finish(error[0])

    def abort(self, error: BaseException) -> None:
        """End the stream with an error that is not the generator's."""
        self.claim()
        self._finish(error)

    def run(self) -> None:
        """Produce until the buffer is full, the generator ends, or the stream is cancelled."""
        if self._generator is None and not self.claim():
            return
        before = set_current_task(self)
        try:
            while not self._pause():
                if self._generator is None:
                    args, kwargs = self.resolve()
                    self._generator = self.context.run(self.fn, *args, **kwargs)
                value = self.context.run(next, self._generator, _END)
                if value is _END:
                    self._finish(None)
                    return
                self._push(value_ref(self.encode(value)))
        except BaseException as error:  # noqa: BLE001 - it comes out at this item
            self._finish(self.encode_error(error)[0])
        finally:
            set_current_task(before)

    def take(self) -> LocalRef[Any] | None:
        """Return the next item; None at the end. The caller has seen that there is one."""
        with LOCK:
            return self._buffer.popleft() if self._buffer else None

    def resume(self) -> None:
        """Go on producing if the buffer has run low."""
        with LOCK:
            if not self._parked or len(self._buffer) > self._limit // 2 or self._finished:
                return
            self._unpark()
        self.pool.start(self)

    def cancel(self) -> bool:
        """Close the generator at its next pause; what it has yielded stays readable."""
        if self.claim():  # not started
            self._finish(TaskCancelledError(f"{self.label} was cancelled before it started"))
            return True
        with LOCK:
            if self._finished:
                return False
            self._cancelled = True
            parked = self._parked
            if parked:
                self._unpark()
        if parked:
            self.pool.start(self)
        return True

    def abandon(self) -> None:
        """End it on this thread if it waits for a consumer; its context is closing."""
        with LOCK:
            if not self._parked or self._finished:
                return
            self._cancelled = True
            self._unpark()
        Producer.run(self)

    def _unpark(self) -> None:
        """Under LOCK: be under way again."""
        self._parked, self._counted = False, True
        self.scope.rejoin()

    def _leave(self) -> bool:
        """Under LOCK: be under way no more."""
        counted, self._counted = self._counted, False
        return counted and self.scope.leave()

    def _pause(self) -> bool:
        """Return whether to stop producing for now."""
        with LOCK:
            self._cancelled = self._cancelled or self.scope.cancelling
            if not self._cancelled:
                if len(self._buffer) < self._limit:
                    return False
                self._parked = True
                drained = self._leave()
        if self._cancelled:
            if self._generator is not None:
                self.context.run(self._generator.close)
            self._finish(TaskCancelledError(f"{self.label} was cancelled"))
        elif drained:
            self.scope.on_drained()
        return True

    def _push(self, item: LocalRef[Any]) -> None:
        with LOCK:
            self._buffer.append(item)
            watchers, self._watchers = self._watchers, None
        self._tell(watchers)

    def _finish(self, error: BaseException | None) -> None:
        with LOCK:
            if self._finished:
                return
            if error is not None:
                self._buffer.append(error_ref(error))
            self._finished, self._parked = True, False
            watchers, self._watchers = self._watchers, None
            drained = self._leave()
        self._generator = None
        self._tell(watchers)
        if drained:
            self.scope.on_drained()

    def _tell(self, watchers: list[Watcher] | None) -> None:
        for watcher in watchers or ():
            watcher.notify(self, [])


class LocalStream(ObjectStream[T_co]):
    """The consuming side of a stream."""

    __slots__ = ("__weakref__", "_producer")

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    @property
    def _state(self) -> bool:
        return self._producer._state

    def __next__(self) -> LocalRef[T_co]:
        producer = self._producer
        while True:
            producer.resume()
            if not producer._state:
                with blocking():
                    await_refs([producer], 1, None)
            item = producer.take()
            if item is not None:
                producer.resume()
                return cast("LocalRef[T_co]", item)
            if producer._finished:
                raise StopIteration

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_by_identity(self)

    def __repr__(self) -> str:
        return f"<stream of {self._producer.label}>"
