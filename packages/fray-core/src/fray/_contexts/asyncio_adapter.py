"""The standard library's two faces of a context: `concurrent.futures` and `asyncio`."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from fray._contracts.context import ObjectRef, ObjectStream
from fray._discovery.current import current_context_var
from fray._values.errors import GetTimeoutError

if TYPE_CHECKING:
    from fray._contexts.base import ContextBase

T = TypeVar("T")
_END = object()


class ContextExecutor(Executor):
    """Runs what is submitted as tasks of a context; `shutdown` waits for them and leaves the context open."""

    def __init__(self, context: "ContextBase") -> None:
        self._context = context
        self._lock = threading.RLock()  # a finalizer may submit while its own thread is in here
        self._futures: dict[Future[Any], None] = {}  # in the order of their making
        self._closed = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        """Start a task and return a real Future of its result."""
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
        # Not under the lock: a context that runs a task inside this call may come back with the task's own.
        future = self._context._future(self._context.run(fn, *args, **kwargs))
        with self._lock:
            self._futures[future] = None
        future.add_done_callback(self._forget)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuse new work and, with `wait`, block until what was submitted is done."""
        with self._lock:
            self._closed = True
            outstanding = list(self._futures)
        if cancel_futures:
            for future in reversed(outstanding):  # so that none starts in the place of another
                future.cancel()
        if wait:
            for future in outstanding:
                with contextlib.suppress(CancelledError):
                    future.exception()

    def _forget(self, future: "Future[Any]") -> None:
        # Not under the lock: what is done at once calls this from inside `submit`.
        self._futures.pop(future, None)


async def get_async(context: "ContextBase", ref: Any, timeout: float | None) -> Any:
    """Await a reference or a list of them; a timeout, or a cancelled awaiter, leaves the tasks running."""
    try:
        async with asyncio.timeout(timeout) as limit:
            with _lent():
                if isinstance(ref, list):
                    return await asyncio.gather(*(_outcome(context, one) for one in ref))
                return await _outcome(context, ref)
    except TimeoutError:
        if not limit.expired():
            raise  # the task's own
        raise GetTimeoutError(f"no result within {timeout} s; the tasks go on") from None


def _outcome(context: "ContextBase", ref: Any) -> "asyncio.Future[Any]":
    """Return what settles as the reference does, and whose cancellation is nobody else's concern."""
    loop = asyncio.get_running_loop()
    awaited: asyncio.Future[Any] = loop.create_future()
    if not isinstance(ref, ObjectRef):
        awaited.set_result(ref)
        return awaited

    def settle(done: "Future[Any]") -> None:
        if awaited.done():
            return
        try:
            awaited.set_result(done.result())
        except StopIteration as error:  # which no future can hold
            awaited.set_exception(RuntimeError(f"the task raised StopIteration({error.value!r})"))
        except BaseException as error:  # noqa: BLE001 - the task's failure is the awaiter's
            awaited.set_exception(error)

    def tell(done: "Future[Any]") -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
            loop.call_soon_threadsafe(settle, done)

    context._future(ref).add_done_callback(tell)
    return awaited


class AsyncSteps(AsyncIterator[T], Generic[T]):
    """Iterates over a blocking iterator in a thread of its own; a cancelled awaiter loses no item."""

    def __init__(self, values: Iterator[T]) -> None:
        self._values = values
        self._thread: ThreadPoolExecutor | None = None
        self._step: asyncio.Future[Any] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if self._step is None:
            # Its own thread: the loop's few would be used up by iterators that wait for one another.
            self._thread = self._thread or ThreadPoolExecutor(1, "fray-steps")
            context = copy_context()
            work: Future[Any] = self._thread.submit(lambda: context.run(next, self._values, _END))
            self._step = asyncio.wrap_future(work)
        with _lent():
            value = await asyncio.shield(self._step)
        self._step = None
        if value is _END:
            await self.aclose()
            raise StopAsyncIteration
        result: T = value
        return result

    async def aclose(self) -> None:
        """End the iteration; what a `map` has not started is cancelled."""
        thread, self._thread = self._thread, None
        close = getattr(self._values, "close", None)
        if thread is not None:
            if close is not None:
                thread.submit(close)  # after the step that runs
            thread.shutdown(wait=False)


async def iterate(values: Iterator[T]) -> AsyncIterator[T]:
    """Iterate over a blocking iterator without blocking the event loop; close it when left."""
    steps = AsyncSteps(values)
    try:
        async for value in steps:
            yield value
    finally:
        await steps.aclose()


def stream_items(stream: ObjectStream[T]) -> AsyncIterator[ObjectRef[T]]:
    """Iterate asynchronously over the references of a stream."""
    return AsyncSteps(iter(stream))


class _Lending(threading.local):
    depth = 0
    manager: Any = None


_lending = _Lending()


@contextlib.contextmanager
def _lent() -> Iterator[None]:
    """Let another task have this thread's place while coroutines wait on it: one place, however many do."""
    if not _lending.depth:
        lend = getattr(current_context_var.get(None), "_lending", contextlib.nullcontext)
        _lending.manager = lend()
        _lending.manager.__enter__()
    _lending.depth += 1
    try:
        yield
    finally:
        _lending.depth -= 1
        if not _lending.depth:
            _lending.manager.__exit__(None, None, None)
