"""What a queue promises of the options of push, by what it declares."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from fray._contracts.queue import Queue
from fray._values.capabilities import QueueCapabilities
from fray._values.errors import QueueFullError
from fray.testing.queue_fixtures import LONG, SOON, MakeQueue, ManualClock, QueueFixtures, refused, take


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
    """`push(priority=)`: who is taken first."""

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


class DelayPromises(OptionFixtures):
    """`push(delay=)` and `push(ttl=)`: not before, and not after."""

    def test_a_delayed_item_is_not_taken_before_its_time(self, queue: Queue[Any], clock: ManualClock) -> None:
        if not self.having(queue, "delays", "delay", delay=1.0):
            return
        queue.push("later", delay=20.0)
        queue.push("now")
        assert (queue.size(), queue.pending(), queue.peek()) == (2, 1, "now")
        queue.done(take(queue))
        assert queue.pop() is None
        clock.advance(20.1)
        assert (queue.pending(), queue.peek()) == (1, "later")
        assert take(queue).attempt == 1

    def test_a_delayed_item_has_its_place_in_line_when_its_time_comes(
        self, queue: Queue[Any], clock: ManualClock
    ) -> None:
        if not self.having(queue, "delays", "delay", delay=1.0):
            return
        queue.push("first", delay=5.0)
        queue.push_many(["second", "third"])
        clock.advance(5.1)
        assert [lease.item for lease in queue.pop_many(3)] == ["first", "second", "third"]

    def test_a_waiting_pop_gets_a_delayed_item_in_its_time(
        self, queue: Queue[Any], clock: ManualClock
    ) -> None:
        if not self.having(queue, "delays", "delay", delay=1.0):
            return
        queue.push("later", delay=5.0)
        clock.advance(4.9)
        assert queue.pop() is None
        clock.advance(0.2)
        assert queue.pop(wait=SOON) is not None

    def test_an_item_that_nobody_took_in_time_is_a_dead_letter(
        self, queue: Queue[Any], clock: ManualClock
    ) -> None:
        if not self.having(queue, "ttl", "ttl", ttl=1.0):
            return
        queue.push("plain")
        item_id = queue.push("stale", ttl=30.0)
        clock.advance(29.0)
        assert (queue.size(), queue.dead_letters()) == (2, [])
        clock.advance(1.1)
        assert (queue.size(), queue.pending()) == (1, 1)
        (letter,) = queue.dead_letters()
        assert (letter.item, letter.item_id, letter.attempts) == ("stale", item_id, 0)
        assert (letter.reason, letter.history) == ("expired", ())
        assert take(queue).item == "plain"
        assert queue.pop() is None

    def test_an_item_that_somebody_holds_does_not_expire(self, queue: Queue[Any], clock: ManualClock) -> None:
        if not self.having(queue, "ttl", "ttl", ttl=1.0):
            return
        queue.push_many("ab", ttl=30.0)
        held, returned = take(queue, 100.0), take(queue, 100.0)
        clock.advance(50.0)
        assert queue.dead_letters() == []
        queue.extend(held, 100.0)
        queue.done(held)
        queue.release(returned)  # its time has passed while it was held: nobody may take it any more
        assert queue.size() == 0
        assert [(letter.item, letter.reason) for letter in queue.dead_letters()] == [("b", "expired")]

    def test_an_item_expires_when_its_lease_ends_after_its_time(
        self, queue: Queue[Any], clock: ManualClock
    ) -> None:
        if not self.having(queue, "ttl", "ttl", ttl=1.0):
            return
        queue.push("x", ttl=30.0)
        lease = take(queue, 40.0)
        clock.advance(41.0)
        refused(queue.done, lease)
        assert [letter.reason for letter in queue.dead_letters()] == ["expired"]

    def test_a_requeued_item_does_not_expire_again(self, queue: Queue[Any], clock: ManualClock) -> None:
        if not self.having(queue, "ttl", "ttl", ttl=1.0):
            return
        queue.push("x", ttl=5.0)
        clock.advance(6.0)
        assert queue.requeue_dead() == 1
        clock.advance(1000.0)
        assert queue.dead_letters() == []
        assert take(queue).item == "x"

    def test_what_is_delayed_beyond_its_time_expires_in_time(
        self, queue: Queue[Any], clock: ManualClock
    ) -> None:
        if not (
            self.having(queue, "ttl", "ttl", ttl=1.0) and self.having(queue, "delays", "delay", delay=1.0)
        ):
            return
        queue.push("x", delay=60.0, ttl=10.0)
        clock.advance(10.1)
        assert [letter.reason for letter in queue.dead_letters()] == ["expired"]
        assert queue.size() == 0

    @pytest.mark.parametrize("option", ["delay", "ttl", "reply_ttl", "wait"])
    @pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "10", True])
    def test_seconds_that_are_none_are_refused(self, queue: Queue[Any], option: str, seconds: Any) -> None:
        with pytest.raises(ValueError, match=option):
            queue.push("x", **{option: seconds})
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
            with pytest.raises(QueueFullError):
                bounded.push("d", wait=wait)
        bounded.done(lease)
        bounded.push("d", wait=0)
        assert [lease.item for lease in bounded.pop_many(9)] == ["b", "c", "d"]

    def test_more_items_than_ever_fit_are_refused_at_once(self, bounded: Queue[Any] | None) -> None:
        if bounded is None:
            return
        start = time.monotonic()
        with pytest.raises(QueueFullError, match="max_size=3"):
            bounded.push_many("abcd", wait=LONG)
        assert time.monotonic() - start < SOON
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
