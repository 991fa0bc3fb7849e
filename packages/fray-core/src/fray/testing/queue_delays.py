"""What a queue promises of items that have a time: `delay` and `ttl`."""

from typing import Any

import pytest

from fray._contracts.queue import Queue
from fray.testing.queue_fixtures import SOON, ManualClock, refused, take
from fray.testing.queue_options import OptionFixtures


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

    def test_an_item_that_a_worker_holds_does_not_expire(self, queue: Queue[Any], clock: ManualClock) -> None:
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
