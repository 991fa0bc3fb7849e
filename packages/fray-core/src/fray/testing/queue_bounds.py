"""What a queue promises of `max_size` and `max_dead`."""

import asyncio
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from fray._contracts.queue import Queue
from fray._queues.aio import async_queue
from fray._values.errors import QueueFullError
from fray.testing.queue_asyncio import run
from fray.testing.queue_fixtures import LONG, SOON, MakeQueue, take
from fray.testing.queue_options import OptionFixtures, declares


class BoundPromises(OptionFixtures):
    """`max_size`: producers wait for consumers. And what becomes of too many dead letters."""

    @pytest.fixture
    def bounded(self, make_queue: MakeQueue) -> Queue[Any] | None:
        """A queue of at most three items, where there are such."""
        if declares(make_queue(), "max_size"):
            return make_queue(max_size=3, max_attempts=2)
        with self.refuses("max_size"):
            make_queue(max_size=3)
        return None

    def test_a_push_into_a_full_queue_is_refused_at_once_with_wait_0(
        self, bounded: Queue[Any] | None
    ) -> None:
        if bounded is None:
            return
        bounded.push_many("ab", wait=0)
        with pytest.raises(QueueFullError, match="max_size=3"):
            bounded.push_many("cd", wait=0)
        assert bounded.size() == 2
        bounded.push("c", wait=0)
        lease = take(bounded)
        for wait in (0.0, 0.05):
            with pytest.raises(QueueFullError) as refused:
                bounded.push("d", wait=wait)
            again = pickle.loads(pickle.dumps(refused.value))
            assert (again.waited, str(again)) == (refused.value.waited, str(refused.value))
            assert again.waited == wait
        bounded.done(lease)
        bounded.push("d", wait=0)
        assert [lease.item for lease in bounded.pop_many(9)] == ["b", "c", "d"]

    def test_more_items_than_ever_fit_are_refused_at_once(self, bounded: Queue[Any] | None) -> None:
        if bounded is None:
            return
        start = time.monotonic()
        with pytest.raises(QueueFullError, match="max_size=3") as refused:
            bounded.push_many("abcd", wait=LONG)
        assert time.monotonic() - start < SOON
        assert refused.value.waited == 0.0
        assert bounded.size() == 0

    def test_a_push_waits_until_an_item_is_done(self, bounded: Queue[Any] | None) -> None:
        if bounded is None:
            return
        bounded.push_many("abc")
        lease = take(bounded)
        self._goes_on(bounded, lambda: bounded.done(lease))

    def test_a_push_waits_until_an_item_is_given_up(self, bounded: Queue[Any] | None) -> None:
        if bounded is None:
            return
        bounded.push_many("abc")
        bounded.release(take(bounded))
        lease = take(bounded)
        self._goes_on(bounded, lambda: bounded.release(lease))

    @staticmethod
    def _goes_on(queue: Queue[Any], event: Callable[[], object]) -> None:
        pushed: list[str] = []
        pusher = threading.Thread(target=lambda: pushed.append(queue.push("d", wait=LONG)))
        pusher.start()
        pusher.join(0.1)
        assert pusher.is_alive()
        event()
        pusher.join(SOON)
        assert not pusher.is_alive(), "the push did not go on"
        assert queue.size() == 3

    def test_coroutines_that_wait_for_room_keep_no_other_call_out(self, bounded: Queue[Any] | None) -> None:
        if bounded is None:
            return

        async def program() -> None:
            twin = async_queue(bounded)
            await twin.push_many("abc")
            pushing = [asyncio.create_task(twin.push(item, wait=LONG)) for item in "defgh" * 8]
            await asyncio.sleep(0.05)  # nothing shows that all of them wait
            taken: list[str] = []
            while len(taken) < 43:
                lease = await twin.pop(wait=LONG)
                assert lease is not None
                taken.append(lease.item)
                await twin.done(lease)
            await asyncio.gather(*pushing)
            assert sorted(taken) == sorted("abc" + "defgh" * 8)

        run(program())

    def test_a_coroutine_waits_no_longer_for_room_than_it_may(self, bounded: Queue[Any] | None) -> None:
        if bounded is None:
            return

        async def program() -> None:
            twin = async_queue(bounded)
            with pytest.raises(QueueFullError, match="max_size=3"):
                await twin.push_many("abcd", wait=LONG)
            await twin.push_many("abc")
            patient = asyncio.create_task(twin.push("d", wait=LONG))
            for wait in (0.0, 0.1, 0.5):
                with pytest.raises(QueueFullError, match="max_size=3") as refused:
                    await twin.push("e", wait=wait)
                assert refused.value.waited == wait
            lease = await twin.pop()
            assert lease is not None
            await twin.done(lease)
            await patient
            assert await twin.size() == 3

        run(program())

    def test_a_coroutine_that_waits_for_more_room_keeps_none_out_that_needs_less(
        self, bounded: Queue[Any] | None
    ) -> None:
        if bounded is None:
            return

        async def program() -> None:
            twin = async_queue(bounded)
            await twin.push_many("abc")
            large = asyncio.create_task(twin.push_many("de", wait=LONG))
            await asyncio.sleep(0.1)  # nothing shows that it waits
            small = asyncio.create_task(twin.push("f", wait=LONG))
            await asyncio.sleep(0.1)
            for _ in range(2):
                lease = await twin.pop()
                assert lease is not None
                await twin.done(lease)
                if not small.done():
                    await asyncio.wait_for(asyncio.shield(small), SOON)
            assert not large.done()
            lease = await twin.pop()
            assert lease is not None
            await twin.done(lease)
            await asyncio.wait_for(large, SOON)

        run(program())

    def test_a_key_that_is_known_needs_no_room(self, bounded: Queue[Any] | None) -> None:
        if bounded is None or not declares(bounded, "keys"):
            return
        first = bounded.push("a", key="k")
        bounded.push_many("bc")
        assert bounded.push("again", key="k", wait=0) == first

    def test_dead_letters_are_bounded_and_those_dropped_are_counted(self, make_queue: MakeQueue) -> None:
        if not declares(make_queue(), "max_size"):
            self.moot("max_size=False")
            return
        queue: Any = make_queue(max_attempts=1, max_dead=2)
        queue.push_many("abcd")
        for lease in queue.pop_many(4):
            queue.release(lease)
        assert [letter.item for letter in queue.dead_letters()] == ["c", "d"]
        assert queue.dead_dropped() == 2
        assert queue.requeue_dead() == 2
