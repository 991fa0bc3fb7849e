"""Threads that run jobs; one that blocks on a result lends its place to another.

    start -> runs jobs -> queue empty: parks -> woken by submit -> runs jobs ...
             |            queue empty, enough are parked: ends
             a job blocks in get(): its place is free for another thread, which is
             how tasks nest to any depth on a pool of any size

`_active` counts threads that run a job or are about to; it exceeds `_size` only while threads that
had blocked come back.
"""

import threading
from abc import ABC, abstractmethod
from collections import deque
from types import TracebackType
from typing import Any, Protocol


class Job(Protocol):
    """Something to run once; it keeps its own errors."""

    def run(self) -> None: ...


class WorkerPool(ABC):
    """Where the ready tasks of an `InProcessContext` run; a backend of its own kind subclasses this.

    `submit` is called from any thread. A job that waits for another occupies its thread meanwhile, so
    that a pool of a fixed size must run more jobs than that, or nested tasks never end.
    """

    inline = False
    """Whether a job runs inside the call that submits it."""

    @abstractmethod
    def submit(self, job: Job) -> None:
        """Let `job.run()` be called soon, once, in some thread of this process; it raises nothing."""

    def start(self, job: Job) -> None:
        """Do the same for a job that was made just now, in the thread that made it."""
        self.submit(job)

    @abstractmethod
    def close(self, *, wait: bool = False) -> None:
        """Let the threads end when no job is left; with `wait`, block until they have.

        It is called several times, also from a job of this pool, and only once all jobs were submitted.
        """


class _Local(threading.local):
    pool: "ThreadPool | None" = None
    task: Any = None


_local = _Local()


def current_task() -> Any:
    """Return the task that this thread runs, or None."""
    return _local.task


def set_current_task(task: Any) -> Any:
    """Say which task this thread runs from now on, and return the one before."""
    before, _local.task = _local.task, task
    return before


class ThreadPool(WorkerPool):
    """Up to `size` threads that run jobs first in, first out.

    Args:
        lends: Whether a thread that blocks frees its place. Not for actors: one call at a time
            means that no other runs while it waits.
    """

    def __init__(self, size: int, name: str, *, lends: bool = True) -> None:
        self._size, self._name, self._lends = size, name, lends
        self._lock = threading.Lock()
        self._queue: deque[Job] = deque()
        self._parked: list[threading.Lock] = []
        self._threads: set[threading.Thread] = set()
        self._active = 0
        self._closed = False

    def submit(self, job: Job) -> None:
        """Queue a job and return at once."""
        with self._lock:
            self._queue.append(job)
            if self._active >= self._size:
                return
            thread = self._claim()
        self._go(thread)

    start = submit  # no second call for what is the common case

    def submit_first(self, job: Job) -> None:
        """Queue a job before all others."""
        with self._lock:
            self._queue.appendleft(job)
            threads = self._claim_some(1)
        self._go(*threads)

    def resize(self, size: int) -> None:
        """Change how many jobs run at once; those that run are not stopped."""
        with self._lock:
            self._size = size
            threads = self._claim_some(len(self._queue))
        self._go(*threads)

    def drain(self) -> list[Job]:
        """Take back every job that has not started."""
        with self._lock:
            jobs = list(self._queue)
            self._queue.clear()
        return jobs

    def close(self, *, wait: bool = False) -> None:
        """Let every thread end once the queue is empty; with `wait`, block until they have."""
        with self._lock:
            self._closed = True
            parked, self._parked = self._parked, []
            self._active += len(parked)
            threads = list(self._threads)
        self._go(*parked)
        if wait:
            for thread in threads:
                if thread is not threading.current_thread():
                    thread.join()

    def _claim(self) -> "threading.Thread | threading.Lock":
        """Under the lock: count one more active thread, and return it for `_go`."""
        self._active += 1
        if self._parked:
            return self._parked.pop()
        # Daemonic: at exit it is the context that waits for the work; idle threads hold nothing up.
        thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        self._threads.add(thread)
        return thread

    def _claim_some(self, wanted: int) -> "list[threading.Thread | threading.Lock]":
        return [self._claim() for _ in range(min(wanted, self._size - self._active))]

    def _go(self, *threads: "threading.Thread | threading.Lock") -> None:
        """Outside the lock: start the new threads, wake the parked ones."""
        for thread in threads:
            if not isinstance(thread, threading.Thread):
                thread.release()
                continue
            try:
                thread.start()
            except RuntimeError:  # the system's limit on threads: the ones that run go on with the queue
                with self._lock:
                    self._active -= 1
                    self._threads.discard(thread)
                    if not self._active:
                        raise

    def _work(self) -> None:
        _local.pool = self
        gate = threading.Lock()
        gate.acquire()
        while True:
            with self._lock:
                if self._queue and self._active <= self._size:
                    job = self._queue.popleft()
                else:
                    self._active -= 1
                    if self._closed or len(self._parked) >= self._size:
                        self._threads.discard(threading.current_thread())
                        return
                    self._parked.append(gate)
                    job = None
            if job is None:
                gate.acquire()
            else:
                job.run()
                job = None  # its arguments and its result are not kept alive by an idle thread

    def _block(self) -> None:
        with self._lock:
            self._active -= 1
            threads = self._claim_some(len(self._queue))
        self._go(*threads)

    def _unblock(self) -> None:
        with self._lock:
            self._active += 1


class blocking:  # noqa: N801 - a context manager, named as it reads
    """Lend this thread's place in its pool to another while the block waits for something."""

    __slots__ = ("_pool",)

    def __enter__(self) -> None:
        pool = _local.pool
        self._pool = pool if pool is not None and pool._lends else None
        if self._pool is not None:
            self._pool._block()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool._unblock()
