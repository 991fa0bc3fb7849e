"""The standard library's two faces of a context: `concurrent.futures` and `asyncio`."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future
from typing import Any, Protocol, TypeVar

from fray._contracts.async_steps import lent
from fray._contracts.refs import ObjectRef
from fray._values.errors import GetTimeoutError, TaskCancelledError

T = TypeVar("T")


class FutureSource(Protocol):
    """The part of a context that this needs."""

    def run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Start a task; see `JobContext.run`."""
        ...

    def get(self, ref: Any, /, *, timeout: float | None = None) -> Any:
        """Return a result; see `JobContext.get`."""
        ...

    def _future(self, ref: Any) -> "Future[Any]": ...


class ContextExecutor(Executor):
    """Runs what is submitted as tasks of a context; `shutdown` waits for them and leaves the context open."""

    def __init__(self, context: FutureSource) -> None:
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


async def get_async(context: FutureSource, ref: Any, timeout: float | None) -> Any:
    """Await a reference or a list of them; a timeout, or a cancelled awaiter, leaves the tasks running."""
    if timeout is not None and timeout <= 0:
        return context.get(ref, timeout=0)  # a look, as with `get`: what is there needs no turn of the loop
    try:
        async with asyncio.timeout(timeout) as limit:
            with lent():
                if isinstance(ref, list):
                    return await asyncio.gather(*(_outcome(context, one) for one in ref))
                return await _outcome(context, ref)
    except TimeoutError:
        if not limit.expired():
            raise  # the task's own
        raise GetTimeoutError(f"no result within {timeout} s; the tasks go on") from None


def _outcome(context: FutureSource, ref: Any) -> "asyncio.Future[Any]":
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
        except CancelledError as error:
            own = isinstance(error, TaskCancelledError)
            awaited.set_exception(error if own else TaskCancelledError("the task was cancelled"))
        except StopIteration as error:  # which no future can hold
            awaited.set_exception(RuntimeError(f"the task raised StopIteration({error.value!r})"))
        except BaseException as error:  # noqa: BLE001 - the task's failure is the awaiter's
            awaited.set_exception(error)

    def tell(done: "Future[Any]") -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
            loop.call_soon_threadsafe(settle, done)

    future = context._future(ref)
    future.add_done_callback(tell)
    abandon = getattr(future, "abandon", None)
    if abandon is not None:  # else each wait that was given up stays with the reference, and loads its value
        awaited.add_done_callback(lambda done: abandon() if done.cancelled() else None)
    return awaited
