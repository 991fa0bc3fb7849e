"""A worker process: one thread listens to the owner, the main thread runs what arrives, in order.

The listener never runs a task, so that a worker hears of a cancellation, gives back what it has not
started, and gets its answers, whatever its tasks do.
"""

import atexit
import contextlib
import mmap
import os
import queue
import signal
import socket
import sys
import threading
import time
import types
from contextvars import copy_context
from typing import Any

from fray import TaskCancelledError
from fray._engine.refs import ERROR, VALUE
from fray._engine.tasks import strip_frames
from fray.backend import current_context_var, pack_exception
from fray_local._process.protocol.serialization import pack
from fray_local._process.protocol.values import Blob, Budget
from fray_local._process.worker import output
from fray_local._process.worker.connections import Connection, accept_all
from fray_local._process.worker.context import WorkerContext
from fray_local._process.worker.incoming_calls import Job
from fray_local._process.worker.proxies import Owner

END = 3  # beside VALUE and ERROR: a stream has no more items
_INTERRUPT = signal.SIGUSR1
_RETRY_SECONDS = 0.02
_DONE = object()


class TaskInterrupted(KeyboardInterrupt):
    """Raised inside a task that was cancelled; `except Exception` does not catch it."""


def work(
    number: int,
    settings: dict[str, Any],
    sock: int,
    stdout: int,
    stderr: int,
    mark: int,
    door: int | None = None,
) -> None:
    """Be a worker until the owner says that there is nothing more to do, or is gone."""
    output.redirect(stdout, stderr)
    take_over(settings)
    worker = Worker(mark, settings["concurrency"])
    owner = Connection(worker, socket.socket(fileno=sock), owner=True)
    worker.context = WorkerContext(number, Owner(*settings["owner"]), owner.sender)
    worker.run([owner], None if door is None else socket.socket(fileno=door))


def take_over(settings: dict[str, Any]) -> None:
    """Be where the owner is: its variables, its path, its directory."""
    os.environ.clear()
    os.environ.update(settings["env"])
    sys.path[:] = settings["path"]
    with contextlib.suppress(OSError):
        os.chdir(settings["cwd"])


class Worker:
    """Runs jobs, one at a time in each of its threads.

    Args:
        mark: A file that says which job was started last, for those who find the process dead.
        concurrency: Threads that run jobs; more than one for actors that ask for it.
    """

    def __init__(self, mark: int | None, concurrency: int) -> None:
        self.context: WorkerContext | None = None
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.lock = threading.Lock()  # of what listeners and runners change in a job
        self._mark = None if mark is None else mmap.mmap(mark, 8)
        self._concurrency = concurrency
        self._connections: list[Connection] = []
        self._running: dict[int, Job] = {}  # by thread
        self._instance: Any = None
        self._constructed = threading.Event()
        self._budget = Budget()

    def run(self, connections: list[Connection], door: socket.socket | None) -> None:
        """Run jobs until told to stop; then close what is suspended."""
        signal.signal(_INTERRUPT, self._interrupted)
        self._connections = connections
        acts: list[tuple[Any, tuple[Any, ...]]] = [(connection.listen, ()) for connection in connections]
        acts += [(self._run_jobs, ())] * (self._concurrency - 1)
        if door is not None:
            acts.append((accept_all, (self, door)))
        for act, args in acts:
            threading.Thread(target=act, args=args, daemon=True).start()
        self._run_jobs()
        self._leave()

    def finish(self) -> None:
        """Stop after the jobs that are there."""
        for _ in range(self._concurrency):
            self.jobs.put(None)

    def _leave(self) -> None:
        for job in [job for connection in self._connections for job in connection.open.values()]:
            if job.generator is not None:
                with contextlib.suppress(BaseException):
                    job.context.run(job.generator.close)
        self._instance = None
        atexit._run_exitfuncs()
        output.flush()

    # Interrupting.

    def runs(self, job: Job) -> bool:
        """Whether the main thread, the only one that can be interrupted, runs the job."""
        return self._running.get(threading.main_thread().ident or 0) is job

    def interrupt(self, job: Job) -> None:
        """Signal the main thread until it is where it can be interrupted, or the job has ended."""
        while self.runs(job) and not job.interrupted:
            signal.pthread_kill(threading.main_thread().ident or 0, _INTERRUPT)
            time.sleep(_RETRY_SECONDS)

    def _interrupted(self, number: int, frame: Any) -> None:
        me = threading.get_ident()
        job = self._running.get(me)
        if job is None or not job.cancelled or not job.in_program or job.interrupted:
            return
        senders = [job.connection.sender, *(connection.sender for connection in self._connections)]
        if all(sender.sending != me for sender in senders):  # half a message would end the connection
            job.interrupted = True
            raise TaskInterrupted("the task was cancelled")

    # The threads that run jobs.

    def _run_jobs(self) -> None:
        context = self.context
        if context is not None:
            current_context_var.set(context)
        me, jobs = threading.get_ident(), self.jobs
        while True:
            if context is not None and context.held:
                context.flush()
            job = jobs.get()
            if job is None:
                return
            self._running[me] = job
            if self._mark is not None:
                self._mark[:] = job.number.to_bytes(8, "little")
            if job.credits is None:
                self._run_task(job)
            else:
                self._run_steps(job)
            self._running.pop(me, None)
            job = None

    def _run_task(self, job: Job) -> None:
        if job.cancelled and job.method != "":  # an actor that is not constructed would answer nobody
            self._finish(job, ERROR, _packed_error(TaskCancelledError("cancelled before it ran")), 0.0)
            return
        started = time.perf_counter()
        state = VALUE
        try:
            job.in_program = True
            blob = self._pack(job, self._call(job))
            job.in_program = False
        except BaseException as error:  # noqa: BLE001 - whatever the task raised is its result
            job.in_program = False
            state, blob = ERROR, _packed_error(error)
        self._finish(job, state, blob, time.perf_counter() - started)

    def _call(self, job: Job) -> Any:
        if job.method == "":
            return self._construct(job)
        fn, args, kwargs = self._load(job)
        value = copy_context().run(fn, *args, **kwargs)
        if type(value) is types.CoroutineType:
            import asyncio  # see Task.run

            value = asyncio.run(value)
        return value

    def _construct(self, job: Job) -> None:
        try:
            fn, args, kwargs = job.load(None)
            self._instance = copy_context().run(fn, *args, **kwargs)
        finally:
            self._constructed.set()

    def _load(self, job: Job) -> tuple[Any, list[Any], dict[str, Any]]:
        if job.method is not None and not self._constructed.is_set():
            self._constructed.wait()  # of several threads, one runs the constructor
        return job.load(self._instance)

    def _run_steps(self, job: Job) -> None:
        """Yield items for as long as the consumer wants some, then suspend."""
        try:
            while self._wants_more(job):
                blob = self._next_item(job)
                if blob is None:
                    break
                job.connection.send("item", job.number, VALUE, blob)
            else:
                if not job.cancelled:
                    return
                if job.generator is not None:
                    job.context.run(job.generator.close)
            state, last = END, Blob(b"")
        except BaseException as error:  # noqa: BLE001 - it comes out at this item
            job.in_program = False
            state, last = ERROR, _packed_error(error)
        job.generator = None
        self._finish(job, state, last, 0.0)

    def _next_item(self, job: Job) -> Blob | None:
        job.in_program = True
        if job.generator is None:
            fn, args, kwargs = self._load(job)
            job.context = copy_context()
            job.generator = job.context.run(fn, *args, **kwargs)
        value = job.context.run(next, job.generator, _DONE)
        blob = None if value is _DONE else self._pack(job, value)
        job.in_program = False
        if blob is not None:
            with self.lock:
                job.credits = (job.credits or 0) - 1
        return blob

    def _wants_more(self, job: Job) -> bool:
        with self.lock:
            job.suspended = not job.credits and not job.cancelled
            return bool(job.credits) and not job.cancelled

    def _pack(self, job: Job, value: Any) -> Blob:
        return pack(value, f"the result of {job.label()}", self._budget)

    def _finish(self, job: Job, state: int, blob: Blob, seconds: float) -> None:
        job.connection.open.pop(job.number, None)
        job.clear()
        job.connection.send("done", job.number, state, blob, seconds)


def _packed_error(error: BaseException) -> Blob:
    return Blob(pack_exception(strip_frames(error, __file__)))
