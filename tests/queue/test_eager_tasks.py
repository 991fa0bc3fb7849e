"""Pools in event loops whose tasks begin at once, which Python has from 3.12 on."""

import asyncio
import sys

import pytest

from fray_queue import MemoryQueue, WorkSummary, awork

if sys.version_info >= (3, 12):

    async def counted(numbers: range, concurrency: int) -> WorkSummary:
        """Work on numbers in a loop of eager tasks; every third raises, and every fifth waits."""

        async def fn(number: int) -> None:
            if number % 5 == 0:
                await asyncio.sleep(0)
            if number % 3 == 0:
                raise asyncio.CancelledError if number % 2 else ValueError(number)

        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        queue: MemoryQueue[int] = MemoryQueue(max_attempts=1)
        queue.push_many(numbers)
        summary = WorkSummary()
        options = {"concurrency": concurrency, "prefetch": len(numbers), "stop_when_empty": True}
        async with asyncio.timeout(60):
            await awork(queue, fn, summary=summary, **options)
        return summary

    @pytest.mark.parametrize("concurrency", [1, 3, 5000])
    def test_calls_that_end_as_they_begin_are_counted(concurrency: int) -> None:
        """Also more of them than Python allows calls inside each other."""
        summary = asyncio.run(counted(range(1500), concurrency))
        assert (summary.done, summary.failed, summary.in_hand) == (1000, 500, 0)
