"""The standard library's two faces of a context: `concurrent.futures` and `asyncio`."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any, TypeVar

from fray._context import ObjectRef, ObjectStream
from fray._errors import GetTimeoutError

if TYPE_CHECKING:
    from fray._base import ContextBase

T = TypeVar("T")
_END = object()


class ContextExecutor(Executor):
    """Runs what is submitted as tasks of a context; `shutdown` waits for them and leaves the context open."""

    def __init__(self, context: "ContextBase") -> None:
        self._context = context
        self._futures: set[Future[Any]] = set()
        self._closed = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        """Start a task and return a real Future of its result."""
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future = self._context._future(self._context.run(fn, *args, **kwargs))
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuse new work and, with `wait`, block until what was submitted is done."""
        self._closed = True
        outstanding = list(self._futures)
        if cancel_futures:
            for future in outstanding:
                future.cancel()
        if wait:
            for future in outstanding:
                if not future.cancelled():
                    future.exception()


async def get_async(context: "ContextBase", ref: Any, timeout: float | None) -> Any:
    """Await a reference or a list of them; a timeout leaves the tasks running."""
    if isinstance(ref, list):
        return await _timed(asyncio.gather(*(get_async(context, one, None) for one in ref)), timeout)
    if not isinstance(ref, ObjectRef):
        return ref
    return await _timed(asyncio.wrap_future(context._future(ref)), timeout)


async def _timed(awaitable: Any, timeout: float | None) -> Any:
    try:
        return await asyncio.wait_for(awaitable, timeout)
    except TimeoutError:
        if timeout is None:
            raise  # the task's own TimeoutError
        raise GetTimeoutError(f"no result within {timeout} s; the task goes on") from None


async def iterate(values: Iterator[T]) -> AsyncIterator[T]:
    """Iterate over a blocking iterator without blocking the event loop."""
    try:
        while (value := await asyncio.to_thread(next, values, _END)) is not _END:
            yield value  # type: ignore[misc]
    finally:
        close = getattr(values, "close", None)
        if close is not None:
            close()


async def stream_items(stream: ObjectStream[T]) -> AsyncIterator[ObjectRef[T]]:
    """Iterate asynchronously over the references of a stream."""
    while (ref := await asyncio.to_thread(next, stream, _END)) is not _END:
        yield ref  # type: ignore[misc]
