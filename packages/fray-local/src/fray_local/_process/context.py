"""`ProcessContext`: tasks and actors in processes of this machine."""

import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

from fray import DeadlockError
from fray._engine.actors import Actor
from fray._engine.context import InProcessContext, _future_as_ref
from fray._engine.pool import blocking, current_task, set_current_task
from fray._engine.refs import (
    LocalRef,
    error_ref,
    note_kept,
    reduce_by_identity,
    value_ref,
)
from fray._engine.scope import Scope
from fray._engine.streams import LocalStream
from fray.backend import DEFAULT_TASK, callable_name, current_context_var, is_generator_function
from fray.job import ActorHandle, ActorOptions, TaskOptions, actor_methods
from fray_local._machine import cpu_count
from fray_local._process.capabilities import CAPABILITIES
from fray_local._process.owner import shutdown as endings
from fray_local._process.owner.actor_process import ProcessEndpoint
from fray_local._process.owner.actor_registry import ActorRegistry
from fray_local._process.owner.calls import (
    RemoteCall,
    RemoteProducer,
    RemoteTask,
    cancelled,
)
from fray_local._process.owner.event_loop import EventLoop
from fray_local._process.owner.fork_server_client import ForkServers
from fray_local._process.owner.futures import ProcessFuture
from fray_local._process.owner.request_handler import RequestHandler
from fray_local._process.owner.resources import PLAIN, Resources
from fray_local._process.owner.scheduler import Scheduler
from fray_local._process.owner.worker_connection import WorkerConnection
from fray_local._process.owner.worker_process import WorkerProcess
from fray_local._process.protocol.callbacks import CallbackThread
from fray_local._process.protocol.serialization import (
    SerializedCall,
    SerializedFunction,
    pack,
    serialize_call,
)
from fray_local._process.protocol.values import Budget, raise_descriptor_limit

T = TypeVar("T")
_STOP_SECONDS = 2.0  # that an interrupted task has to end before its worker is killed


class ProcessContext(InProcessContext):
    """Runs tasks in processes of this machine: in parallel, isolated, large values without copies.

    Args:
        max_workers: Tasks that run at the same time; a task that waits for another does not count.
            By default as many as this process may use CPUs.
        stream_buffer: Items that a generator task may be ahead of its consumer.
        max_tasks_per_worker: Tasks after which a worker process is replaced.
        object_store_memory: Bytes that large values may take; by default half of the machine's.
        spill_dir: A directory for large values beyond that; without it they are refused.
        resources: What tasks may ask for beyond `CPU`, `GPU` and `memory`, e.g. `{"licence": 2}`.
        namespace: Proxy actors are shared with every context of this namespace. By default with the
            jobs of one family; outside of jobs only detached actors are shared.
    """

    capabilities = CAPABILITIES

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        stream_buffer: int = 16,
        max_tasks_per_worker: int | None = None,
        object_store_memory: int | None = None,
        spill_dir: str | None = None,
        resources: Mapping[str, float] | None = None,
        namespace: str | None = None,
    ) -> None:
        self._size = _count("max_workers", max(1, int(cpu_count())) if max_workers is None else max_workers)
        if max_tasks_per_worker is not None:
            _count("max_tasks_per_worker", max_tasks_per_worker)
        self.budget = Budget(object_store_memory, spill_dir)
        self._max_tasks = max_tasks_per_worker
        self.machine = Resources(self._size, resources)
        self._functions: WeakValueDictionary[bytes, SerializedFunction] = WeakValueDictionary()
        self._starting = threading.Lock()
        self._callbacks = CallbackThread()
        self._loop: EventLoop | None = None
        self.registry = ActorRegistry(self, namespace)
        super().__init__(cast("Any", _Lazy(self)), check_serialization=False, stream_buffer=stream_buffer)
        self._rebuild = reduce_by_identity(self)
        endings.open_contexts.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        note_kept(self)
        return self._rebuild

    # Tasks.

    def _submit(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: TaskOptions
    ) -> Any:
        if not callable(fn):
            raise ValueError(f"a task needs a function, got {fn!r}")
        packed = self.pack(fn, args, kwargs)
        streaming = is_generator_function(fn)
        return self.launch(packed, options.name or callable_name(fn), options, streaming=streaming)

    def pack(
        self, fn: Callable[..., Any] | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> SerializedCall:
        """Return a call in its travelling form."""
        for arg in args:
            if isinstance(arg, Future):
                args = tuple(map(_future_as_ref, args))
                break
        if kwargs:
            kwargs = {key: _future_as_ref(arg) for key, arg in kwargs.items()}
        return serialize_call(fn, args, kwargs, LocalRef, self.budget)

    def launch(self, packed: SerializedCall, title: str, options: TaskOptions, *, streaming: bool) -> Any:
        """Start a task whose function and arguments are packed."""
        needs = PLAIN if options is DEFAULT_TASK else self.machine.needs_of(options)
        kind = RemoteProducer if streaming else RemoteTask
        call = self.make_call(kind, packed, title, self.processes())
        call.needs = needs
        if not streaming:
            call.retries = options.max_retries
            ref = call.ref
            call.begin()
            return ref
        stream: LocalStream[Any] = LocalStream(call)
        self.close_when_dropped(stream)
        call.begin()
        return stream

    def close_when_dropped(self, stream: LocalStream[Any]) -> None:
        """Let the generator be closed when nobody can read its items any more."""
        call = stream._producer
        # Finalizers run anywhere, with any lock held: the loop does the work.
        weakref.finalize(stream, self.loop.call_soon, partial(self._forsake, call)).atexit = False

    def make_call(self, kind: Any, packed: SerializedCall, title: str, pool: Any) -> Any:
        """Make a call of a kind, counted in the scope."""
        scope = self._scope
        more = {"limit": self._stream_buffer} if hasattr(kind, "item") else {}
        refs = tuple(ref for _, ref in packed.places)
        owner = current_context_var.get(None)  # the worker sets its own: nothing to set in a copy here
        call = kind(None, refs, {}, scope=scope, pool=pool, owner=owner, checked=False, **more)
        call.travel(packed, title, self.budget, PLAIN, 0)
        scope.enter()
        if more:
            self._streams.add(call)
        return call

    def failed(self, error: BaseException, streaming: bool) -> Any:
        """Return a reference, or a stream, of something that could not be started."""
        ref = error_ref(error)
        if not streaming:
            return ref
        producer = RemoteProducer(
            None, (), {}, scope=Scope(lambda: None), pool=None, owner=self, checked=False, limit=1
        )
        producer._counted = False
        producer._finish(error)
        return LocalStream(producer)

    def known_function(self, function: SerializedFunction) -> SerializedFunction:
        """Return the one function of a function that several workers sent."""
        return self._functions.setdefault(function.key, function)

    def put(self, obj: T, /) -> LocalRef[T]:
        """Store a value once; see `JobContext.put`. A large one is mapped where it is read, not copied."""
        return value_ref(pack(obj, "the object given to put()", self.budget))

    def cancel(self, ref: Any, /) -> bool:
        """Cancel what has not started, interrupt what has; a worker that goes on for seconds is killed."""
        call: Any = ref._producer if isinstance(ref, LocalStream) else getattr(ref, "_task", None)
        return self._stop(call) if isinstance(call, RemoteCall) else super().cancel(ref)

    def _future(self, ref: Any) -> "Future[Any]":
        return ProcessFuture(ref, self)

    def call_back(self, fn: Callable[["Future[Any]"], object], future: "Future[Any]") -> None:
        """Call what waited for a future, away from the loop's thread."""
        if self._loop is not None and self._loop.inside:
            self._callbacks.do(partial(fn, future))
        else:
            fn(future)

    def _check_progress(self, timeout: float | None) -> None:
        if self._loop is not None and self._loop.inside:
            raise DeadlockError(
                "the thread that takes in every result would wait for one: something that is called while a "
                "result is unpickled, or let go of, uses the context; do that in a task or a thread"
            )

    def _forsake(self, call: Any) -> None:
        self._stop(call)

    def _stop(self, call: Any) -> bool:
        error = cancelled(call)
        if call.cancel(error):
            return True
        if not call.interrupt(error):
            return False
        connection = call.worker
        if connection is not None:
            self._interrupt(connection, call)
        return True

    def _interrupt(self, connection: WorkerConnection, call: Any) -> None:
        number = call.number
        connection.cancel(call)
        if cast("Any", connection.owner) is self._pool:

            def insist() -> None:
                if connection.calls.get(number) is call:
                    connection.kill()

            self.loop.call_later(_STOP_SECONDS, insist)

    # Processes.

    def processes(self) -> Scheduler:
        """Return the pool; the first call starts what is needed to start processes."""
        if self._loop is None:
            with self._scope.counted(), self._starting:
                if self._loop is None:
                    self._start()
        return cast("Scheduler", self._pool)

    @property
    def loop(self) -> EventLoop:
        """The thread that reads what workers send; there once `processes` was called."""
        assert self._loop is not None
        return self._loop

    def _start(self) -> None:
        raise_descriptor_limit()
        loop = EventLoop("fray-loop")
        self.fork_servers = ForkServers(loop)
        process, pid, key, _ = self._rebuild[1]
        self.requests = RequestHandler(self, (process, pid, key, type(self).__name__))
        self._pool = cast(
            "Any",
            Scheduler(
                self._size,
                self.machine,
                loop,
                lambda scheduler, env: WorkerProcess(loop, self.fork_servers, scheduler, self.requests, env),
                self._max_tasks,
            ),
        )
        self._loop = loop

    def in_background(
        self, act: Callable[[], ActorHandle], then: Callable[[ActorHandle | None, BaseException | None], None]
    ) -> None:
        """Do something that may block away from the loop's thread, for the same caller."""
        caller = current_task()

        def run() -> None:
            set_current_task(caller)
            try:
                handle = act()
            except BaseException as error:  # noqa: BLE001 - whoever asked sees it
                then(None, error)
            else:
                then(handle, None)

        threading.Thread(target=run, name="fray-names", daemon=True).start()

    # Actors.

    def _start_actor(
        self, cls: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: ActorOptions
    ) -> ActorHandle:
        methods = {name: is_generator_function(method) for name, method in actor_methods(cls).items()}
        return self.registry.make(callable_name(cls), methods, self.pack(cls, args, kwargs), options)

    def get_actor(self, name: str, /) -> ActorHandle:
        """Return a handle to the actor of that name, of this context or shared in its namespace."""
        return self.registry.get(name)

    def endpoint_at(self, address: tuple[str, str, str]) -> ProcessEndpoint:
        """Return the endpoint of an actor whose handle came from another process."""
        return self.registry.at(address)

    def kill(self, handle: Any, /) -> None:
        """End an actor and its process, whatever it does."""
        self._scope.check_owner()
        endpoint = getattr(handle, "_endpoint", None)
        if not isinstance(endpoint, ProcessEndpoint):
            super().kill(handle)
        else:
            self.registry.kill(endpoint)

    def keep_actor(self, actor: Actor) -> None:
        """Let an actor die when everything that was submitted is done."""
        self._actors.add(actor)

    # The end.

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None and not issubclass(kind, Exception):
            self.abort()  # Ctrl-C, or the program is ending: nobody wants what still runs
        super().__exit__(kind, error, traceback)

    def abort(self) -> None:
        """Cancel everything, kill every process."""
        if self._scope.foreign:
            return
        self._scope.close(cancel=True)
        if self._loop is not None:
            cast("Scheduler", self._pool).kill()
            self.registry.abort()

    def disown(self) -> None:
        """In a forked child: leave the workers to the parent."""
        super().disown()
        if self._loop is not None:
            self._loop.disown()

    def _end(self) -> None:
        super()._end()
        if self._loop is not None:
            self._ender = threading.Thread(target=self._close, name="fray-end", daemon=True)
            self._ender.start()

    def _close(self) -> None:
        """Wait for every process, then end what served them."""
        self._pool.close(wait=True)
        self.registry.end()
        self.fork_servers.stop()
        self.loop.stop()

    def shutdown(self, wait: bool = True, cancel_pending: bool = False) -> None:
        """End the context; see `JobContext.shutdown`."""
        super().shutdown(wait, cancel_pending)
        ender = getattr(self, "_ender", None)
        if wait and ender is not None:
            with blocking():
                ender.join()

    def _map_window(self) -> int:
        return max(16, 4 * self._size)


class _Lazy:
    """The pool of a context that has started no process yet."""

    inline = False

    def __init__(self, context: ProcessContext) -> None:
        self._context = context

    def close(self, *, wait: bool = False) -> None:
        """Do nothing: there is nothing to end."""


def _count(what: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{what} must be a whole number of 1 or more, got {value!r}")
    return value
