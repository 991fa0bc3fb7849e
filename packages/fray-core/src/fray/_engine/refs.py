"""References whose values live in this process, and what waits for them.

A reference settles once: with a value, or with an exception. Whatever waits for it (a dependent
task, a blocked `get`, a future) is a watcher; watchers are told after the lock is released, from a
worklist instead of recursion, so that a chain of 10,000 dependents unwinds flat.
"""

import os
import pickle
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from types import TracebackType
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from fray._serialization.values import dumps
from fray._values.errors import GetTimeoutError, WrongProcessError
from fray.job import ObjectRef

T_co = TypeVar("T_co", covariant=True)

PENDING, VALUE, ERROR = 0, 1, 2
Settlement = tuple["LocalRef[Any]", int, Any]

# One lock for all references of the process: it is held for a few assignments at a time, and
# references of two contexts may wait for one another.
LOCK = threading.Lock()


class Packed:
    """A value kept as its pickle: every reader gets a copy of its own, as across processes."""

    __slots__ = ("_data", "_kept")

    def __init__(self, value: Any, what: str) -> None:
        with keeping() as self._kept:
            self._data = dumps(value, what)

    def load(self) -> Any:
        """Return a fresh copy."""
        return pickle.loads(self._data)


class Watcher(Protocol):
    """Wants to know when a reference, or a stream, has something for it."""

    def notify(self, source: Any, worklist: list[Settlement]) -> None:
        """Take note; what settles because of it goes to the worklist. Called without the lock."""


class LocalRef(ObjectRef[T_co]):
    """A value of this process that is there or will be."""

    __slots__ = ("__weakref__", "_state", "_task", "_value", "_watchers")

    def __init__(self, task: Any = None) -> None:
        self._state = PENDING
        self._value: Any = None  # ERROR: the exception and the traceback that it had when it was raised
        self._task = task
        self._watchers: list[Watcher] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_by_identity(self)

    def __repr__(self) -> str:
        label = f" of {self._task.label}" if self._task is not None else ""
        return f"<ref {('pending', 'ready', 'failed')[self._state]}{label}>"


def value_ref(value: Any) -> LocalRef[Any]:
    """Return a reference that has its value already."""
    ref: LocalRef[Any] = LocalRef()
    ref._state, ref._value = VALUE, value
    return ref


def error_ref(error: BaseException) -> LocalRef[Any]:
    """Return a reference that has failed already."""
    ref: LocalRef[Any] = LocalRef()
    ref._state, ref._value = ERROR, failure(error)
    return ref


def failure(error: BaseException) -> tuple[BaseException, TracebackType | None]:
    """Return what an ERROR reference holds."""
    return error, error.__traceback__


def settle(ref: LocalRef[Any], state: int, value: Any) -> bool:
    """Give a reference its outcome and tell its watchers; False where it had one already."""
    worklist: list[Settlement] = []
    settled = _settle_one(ref, state, value, worklist)
    while worklist:
        _settle_one(*worklist.pop(), worklist)
    return settled


def _settle_one(ref: LocalRef[Any], state: int, value: Any, worklist: list[Settlement]) -> bool:
    with LOCK:
        if ref._state:
            return False
        ref._value = value
        ref._state = state
        task, ref._task = ref._task, None
        watchers, ref._watchers = ref._watchers, None
        drained = task is not None and task.scope.leave()
    if watchers:
        for watcher in watchers:
            watcher.notify(ref, worklist)
    if drained:
        task.scope.on_drained()
    return True


def watch(source: Any, watcher: Watcher) -> bool:
    """Register a watcher for the next thing that happens; False where it has happened already."""
    with LOCK:
        if source._state:
            return False
        if source._watchers is None:
            source._watchers = [watcher]
        else:
            source._watchers.append(watcher)
        return True


def unwatch(sources: Iterable[Any], watcher: Watcher) -> None:
    """Take a watcher back from whatever has not told it yet."""
    with LOCK:
        for source in sources:
            if source._watchers and watcher in source._watchers:
                source._watchers.remove(watcher)


def outcome(ref: LocalRef[Any]) -> Any:
    """Return a settled reference's value, or raise its exception with the task's own traceback."""
    if ref._state == VALUE:
        value = ref._value
        return value.load() if isinstance(value, Packed) else value
    error, traceback = ref._value
    try:
        # The traceback as it was: raising one exception at several places must not add up their frames.
        raise error.with_traceback(traceback)
    finally:
        del ref, error, traceback  # a frame in the traceback that holds the exception would be a cycle


class Waiter:
    """Blocks a thread until enough of what it watches has happened."""

    __slots__ = ("_done", "_gate", "_needed", "_stop_on_error")

    def __init__(self, needed: int, *, stop_on_error: bool = False) -> None:
        self._needed, self._stop_on_error = needed, stop_on_error
        self._done: list[Any] = []  # append and len are atomic, a counter would not be
        self._gate = threading.Lock()
        self._gate.acquire()

    def notify(self, source: Any, worklist: list[Settlement]) -> None:
        self._done.append(source)
        if len(self._done) >= self._needed or (self._stop_on_error and source._state == ERROR):
            try:
                self._gate.release()
            except RuntimeError:  # open already
                return

    def block(self, timeout: float | None) -> bool:
        """Wait; False where `timeout` seconds passed first. Ctrl-C interrupts."""
        seconds = -1 if timeout is None else min(max(timeout, 0), threading.TIMEOUT_MAX)
        return self._gate.acquire(timeout=seconds)


def await_refs(
    sources: Sequence[Any], needed: int, timeout: float | None, *, stop_on_error: bool = False
) -> bool:
    """Block until `needed` of the sources have something; False on timeout. All must be distinct."""
    waiter = Waiter(needed, stop_on_error=stop_on_error)
    watched = []
    for source in sources:
        if watch(source, waiter):
            watched.append(source)
        else:
            waiter.notify(source, [])
    try:
        return waiter.block(timeout)
    finally:
        unwatch(watched, waiter)


def timed_out(timeout: float | None, sources: Sequence[Any]) -> GetTimeoutError:
    """Return the error of a `get` whose time was up."""
    late = [source for source in sources if not source._state]
    first = f", the first is {late[0]!r}" if late else ""
    return GetTimeoutError(
        f"no result within {timeout} s ({len(late)} of {len(sources)} still pending{first}); the tasks go on"
    )


class keeping:  # noqa: N801 - a context manager, named as it reads
    """Collect what is pickled by identity in the block: whoever keeps the pickle must keep that alive."""

    __slots__ = ("_outer",)

    def __enter__(self) -> list[Any]:
        self._outer, _pickling.kept = _pickling.kept, []
        return _pickling.kept

    def __exit__(self, *exc_info: object) -> None:
        _pickling.kept = self._outer


class _Pickling(threading.local):
    kept: list[Any] | None = None


_pickling = _Pickling()
_PROCESS = os.urandom(16).hex()
_ids = count()
_by_id: "WeakValueDictionary[Any, Any]" = WeakValueDictionary()
_keys: "WeakKeyDictionary[Any, int]" = WeakKeyDictionary()  # of what was pickled once: it keeps its name

# In a worker process: finds what lives in the process that the worker belongs to.
find_elsewhere: Callable[[str, int, Any, str], Any] | None = None


def reduce_by_identity(thing: Any) -> tuple[Any, ...]:
    """Pickle something as itself: it comes back as the same object, in this process only."""
    key = _keys.get(thing)
    if key is None:
        key = next(_ids)
        _by_id[key] = thing  # before anybody can have the key; of two threads one has made a name for nothing
        key = _keys.setdefault(thing, key)
    note_kept(thing)
    return _find, (_PROCESS, os.getpid(), key, type(thing).__name__)


def note_kept(thing: Any) -> None:
    """Tell the `keeping` around, if any, that what is being pickled only names this thing."""
    if _pickling.kept is not None:
        _pickling.kept.append(thing)


def _find(process: str, pid: int, key: Any, kind: str) -> Any:
    if process != _PROCESS or pid != os.getpid():
        if find_elsewhere is not None:
            return find_elsewhere(process, pid, key, kind)
        raise WrongProcessError(
            f"a {kind} of process {pid} arrived in process {os.getpid()}; what one process holds in memory "
            "does not travel: make the context in the job (get_job_context()), or use 'process' or 'ray'"
        )
    try:
        return _by_id[key]
    except KeyError:
        raise WrongProcessError(f"a {kind} was unpickled after the last reference to it was gone") from None
