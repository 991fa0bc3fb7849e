"""What runs beside the event loop that serves all jobs, or beside a job on it."""

import asyncio
import threading
import traceback
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

_AGAIN_AFTER = 1.0  # seconds


async def aside(act: Callable[..., T], *args: object) -> T:
    """Return what a function returns that is called on a new thread; raise what it raises.

    A pool would have a bound, and functions that wait for one another could fill it.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if future.done():  # who waited was cancelled
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        value, error = None, None
        try:
            value = act(*args)
        except BaseException as caught:  # noqa: BLE001 - it is raised where it is waited for
            error = caught
        loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=run, name="aside", daemon=True).start()
    return await future


async def insist(act: Callable[[], Awaitable[T]]) -> T:
    """Return what an asynchronous function returns; call it again when it fails: the head may be away."""
    while True:
        try:
            return await act()
        except Exception:  # noqa: BLE001 - nobody waits for it, so nobody would know
            traceback.print_exc()
            await asyncio.sleep(_AGAIN_AFTER)
