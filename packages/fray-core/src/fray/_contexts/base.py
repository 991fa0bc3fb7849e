"""Most of a `JobContext`, derived from a handful of primitives.

A backend that inherits `ContextBase` provides `put`, `get`, `wait`, `cancel`, `get_actor`, `kill`,
`shutdown` and the three hooks `_submit`, `_start_actor` and, where it can do better than a thread
per call, `_future`.
"""

import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from fray._contexts.refusals import check_actor, check_task
from fray._contracts.context import CreateTask, Run
from fray._telemetry import listeners as _listeners
from fray._values.capabilities import ContextCapabilities
from fray._values.options import ActorOptions, Lifetime, TaskOptions
from fray._values.threads import run_aside

if TYPE_CHECKING:
    from fray._contexts.map import MapPace

R = TypeVar("R")
DEFAULT_TASK = TaskOptions()
DEFAULT_ACTOR = ActorOptions()


class ContextBase(ABC):
    """Derive `run`, `create_task`, `map`, `create_actor`, executors and async methods from primitives.

    A backend provides `put`, `get`, `wait`, `cancel`, `get_actor`, `kill` and `shutdown` as `JobContext` has
    them, and the first two hooks. All are called on the user's thread. An exception of a hook propagates to
    the caller.

    Hooks:
        _submit(fn, args, kwargs, options): Start a task and return its reference, or its stream.
        _start_actor(cls, args, kwargs, options): Make an actor, or find it by name; return a handle.
        _future(ref): Return a standard future of a reference; by default one thread waits for each.
        _lending(): Return what is entered around a wait in an event loop; by default it does nothing.
        _cancel_all(refs): Cancel the calls of a `map` that is left early; by default the last first.
        _map_window(): Return how many items of a `map` may be in flight; by default by the machine's CPUs.
        _map_pace(): Return how a `map` divides its items among tasks; by default each item is one task.

    Attributes:
        capabilities: What the class can do at most; of an instance, what it can do as it is configured. What
            is not declared is refused before a hook is called.
        _task_options: The options of tasks that are given none.
        _closed: A backend's `shutdown` sets it, because `get_job_context` returns no closed context.
    """

    capabilities: ContextCapabilities = ContextCapabilities(nested_tasks=True)
    _task_options = DEFAULT_TASK
    _closed = False

    @abstractmethod
    def _submit(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: TaskOptions
    ) -> Any:
        """Start a task and return its reference, or its stream where `fn` is a generator function."""

    @abstractmethod
    def _start_actor(
        self, cls: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: ActorOptions
    ) -> Any:
        """Make an actor, or find it by name, and return a handle."""

    @abstractmethod
    def put(self, obj: Any, /) -> Any: ...

    @abstractmethod
    def get(self, ref: Any, /, *, timeout: float | None = None) -> Any: ...

    @abstractmethod
    def wait(
        self, refs: Any, /, num_returns: int = 1, timeout: float | None = None
    ) -> tuple[list[Any], list[Any]]: ...

    @abstractmethod
    def cancel(self, ref: Any, /) -> bool: ...

    @abstractmethod
    def get_actor(self, name: str, /) -> Any: ...

    @abstractmethod
    def kill(self, handle: Any, /) -> None: ...

    @abstractmethod
    def shutdown(self, wait: bool = True, cancel_pending: bool = False) -> None: ...

    def _future(self, ref: Any) -> "Future[Any]":
        """Return a standard future of a reference; cancelling it does not cancel the task."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()

        def settle() -> None:
            try:
                value = self.get(ref)
            except BaseException as error:  # noqa: BLE001 - whatever the task raised belongs to the future
                future.set_exception(error)
            else:
                future.set_result(value)

        run_aside(settle, "fray-future")
        return future

    def _lending(self) -> AbstractContextManager[None]:
        """Free this thread's place in the pool, where it has one, while it waits in an event loop."""
        return nullcontext()

    def _cancel_all(self, refs: list[Any]) -> None:
        """Cancel calls, in the order in which they were made, that nobody wants any more."""
        for ref in reversed(refs):  # so that none starts in the place of one that was just cancelled
            self.cancel(ref)

    def _map_window(self) -> int:
        """How many items of a `map` may be in flight: enough to keep every worker busy, never unbounded."""
        return max(16, 4 * (os.cpu_count() or 1))

    def _map_pace(self) -> "MapPace":
        """How a `map` divides its items among tasks; a backend whose tasks cost more overrides it."""
        from fray._contexts.map import MapPace

        return MapPace(self._map_window())

    if TYPE_CHECKING:
        # Methods below; as properties here they carry each task's own parameter and result types.
        @property
        def run(self) -> Run: ...
        @property
        def create_task(self) -> CreateTask: ...
    else:

        def run(self, fn, /, *args, **kwargs):
            """Start `fn(*args, **kwargs)` as a task; see `JobContext.run`."""
            if "name" in kwargs and not takes(fn, "name"):
                options = replace(self._task_options, name=kwargs.pop("name"))
                return self.create_task(fn, *args, options=options, **kwargs)
            if self._task_options.max_retries or not self.capabilities.streams:
                check_task(self.capabilities, type(self).__name__, fn, self._task_options)
            if _listeners.watching and _listeners.listening():
                fn = _observed("task", fn, None)
            return self._submit(fn, args, kwargs, self._task_options)

        def create_task(self, fn, /, *args, options=None, **kwargs):
            """Start a task under options; see `JobContext.create_task`."""
            if options is not None and not isinstance(options, TaskOptions):
                raise ValueError(f"options must be TaskOptions, got {options!r}")
            options = self._task_options if options is None else options
            if options.max_retries is None and self._task_options.max_retries:
                options = replace(options, max_retries=self._task_options.max_retries)
            check_task(self.capabilities, type(self).__name__, fn, options)
            if ("args" in kwargs and not takes(fn, "args")) or (
                "kwargs" in kwargs and not takes(fn, "kwargs")
            ):
                args, kwargs = unfolded("create_task", fn, args, kwargs)
            if _listeners.watching and _listeners.listening():
                fn = _observed("task", fn, options.name)
            return self._submit(fn, args, kwargs, options)

    def map(
        self,
        fn: Callable[..., R],
        /,
        *iterables: Iterable[Any],
        ordered: bool = True,
        progress: bool = False,
    ) -> Iterator[R]:
        """Yield `fn` of every item, a bounded number in flight; see `JobContext.map`."""
        from fray._contexts.map import map_tasks

        return map_tasks(self, fn, iterables, ordered=ordered, progress=progress, pace=self._map_pace())

    def as_executor(self) -> Executor:
        """Return an Executor over this context; see `JobContext.as_executor`."""
        from fray._contexts.asyncio_adapter import ContextExecutor

        return ContextExecutor(self)

    async def aget(self, ref: Any, /, *, timeout: float | None = None) -> Any:
        """Await what `get` would return; see `JobContext.aget`."""
        from fray._contexts.asyncio_adapter import get_async

        return await get_async(self, ref, timeout)

    def amap(
        self, fn: Callable[..., R], /, *iterables: Iterable[Any], ordered: bool = True
    ) -> AsyncIterator[R]:
        """Iterate asynchronously over what `map` yields; see `JobContext.amap`."""
        from fray._contracts.async_steps import AsyncSteps

        return AsyncSteps(self.map(fn, *iterables, ordered=ordered))

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
        """Make an actor of `cls(*args, **kwargs)`; see `JobContext.create_actor`."""
        if not callable(cls):
            raise ValueError(f"an actor needs a class, got {cls!r}")
        if options is not None and not isinstance(options, ActorOptions):
            raise ValueError(f"options must be ActorOptions, got {options!r}")
        merged = (options or DEFAULT_ACTOR).merged(
            num_cpus, name=name, get_if_exists=get_if_exists, lifetime=lifetime, preemptible=preemptible
        )
        check_actor(self.capabilities, type(self).__name__, merged)
        if "args" in kwargs or "kwargs" in kwargs:
            args, kwargs = unfolded("create_actor", cls, args, kwargs)
        if _listeners.watching and _listeners.listening():
            cls = _observed("actor", cls, merged.name)
        return self._start_actor(cls, args, kwargs, merged)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown(wait=True, cancel_pending=kind is not None)


def _observed(subject: str, target: Callable[..., Any], name: str | None) -> Callable[..., Any]:
    from fray._telemetry.instrumentation import observed  # for listeners only

    return observed(subject, target, name)


def takes(fn: Callable[..., Any], name: str) -> bool:
    """Whether a keyword is the function's own: its signature has it, or takes any, or cannot be read."""
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return True
    if name in ("args", "kwargs"):  # what a function that takes any keyword would hardly ever be given
        return name in parameters and parameters[name].kind in _BY_KEYWORD
    return any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD
        or (parameter.name == name and parameter.kind in _BY_KEYWORD)
        for parameter in parameters.values()
    )


_BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def unfolded(
    call: str, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Unfold `create_actor(C, args=(…), kwargs={…})`, the older way to pass arguments.

    Raises:
        ValueError: Arguments are given both ways, or in a shape that is none.
    """
    rest = {key: value for key, value in kwargs.items() if key not in ("args", "kwargs")}
    folded_args, folded_kwargs = kwargs.get("args", ()), kwargs.get("kwargs", {})
    if args or rest:
        raise ValueError(
            f"{call}({getattr(target, '__name__', target)}): give arguments directly, "
            "or as args=(…) and kwargs={…}, not both ways at once"
        )
    if not isinstance(folded_args, tuple | list) or not isinstance(folded_kwargs, dict):
        raise ValueError(
            f"args is a tuple and kwargs a dict, got args={folded_args!r}, kwargs={folded_kwargs!r}"
        )
    return tuple(folded_args), folded_kwargs
