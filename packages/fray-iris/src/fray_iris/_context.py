"""Tasks of one job, and named actors that other jobs find: what a program on Iris has for a context.

Iris has jobs, and no tasks within one. So tasks, references and nameless actors are those of a context of
this machine; an actor with a name is a job of Iris behind one of its actor servers.
"""

import functools
import hashlib
import inspect
import os
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Executor, wait
from types import TracebackType
from typing import Any, Self

from fray import (
    ActorAlreadyExistsError,
    ActorDiedError,
    ActorNotFoundError,
    GetTimeoutError,
    create_context,
    get_job_context,
)
from fray.backend import FAMILY, ContextCapabilities, callable_name, dumps, invalid, own_family, poll_delays
from fray.cluster import CpuConfig, Entrypoint, GpuConfig, JobId, JobRequest, ResourceConfig
from fray.job import ActorHandle, ActorOptions, Lifetime, ObjectRef, actor_methods, use_context
from fray_iris._actor_host import OWNER_SILENT, Owner, host_actor
from fray_iris._actors import IrisActor, found_actor, future_of
from fray_iris._cluster import IrisCluster
from fray_iris._connection import AlreadyThere
from fray_iris._states import ENDED_JOBS

_KINDS = ("process", "threadpool")
_TRIES = 20  # generations of one name that are tried, where others make the same actor at the same time


class IrisContext:
    """Tasks of this job, and named actors for its whole family: spec `iris`, or `iris?controller=http://…`.

    Jobs of `IrisCluster` have it by default. `create_actor(C, name=…)` launches a job of Iris in which the
    actor lives; whoever says the same name in the same namespace finds it, in any job and on any worker.
    Without a name, and for tasks, streams and references, it is the context that `tasks` names.

    Args:
        max_workers: Tasks that run at the same time.
        controller: As `IrisCluster` has it.
        user: As `IrisCluster` has it.
        shared_files: As `IrisCluster` has it.
        tasks: `process` or `threadpool`: where tasks run, in the job's own container.
        num_cpus: As the context of `tasks` has it.
        memory: As the context of `tasks` has it.
        max_retries: As the context of `tasks` has it.
        namespace: Whose named actors are shared; None for the family of the job.
    """

    capabilities = ContextCapabilities(
        serializes=True,
        max_workers=True,
        isolation=True,
        streams=True,
        parked_streams=True,
        nested_tasks=True,
        nested_threads=True,
        actors=True,
        named_actors=True,
        shared_actors=True,
        detached_actors=True,
        concurrent_actors=True,
        async_actors=True,
        interrupting_cancel=True,
        enforced_resources=True,
        at_most_once=True,
        retries=True,
        max_restarts=True,
        runtime_env=True,
        reentrant=True,
        program_end=True,
    )

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        controller: str | None = None,
        user: str | None = None,
        shared_files: bool = False,
        tasks: str = "process",
        num_cpus: float | None = None,
        memory: int | str | None = None,
        max_retries: int | None = None,
        namespace: str | None = None,
    ) -> None:
        if tasks not in _KINDS:
            raise invalid("tasks", " or ".join(map(repr, _KINDS)), tasks)
        options: Any = {
            "max_workers": max_workers,
            "num_cpus": num_cpus,
            "memory": memory,
            "max_retries": max_retries,
        }
        self._inner: Any = create_context(tasks, namespace=namespace, **options)
        self._cluster = IrisCluster(controller=controller, user=user, shared_files=shared_files)
        self._namespace = namespace or os.environ.get(FAMILY) or own_family()
        self.capabilities = self._inner.capabilities.but(shared_actors=True)
        self._own: dict[str, IrisActor] = {}
        self._owns = True
        self._beating = False

    @classmethod
    def around(cls, inner: Any, cluster: IrisCluster, namespace: str) -> "IrisContext":
        """Return what a task has: the context that runs it, with the named actors of the one that sent it."""
        made = cls.__new__(cls)
        made._inner, made._cluster, made._namespace = inner, cluster, namespace
        made.capabilities = inner.capabilities.but(shared_actors=True)
        made._own, made._owns, made._beating = {}, False, False
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self._inner, self._cluster, self._namespace)

    # --- tasks: those of the context inside ---

    def run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """See `JobContext.run`."""
        return self._inner.run(self._inside(fn), *map(_passed, args), **_passed_by_name(kwargs))

    def create_task(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """See `JobContext.create_task`."""
        return self._inner.create_task(self._inside(fn), *map(_passed, args), **_passed_by_name(kwargs))

    def map(self, fn: Callable[..., Any], /, *iterables: Iterable[Any], **options: Any) -> Iterator[Any]:
        """See `JobContext.map`."""
        found: Iterator[Any] = self._inner.map(self._inside(fn), *iterables, **options)
        return found

    def amap(
        self, fn: Callable[..., Any], /, *iterables: Iterable[Any], **options: Any
    ) -> AsyncIterator[Any]:
        """See `JobContext.amap`."""
        found: AsyncIterator[Any] = self._inner.amap(self._inside(fn), *iterables, **options)
        return found

    def put(self, obj: Any, /) -> Any:
        """See `JobContext.put`."""
        return self._inner.put(obj)

    def get(self, ref: Any, /, *, timeout: float | None = None) -> Any:
        """See `JobContext.get`."""
        if self._owns or not _of_actors(ref):
            return self._inner.get(ref, timeout=timeout)
        deadline = None if timeout is None else time.monotonic() + timeout

        def value(each: Any) -> Any:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            future = future_of(each)
            if future is None:
                return self._inner.get(each, timeout=left)
            try:
                return future.result(left)
            except TimeoutError as error:
                if future.done():
                    raise  # the call's own
                raise GetTimeoutError(f"not there after {timeout:g} s: {each!r}; it goes on") from error

        return [value(each) for each in ref] if isinstance(ref, list | tuple) else value(ref)

    async def aget(self, ref: Any, /, *, timeout: float | None = None) -> Any:
        """See `JobContext.aget`."""
        return await self._inner.aget(ref, timeout=timeout)

    def wait(self, refs: Any, /, num_returns: int = 1, timeout: float | None = None) -> Any:
        """See `JobContext.wait`."""
        if self._owns or not _of_actors(refs):
            return self._inner.wait(refs, num_returns, timeout)
        return _wait_for_both(self._inner, list(refs), num_returns, timeout)

    def cancel(self, ref: Any, /) -> bool:
        """See `JobContext.cancel`."""
        return bool(self._inner.cancel(ref))

    def as_executor(self) -> Executor:
        """See `JobContext.as_executor`."""
        executor: Executor = self._inner.as_executor()
        return executor

    def _inside(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function in whose task `get_job_context()` has the named actors of this context."""
        target = inspect.unwrap(fn) if callable(fn) else fn
        special = inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction
        if not inspect.isfunction(target) or any(test(target) for test in special):
            return fn
        return InContext(fn, self._cluster, self._namespace)

    # --- actors ---

    def create_actor(
        self,
        cls: Callable[..., Any],
        /,
        *args: Any,
        name: str | None = None,
        get_if_exists: bool | None = None,
        lifetime: Lifetime | str | None = None,
        preemptible: bool | None = None,
        num_cpus: float | None = None,
        options: ActorOptions | None = None,
        **kwargs: Any,
    ) -> Any:
        """See `JobContext.create_actor`. One with a name is a job of Iris; one without lives in this job."""
        if options is not None and not isinstance(options, ActorOptions):
            raise ValueError(f"options must be ActorOptions, got {options!r}")
        merged = (options or ActorOptions()).merged(
            num_cpus, name=name, get_if_exists=get_if_exists, lifetime=lifetime, preemptible=preemptible
        )
        if merged.name is None:
            return self._inner.create_actor(cls, *args, options=merged, **kwargs)
        if set(kwargs) <= {"args", "kwargs"} and kwargs and not args:  # the older shape
            args, kwargs = tuple(kwargs.get("args", ())), dict(kwargs.get("kwargs", {}))
        args = tuple(self._inner.get(arg) for arg in args)
        kwargs = {key: self._inner.get(arg) for key, arg in kwargs.items()}
        return ActorHandle(self._made(cls, args, kwargs, merged))

    def get_actor(self, name: str, /) -> Any:
        """See `JobContext.get_actor`; waits while the job of the actor is on its way."""
        latest = self._latest(name)
        found = None if latest is None else found_actor(self._cluster.iris, latest)
        if found is None:
            raise ActorNotFoundError(name)
        return ActorHandle(found)

    def kill(self, handle: Any, /) -> None:
        """See `JobContext.kill`."""
        endpoint = getattr(handle, "_endpoint", None)
        if not isinstance(endpoint, IrisActor):
            self._inner.kill(handle)
            return
        self._own.pop(endpoint.job, None)
        endpoint.line.die("it was killed")
        job_id = endpoint.job.partition("/")[2].partition("/")[2]
        self._cluster.terminate(job_id, grace=0.0)

    def _made(self, cls: Any, args: Any, kwargs: Any, options: ActorOptions) -> IrisActor:
        """Launch the job of an actor, or find that of its name."""
        assert options.name is not None
        label = f"{callable_name(cls)} {options.name!r}"
        methods = {name: inspect.isgeneratorfunction(method) for name, method in actor_methods(cls).items()}
        made = dumps((cls, args, kwargs), f"an argument of {callable_name(cls)}()")
        for _ in range(_TRIES):
            latest = self._latest(options.name)
            if latest is not None:
                if not options.get_if_exists:
                    raise ActorAlreadyExistsError(options.name)
                return IrisActor(self._cluster.iris, latest, label, methods)
            job_id = JobId(f"{self._prefix(options.name)}{self._generation(options.name)}")
            request = self._request(made, options, label, methods)
            try:
                self._cluster.launch_as(request, job_id)
            except AlreadyThere:
                continue  # another was faster: the actor is its
            actor = IrisActor(self._cluster.iris, self._cluster.iris_name(job_id), label, methods)
            if self._owns and options.lifetime is not Lifetime.DETACHED:
                self._own[actor.job] = actor
                self._beat()
            return actor
        raise ActorDiedError(label, f"its job ended {_TRIES} times while others made it")

    def _request(
        self, made: bytes, options: ActorOptions, label: str, methods: dict[str, bool]
    ) -> JobRequest:
        amounts = options.resources
        gpus = int(amounts.get("GPU", 0))
        resources = ResourceConfig(
            cpu=amounts.get("CPU") or 0.1,
            ram=int(amounts.get("memory", 512 << 20)),
            preemptible=options.preemptible,
            device=GpuConfig(count=gpus) if gpus else CpuConfig(),
        )
        owner = Owner()
        if options.lifetime is not Lifetime.DETACHED:
            inside = os.environ.get("FRAY_JOB_ID")
            owner = Owner(self._cluster.iris_name(inside)) if inside else Owner(program=True)
        return JobRequest(
            f"actor-{options.name}",
            Entrypoint.from_callable(host_actor, [made, options, label, methods, owner]),
            resources=resources,
            max_retries_failure=options.max_restarts,
            max_retries_preemption=options.max_restarts,
        )

    def _prefix(self, name: str) -> str:
        digest = hashlib.sha256(f"{self._namespace}/{name}".encode()).hexdigest()[:12]
        return f"{JobId.new(f'actor-{name}').rpartition('-')[0][:60]}-{digest}-"

    def _latest(self, name: str) -> str | None:
        """Return what Iris calls the job of the living actor of a name."""
        for job in self._jobs(name):
            if job.get("state") not in ENDED_JOBS:
                return str(job["job_id"])
        return None

    def _generation(self, name: str) -> int:
        """Return a number behind those of all actors of this name: Iris has the name of a job once."""
        return 1 + max((int(job["job_id"].rpartition("-")[2]) for job in self._jobs(name)), default=0)

    def _jobs(self, name: str) -> list[Any]:
        prefix = self._cluster.iris_name(self._prefix(name))
        depth = prefix.count("/")
        return [job for job in self._cluster.iris.jobs(prefix) if job["job_id"].count("/") == depth]

    def _beat(self) -> None:
        """Let the actors of this program know that it lives; those of a job ask Iris."""
        if not self._beating and not os.environ.get("FRAY_JOB_ID"):
            self._beating = True
            threading.Thread(
                target=_beat, args=(weakref.ref(self),), name="fray-iris-alive", daemon=True
            ).start()

    # --- the end ---

    def shutdown(self, wait: bool = True, cancel_pending: bool = False) -> None:
        """See `JobContext.shutdown`. Named actors that this made end with it, unless they are detached."""
        own, self._own = list(self._own.values()), {}
        if wait and not cancel_pending:
            _await_calls(own)
        for actor in own:
            self.kill(ActorHandle(actor))
        self._inner.shutdown(wait, cancel_pending)

    @property
    def _closed(self) -> bool:
        return bool(getattr(self._inner, "_closed", False))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown(wait=True, cancel_pending=kind is not None)


class InContext:
    """A task's function that runs with the named actors of the context that sent it."""

    def __init__(self, fn: Callable[..., Any], cluster: IrisCluster, namespace: str) -> None:
        functools.update_wrapper(self, fn)
        self._fn, self._cluster, self._namespace = fn, cluster, namespace

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        context: Any = IrisContext.around(get_job_context(), self._cluster, self._namespace)
        with use_context(context):
            return self._fn(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return InContext, (self._fn, self._cluster, self._namespace)


def _of_actors(refs: Any) -> bool:
    """Whether results of named actors are among references: a worker's own context does not know them."""
    return any(future_of(each) is not None for each in (refs if isinstance(refs, list | tuple) else [refs]))


def _passed(arg: Any) -> Any:
    """Return an argument as the context inside takes it: a future for the result of a named actor's call."""
    return future_of(arg) or arg if isinstance(arg, ObjectRef) else arg


def _passed_by_name(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: _passed(arg) for name, arg in kwargs.items()}


def _wait_for_both(
    inner: Any, refs: list[Any], num_returns: int, timeout: float | None
) -> tuple[list[Any], list[Any]]:
    wanted = min(num_returns, len(refs))
    deadline = None if timeout is None else time.monotonic() + timeout
    for pause in poll_delays(longest=0.02):
        others = [ref for ref in refs if future_of(ref) is None]
        done = set(map(id, inner.wait(others, len(others), 0)[0])) if others else set()
        done |= {id(ref) for ref in refs if (future := future_of(ref)) is not None and future.done()}
        if len(done) >= wanted or (deadline is not None and time.monotonic() >= deadline):
            ready = [ref for ref in refs if id(ref) in done][:wanted]
            chosen = set(map(id, ready))
            return ready, [ref for ref in refs if id(ref) not in chosen]
        time.sleep(pause)
    raise AssertionError  # the delays never end


def _rebuilt(inner: Any, cluster: IrisCluster, namespace: str) -> IrisContext:
    return IrisContext.around(inner, cluster, namespace)


def _await_calls(actors: list[IrisActor]) -> None:
    wait([future for actor in actors for future in actor.line.pending()])


def _beat(context: "weakref.ref[IrisContext]") -> None:
    while True:
        time.sleep(OWNER_SILENT / 6)
        alive = context()
        if alive is None or alive._closed:
            return
        for actor in list(alive._own.values()):
            actor.line.hear()
        del alive
