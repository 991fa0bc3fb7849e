"""The contract of a job context: tasks, objects and actors inside one job.

`JobContext` is what users hold. A backend may implement it from scratch, or inherit
`ContextBase` (`fray._contexts.base`), which derives most of it from a handful of primitives, or, where its
tasks stand on the engine, `TaskRunnerContext`, which needs a `TaskRunner`.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from types import TracebackType
from typing import Any, ParamSpec, Protocol, Self, TypeVar, overload, runtime_checkable

from fray._contracts.refs import ObjectRef, ObjectStream
from fray._values.capabilities import ContextCapabilities
from fray._values.options import ActorOptions, Lifetime, TaskOptions

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


class Run(Protocol):
    """The type of `JobContext.run`.

    Plain arguments are held to the function's own parameters. A ParamSpec cannot say "or a reference to
    it", so a call with a reference among its first three arguments is not checked, and a reference as
    a keyword needs `create_task`; what comes back is known in either case.
    """

    @overload
    def __call__(
        self, fn: Callable[P, Iterator[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> ObjectStream[R]: ...
    @overload
    def __call__(
        self, fn: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> ObjectRef[R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> ObjectRef[R]: ...
    @overload
    def __call__(
        self, fn: Callable[..., Iterator[R]], a: ObjectRef[Any], /, *args: Any, **kwargs: Any
    ) -> ObjectStream[R]: ...
    @overload
    def __call__(
        self, fn: Callable[..., R], a: ObjectRef[Any], /, *args: Any, **kwargs: Any
    ) -> ObjectRef[R]: ...
    @overload
    def __call__(
        self, fn: Callable[..., Iterator[R]], a: Any, b: ObjectRef[Any], /, *args: Any, **kwargs: Any
    ) -> ObjectStream[R]: ...
    @overload
    def __call__(
        self, fn: Callable[..., R], a: Any, b: ObjectRef[Any], /, *args: Any, **kwargs: Any
    ) -> ObjectRef[R]: ...
    @overload
    def __call__(
        self, fn: Callable[..., Iterator[R]], a: Any, b: Any, c: ObjectRef[Any], /, *args: Any, **kwargs: Any
    ) -> ObjectStream[R]: ...
    @overload
    def __call__(
        self, fn: Callable[..., R], a: Any, b: Any, c: ObjectRef[Any], /, *args: Any, **kwargs: Any
    ) -> ObjectRef[R]: ...
    # A `name` that the function does not take is the task's.
    @overload
    def __call__(
        self, fn: Callable[..., Iterator[R]], /, *args: Any, name: str, **kwargs: Any
    ) -> ObjectStream[R]: ...
    @overload
    def __call__(
        self, fn: Callable[..., Coroutine[Any, Any, R]], /, *args: Any, name: str, **kwargs: Any
    ) -> ObjectRef[R]: ...
    @overload
    def __call__(self, fn: Callable[..., R], /, *args: Any, name: str, **kwargs: Any) -> ObjectRef[R]: ...


class CreateTask(Protocol):
    """The type of `JobContext.create_task`: `run` with options."""

    @overload
    def __call__(
        self, fn: Callable[..., Iterator[R]], /, *args: Any, options: TaskOptions | None = None, **kwargs: Any
    ) -> ObjectStream[R]: ...
    @overload
    def __call__(
        self,
        fn: Callable[..., Coroutine[Any, Any, R]],
        /,
        *args: Any,
        options: TaskOptions | None = None,
        **kwargs: Any,
    ) -> ObjectRef[R]: ...
    @overload
    def __call__(
        self, fn: Callable[..., R], /, *args: Any, options: TaskOptions | None = None, **kwargs: Any
    ) -> ObjectRef[R]: ...


@runtime_checkable
class JobContext(Protocol):
    """Tasks, objects and actors inside one job.

    Every method may be called from any thread, from tasks and from actor methods. A method that takes a
    reference accepts only references of its own context.
    """

    @property
    def capabilities(self) -> ContextCapabilities:
        """What this context can do, as it is configured."""

    @property
    def run(self) -> Run:
        """Start `fn(*args, **kwargs)` as a task and return a reference to its result, at once.

        References among the arguments (not inside containers) arrive as their values, and the task
        starts when they are there. A generator function gives an `ObjectStream`.
        """

    @property
    def create_task(self) -> CreateTask:
        """Do what `run` does, under `TaskOptions`."""

    def put(self, obj: T, /) -> ObjectRef[T]:
        """Store a value once and return a reference that any task can be given."""

    @overload
    def get(self, ref: ObjectRef[T], /, *, timeout: float | None = None) -> T: ...
    @overload
    def get(self, ref: Sequence[ObjectRef[T]], /, *, timeout: float | None = None) -> list[T]: ...
    @overload
    def get(self, ref: T, /, *, timeout: float | None = None) -> T: ...
    def get(self, ref: Any, /, *, timeout: float | None = None) -> Any:
        """Block until a reference, or a list of them, has its value, and return that.

        Anything else is returned as it is.

        Raises:
            GetTimeoutError: (a TimeoutError) `timeout` seconds passed; the tasks continue.
            TaskCancelledError: The task was cancelled.
            Exception: What the task raised, as its own type, as soon as one of the list has failed.
        """

    def wait(
        self, refs: Sequence[R], /, num_returns: int = 1, timeout: float | None = None
    ) -> tuple[list[R], list[R]]:
        """Block until `num_returns` are ready (done, failed or cancelled), or for `timeout` seconds.

        Returns:
            At most `num_returns` ready ones and all others, each in the order of `refs`. A stream is
            ready when its next item, its end or its error is there.
        """

    def map(
        self,
        fn: Callable[..., R],
        /,
        *iterables: Iterable[Any],
        ordered: bool = True,
        progress: bool = False,
    ) -> Iterator[R]:
        """Run `fn` over the items, a bounded number at a time, and yield the values.

        Args:
            ordered: Yield in the order of the input; otherwise as they are done.
            progress: Show a progress bar on stderr, where that is a terminal.

        Raises:
            Exception: The first failure, at its turn; what has not started is cancelled then.
        """

    def cancel(self, ref: ObjectRef[Any] | ObjectStream[Any], /) -> bool:
        """Stop a task that has not started, and one that has where the backend can.

        Returns:
            Whether `get` of it will raise TaskCancelledError; False where it was done, or cannot be stopped.
        """

    def as_executor(self) -> Executor:
        """Return a standard-library Executor over this context; its shutdown leaves the context open."""

    async def aget(self, ref: Any, /, *, timeout: float | None = None) -> Any:
        """Await what `get` would return."""

    def amap(
        self, fn: Callable[..., R], /, *iterables: Iterable[Any], ordered: bool = True
    ) -> AsyncIterator[R]:
        """Iterate asynchronously over what `map` would yield."""

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
        """Make an actor of `cls(*args, **kwargs)` and return a handle to it, at once.

        `handle.method(...)` queues a call and returns a reference. Keywords that are given win over
        `options`. `args=(...)` and `kwargs={...}` pass constructor arguments whose names are taken here.
        A constructor that raises makes every call raise ActorDiedError, with the cause.

        Raises:
            ActorAlreadyExistsError: The name is taken and `get_if_exists` is not set.
        """

    def get_actor(self, name: str, /) -> Any:
        """Return a handle to the living actor of that name, or raise ActorNotFoundError."""

    def kill(self, handle: Any, /) -> None:
        """End an actor: its name is free at once, queued calls raise ActorDiedError."""

    def shutdown(self, wait: bool = True, cancel_pending: bool = False) -> None:
        """End the context and all its workers; a second call changes nothing.

        Args:
            wait: Block until what was submitted is done and every worker has ended.
            cancel_pending: Cancel what has not started.
        """

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
