"""Tasks of one job, and named actors that other jobs find: what a program on Iris has for a context.

Iris has jobs, and no tasks within one. So tasks, references and nameless actors are those of a context of
this machine; an actor with a name is a job of Iris behind one of its actor servers.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Any

from fray import FrayError, create_context, get_job_context
from fray.backend import (
    FAMILY,
    ContextBase,
    ContextCapabilities,
    TaskRunnerContext,
    invalid,
    own_family,
)
from fray.job import ActorHandle, ActorOptions, ObjectRef, TaskOptions
from fray_iris._actor_streams import threads
from fray_iris._actors import IrisActor
from fray_iris._cluster import IrisCluster
from fray_iris._inside import class_in_context, in_context
from fray_iris._named_actors import NamedActors
from fray_iris._results import get_both, is_of_actor, wait_for_both

_KINDS = ("process", "threadpool")


class IrisContext(ContextBase):
    """Tasks of this job, and named actors for its whole family: spec `iris`, or `iris?controller=http://…`.

    Jobs of `IrisCluster` have it by default. `create_actor(C, name=…)` launches a job of Iris in which the
    actor lives; the same name in the same namespace finds it, in any job and on any worker.
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
        inner = create_context(tasks, namespace=namespace, **options)
        cluster = IrisCluster(controller=controller, user=user, shared_files=shared_files)
        namespace = namespace or os.environ.get(FAMILY) or own_family()
        self._set(inner, NamedActors(cluster, namespace, owns=True))

    @classmethod
    def around(cls, inner: Any, cluster: IrisCluster, namespace: str) -> "IrisContext":
        """Return what a task has: the context that runs it, with the named actors of the one that sent it."""
        made = cls.__new__(cls)
        made._set(inner, NamedActors(cluster, namespace, owns=False))
        return made

    def _set(self, inner: Any, actors: NamedActors) -> None:
        self._inner, self._actors = inner, actors
        # A context that keeps its books in this process reads the references of named actors' calls too.
        self._reads_all = isinstance(inner, TaskRunnerContext)
        self._task_options = inner._task_options
        self.capabilities = inner.capabilities.but(shared_actors=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return IrisContext.around, (self._inner, self._actors.cluster, self._actors.namespace)

    # --- tasks: those of the context inside ---

    def _submit(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: TaskOptions
    ) -> Any:
        if not self._reads_all:
            args = tuple(map(self._passed, args))
            kwargs = {name: self._passed(arg) for name, arg in kwargs.items()}
        return self._inner._submit(self._inside(fn), args, kwargs, options)

    def _passed(self, arg: Any) -> Any:
        """Return an argument as a worker's context takes it: a future for what a named actor gives."""
        return self._future(arg) if isinstance(arg, ObjectRef) and is_of_actor(arg) else arg

    def map(
        self,
        fn: Callable[..., Any],
        /,
        *iterables: Iterable[Any],
        ordered: bool = True,
        progress: bool = False,
    ) -> Iterator[Any]:
        """See `JobContext.map`; the context inside knows how many items one of its tasks takes."""
        found: Iterator[Any] = self._inner.map(
            self._inside(fn), *iterables, ordered=ordered, progress=progress
        )
        return found

    def put(self, obj: Any, /) -> Any:
        """See `JobContext.put`."""
        return self._inner.put(obj)

    def get(self, ref: Any, /, *, timeout: float | None = None) -> Any:
        """See `JobContext.get`."""
        several = ref if isinstance(ref, list | tuple) else [ref]
        if self._reads_all or not any(map(is_of_actor, several)):
            return self._inner.get(ref, timeout=timeout)
        values = get_both(self._inner, several, timeout)
        return values if several is ref else values[0]

    def wait(self, refs: Any, /, num_returns: int = 1, timeout: float | None = None) -> Any:
        """See `JobContext.wait`."""
        if self._reads_all or not any(map(is_of_actor, refs)):
            return self._inner.wait(refs, num_returns, timeout)
        return wait_for_both(self._inner, list(refs), num_returns, timeout)

    def cancel(self, ref: Any, /) -> bool:
        """See `JobContext.cancel`."""
        other = not self._reads_all and is_of_actor(ref)
        return bool((threads() if other else self._inner).cancel(ref))

    def _future(self, ref: Any) -> "Future[Any]":
        other = not self._reads_all and is_of_actor(ref)
        found: Future[Any] = (threads() if other else self._inner)._future(ref)
        return found

    def _lending(self) -> AbstractContextManager[None]:
        lending: AbstractContextManager[None] = self._inner._lending()
        return lending

    def _inside(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function in whose task `get_job_context()` has the named actors of this context."""
        return in_context(fn, self._enter()) if callable(fn) else fn  # else the context inside refuses it

    def _enter(self) -> Callable[[], Any]:
        """Return what makes, where a task or a method of this context runs, its context."""
        return partial(_context_here, self._actors.cluster, self._actors.namespace)

    # --- actors ---

    def _start_actor(
        self, cls: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: ActorOptions
    ) -> Any:
        """Make an actor: one with a name is a job of Iris; one without lives in this job."""
        if options.name is None:
            return self._inner._start_actor(class_in_context(cls, self._enter()), args, kwargs, options)
        values = {name: self._value(arg) for name, arg in kwargs.items()}
        return ActorHandle(self._actors.make(cls, tuple(map(self._value, args)), values, options))

    def _value(self, arg: Any) -> Any:
        if isinstance(arg, Future):
            return arg.result()
        return self.get(arg) if isinstance(arg, ObjectRef) else arg

    def get_actor(self, name: str, /) -> Any:
        """See `JobContext.get_actor`; waits while the job of the actor is on its way."""
        return ActorHandle(self._actors.find(name))

    def kill(self, handle: Any, /) -> None:
        """See `JobContext.kill`."""
        endpoint = getattr(handle, "_endpoint", None)
        if isinstance(endpoint, IrisActor):
            self._actors.kill(endpoint)
        else:
            self._inner.kill(handle)

    def shutdown(self, wait: bool = True, cancel_pending: bool = False) -> None:
        """See `JobContext.shutdown`. Named actors that this made end with it, unless they are detached."""
        if not wait or cancel_pending:
            try:
                self._actors.end(wait_for_calls=False)
            finally:
                self._inner.shutdown(wait, cancel_pending)
            return
        tasks_ended = False
        try:
            self._inner.shutdown(wait)  # first: tasks that are under way may use the actors
            tasks_ended = True
        finally:
            self._actors.end(wait_for_calls=tasks_ended)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, traceback)
        except FrayError as failure:
            if error is None:
                raise
            # The exception of the block is what its reader looks for.
            error.add_note(f"The end of the context failed as well: {failure}")

    @property
    def _closed(self) -> bool:  # type: ignore[override]
        return bool(getattr(self._inner, "_closed", False))


def _context_here(cluster: IrisCluster, namespace: str) -> IrisContext:
    """Return the context of the task, or the method, that runs here."""
    return IrisContext.around(get_job_context(), cluster, namespace)
