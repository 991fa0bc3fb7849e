"""Waiting: for one reference, for all of a list, for some of many, or with a function that is called."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self

from fray._engine.locking import check_may_block
from fray._engine.refs import ERROR, EngineRef, failure_waiters, unwatch, watch
from fray._values.errors import GetTimeoutError


class Lender(Protocol):
    """What a thread that runs calls does when one of them is about to wait.

    A runner sets it with `set_lender`, in each of its threads.
    """

    def lend(self, timeout: float | None, sources: Sequence[Any]) -> None:
        """Free the thread's place for another call.

        Args:
            sources: References, or the calls of streams, that are waited for, where that is known.

        Raises:
            RuntimeError: The wait could never end.
        """

    def reclaim(self) -> None:
        """The wait is over."""


class _Thread(threading.local):
    lender: Lender | None = None


_thread = _Thread()


def set_lender(lender: Lender | None) -> Lender | None:
    """Set what this thread does before and after it waits, and return what it did before."""
    before, _thread.lender = _thread.lender, lender
    return before


class blocking:  # noqa: N801 - a context manager, named as it reads
    """Around a wait of this thread: lend its place to another call meanwhile.

    Raises:
        RuntimeError: The wait could never end.
    """

    __slots__ = ("_lender", "_sources", "_timeout")

    def __init__(self, timeout: float | None = None, sources: Sequence[Any] = ()) -> None:
        self._timeout, self._sources = timeout, sources

    def __enter__(self) -> None:
        if self._timeout is None:
            check_may_block()
        self._lender = lender = _thread.lender
        if lender is not None:
            lender.lend(self._timeout, self._sources)

    def __exit__(self, *exc_info: object) -> None:
        if self._lender is not None:
            self._lender.reclaim()


def seconds(timeout: float | None) -> float | None:
    """Return a timeout that a lock accepts: None for ever, never negative.

    Raises:
        ValueError: It is not a number.
    """
    if timeout is None or timeout == math.inf:
        return None
    if not isinstance(timeout, int | float) or math.isnan(timeout):
        raise ValueError(f"timeout must be a number of seconds or None, got {timeout!r}")
    return None if timeout > threading.TIMEOUT_MAX else max(timeout, 0)


_FIRST_LOOK_SECONDS, _LAST_LOOK_SECONDS = 0.02, 1.0


class patient:  # noqa: N801 - a context manager, named as it reads
    """Around a wait, possibly of a thread that no runner knows: a task may have started it, and wait for it.

    Every place of a runner may be taken by such tasks. Such a thread therefore looks now and then whether
    that is so, and frees a place until its own wait is over; see `RescuingRunner`.
    """

    __slots__ = ("_lent", "_rescue")

    def __init__(self, sources: Sequence[Any]) -> None:
        self._lent: Lender | None = None
        self._rescue: Callable[[], Lender | None] | None = None
        if _thread.lender is None and threading.get_ident() != threading.main_thread().ident:
            for source in sources:
                call = source.call if type(source) is EngineRef else source
                if call is not None:
                    self._rescue = getattr(call.runner, "rescue", None)
                    break

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._lent is not None:
            self._lent.reclaim()

    def block(self, wait: Callable[[float | None], bool], timeout: float | None) -> bool:
        """Return what `wait(seconds)` returns, which is called again and again; False on timeout."""
        pause = _FIRST_LOOK_SECONDS
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._rescue is not None and self._lent is None:
            left = math.inf if deadline is None else deadline - time.monotonic()
            if left <= pause:
                break
            if wait(pause):
                return True
            self._lent = self._rescue()
            pause = min(2 * pause, _LAST_LOOK_SECONDS)
        return wait(None if deadline is None else max(deadline - time.monotonic(), 0))


class Waiter:
    """Blocks a thread until enough of what it watches has happened."""

    __slots__ = ("_done", "_gate", "_needed", "_refs", "_wanted", "failure")

    def __init__(self, needed: int = 1, refs: Sequence[Any] = ()) -> None:
        self._needed, self._refs = needed, refs
        self._wanted: set[Any] | None = None
        self.failure = False  # of one of `refs`
        self._done: list[None] = []  # append and len are atomic, a counter would not be
        self._gate = threading.Lock()
        self._gate.acquire()

    def notify(self, source: Any, ready: list[Any]) -> None:
        """Count one more."""
        self._done.append(None)
        if len(self._done) >= self._needed:
            self.open()

    def failed(self, ref: Any) -> None:
        """Record a failure: one in the list that is waited for ends the wait."""
        if self._wanted is None:
            self._wanted = set(self._refs)
        if ref in self._wanted:
            self.failure = True
            self.open()

    def open(self) -> None:
        """Wake the thread."""
        try:
            self._gate.release()
        except RuntimeError:  # open already
            return

    def block(self, timeout: float | None) -> bool:
        """Wait; False where `timeout` seconds passed first. Ctrl-C interrupts."""
        return self._gate.acquire(timeout=-1 if timeout is None else timeout)


def await_one(source: Any, timeout: float | None = None) -> bool:
    """Block until a reference or a stream has something; False on timeout."""
    waiter = Waiter()
    in_time = False
    with blocking(timeout, (source,)):
        if not watch(source, waiter):
            return True
        try:
            with patient((source,)) as wait:
                in_time = wait.block(waiter.block, timeout)
        finally:
            if not in_time:
                unwatch(source, waiter)
    return in_time


def await_values(refs: Sequence[EngineRef[Any]], timeout: float | None) -> None:
    """Block until all have values, or one has failed.

    Only one is watched at a time, from the last: calls end about in the order of their making, so when
    that one is done most are, and a thousand references do not need a thousand watchers.

    Raises:
        GetTimeoutError: `timeout` seconds passed first.
    """
    timeout = seconds(timeout)
    deadline = None if timeout is None else time.monotonic() + timeout
    position = _last_pending(refs, len(refs) - 1)
    if position < 0:
        return
    waiter = Waiter(1, refs)
    failure_waiters[waiter] = None
    try:
        if any(ref.state == ERROR for ref in refs):
            return  # before anybody looked for failures
        with blocking(timeout, refs), patient((refs[position],)) as wait:
            while position >= 0 and not waiter.failure:
                left = None if deadline is None else max(deadline - time.monotonic(), 0)
                if not _block_for(refs[position], waiter, wait, left):
                    raise timed_out(timeout, refs)
                position = _last_pending(refs, position)
    finally:
        del failure_waiters[waiter]


def _last_pending(refs: Sequence[EngineRef[Any]], position: int) -> int:
    """Return the last position, up to the given one, that has nothing yet; -1 where there is none."""
    while position >= 0 and refs[position].state:
        position -= 1
    return position


def _block_for(ref: EngineRef[Any], waiter: Waiter, wait: patient, timeout: float | None) -> bool:
    if not watch(ref, waiter):
        return True
    try:
        return wait.block(waiter.block, timeout)
    finally:
        unwatch(ref, waiter)


def timed_out(timeout: float | None, sources: Sequence[Any]) -> GetTimeoutError:
    """Return the error of a `get` whose time was up."""
    late = [source for source in sources if not source.state]
    first = f", the first is {late[0]!r}" if late else ""
    return GetTimeoutError(
        f"no result within {timeout} s ({len(late)} of {len(sources)} still pending{first}); the tasks go on"
    )


def ready_positions(refs: Sequence[Any], needed: int) -> list[int]:
    """Return the positions of the first `needed` that are ready."""
    ready: list[int] = []
    try:
        for index, ref in enumerate(refs):
            if ref.state:
                ready.append(index)
                if len(ready) == needed:
                    break
    except AttributeError:
        raise ValueError(f"wait takes what put() and run() return, got {ref!r}") from None
    return ready


def sources_of(refs: Sequence[Any]) -> list[Any]:
    """Return what is watched for references and streams, each once; an item of each stream is requested."""
    sources: list[Any] = list(dict.fromkeys(ref if type(ref) is EngineRef else ref.call for ref in refs))
    for source in sources:
        if type(source) is not EngineRef:
            source.ask()
    return sources


def block_until_ready(refs: Sequence[Any], needed: int, timeout: float | None) -> list[int]:
    """Wait until `needed` are ready, or for `timeout` seconds, and return the ready positions."""
    timeout = seconds(timeout)
    deadline = None if timeout is None else time.monotonic() + timeout
    sources = sources_of(refs)
    enough = max(1, needed - (len(refs) - len(sources)))  # one that stands in the list twice counts twice
    while True:
        left = None if deadline is None else max(deadline - time.monotonic(), 0)
        in_time = _await_some(sources, min(enough, len(sources)), left)
        ready = ready_positions(refs, needed)
        if len(ready) == needed or not in_time:
            return ready
        sources = sources_of(refs)  # another consumer may have taken the item that was asked for
        enough = 1 + sum(map(_has_something, sources))


def _has_something(source: Any) -> bool:
    return bool(source.state if type(source) is EngineRef else source.has_item)


def _await_some(sources: Sequence[Any], needed: int, timeout: float | None) -> bool:
    waiter = Waiter(needed)
    watched = _watch_all(sources, waiter)
    try:
        with blocking(timeout, sources), patient(sources) as wait:
            return wait.block(waiter.block, timeout)
    finally:
        for source in watched:
            unwatch(source, waiter)


def _watch_all(sources: Sequence[Any], watcher: Any) -> list[Any]:
    watched = []
    for source in sources:
        if watch(source, watcher):
            watched.append(source)
        else:
            watcher.notify(source, [])
    return watched


class Watch:
    """Calls a function once when enough of what it watches has something; what `watch_for` returns."""

    def __init__(self, needed: int, act: Callable[[], None], stop_on_error: bool) -> None:
        self._needed, self._act, self._stop_on_error = needed, act, stop_on_error
        self._done: list[None] = []
        self._unmade = True
        self._watched: Sequence[Any] = ()

    def begin(self, sources: Sequence[Any]) -> None:
        """Register with each, which may call the function at once."""
        self._watched = sources
        for source in sources:
            if not watch(source, self):
                self.notify(source, [])
        if not hasattr(self, "_unmade"):
            self.stop()

    def notify(self, source: Any, ready: list[Any]) -> None:
        """Count one more."""
        self._done.append(None)
        if len(self._done) >= self._needed or (self._stop_on_error and source.state == ERROR):
            try:
                del self._unmade
            except AttributeError:
                return
            self._act()

    def stop(self) -> None:
        """Watch no more."""
        watched, self._watched = self._watched, ()
        for source in watched:
            unwatch(source, self)


def watch_for(
    sources: Sequence[Any], needed: int, act: Callable[[], None], *, stop_on_error: bool = False
) -> Watch:
    """Call `act` once when `needed` of the references and streams have something, or one has failed.

    `act` is called on the thread that settles the last of them, or here where they have it already; no
    lock is held, and it must not block. `sources_of` gives the sources of references.
    """
    made = Watch(needed, act, stop_on_error)
    made.begin(sources)
    return made
