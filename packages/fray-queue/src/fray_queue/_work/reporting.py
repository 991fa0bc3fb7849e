"""Events with the counts of a pool."""

import asyncio
import os
import time
from typing import Any

from fray.backend import AsyncQueue, BriefThreads, listening, tell
from fray.events import Event, EventKind
from fray_queue._work.options import WorkSummary

_EVERY = 10.0  # seconds


class Reporter:
    """Reports a pool's counts to listeners; costs nothing without a listener."""

    def __init__(self, twin: AsyncQueue[Any], summary: WorkSummary) -> None:
        self._twin, self._summary = twin, summary
        self._id = os.urandom(8).hex()
        self._name = str(getattr(twin.queue, "name", type(twin.queue).__name__))
        self._last = (time.monotonic(), 0)
        self._oldest: int | None = None

    async def run(self) -> None:
        """Report every few seconds."""
        while True:
            await asyncio.sleep(_EVERY)
            if listening():
                await self._ask_for_oldest()
                self.tell()

    def tell(self) -> None:
        """Report now."""
        if not listening():
            return
        summary, now = self._summary, time.monotonic()
        before, settled = self._last
        self._last = (now, summary.settled)
        details: dict[str, str | int] = {
            name: getattr(summary, name)
            for name in (
                *("done", "failed", "lost", "released", "timed_out", "returned"),
                *("attempts", "in_hand", "running", "stuck", "queue_failures"),
            )
        }
        details["per_second"] = round((summary.settled - settled) / max(1e-3, now - before))
        if summary.settled:
            details["work_ms"] = round(1000 * summary.seconds_in_work / summary.settled)
            details["in_hand_ms"] = round(1000 * summary.seconds_in_hand / summary.settled)
        if summary.dated:
            details["queue_ms"] = round(1000 * summary.seconds_in_queue / summary.dated)
        if self._oldest is not None:
            details["oldest_seconds"] = self._oldest
        tell(Event(kind=EventKind.POOL_REPORTED, id=self._id, name=self._name, details=details))

    async def _ask_for_oldest(self) -> None:
        try:
            look = BriefThreads(1, "fray-work-look").submit(lambda: _oldest_seconds(self._twin.queue))
            oldest = await asyncio.wrap_future(look)
        except Exception:  # noqa: BLE001 - the pool's own calls report a queue that fails
            return
        self._oldest = None if oldest is None else round(oldest)


def _oldest_seconds(queue: Any) -> float | None:
    """Return the age of a queue's oldest item; None where a queue of another author has no such method."""
    found: float | None = queue.oldest_seconds() if hasattr(queue, "oldest_seconds") else None
    return found
