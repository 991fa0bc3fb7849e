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
from fray_local._process.worker.incoming_calls import IncomingCall
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
    listener: int | None = None,
) -> None:
    """Be a worker until the owner says that there is nothing more to do, or is gone."""
    output.redirect(stdout, stderr)
    take_over(settings)
    worker = Worker(mark, settings["concurrency"])
    owner = Connection(worker, socket.socket(fileno=sock), owner=True)
    worker.context = WorkerContext(number, Owner(*settings["owner"]), owner.sender)
    worker.run([owner], None if listener is None else socket.socket(fileno=listener))


def take_over(settings: dict[str, Any]) -> None:
    """Be where the owner is: its variables, its path, its directory."""
    os.environ.clear()
    os.environ.update(settings["env"])
    sys.path[:] = settings["path"]
    with contextlib.suppress(OSError):
        os.chdir(settings["cwd"])


class Worker:
    """Runs calls, one at a time in each of its threads.

    Args:
        mark: A file that says which call was started last, for those who find the process dead.
        concurrency: Threads that run calls; more than one for actors that ask for it.
    """

    def __init__(self, mark: int | None, concurrency: int) -> None:
        self.context: WorkerContext | None = None
        self.calls: queue.SimpleQueue[IncomingCall | None] = queue.SimpleQueue()
        self.lock = threading.Lock()  # of what listeners and runners change in a call
        self._mark = None if mark is None else mmap.mmap(mark, 8)
        self._concurrency = concurrency
        self._connections: list[Connection] = []
        self._running: dict[int, IncomingCall] = {}  # by thread
        self._instance: Any = None
        self._constructed = threading.Event()
        self._budget = Budget()

    def run(self, connections: list[Connection], listener: socket.socket | None) -> None:
        """Run calls until told to stop; then close what is suspended."""
        signal.signal(_INTERRUPT, self._interrupted)
        self._connections = connections
        acts: list[tuple[Any, tuple[Any, ...]]] = [(connection.listen, ()) for connection in connections]
        acts += [(self._run_calls, ())] * (self._concurrency - 1)
        if listener is not None:
            acts.append((accept_all, (self, listener)))
        for act, args in acts:
            threading.Thread(target=act, args=args, daemon=True).start()
        self._run_calls()
        self._leave()

    def finish(self) -> None:
        """Stop after the calls that are there."""
        for _ in range(self._concurrency):
            self.calls.put(None)

    def _leave(self) -> None:
        for call in [call for connection in self._connections for call in connection.open.values()]:
            if call.generator is not None:
                with contextlib.suppress(BaseException):
                    call.context.run(call.generator.close)
        self._instance = None
        atexit._run_exitfuncs()
        output.flush()

    # Interrupting.

    def runs(self, call: IncomingCall) -> bool:
        """Whether the main thread, the only one that can be interrupted, runs the call."""
        return self._running.get(threading.main_thread().ident or 0) is call

    def interrupt(self, call: IncomingCall) -> None:
        """Signal the main thread until it is where it can be interrupted, or the call has ended."""
        while self.runs(call) and not call.interrupted:
            signal.pthread_kill(threading.main_thread().ident or 0, _INTERRUPT)
            time.sleep(_RETRY_SECONDS)

    def _interrupted(self, number: int, frame: Any) -> None:
        me = threading.get_ident()
        call = self._running.get(me)
        if call is None or not call.cancelled or not call.in_program or call.interrupted:
            return
        senders = [call.connection.sender, *(connection.sender for connection in self._connections)]
        if all(sender.sending != me for sender in senders):  # half a message would end the connection
            call.interrupted = True
            raise TaskInterrupted("the task was cancelled")

    # The threads that run calls.

    def _run_calls(self) -> None:
        context = self.context
        if context is not None:
            current_context_var.set(context)
        me, calls = threading.get_ident(), self.calls
        while True:
            if context is not None and context.refcount_deltas:
                context.flush()
            call = calls.get()
            if call is None:
                return
            self._running[me] = call
            if self._mark is not None:
                self._mark[:] = call.number.to_bytes(8, "little")
            if call.credits is None:
                self._run_task(call)
            else:
                self._run_steps(call)
            self._running.pop(me, None)
            call = None

    def _run_task(self, call: IncomingCall) -> None:
        if call.cancelled and call.method != "":  # an actor that is not constructed would answer nobody
            self._finish(call, ERROR, _packed_error(TaskCancelledError("cancelled before it ran")), 0.0)
            return
        started = time.perf_counter()
        state = VALUE
        try:
            call.in_program = True
            blob = self._pack(call, self._call(call))
            call.in_program = False
        except BaseException as error:  # noqa: BLE001 - whatever the task raised is its result
            call.in_program = False
            state, blob = ERROR, _packed_error(error)
        self._finish(call, state, blob, time.perf_counter() - started)

    def _call(self, call: IncomingCall) -> Any:
        if call.method == "":
            return self._construct(call)
        fn, args, kwargs = self._load(call)
        value = copy_context().run(fn, *args, **kwargs)
        if type(value) is types.CoroutineType:
            import asyncio  # see Task.run

            value = asyncio.run(value)
        return value

    def _construct(self, call: IncomingCall) -> None:
        try:
            fn, args, kwargs = call.load(None)
            self._instance = copy_context().run(fn, *args, **kwargs)
        finally:
            self._constructed.set()

    def _load(self, call: IncomingCall) -> tuple[Any, list[Any], dict[str, Any]]:
        if call.method is not None and not self._constructed.is_set():
            self._constructed.wait()  # of several threads, one runs the constructor
        return call.load(self._instance)

    def _run_steps(self, call: IncomingCall) -> None:
        """Yield items for as long as the consumer wants some, then suspend."""
        try:
            while self._wants_more(call):
                blob = self._next_item(call)
                if blob is None:
                    break
                call.connection.send("item", call.number, VALUE, blob)
            else:
                if not call.cancelled:
                    return
                if call.generator is not None:
                    call.context.run(call.generator.close)
            state, last = END, Blob(b"")
        except BaseException as error:  # noqa: BLE001 - it comes out at this item
            call.in_program = False
            state, last = ERROR, _packed_error(error)
        call.generator = None
        self._finish(call, state, last, 0.0)

    def _next_item(self, call: IncomingCall) -> Blob | None:
        call.in_program = True
        if call.generator is None:
            fn, args, kwargs = self._load(call)
            call.context = copy_context()
            call.generator = call.context.run(fn, *args, **kwargs)
        value = call.context.run(next, call.generator, _DONE)
        blob = None if value is _DONE else self._pack(call, value)
        call.in_program = False
        if blob is not None:
            with self.lock:
                call.credits = (call.credits or 0) - 1
        return blob

    def _wants_more(self, call: IncomingCall) -> bool:
        with self.lock:
            call.suspended = not call.credits and not call.cancelled
            return bool(call.credits) and not call.cancelled

    def _pack(self, call: IncomingCall, value: Any) -> Blob:
        return pack(value, f"the result of {call.label()}", self._budget)

    def _finish(self, call: IncomingCall, state: int, blob: Blob, seconds: float) -> None:
        call.connection.open.pop(call.number, None)
        call.clear()
        call.connection.send("done", call.number, state, blob, seconds)


def _packed_error(error: BaseException) -> Blob:
    return Blob(pack_exception(strip_frames(error, __file__)))
