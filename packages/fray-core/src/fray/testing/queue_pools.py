"""What a pool of workers promises on every kind of queue."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fray._contracts.queue import Queue
from fray.testing.queue_fixtures import LONG, MakeQueue, ManualClock
from fray.testing.queue_options import OptionFixtures
from fray.testing.queue_replies import WorkFailedError

_MANY = 24  # items; an object store takes its time for each


class PoolContract(OptionFixtures):
    """Pools of workers: `work` and `awork` on the queue, ended in every way."""

    @pytest.fixture(autouse=True)
    def _forget_failures(self, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
        """Release the exceptions that were logged: their frames hold the pool and its queue."""
        yield
        caplog.get_records("call").clear()

    @pytest.fixture
    def work(self) -> Callable[..., Any]:
        """Return the function that works in threads: `fray_queue.work`."""
        raise NotImplementedError("a contract's subclass gives `work` and `awork`, those of fray_queue")

    @pytest.fixture
    def awork(self) -> Callable[..., Any]:
        """Return the function that works in coroutines: `fray_queue.awork`."""
        raise NotImplementedError("a contract's subclass gives `work` and `awork`, those of fray_queue")

    def test_threads_work_on_every_item_once(
        self, queue: Queue[Any], work: Callable[..., Any], clock: ManualClock
    ) -> None:
        queue.push_many(range(_MANY))
        clock.advance(5.0)
        seen: list[int] = []
        summary = work(queue, seen.append, concurrency=4, stop_when_empty=True)
        assert sorted(seen) == list(range(_MANY))
        assert (summary.done, summary.attempts, summary.in_hand) == (_MANY, _MANY, 0)
        assert (summary.dated, summary.seconds_in_queue) == (_MANY, pytest.approx(5.0 * _MANY, abs=1.0))
        assert queue.size() == 0

    def test_coroutines_work_on_every_item_once(self, queue: Queue[Any], awork: Callable[..., Any]) -> None:
        queue.push_many(range(_MANY))
        seen: list[int] = []

        async def fn(item: int) -> None:
            await asyncio.sleep(0)
            seen.append(item)

        summary = asyncio.run(awork(queue, fn, concurrency=20, stop_when_empty=True))
        assert (sorted(seen), summary.done) == (list(range(_MANY)), _MANY)
        assert queue.size() == 0

    def test_an_item_of_a_batch_fails_alone_and_is_given_up(
        self, limited: Queue[Any], work: Callable[..., Any]
    ) -> None:
        limited.push_many(range(10))

        def fn(items: list[int]) -> list[Any]:
            return [ValueError(item) if item == 7 else item for item in items]

        summary = work(limited, fn, batch=4, linger=0.02, retry_delay=0.0, stop_when_empty=True)
        assert (summary.done, summary.failed) == (9, 2)
        assert [letter.item for letter in limited.dead_letters()] == [7]

    def test_a_pool_that_is_stopped_leaves_what_it_did_not_begin_to_others(
        self, limited: Queue[Any], work: Callable[..., Any]
    ) -> None:
        limited.push_many(range(_MANY))
        begun: list[int] = []
        told = threading.Event()

        def fn(item: int) -> None:
            begun.append(item)
            assert told.wait(LONG)

        def stop() -> bool:
            if begun:
                told.set()
            return bool(begun)

        summary = work(limited, fn, stop=stop, prefetch=4)
        assert summary.done == len(begun) < _MANY
        assert limited.size() == _MANY - len(begun)
        assert limited.pending() == limited.size()
        assert limited.dead_letters() == []

    def test_a_pool_that_waits_takes_what_comes(self, queue: Queue[Any], work: Callable[..., Any]) -> None:
        stop, came = threading.Event(), threading.Semaphore(0)
        seen: list[str] = []

        def fn(item: str) -> None:
            seen.append(item)
            came.release()

        pool = threading.Thread(target=work, args=(queue, fn), kwargs={"stop": stop, "concurrency": 2})
        pool.start()
        try:
            for number in range(3):
                queue.push(f"item {number}")
                assert came.acquire(timeout=LONG)
        finally:
            stop.set()
            pool.join(LONG)
        assert seen == ["item 0", "item 1", "item 2"]
        assert queue.size() == 0

    def test_a_function_that_ends_the_program_releases_its_item(
        self, queue: Queue[Any], work: Callable[..., Any]
    ) -> None:
        queue.push_many(range(3))

        def fn(item: int) -> None:
            raise SystemExit(item)

        with pytest.raises(SystemExit):
            work(queue, fn)
        assert (queue.size(), queue.pending()) == (3, 3)

    def test_a_cancelled_pool_gives_everything_back(
        self, queue: Queue[Any], awork: Callable[..., Any]
    ) -> None:
        queue.push_many(range(6))

        async def program() -> None:
            begun = asyncio.Event()

            async def fn(item: int) -> None:
                begun.set()
                await asyncio.sleep(LONG)

            pool = asyncio.create_task(awork(queue, fn, concurrency=3))
            await begun.wait()
            pool.cancel()
            with pytest.raises(asyncio.CancelledError):
                await pool

        asyncio.run(program())
        assert (queue.size(), queue.pending()) == (6, 6)

    def test_what_a_pool_returns_and_raises_is_the_reply(
        self, make_queue: MakeQueue, work: Callable[..., Any]
    ) -> None:
        queue = make_queue(max_attempts=1)
        if not self.having(queue, "replies", "reply", reply=True):
            return

        def fn(item: int) -> int:
            if item == 2:
                raise WorkFailedError(item, "no twos")
            return item * item

        tickets = queue.push_many([1, 2, 3], reply=True)
        work(queue, fn, concurrency=2, stop_when_empty=True)
        assert (tickets[0].result(LONG), tickets[2].result(LONG)) == (1, 9)
        with pytest.raises(WorkFailedError, match="no twos"):
            tickets[1].result(LONG)

    def test_a_pool_takes_higher_priorities_first(self, queue: Queue[Any], work: Callable[..., Any]) -> None:
        if not self.having(queue, "priorities", "priority", priority=1):
            return
        queue.push_many(["low", "lower"])
        queue.push("high", priority=3)
        seen: list[str] = []
        work(queue, seen.append, prefetch=0, stop_when_empty=True)
        assert seen == ["high", "low", "lower"]

    def test_what_waits_for_a_later_try_keeps_a_pool_that_ends_when_empty(
        self, queue: Queue[Any], work: Callable[..., Any]
    ) -> None:
        """A pool that ends when nothing is left tries what failed again."""
        queue.push("x")
        tries: list[str] = []

        def fn(item: str) -> None:
            tries.append(item)
            if len(tries) < 3:
                raise ValueError(item)

        summary = work(queue, fn, retry_delay=0.0, stop_when_empty=True)
        assert (len(tries), summary.done, summary.failed, queue.size()) == (3, 1, 2, 0)
