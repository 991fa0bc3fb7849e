"""Pools that run their jobs on the thread that submits them: what makes a context synchronous."""

import threading
from collections import deque
from dataclasses import dataclass, field

from fray._engine.pool import Job, WorkerPool


@dataclass
class _Thread(threading.local):
    late: deque[Job] | None = None  # jobs whose arguments arrived while another job ran here
    mailboxes: list["InlineMailbox"] = field(default_factory=list)  # actors that this thread is inside of


_thread = _Thread()


def inside_an_actor() -> bool:
    """Return whether this thread runs an actor's method inline, which the actor's other calls wait for."""
    return bool(_thread.mailboxes)


class InlinePool(WorkerPool):
    """Runs a new job at once, inside its caller."""

    inline = True

    def start(self, job: Job) -> None:
        """Run it now."""
        outer, _thread.late = _thread.late, deque()
        try:
            job.run()
            self._run_late(_thread.late)
        finally:
            _thread.late = outer

    def submit(self, job: Job) -> None:
        """Run it, and then what became ready meanwhile: a chain of dependents runs flat, not nested."""
        if _thread.late is not None:
            _thread.late.append(job)
            return
        late = _thread.late = deque([job])
        try:
            self._run_late(late)
        finally:
            _thread.late = None

    def _run_late(self, late: deque[Job]) -> None:
        while late:
            late.popleft().run()

    def close(self, *, wait: bool = False) -> None:
        """Do nothing: there is no thread to end."""


class InlineMailbox:
    """One actor's calls, one at a time, on whichever thread finds it idle.

    A call made from inside the actor waits for the one that makes it, as on every other backend.
    """

    inline = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[Job] = deque()
        self._open = self._busy = False

    def submit(self, job: Job) -> None:
        """Queue it, and run what is queued unless somebody does."""
        with self._lock:
            self._queue.append(job)
        self._run()

    start = submit

    def submit_first(self, job: Job) -> None:
        """Queue it before all others."""
        with self._lock:
            self._queue.appendleft(job)
        self._run()

    def resize(self, size: int) -> None:
        """Open for calls; inline, one runs at a time whatever the size."""
        with self._lock:
            self._open = size > 0
        self._run()

    def drain(self) -> list[Job]:
        """Take back what has not started."""
        with self._lock:
            jobs = list(self._queue)
            self._queue.clear()
        return jobs

    def close(self, *, wait: bool = False) -> None:
        """Do nothing: there is no thread to end."""

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._busy or not self._open or not self._queue:
                    return
                self._busy = True
                job = self._queue.popleft()
            _thread.mailboxes.append(self)
            try:
                job.run()
            finally:
                _thread.mailboxes.pop()
                with self._lock:
                    self._busy = False
