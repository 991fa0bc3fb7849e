"""Waiting in turn: of the coroutines of a loop that wait for one thing, one keeps a thread, or asks."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

_ROUND, _SHORTEST = 1.0, 0.02  # seconds of the turns of all who wait, and of one where they are many


@contextlib.asynccontextmanager
async def held_within(lock: asyncio.Lock, seconds: float) -> AsyncIterator[None]:
    """Hold a lock; where others have it for longer than so many seconds, nothing."""
    holds = False
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, seconds)):
            holds = await lock.acquire()
    try:
        yield
    finally:
        if holds:
            lock.release()


class Turns:
    """Lets the coroutines of a loop wait for one thing in turn: one that needs less of it may have it first.

    Args:
        longest: Seconds of a turn. Where many wait, a turn is shorter.
    """

    def __init__(self, longest: float) -> None:
        self._longest, self._waiting, self._lock = longest, 0, asyncio.Lock()

    @contextlib.asynccontextmanager
    async def take(self, seconds: float) -> AsyncIterator[float]:
        """Give the seconds of a turn when it comes, or after so many seconds without one."""
        self._waiting += 1
        try:
            async with held_within(self._lock, seconds):
                yield max(_SHORTEST, min(self._longest, _ROUND / self._waiting))
        finally:
            self._waiting -= 1
