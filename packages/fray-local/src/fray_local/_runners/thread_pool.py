"""A pool of threads that run calls; one that blocks on a result lends its place to another."""

import sys
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from fray.backend import LOCK, NoThreadError, Ready, dispatch, guarded, set_lender, start_thread


class _Starting(threading.local):
    pools: "list[ThreadPool] | None" = None  # that need a thread when the one that is being started has


_starting = _Starting()


class ThreadPool:
    """Up to `size` threads that run calls first in, first out.

        starts -> runs calls -> queue empty: idle -> takes the next call ...
                     |   too many run, because one that had blocked came back: parks, or ends
                     a call blocks in get(): its place is free for another thread, which is
                     how tasks nest to any depth on a pool of any size

    The queue needs no lock; putting a call into it is all that submitting one costs while `size` threads
    run or are idle.

    Args:
        lends: Whether a thread that blocks frees its place. Not for actors: one call at a time
            means that no other runs while it waits.
        run: Runs one call, keeps its errors, and returns what became ready.
    """

    def __init__(self, size: int, name: str, run: Callable[[Any], Ready], *, lends: bool = True) -> None:
        self.size = size
        self.running = 0  # threads that are not blocked: they run a call, or are idle
        self._name, self._run, self._lends = name, run, lends
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self.put = self._queue.put
        # The engine's: a finalizer may submit while its own thread is in here, but not wait.
        self._lock = LOCK
        self._idle = 0
        self._parked: list[_Parked] = []
        self._threads: set[threading.Thread] = set()
        self._starting: set[threading.Thread] = set()  # of these, the ones that have not begun
        self._lent: set[threading.Thread] = set()  # blocked; their places were freed by `rescue`
        self._closed = False

    def submit(self, calls: Sequence[Any]) -> None:
        """Queue calls and return at once."""
        for call in calls:
            self.put(call)
        # A thread that has just woken may still be counted as idle: it looks for more itself then.
        if self.running < self.size and self._idle < self._queue.qsize():
            self.grow()

    def grow(self) -> None:
        """Let as many more threads run as are needed and allowed."""
        if _starting.pools is not None:  # a finalizer runs while this thread starts another
            _starting.pools.append(self)
            return
        later: list[ThreadPool] = []
        refused = False
        # A thread is counted before it runs, and `start` holds locks of `threading` that the other threads
        # need: a finalizer that waited in here would wait for this very thread. The guard is the first to
        # come and the last to go.
        with guarded():
            try:
                _starting.pools = later
                while self._start_one():
                    pass
            except NoThreadError:
                refused = True
            finally:
                _starting.pools = None
        # Where none can be had, and all are blocked, the last one to block runs what is queued.
        if refused and self.running <= 0 and not self._closed:
            self._run_here()
        for pool in later:
            pool.grow()

    def _start_one(self) -> bool:
        """Start, or wake, one more thread; False where none is needed.

        Raises:
            NoThreadError: None can be had.
        """
        # Daemonic: at exit it is the context that waits for the work; idle threads hold nothing up.
        thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        try:
            with self._lock:
                if self.running >= self.size or self._idle >= self._queue.qsize() or self._closed:
                    return False
                self.running += 1
                if self._parked:
                    self._parked.pop().wake()
                    return True
                self._starting.add(thread)
                self._threads.add(thread)  # before it runs
            start_thread(thread)
        except BaseException:  # there can be none, or Ctrl-C, and then it may run nevertheless
            with self._lock:
                if thread in self._starting:
                    self._starting.discard(thread)
                    self._threads.discard(thread)
                    self.running -= 1
            raise
        return True

    def _run_here(self) -> None:
        """Run what is queued on this thread, which is one of the pool's meanwhile."""
        before = set_lender(self) if self._lends else None
        with self._lock:
            self.running += 1
        try:
            while self._queue.qsize():
                try:
                    call = self._queue.get(block=False)
                except Empty:  # another took it
                    return
                if call is None:  # the pool is closed meanwhile: it is for the threads
                    self.put(None)
                    return
                dispatch(self._run(call))
        finally:
            with self._lock:
                self.running -= 1
            if self._lends:
                set_lender(before)

    def _work(self) -> None:
        with self._lock:
            me = threading.current_thread()
            if me not in self._starting:  # who started it was interrupted, and does not count it
                return
            self._starting.discard(me)
        if self._lends:
            set_lender(self)
        get, waiting, run = self._queue.get, self._queue.qsize, self._run
        while True:
            # Where another takes the last one first, this thread waits without being counted as idle.
            call = get() if waiting() else self._await_call()
            if call is None:
                self._leave()
                return
            ready = run(call)
            if ready:
                dispatch(ready)
            call, ready = None, ()  # its arguments and its result are not kept alive by an idle thread
            if self.running > self.size and not self._make_room():
                return

    def _await_call(self) -> Any:
        if self._parked:  # one idle thread shows that no more are needed
            with self._lock:
                spare, self._parked = self._parked, []
            for parked in spare:
                parked.wake(end=True)
        # No lock, which the submitting thread would wait for: the interpreter switches threads at calls
        # and jumps, and there is none inside `+=` of a number.
        self._idle += 1
        call = self._queue.get()
        self._idle -= 1
        if self.running < self.size and self._queue.qsize():
            self.grow()
        return call

    def _make_room(self) -> bool:
        """Park because too many threads run; False where this one is to end."""
        with self._lock:
            if self.running <= self.size:
                return True
            self.running -= 1
            end = self._closed or self._idle > 0 or len(self._parked) >= self.size
            if not end:
                parked = _Parked()
                self._parked.append(parked)
        if not end:
            end = parked.wait()
        if end:
            self._threads.discard(threading.current_thread())
        return not end

    def _leave(self) -> None:
        self.put(None)  # for the next one
        with self._lock:
            self.running -= 1
            self._threads.discard(threading.current_thread())

    def resize(self, size: int) -> None:
        """Change how many calls run at once."""
        self.size = size
        self.grow()

    def lend(self, timeout: float | None, sources: Sequence[Any]) -> None:
        """Let another call have the place of this thread, which is about to wait."""
        with self._lock:
            self.running -= 1
        if self._queue.qsize():
            self.grow()

    def reclaim(self) -> None:
        """Take the place back, though that be one too many for a while."""
        with self._lock:
            self.running += 1

    def rescue(self) -> "_LentPlace | None":
        """Free a place where one is taken by a call that waits for a thread of its own."""
        if self.running < self.size or not self._queue.qsize():
            return None
        frames = sys._current_frames()
        for thread in list(self._threads):
            frame = frames.get(thread.ident or 0)
            if frame is not None and frame.f_code in _WAITS:
                with self._lock:
                    if thread in self._lent:  # to another that waits: there is no second place to free
                        continue
                    self._lent.add(thread)
                self.lend(None, ())
                return _LentPlace(self, thread)
        return None

    def restore(self, thread: threading.Thread) -> None:
        """Count a blocked thread again: what its place was lent for is done."""
        with self._lock:
            self._lent.discard(thread)
            self.running += 1

    def close(self, *, wait: bool) -> None:
        """Let every thread end after what is queued; with `wait`, block until they have."""
        with self._lock:
            if not self._closed:
                self.put(None)
                self._closed = True
            spare, self._parked = self._parked, []
            threads = list(self._threads)
        for parked in spare:
            parked.wake(end=True)
        if wait:
            for thread in threads:
                if thread is not threading.current_thread() and thread.ident is not None:
                    thread.join()


_WAITS = frozenset(
    {
        threading.Thread.join.__code__,
        threading.Condition.wait.__code__,
        # Before Python 3.13 this is where `join` waits.
        getattr(threading.Thread, "_wait_for_tstate_lock", threading.Thread.join).__code__,
    }
)
"""What runs on top in a thread that waits for another one."""


class _LentPlace:
    """The place of a thread that waits for another, which waits for a call: free until that call is done."""

    def __init__(self, pool: ThreadPool, thread: threading.Thread) -> None:
        self._pool, self._thread = pool, thread

    def reclaim(self) -> None:
        """That wait is over."""
        self._pool.restore(self._thread)


class _Parked:
    """A thread that waits until another one blocks."""

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()
        self._end = False

    def wait(self) -> bool:
        """Block; return whether the thread is to end."""
        self._gate.acquire()
        return self._end

    def wake(self, *, end: bool = False) -> None:
        """Resume it, or let it end."""
        self._end = end
        self._gate.release()
