"""`ProcessContext`: tasks and actors in processes of this machine."""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, TypeVar

from fray import TaskOptions
from fray.backend import (
    EngineRef,
    TaskRunnerContext,
    check_count,
    end_at_exit,
    is_async_class,
    is_generator_function,
)
from fray.backend import callable_name as name_of
from fray.job import ActorHandle, ActorOptions, actor_methods
from fray_local._machine import cpu_count
from fray_local._portable_options import bytes_of, check_portable
from fray_local._process.capabilities import CAPABILITIES
from fray_local._process.owner.actor_process import ProcessEndpoint
from fray_local._process.owner.resources import Resources
from fray_local._process.owner.runner import ProcessRunner, as_names
from fray_local._process.protocol.serialization import pack
from fray_local._process.protocol.values import Budget

T = TypeVar("T")


class ProcessContext(TaskRunnerContext):
    """Runs tasks in processes of this machine: in parallel, isolated, large values without copies.

    Args:
        max_workers: Tasks that run at the same time; a task that waits for another does not count, and
            continues at once when that wait ends, even if more than these run then. By default as many as
            this process may use CPUs.
        num_cpus: CPUs that tasks may reserve in all; at least one for each worker.
        memory: Memory that tasks may reserve in all, e.g. `"8g"`; by default the machine's.
        max_retries: Of every task that does not say otherwise: how often it runs again after its worker died.
        namespace: Named actors are shared with every context of this namespace. By default with the
            jobs of one family; outside of jobs only detached actors are shared.
        stream_buffer: Items that a generator task may be ahead of its consumer.
        max_tasks_per_worker: Tasks after which a worker process is replaced.
        object_store_memory: Bytes that large values may take; by default half of the machine's.
        spill_dir: A directory for large values beyond that; without it they are refused.
        resources: What tasks may request beyond `CPU`, `GPU` and `memory`, e.g. `{"licence": 2}`. Fractions
            are counted to 1/10,000.
        preload: Modules that every worker finds imported, separated by commas.
    """

    capabilities = CAPABILITIES

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        num_cpus: float | None = None,
        memory: int | str | None = None,
        max_retries: int | None = None,
        namespace: str | None = None,
        stream_buffer: int = 16,
        max_tasks_per_worker: int | None = None,
        object_store_memory: int | None = None,
        spill_dir: str | None = None,
        resources: Mapping[str, float] | None = None,
        preload: str | None = None,
    ) -> None:
        check_portable(num_cpus, memory, namespace)
        usual = max(1, int(cpu_count() if num_cpus is None else num_cpus))
        self._size = usual if max_workers is None else max_workers
        check_count("max_workers", self._size, 1)
        check_count("stream_buffer", stream_buffer, 1)
        if max_tasks_per_worker is not None:
            check_count("max_tasks_per_worker", max_tasks_per_worker, 1)
        # Callers written for Ray say what one task takes: 1 must not leave one CPU for four workers.
        cpus = max(float(self._size), num_cpus or 0.0)
        machine = Resources(cpus, resources, None if memory is None else bytes_of(memory))
        self._budget = Budget(object_store_memory, spill_dir)
        self._processes = ProcessRunner(
            self._size,
            machine,
            self._budget,
            namespace=namespace,
            max_tasks_per_worker=max_tasks_per_worker,
            preload=as_names(preload),
        )
        super().__init__(self._processes, stream_buffer=stream_buffer, max_retries=max_retries)
        self.pack = self._processes.pack
        end_at_exit(self)

    def _submit(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: TaskOptions
    ) -> Any:
        if not callable(fn):
            raise ValueError(f"a task needs a function, got {fn!r}")
        packed = self.pack(fn, args, kwargs)
        return self._processes.launch(
            packed, options.name or fn, options, streaming=is_generator_function(fn)
        )

    def put(self, obj: T, /) -> EngineRef[T]:
        """Store a value once; see `JobContext.put`. A large one is mapped where it is read, not copied."""
        return self.engine.put(pack(obj, "the object given to put()", self._budget))

    def _start_actor(
        self, cls: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: ActorOptions
    ) -> ActorHandle:
        methods = {name: is_generator_function(method) for name, method in actor_methods(cls).items()}
        packed = self.pack(cls, args, kwargs)
        return self._processes.registry.make(
            name_of(cls), methods, packed, options, asynchronous=is_async_class(cls)
        )

    def get_actor(self, name: str, /) -> ActorHandle:
        """Return a handle to the actor of that name, of this context or shared in its namespace."""
        return self._processes.registry.get(name)

    def endpoint_at(self, address: tuple[str, str, str]) -> ProcessEndpoint:
        """Return the endpoint of an actor whose handle came from another process."""
        return self._processes.registry.at(address)

    def kill(self, handle: Any, /) -> None:
        """End an actor and its process, whatever it does."""
        self.engine.scope.check_owner()
        endpoint = getattr(handle, "_endpoint", None)
        if not isinstance(endpoint, ProcessEndpoint):
            super().kill(handle)
        else:
            self._processes.registry.kill(endpoint)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        fails = isinstance(error, SystemExit) and error.code not in (None, 0)
        if fails or isinstance(error, KeyboardInterrupt):
            self.abort()  # the program ends: nobody wants what still runs
        super().__exit__(kind, error, traceback)

    def end_of_program(self) -> None:
        """End the processes: everything was done."""
        self.shutdown()

    def _map_window(self) -> int:
        return max(16, 4 * self._size)
