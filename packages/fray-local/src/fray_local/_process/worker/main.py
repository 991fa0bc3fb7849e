"""A worker process: one thread listens to the owner, the main thread runs what arrives, in order.

The listener never runs a task, so that a worker receives a cancellation, gives back what it has not
started, and gets its answers, whatever its tasks do.
"""

import contextlib
import queue
import signal
import socket
import sys
import threading
import time
import types
from collections import deque
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from fray import TaskCancelledError
from fray.backend import current_context_var, is_async_class
from fray_local._process.protocol.held_frames import HeldFrames
from fray_local._process.protocol.messages import Loaded, Parked, WorkerSettings
from fray_local._process.protocol.serialization import pack
from fray_local._process.protocol.values import END, VALUE, Blob, Budget
from fray_local._process.protocol.wire import adopted
from fray_local._process.worker import output
from fray_local._process.worker.connections import Connection, accept_all
from fray_local._process.worker.context import WorkerContext
from fray_local._process.worker.incoming_calls import IncomingCall, packed_error
from fray_local._process.worker.leaving import join, leave
from fray_local._process.worker.libraries import is_of_a_library
from fray_local._process.worker.proxies import Owner
from fray_local._process.worker.surroundings import Surroundings

if TYPE_CHECKING:
    from fray_local._process.worker.async_actor import AsyncActor

_INTERRUPT = signal.SIGUSR1
_RETRY_SECONDS = 0.02
_DONE = object()


class TaskInterrupted(KeyboardInterrupt):
    """Raised inside a task that was cancelled; `except Exception` does not catch it."""


def work(
    number: int,
    settings: WorkerSettings,
    sock: int,
    stdout: int,
    stderr: int,
    mark: int,
    listener: int | None = None,
) -> None:
    """Be a worker until the owner ends it, or is gone."""
    output.redirect(stdout, stderr)
    worker = Worker(HeldFrames(mark), settings.concurrency, Surroundings(settings))
    owner = Connection(worker, adopted(sock), owner=True)
    worker.context = WorkerContext(number, Owner(*settings.owner), owner.outbox)
    worker.run([owner], None if listener is None else adopted(listener))


class Worker:
    """Runs calls, one at a time in each of its threads.

    Args:
        held_frames: What the owner reads where it finds the process dead.
        concurrency: Threads that run calls; more than one for actors that request it.
        surroundings: Where each task starts; None for actors of their own.
    """

    def __init__(
        self,
        held_frames: HeldFrames | None,
        concurrency: int | None,
        surroundings: Surroundings | None = None,
    ) -> None:
        self.context: WorkerContext | None = None
        self.calls: Any = queue.SimpleQueue()  # of IncomingCall, and None for the end
        self.concurrency = concurrency
        self._lock = threading.Lock()  # of what listeners and runners change in a call
        self.held_frames = held_frames
        self._surroundings = surroundings
        self._connections: list[Connection] = []
        self._threads: list[threading.Thread] = []  # that run calls beside the main thread
        self._running: dict[int, IncomingCall] = {}  # by thread
        self._instance: Any = None
        self.constructed = False
        self.early: deque[IncomingCall] = deque()  # of other processes, before the constructor's
        self._budget = Budget()
        self._async_actor: AsyncActor | None = None
        self._modules = len(sys.modules)
        self._reported = set(sys.modules)

    def run(self, connections: list[Connection], listener: socket.socket | None) -> None:
        """Run calls until stopped; then close what is suspended."""
        signal.signal(_INTERRUPT, self._interrupted)
        self._connections = connections
        acts: list[tuple[Any, tuple[Any, ...]]] = [(connection.listen, ()) for connection in connections]
        if listener is not None:
            acts.append((accept_all, (self, listener)))
        for act, args in acts:
            threading.Thread(target=act, args=args, daemon=True).start()
        self._run_calls()
        join(self._threads)
        self._close_suspended()
        self._instance = None
        leave()

    def finish(self) -> None:
        """Stop after the calls that are there."""
        self.calls.put(None)

    def _close_suspended(self) -> None:
        for call in [call for connection in self._connections for call in connection.open.values()]:
            if call.generator is not None:
                with contextlib.suppress(BaseException):
                    call.context.run(call.generator.close)

    # From the listeners.

    def add_credit(self, call: IncomingCall | None, items: int) -> None:
        """Let a stream send more items."""
        if call is None:
            return
        with self._lock:
            call.credits = (call.credits or 0) + items
            resumed, call.suspended = call.suspended, False
        self._go_on(call, resumed=resumed)

    def cancel(self, call: IncomingCall) -> None:
        """Interrupt a call where the main thread runs it, close it where it is suspended, else drop it."""
        with self._lock:
            call.cancelled = True
            resumed, call.suspended = call.suspended, False
        if not self._go_on(call, resumed=resumed) and self._runs(call):
            threading.Thread(target=self._interrupt, args=[call], daemon=True).start()

    def abandon(self, call: IncomingCall) -> None:
        """Drop a call whose caller is gone; what runs goes on to its end, a stream to its next item."""
        with self._lock:
            call.cancelled = True
            resumed, call.suspended = call.suspended, False
        if resumed:
            self._go_on(call, resumed=resumed)

    def _go_on(self, call: IncomingCall, *, resumed: bool) -> bool:
        """Let a stream that waits look at what has changed; return whether there is one."""
        if call.on_change is not None:
            call.on_change()
            return True
        if resumed:
            self.calls.put(call)
        return resumed

    # Interrupting.

    def _runs(self, call: IncomingCall) -> bool:
        """Whether the main thread, the only one that can be interrupted, runs the call."""
        return self._running.get(threading.main_thread().ident or 0) is call

    def _interrupt(self, call: IncomingCall) -> None:
        """Signal the main thread until it is where it can be interrupted, or the call has ended."""
        while self._runs(call) and not call.interrupted:
            if signal.getsignal(_INTERRUPT) != self._interrupted:
                return  # the task has taken the signal for a use of its own, which this is not
            signal.pthread_kill(threading.main_thread().ident or 0, _INTERRUPT)
            time.sleep(_RETRY_SECONDS)

    def _interrupted(self, number: int, frame: Any) -> None:
        me = threading.get_ident()
        call = self._running.get(me)
        if call is None or not call.cancelled or not call.in_program or call.interrupted:
            return
        if self.context is not None and self.context.requests.inside_a_message():
            return  # what it says of references must not be lost
        outboxes = [call.connection.outbox, *(connection.outbox for connection in self._connections)]
        if all(me not in outbox.threads_inside for outbox in outboxes):  # half a message ends a connection
            call.interrupted = True
            raise TaskInterrupted("the task was cancelled")

    # The threads that run calls.

    def _run_calls(self) -> None:
        if self.context is not None:
            current_context_var.set(self.context)
        me = threading.get_ident()
        while True:
            call = self._next_call()
            if call is None:
                return None
            self._running[me] = call
            self.note_started(call)
            if call.method is None and self._surroundings is not None and call.generator is None:
                self._surroundings.restore()
            if call.credits is None:
                self._run_task(call)
            else:
                self._run_steps(call)
            self._running.pop(me, None)
            if call.method == "" and not self.constructed:
                return None  # an actor that was not constructed answers nobody
            call = None
            if self._async_actor is not None:
                return self._async_actor.serve()

    def note_started(self, call: IncomingCall) -> None:
        """Let the owner know, should this process die, that it had come to a call."""
        if self.held_frames is None:
            return
        self._connections[0].outbox.settle()  # the results of those before outlive what this one does
        if call.connection.is_owner:  # others count their calls themselves
            self.held_frames.started(call.number)

    def _next_call(self) -> IncomingCall | None:
        while True:
            if self.early and self.constructed:
                with contextlib.suppress(IndexError):  # another thread was faster
                    return self.early.popleft()
            try:
                call: IncomingCall | None = self.calls.get_nowait()
            except queue.Empty:
                self.flush()
                call = self.calls.get()
            if call is None:
                self.calls.put(None)  # for the other threads
                return None
            if not call.method or self.constructed:
                return call
            self.early.append(call)

    def flush(self) -> None:
        """Nothing may follow: send the results and refcount deltas that were held back."""
        if self.context is not None:
            if len(sys.modules) != self._modules:
                self._report_modules()
            self.context.requests.flush()
        for connection in self._connections:
            connection.outbox.flush()

    def _report_modules(self) -> None:
        self._modules = len(sys.modules)
        new = [name for name in list(sys.modules) if name not in self._reported]
        self._reported.update(new)
        self._connections[0].outbox.send(Loaded([name for name in new if is_of_a_library(name)]))

    def _run_task(self, call: IncomingCall) -> None:
        if call.cancelled and call.method != "":  # an actor that is not constructed would answer nobody
            self.finish_call(
                call, *packed_error(TaskCancelledError("cancelled before it ran"), __file__), 0.0
            )
            return
        started = time.perf_counter()
        state = VALUE
        try:
            call.in_program = True
            blob = self.pack(call, self._call(call))
            call.in_program = False
        except BaseException as error:  # noqa: BLE001 - whatever the task raised is its result
            call.in_program = False
            state, blob = packed_error(error, __file__)
        self.finish_call(call, state, blob, time.perf_counter() - started)

    def _call(self, call: IncomingCall) -> Any:
        if call.method == "":
            return self._construct(call)
        fn, args, kwargs = call.load(self._instance)
        value = copy_context().run(fn, *args, **kwargs)
        if type(value) is types.CoroutineType:
            import asyncio  # 10 ms that a worker of plain functions does not pay

            value = asyncio.run(value)
        return value

    def _construct(self, call: IncomingCall) -> None:
        fn, args, kwargs = call.load(None)
        if is_async_class(fn):
            from fray_local._process.worker.async_actor import AsyncActor

            self._async_actor = AsyncActor(self, lambda: fn(*args, **kwargs))
            self.constructed = True
            return
        self._instance = copy_context().run(fn, *args, **kwargs)
        self.constructed = True
        for _ in range((self.concurrency or 1) - 1):
            thread = threading.Thread(target=self._run_calls, daemon=True)
            thread.start()
            self._threads.append(thread)

    # Streams.

    def _run_steps(self, call: IncomingCall) -> None:
        """Yield items for as long as the consumer wants some, then suspend.

        The item after those is made as well: a generator that has none ends here, and needs no consumer
        for that, nor a worker meanwhile.
        """
        try:
            while not call.cancelled:
                call.kept_item = call.kept_item or self._next_item(call)
                if call.kept_item is None:
                    break
                if self.wants_more(call):
                    blob, call.kept_item = call.kept_item, None
                    self.send_item(call, blob)
                elif not call.cancelled:
                    call.connection.outbox.send(Parked(call.number))
                    return
            else:
                if call.generator is not None:
                    call.context.run(call.generator.close)
            state, last = END, Blob(b"")
        except BaseException as error:  # noqa: BLE001 - it comes out at this item
            call.in_program = False
            state, last = packed_error(error, __file__)
        call.generator = None
        self.finish_call(call, state, last, 0.0)

    def _next_item(self, call: IncomingCall) -> Blob | None:
        call.in_program = True
        if call.generator is None:
            fn, args, kwargs = call.load(self._instance)
            call.context = copy_context()
            call.generator = as_generator(call.context.run(fn, *args, **kwargs))
        value = call.context.run(next, call.generator, _DONE)
        blob = None if value is _DONE else self.pack(call, value)
        call.in_program = False
        return blob

    def wants_more(self, call: IncomingCall) -> bool:
        """Whether an item may be sent; where not, the stream counts as suspended from now on."""
        with self._lock:
            call.suspended = not call.credits and not call.cancelled
            return bool(call.credits) and not call.cancelled

    # Results.

    def pack(self, call: IncomingCall, value: Any) -> Blob:
        """Return a result as it travels."""
        return pack(value, f"the result of {call.label()}", self._budget)

    def send_item(self, call: IncomingCall, blob: Blob) -> None:
        """Send an item, which may wait a little for the next one."""
        with self._lock:
            call.credits = (call.credits or 0) - 1
        call.connection.send_item(call.number, blob, soon=True)

    def finish_call(self, call: IncomingCall, state: int, blob: Blob, seconds: float) -> None:
        """Send the end of a call."""
        call.connection.open.pop(call.number, None)
        call.clear()
        call.connection.send_done(call.number, state, blob, seconds, soon=not self.calls.empty())


def as_generator(value: Any) -> Any:
    """Return an iterator of what a generator, or an asynchronous one, yields."""
    return _from_async(value) if isinstance(value, types.AsyncGeneratorType) else value


def _from_async(generator: Any) -> Any:
    import asyncio

    with asyncio.Runner() as runner:
        try:
            while True:
                try:
                    value = runner.run(anext(generator))
                except StopAsyncIteration:
                    return
                yield value
        finally:
            runner.run(generator.aclose())
