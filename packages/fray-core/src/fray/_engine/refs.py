"""References that settle once, and their watchers.

Nothing here takes a lock. A signal handler, a finalizer or another thread may run between any two
lines, so each step is one operation that the interpreter does not divide: deleting an attribute is
the right to settle (only one gets it), `dict.pop` takes the watchers, `list.remove` takes one back.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import Any, Protocol, TypeVar

from fray._contracts.refs import ObjectRef
from fray._contracts.task_runner import Ready, StoredError, StoredValue
from fray._engine.identity import keeping, reduce_by_identity
from fray._serialization.values import dumps
from fray._values.errors import TaskCancelledError

T_co = TypeVar("T_co", covariant=True)

PENDING, VALUE, ERROR = 0, 1, 2
NOTHING: Ready = ()


class EngineRef(ObjectRef[T_co]):
    """A value that is there or will be.

    Attributes:
        state: PENDING, VALUE or ERROR.
        content: Once settled, the value, a `StoredValue`, or a `StoredError`.
    """

    __slots__ = ("__weakref__", "_call", "content", "state")

    state: int
    content: Any

    def __init__(self, call: Any = None) -> None:
        self.state = PENDING
        self._call = call  # deleted when it settles

    @property
    def call(self) -> Any:
        """The call that will settle it; None where none will, or once it has."""
        return getattr(self, "_call", None)

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_by_identity(self)

    def __repr__(self) -> str:
        call = self.call
        label = f" of {call.label}" if call is not None else ""
        return f"<ref {('pending', 'ready', 'failed')[self.state]}{label}>"


class Watcher(Protocol):
    """Wants to know when a reference, or a stream, has something for it."""

    def notify(self, source: Any, ready: list[Any]) -> None:
        """Record the change, once; calls that become ready by it are added to `ready`. It must not block."""


watchers: dict[Any, list[Watcher]] = {}
"""The watchers of each reference; changed by `watch`, `unwatch` and `tell_watchers` only."""

failure_waiters: dict[Any, None] = {}
"""A waiter for many references, which is notified (`failed`) of every failure."""


def settle(ref: EngineRef[Any], state: int, content: Any) -> Ready | None:
    """Give a reference its outcome; return the calls that became ready, or None where it had one already."""
    try:
        del ref._call
    except AttributeError:
        return None
    ref.content = content
    ref.state = state
    if state == ERROR and failure_waiters:
        for waiter in list(failure_waiters):
            waiter.failed(ref)
    return tell_watchers(ref) if ref in watchers else NOTHING


def tell_watchers(source: Any) -> Ready:
    """Notify the watchers, and return the calls that became ready."""
    ready: list[Any] = []
    told = watchers.pop(source, None)
    while told:
        try:
            watcher = told.pop(0)
        except IndexError:  # it was taken back
            break
        watcher.notify(source, ready)
    return ready


def settle_value(ref: EngineRef[Any], value: Any) -> Ready:
    """Settle a promise with a value, or a `StoredValue`; a second outcome changes nothing."""
    return settle(ref, VALUE, value) or NOTHING


def settle_error(ref: EngineRef[Any], error: BaseException | StoredError) -> Ready:
    """Settle a promise with an exception, or a `StoredError`; a second outcome changes nothing."""
    return settle(ref, ERROR, stored_error(error)) or NOTHING


def watch(source: Any, watcher: Watcher) -> bool:
    """Register a watcher for when a source has something; False where it has already."""
    if type(source) is not EngineRef:  # a stream's: it may have something again and again
        return bool(source.watch(watcher))
    if source.state:
        return False
    told = watchers.setdefault(source, [])
    told.append(watcher)
    if not source.state:
        return True
    # It settled meanwhile. The thread that takes the watcher from the list notifies it: that one, or this.
    try:
        told.remove(watcher)
    except ValueError:
        return True
    if not told:  # else it has others, which are still to be notified
        watchers.pop(source, None)
    return False


def unwatch(source: Any, watcher: Watcher) -> None:
    """Take a watcher back from a source that has not notified it yet."""
    if type(source) is not EngineRef:
        source.unwatch(watcher)
        return
    told = watchers.get(source)
    if told is not None:
        try:
            told.remove(watcher)
        except ValueError:
            return


class LocalError(StoredError):
    """An exception of this process, with the traceback that it had when it was raised."""

    __slots__ = ("_error", "_traceback")

    def __init__(self, error: BaseException) -> None:
        self._error, self._traceback = error, error.__traceback__

    @property
    def cancelled(self) -> bool:
        return isinstance(self._error, TaskCancelledError)

    def load(self) -> BaseException:
        """Return it with that traceback: raising it at several places must not add up their frames."""
        return self._error.with_traceback(self._traceback)

    @property
    def traceback(self) -> TracebackType | None:
        return self._traceback


class PickledValue(StoredValue):
    """A value kept as its pickle: every reader gets a copy of its own, as across processes."""

    __slots__ = ("_data", "_kept")

    def __init__(self, value: Any, what: str) -> None:
        with keeping() as self._kept:
            self._data = dumps(value, what)

    def load(self) -> Any:
        """Return a fresh copy."""
        import pickle

        return pickle.loads(self._data)


def stored_error(error: BaseException | StoredError) -> StoredError:
    """Return an exception as a reference keeps it."""
    return error if isinstance(error, StoredError) else LocalError(error)


def value_ref(value: Any) -> EngineRef[Any]:
    """Return a reference that has its value, or `StoredValue`, already."""
    ref: EngineRef[Any] = EngineRef.__new__(EngineRef)
    ref.content = value
    ref.state = VALUE
    return ref


def error_ref(error: BaseException | StoredError) -> EngineRef[Any]:
    """Return a reference that has failed already."""
    ref: EngineRef[Any] = EngineRef.__new__(EngineRef)
    ref.content = stored_error(error)
    ref.state = ERROR
    return ref


def outcome(ref: EngineRef[Any]) -> Any:
    """Return a settled reference's value, or raise its exception with the task's own traceback."""
    content = ref.content
    if ref.state == VALUE:
        return content.load() if isinstance(content, StoredValue) else content
    error = content.load()
    try:
        raise error
    finally:
        del ref, content, error  # a frame in the traceback that holds the exception would be a cycle


def ref_of_future(
    future: "Future[Any]", start: Callable[[Sequence[Any]], None], kept: Callable[[Any], Any] | None = None
) -> EngineRef[Any]:
    """Return a reference that settles as a standard future does; `start` gets what is ready.

    Args:
        kept: Makes of the result what the reference keeps; it is called on the future's thread.
    """
    ref: EngineRef[Any] = EngineRef()

    def copy(done: "Future[Any]") -> None:
        try:
            value = done.result()
            ready = settle_value(ref, value if kept is None else kept(value))
        except CancelledError as error:
            ready = settle_error(ref, error)
        except BaseException as error:  # noqa: BLE001 - whatever it raised is what the task gets
            ready = settle_error(ref, error)
        if ready:
            start(ready)

    future.add_done_callback(copy)
    return ref
