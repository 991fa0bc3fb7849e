"""The `TaskRunner` of a `ProcessContext`: packs calls, hands them to the scheduler, ends what it started."""

import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

from fray import DeadlockError, TaskCancelledError, TaskOptions
from fray.backend import (
    DEFAULT_TASK,
    EngineRef,
    EngineStream,
    NoThreadError,
    PackedCall,
    dispatch,
    identity_of,
    ref_of_future,
    set_lender,
    start_thread,
)
from fray_local._process.owner.actor_registry import ActorRegistry
from fray_local._process.owner.calls import CallState, packs_values
from fray_local._process.owner.event_loop import EventLoop
from fray_local._process.owner.fork_server_client import ForkServers
from fray_local._process.owner.interfaces import OwnerContext
from fray_local._process.owner.output_writer import OutputWriters
from fray_local._process.owner.request_handler import RequestHandler
from fray_local._process.owner.resources import PLAIN, Needs, Resources
from fray_local._process.owner.scheduler import Scheduler
from fray_local._process.owner.worker_connection import WorkerConnection
from fray_local._process.owner.worker_process import WorkerProcess
from fray_local._process.protocol.callbacks import CallbackThreads
from fray_local._process.protocol.serialization import SerializedFunction, load_pickler, pack, serialize_call
from fray_local._process.protocol.values import Blob, Budget, raise_descriptor_limit

_STOP_SECONDS = 2.0  # that an interrupted task has to end before its worker is killed


class ProcessRunner:
    """Runs calls in worker processes; see `fray.backend.TaskRunner`. The first call starts what that takes.

    Args:
        size: Tasks that run at the same time.
        preload: Modules that workers find imported.
    """

    interrupts = True

    def __init__(
        self,
        size: int,
        machine: Resources,
        budget: Budget,
        *,
        namespace: str | None,
        max_tasks_per_worker: int | None,
        preload: Sequence[str],
    ) -> None:
        load_pickler()
        self.machine, self.budget, self._namespace = machine, budget, namespace
        self._size, self._max_tasks, self._preload = size, max_tasks_per_worker, preload
        # Not with the first call: a program that has ended may submit that, and can start no thread.
        self.loop = EventLoop("fray-event-loop", _refuse_to_wait)
        weakref.finalize(self, self.loop.let_go).atexit = False
        self.outputs = OutputWriters(self.loop)
        weakref.finalize(self, self.outputs.let_go).atexit = False
        self._functions: WeakValueDictionary[bytes, SerializedFunction] = WeakValueDictionary()
        self._callbacks = CallbackThreads()
        self._order = count(1)
        self._started = self._closed = False
        self._unended = True  # deleted when it is ended
        self._ended = threading.Event()
        self._ender: threading.Thread | None = None
        self.fork_servers: ForkServers
        self.requests: RequestHandler
        self.scheduler: Scheduler
        self.registry: ActorRegistry
        self._context: OwnerContext

    def belong_to(self, context: Any) -> None:
        """Set the context of this runner."""
        self._context = context
        self.registry = ActorRegistry(context, self, self._namespace)

    def ensure_started(self) -> None:
        """Make what the first call takes, unless it is there; processes start with the calls.

        Nobody waits here: a finalizer may interrupt its own thread in the middle of it. Of several that are
        made at the same time one is published, and the others are never used.
        """
        if self._started:
            return
        self._context.engine.scope.check_open()
        self._start(self.loop)
        if self._closed:  # meanwhile, when there was nothing to end
            self.close(wait=False)

    def _start(self, loop: EventLoop) -> None:
        """Publish what is not published yet; making it has no effect."""
        raise_descriptor_limit()
        publish = vars(self).setdefault
        publish("fork_servers", ForkServers(loop, self._preload))
        publish("requests", RequestHandler(self._context, self, identity_of(self._context)))
        publish(
            "scheduler",
            Scheduler(
                self._size,
                self.machine,
                loop,
                self._start_worker,
                self.fork_servers.expect_more,
                self._max_tasks,
                self._is_stuck,
            ),
        )
        self._started = True

    def _is_stuck(self) -> bool:
        """Whether the context is ending, and no call of it has a worker."""
        engine = self._context.engine
        return engine.scope.closing and not any(map(_has_worker, engine.open_calls()))

    def _start_worker(self, scheduler: Scheduler, env: dict[str, str]) -> WorkerConnection:
        return WorkerProcess(self.loop, self.fork_servers, scheduler, self.requests, env)

    # Calls.

    def pack(
        self, fn: Callable[..., Any] | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> PackedCall:
        """Return a call in its travelling form."""
        for arg in args:
            if isinstance(arg, Future):
                args = tuple(map(self._future_as_ref, args))
                break
        if kwargs:
            kwargs = {key: self._future_as_ref(arg) for key, arg in kwargs.items()}
        return PackedCall(*serialize_call(fn, args, kwargs, EngineRef, self.budget))

    def _future_as_ref(self, arg: Any) -> Any:
        """Return a reference for a future, whose value its own thread packs; anything else as it is."""
        return ref_of_future(arg, dispatch, self._pack_value) if isinstance(arg, Future) else arg

    def _pack_value(self, value: Any) -> Blob:
        return pack(value, "the result of a future", self.budget)

    def launch(
        self,
        packed: PackedCall,
        name: str | Callable[..., Any],
        options: TaskOptions,
        *,
        streaming: bool,
        caller: Hashable = None,
    ) -> Any:
        """Submit a task whose function and arguments are packed."""
        self.needs_of(options)  # refuses what this machine never has
        self.ensure_started()
        ref = self._context.engine.submit(packed, name, options, streaming=streaming, caller=caller)
        if streaming:
            self.close_when_dropped(ref)
        return ref

    def needs_of(self, options: TaskOptions) -> Needs:
        """Return what a call with these options reserves."""
        return PLAIN if options is DEFAULT_TASK else self.machine.needs_of(options)

    def close_when_dropped(self, stream: "EngineStream[Any]") -> None:
        """Let the generator be closed when nobody can read its items any more."""
        # Finalizers run anywhere: the event loop does the work.
        weakref.finalize(stream, self.loop.call_soon, partial(_cancel, stream.call)).atexit = False

    def start(self, calls: Sequence[Any]) -> None:
        """Take calls whose arguments are there."""
        self.ensure_started()
        ready = []
        for call in calls:
            payload = call.payload  # None where it was cancelled meanwhile
            if payload is None or (call.refs and not packs_values(call, self.budget)):
                continue
            call.state = CallState(payload.function, self.needs_of(call.options), next(self._order))
            ready.append(call)
        if ready:
            self.scheduler.start(ready)

    def resume(self, call: Any, more: int, parked: bool) -> None:
        """Resume a stream."""
        state: CallState | None = call.state
        if state is not None and state.worker is not None:
            if parked:
                self.scheduler.reclaim(state.worker, call)
            state.worker.resume(state.number, more)

    def interrupt(self, call: Any) -> None:
        """Interrupt a call; a worker that runs it and does not stop within seconds is killed.

        One that has not come to it runs another's call, and may hold the interpreter meanwhile, so that it
        gives nothing back.
        """
        state: CallState | None = call.state
        worker = None if state is None else state.worker
        if state is None or worker is None:
            return
        number = state.number
        worker.cancel(number)

        def insist() -> None:
            if worker.calls.get(number) is not call:
                return
            if worker.runs(number):
                worker.kill()
            else:
                self.loop.call_later(_STOP_SECONDS, insist)

        self.loop.call_later(_STOP_SECONDS, insist)

    def known_function(self, function: SerializedFunction) -> SerializedFunction:
        """Return the one of a function that several workers sent."""
        return self._functions.setdefault(function.key, function)

    def new_actor(self, actor: Any) -> Any:
        """Never called: the registry makes actors with their processes."""
        raise NotImplementedError

    def call_back(self, fn: Callable[[], object]) -> None:
        """Call user code away from the event loop's thread."""
        self._callbacks.do(fn)

    # The end.

    def close(self, *, wait: bool) -> None:
        """End every process; with `wait`, block until all are gone."""
        self._closed = True
        if not self._started:
            self.loop.let_go()
            if wait:
                self.loop.join()
            return
        try:
            del self._unended
        except AttributeError:  # another thread ends it already
            pass
        else:
            self._begin_end(wait)
        if wait and threading.current_thread() is not self._ender:
            self._ended.wait()
            if self._ender is not None:
                self._ender.join()

    def _begin_end(self, wait: bool) -> None:
        """End everything in a thread, which Ctrl-C does not interrupt, or else in the one that waits."""
        try:
            start_thread(threading.Thread(target=self._end_aside, name="fray-end", daemon=True))
        except NoThreadError:
            if wait:
                self._end()
            else:
                self._unended = True  # for a waiter: at its end the program is one

    def _end_aside(self) -> None:
        self._ender = threading.current_thread()
        self._end()

    def _end(self) -> None:
        self.scheduler.close(wait=True)
        self.registry.end()
        self.fork_servers.stop()
        self.outputs.finish()
        self.loop.stop()
        self._ended.set()

    def abort(self) -> None:
        """Kill every process, and fail every call: Ctrl-C may have come between any two steps."""
        self.outputs.abort()
        if self._started:
            self.scheduler.kill()
            self.registry.abort()
        for call in self._context.engine.open_calls():
            dispatch(call.fail(TaskCancelledError(f"{call.label} was cancelled: its context was aborted")))

    def disown(self) -> bool:
        """In a forked child: leave the workers to the parent."""
        self.loop.disown()
        return False


class _NeverWaits:
    """The event loop's lender: the thread that takes in every result must not wait for one."""

    def lend(self, timeout: float | None, sources: Sequence[Any]) -> None:
        raise DeadlockError(
            "the thread that takes in every result would wait for one: something that is called when a value "
            "is released uses the context; do that in a task or a thread"
        )

    def reclaim(self) -> None:
        """Nothing was lent."""


def _refuse_to_wait() -> None:
    set_lender(_NeverWaits())


def _has_worker(call: Any) -> bool:
    return call.state is not None and call.state.worker is not None


def _cancel(call: Any) -> None:
    call.cancel()


def as_names(preload: str | Sequence[str] | None) -> list[str]:
    """Return the modules of a `preload` option: a list, or text with commas."""
    names = preload.split(",") if isinstance(preload, str) else list(preload or ())
    found = [name.strip() for name in names if name.strip()]
    for name in found:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"preload names modules, as in 'numpy,pyarrow.parquet'; got {name!r}")
    return found
