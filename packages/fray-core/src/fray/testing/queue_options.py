"""What a queue promises of the options of push, by what it declares."""

from typing import Any

import pytest

from fray._contracts.queue import Queue
from fray._values.capabilities import QueueCapabilities
from fray.testing.queue_fixtures import ManualClock, QueueFixtures, take


def declares(queue: Queue[Any], capability: str) -> bool:
    """Return whether a queue says that it can."""
    return bool(getattr(QueueCapabilities.of(queue), capability, False))


class OptionFixtures(QueueFixtures):
    """A queue that has an option; where it has none, the test is that it refuses."""

    def having(self, queue: Queue[Any], capability: str, option: str, **given: Any) -> bool:
        """Return whether the queue has what an option needs; else check that a push with it is refused."""
        if declares(queue, capability):
            return True
        for call in (lambda: queue.push("x", **given), lambda: queue.push_many(["x"], **_many(given))):
            with self.refuses(option):
                call()
        assert queue.size() == 0
        return False


def _many(given: dict[str, Any]) -> dict[str, Any]:
    return {
        "keys" if name == "key" else name: [value] if name == "key" else value
        for name, value in given.items()
    }


class PriorityPromises(OptionFixtures):
    """`push(priority=)`: what is taken first."""

    def test_higher_priorities_are_taken_first_and_within_one_the_first_pushed(
        self, queue: Queue[Any]
    ) -> None:
        if not self.having(queue, "priorities", "priority", priority=1):
            return
        queue.push_many(["a0", "b0"])
        queue.push("low", priority=-5)
        queue.push_many(["a7", "b7"], priority=7)
        queue.push("c0")
        queue.push("top", priority=8)
        assert queue.peek() == "top"
        assert [lease.item for lease in queue.pop_many(3)] == ["top", "a7", "b7"]
        assert [take(queue).item for _ in range(4)] == ["a0", "b0", "c0", "low"]

    def test_a_queue_is_as_old_as_its_oldest_item_of_any_priority(
        self, queue: Queue[Any], clock: ManualClock
    ) -> None:
        if not self.having(queue, "priorities", "priority", priority=1) or not hasattr(
            queue, "oldest_seconds"
        ):
            return
        ages = (-5, 0, 7)
        for priority in ages:
            queue.push(priority, priority=priority)
            clock.advance(1.0)
        assert queue.oldest_seconds() == pytest.approx(3.0, abs=0.01)
        assert take(queue).item == 7
        queue.done(take(queue))
        assert queue.oldest_seconds() == pytest.approx(3.0, abs=0.01)
        queue.done(take(queue))
        assert queue.oldest_seconds() == pytest.approx(1.0, abs=0.01)

    def test_a_released_item_keeps_its_place_within_its_priority(
        self, queue: Queue[Any], clock: ManualClock
    ) -> None:
        if not self.having(queue, "priorities", "priority", priority=1):
            return
        queue.push_many(["a", "b"], priority=2)
        queue.push("plain")
        first = take(queue)
        take(queue, 10.0)
        queue.release(first)
        clock.advance(11.0)
        queue.push("c", priority=2)
        queue.push("higher", priority=3)
        leases = queue.pop_many(10)
        assert [lease.item for lease in leases] == ["higher", "a", "b", "c", "plain"]

    @pytest.mark.parametrize("priority", [1.5, "1", None, True, 2**40])
    def test_a_priority_that_is_none_is_refused(self, queue: Queue[Any], priority: Any) -> None:
        with pytest.raises(ValueError, match="priority"):
            queue.push("x", priority=priority)
        assert queue.size() == 0


class KeyPromises(OptionFixtures):
    """`push(key=)`: an item is there once."""

    def test_a_key_that_is_pending_or_leased_stores_nothing(self, queue: Queue[Any]) -> None:
        if not self.having(queue, "keys", "key", key="k"):
            return
        first = queue.push("first", key="k")
        assert queue.push("second", key="k") == first
        assert queue.push("other", key="k2") != first
        assert queue.size() == 2
        lease = take(queue)
        assert (lease.item, lease.item_id) == ("first", first)
        assert queue.push("third", key="k") == first
        assert queue.size() == 2

    def test_a_key_is_free_when_its_item_is_done(self, queue: Queue[Any]) -> None:
        if not self.having(queue, "keys", "key", key="k"):
            return
        first = queue.push("first", key="k")
        queue.done(take(queue))
        second = queue.push("second", key="k")
        assert second != first
        assert take(queue).item == "second"

    def test_a_key_is_free_when_its_item_is_given_up(self, limited: Queue[Any]) -> None:
        if not self.having(limited, "keys", "key", key="k"):
            return
        first = limited.push("first", key="k")
        for _ in range(2):
            limited.release(take(limited))
        second = limited.push("second", key="k")
        assert second != first
        assert limited.requeue_dead() == 1
        assert limited.push("third", key="k") == second
        assert sorted(lease.item for lease in limited.pop_many(5)) == ["first", "second"]

    def test_many_are_pushed_with_a_key_each(self, queue: Queue[Any]) -> None:
        if not self.having(queue, "keys", "key", key="k"):
            return
        known = queue.push("known", key="b")
        ids = queue.push_many(["1", "2", "3", "4", "5"], keys=["a", "b", "a", None, None])
        assert (ids[1], ids[2]) == (known, ids[0])
        assert len(set(ids)) == 4
        assert [lease.item for lease in queue.pop_many(10)] == ["known", "1", "4", "5"]
        with pytest.raises(ValueError, match="keys"):
            queue.push_many(["1", "2"], keys=["a"])

    @pytest.mark.parametrize("key", ["", 7, "x" * 201])
    def test_a_key_that_is_none_is_refused(self, queue: Queue[Any], key: Any) -> None:
        with pytest.raises(ValueError, match="key"):
            queue.push("x", key=key)
        assert queue.size() == 0


class TogetherPromises(OptionFixtures):
    """What the options of push mean together."""

    def test_items_with_and_without_options_stand_in_one_line(
        self, queue: Queue[Any], clock: ManualClock
    ) -> None:
        for each in ("priorities", "delays", "ttl", "keys"):
            if not declares(queue, each):
                self.moot(f"{each}=False")
                return
        queue.push("1")
        queue.push("2", ttl=100.0)
        queue.push("3")
        queue.push("4", key="k")
        queue.push("5", delay=1.0)
        queue.push_many(["6", "7"])
        clock.advance(2.0)
        assert queue.pending() == 7
        assert [lease.item for lease in queue.pop_many(3)] == ["1", "2", "3"]
        leases = queue.pop_many(10)
        assert [lease.item for lease in leases] == ["4", "5", "6", "7"]
        queue.done_many(leases)
        assert queue.size() == 3
