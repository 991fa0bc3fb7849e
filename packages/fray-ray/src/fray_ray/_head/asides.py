"""What takes long runs on a thread of its own, and not on the event loop that serves all jobs."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


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
