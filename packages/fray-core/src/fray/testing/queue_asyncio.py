"""What a queue promises to asynchronous programs, and of items that were taken and not worked on."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from fray._contracts.queue import Queue
from fray._queues import aio
from fray._queues.aio import async_queue
from fray._values.capabilities import QueueCapabilities
from fray._values.errors import LeaseExpiredError
from fray.testing.queue_fixtures import SOON, ManualClock, QueueFixtures, take


def run(program: Coroutine[Any, Any, None]) -> None:
    """Run a program that must not take long."""
    asyncio.run(asyncio.wait_for(program, 8 * SOON))


def _give_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a cancelled pop wait as long as a busy machine needs to give back what it was granted."""
    monkeypatch.setattr(aio, "_PATIENCE", 4 * SOON)


class AsyncPromises(QueueFixtures):
    """`queue.aio`: every call, to be awaited; a pop that is cancelled leaves nothing leased."""

    def test_every_call_has_an_asynchronous_twin(self, queue: Queue[Any]) -> None:
        async def program() -> None:
            twin = async_queue(queue)
            ids = [await twin.push("a"), *await twin.push_many(["b", "c", "d"])]
            assert (await twin.size(), await twin.pending(), await twin.peek()) == (4, 4, "a")
            first = await twin.pop()
            assert first is not None
            assert (first.item, first.item_id) == ("a", ids[0])
            await twin.release(first)
            leases = await twin.pop_many(3)
            longer = await twin.extend(leases[0], 100.0)
            assert longer.expires_at > leases[0].expires_at
            await twin.done(leases[0])
            await twin.done_many(leases[1:])
            with pytest.raises(LeaseExpiredError):
                await twin.done(leases[0])
            async with twin.lease() as lease:
                assert lease is not None
                assert lease.item == "d"
            async with twin.lease() as nothing:
                assert nothing is None
            assert await twin.size() == 0
            assert await twin.dead_letters() == []
            assert await twin.requeue_dead() == 0

        run(program())

    def test_a_block_that_raises_releases_its_lease(self, queue: Queue[Any]) -> None:
        queue.push("x")

        async def program() -> None:
            with pytest.raises(RuntimeError):
                async with async_queue(queue).lease():
                    raise RuntimeError

        run(program())
        assert queue.pending() == 1

    def test_a_cancelled_pop_leaves_nothing_leased(
        self, queue: Queue[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _give_time(monkeypatch)

        async def program() -> None:
            twin = async_queue(queue)
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await twin.pop(wait=60.0)
            await twin.push("x")
            assert await twin.pending() == 1
            lease = await twin.pop(wait=SOON)
            assert lease is not None
            await twin.done(lease)

        run(program())

    def test_pops_that_are_cancelled_while_items_come_lose_none(
        self, queue: Queue[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _give_time(monkeypatch)

        async def program() -> None:
            twin = async_queue(queue)
            found: list[Any] = []

            async def impatient(number: int) -> None:
                try:
                    async with asyncio.timeout(0.002 * number):
                        found.append(await twin.pop(wait=60.0))
                except TimeoutError:
                    pass

            poppers = [asyncio.create_task(impatient(number)) for number in range(10)]
            for number in range(10):
                await twin.push(number)
            await asyncio.wait(poppers)
            leases = [lease for lease in found if lease is not None]
            while left := await twin.pop_many(10):
                leases += left
            assert sorted(lease.item for lease in leases) == list(range(10))

        run(program())

    def test_many_wait_at_a_time(self, queue: Queue[Any]) -> None:
        async def program() -> None:
            twin = async_queue(queue)
            poppers = [asyncio.create_task(twin.pop(wait=60.0)) for _ in range(40)]
            await asyncio.sleep(0.05)
            await twin.push_many(range(40))
            leases = await asyncio.gather(*poppers)
            assert sorted(lease.item for lease in leases if lease is not None) == list(range(40))

        run(program())


class GiveBackPromises(QueueFixtures):
    """Leases in bulk: extended together, and given back where nobody began to work."""

    def test_leases_are_extended_together_and_those_that_are_lost_are_named(
        self, queue: Queue[Any], clock: ManualClock
    ) -> None:
        queue.push_many("abc")
        leases = queue.pop_many(3, 10.0)
        queue.done(leases[1])
        outcomes = _bulk(queue).extend_many(leases, 50.0)
        assert isinstance(outcomes[1], LeaseExpiredError)
        assert outcomes[1].lease_id == leases[1].lease_id
        for before, after in ((leases[0], outcomes[0]), (leases[2], outcomes[2])):
            assert (after.item, after.lease_id) == (before.item, before.lease_id)
            assert after.expires_at == pytest.approx(clock() + 50, abs=0.01)
        clock.advance(49)
        assert queue.pop() is None

    def test_what_was_not_worked_on_goes_back_to_its_place_as_it_was(self, limited: Queue[Any]) -> None:
        declared = QueueCapabilities.of(type(limited))
        if declared is None or not declared.give_back:
            self.moot("give_back=False")
            return
        limited.push_many("abc")
        limited.release(take(limited))
        for _ in range(3):  # more often than the limit of attempts
            leases = limited.pop_many(2)
            assert [(lease.item, lease.attempt) for lease in leases] == [("a", 2), ("b", 1)]
            _bulk(limited).give_back(leases)
        with pytest.raises(LeaseExpiredError):
            limited.done(leases[0])
        _bulk(limited).give_back(leases)  # lost by now, which is not an error
        assert (limited.size(), limited.pending(), limited.dead_letters()) == (3, 3, [])
        assert [lease.item for lease in limited.pop_many(3)] == ["a", "b", "c"]


def _bulk(queue: Queue[Any]) -> Any:
    return queue
