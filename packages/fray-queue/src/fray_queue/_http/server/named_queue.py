"""One queue of a server: its items, its counters and the pops that wait for it."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from fray_queue._http.server.machine import Entry, LeaseMachine
from fray_queue._http.server.rates import Rates


class NamedQueue:
    """One queue of the server."""

    def __init__(
        self, name: str, number: int, max_attempts: int | None, changed: Callable[[Entry[bytes]], None] | None
    ) -> None:
        self.name, self.number = name, number
        self.machine: LeaseMachine[bytes] = LeaseMachine(max_attempts=max_attempts, changed=changed)
        self.rates = Rates()
        self._waiters: deque[asyncio.Future[None]] = deque()

    def wake(self, count: int = 1) -> None:
        """Let up to `count` waiting pops look again."""
        while count > 0 and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    async def sleep(self, seconds: float) -> None:
        """Return when woken, or after so many seconds."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(seconds):
                await waiter
        except TimeoutError:
            pass
        finally:
            with contextlib.suppress(ValueError):
                self._waiters.remove(waiter)
