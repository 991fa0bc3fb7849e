"""What a queue promises of its order, its leases and its dead letters."""

from typing import Any

import pytest

from fray._contracts.queue import Queue
from fray.testing.queue_fixtures import ManualClock, QueueFixtures, refused, take


class LeasePromises(QueueFixtures):
    """Order, leases, and which lease may settle what."""

    def test_it_is_a_queue(self, queue: Queue[Any]) -> None:
        assert isinstance(queue, Queue)

    def test_items_come_out_first_in_first_out(self, queue: Queue[Any]) -> None:
        ids = [queue.push(number) for number in range(3)] + queue.push_many(range(3, 6))
        assert len(set(ids)) == 6
        leases = [take(queue) for _ in range(3)] + queue.pop_many(10)
        assert [lease.item for lease in leases] == list(range(6))
        assert [lease.item_id for lease in leases] == ids
        assert queue.pop() is None

    def test_an_item_stays_until_it_is_done(self, queue: Queue[Any]) -> None:
        queue.push("only")
        lease = take(queue)
        assert (queue.size(), queue.pending()) == (1, 0)
        queue.done(lease)
        assert (queue.size(), queue.pending()) == (0, 0)
        assert queue.pop() is None

    @pytest.mark.parametrize(
        "item", [None, 0, "", {"a": [1, 2.5]}, b"\x00\xff", ("x", None), "\N{SNOWMAN}" * 5000]
    )
    def test_any_value_comes_back_equal(self, queue: Queue[Any], item: object) -> None:
        queue.push(item)
        assert take(queue).item == item

    def test_a_lease_says_what_it_holds_and_until_when(self, queue: Queue[Any], clock: ManualClock) -> None:
        item_id = queue.push("x")
        lease = take(queue, 30)
        assert (lease.item, lease.item_id, lease.attempt) == ("x", item_id, 1)
        assert lease.timestamp == pytest.approx(clock(), abs=0.01)
        assert lease.expires_at == pytest.approx(clock() + 30, abs=0.01)

    def test_a_lease_says_how_long_its_item_was_in_the_queue(
        self, queue: Queue[Any], clock: ManualClock
    ) -> None:
        at = clock()
        queue.push_many("ab")
        clock.advance(3.0)
        queue.push("c")
        clock.advance(4.0)
        a, b, c = queue.pop_many(3)
        for lease, pushed_at in ((a, at), (b, at), (c, at + 3.0)):
            assert lease.pushed_at == pytest.approx(pushed_at, abs=0.01)
        assert a.seconds_in_queue == pytest.approx(7.0, abs=0.01)
        queue.release(b)
        clock.advance(1.0)
        again = take(queue)
        assert (again.item, again.attempt) == ("b", 2)
        assert again.seconds_in_queue == pytest.approx(8.0, abs=0.01)
        assert queue.extend(again, 30.0).pushed_at == again.pushed_at

    def test_a_queue_is_as_old_as_the_first_that_was_pushed(
        self, queue: Queue[Any], clock: ManualClock
    ) -> None:
        if not hasattr(queue, "oldest_seconds"):
            return  # `Queue` does not ask for it
        assert queue.oldest_seconds() is None
        queue.push_many("ab")
        clock.advance(3.0)
        queue.push("c")
        first = take(queue)
        clock.advance(1.0)
        assert queue.oldest_seconds() == pytest.approx(4.0, abs=0.01)
        queue.done(first)
        second = take(queue)
        queue.release(second)
        assert queue.oldest_seconds() == pytest.approx(4.0, abs=0.01)
        queue.done(take(queue))
        assert queue.oldest_seconds() == pytest.approx(1.0, abs=0.01)
        queue.done(take(queue))
        assert queue.oldest_seconds() is None

    def test_a_leased_item_is_nobody_elses(self, queue: Queue[Any], clock: ManualClock) -> None:
        queue.push("x")
        take(queue, 30)
        clock.advance(29.9)
        assert queue.pop() is None

    def test_a_released_item_keeps_its_place_in_line(self, queue: Queue[Any]) -> None:
        queue.push_many("abc")
        first, second = take(queue), take(queue)
        queue.release(second)
        queue.release(first)
        leases = queue.pop_many(3)
        assert [(lease.item, lease.attempt) for lease in leases] == [("a", 2), ("b", 2), ("c", 1)]

    def test_an_expired_lease_gives_its_item_to_the_next_worker(
        self, queue: Queue[Any], clock: ManualClock
    ) -> None:
        queue.push_many("ab")
        lost = take(queue, 10)
        clock.advance(10.1)
        found = take(queue)
        assert (found.item, found.attempt) == ("a", 2)
        assert found.lease_id != lost.lease_id

    def test_a_lease_that_ran_out_but_was_not_taken_again_is_still_good(
        self, queue: Queue[Any], clock: ManualClock
    ) -> None:
        queue.push_many("abc")
        a, b, c = (take(queue, 10) for _ in range(3))
        clock.advance(11)
        assert (queue.size(), queue.pending()) == (3, 3)
        queue.done(a)
        extended = queue.extend(b, 10)
        queue.release(c)
        assert (queue.size(), queue.pending()) == (2, 1)
        assert take(queue).item == "c"
        queue.done(extended)

    def test_a_lease_that_another_took_over_changes_nothing(
        self, queue: Queue[Any], clock: ManualClock
    ) -> None:
        queue.push("x")
        old = take(queue, 10)
        clock.advance(11)
        new = take(queue, 10)
        refused(queue.done, old)
        refused(queue.release, old)
        refused(queue.extend, old, 100)
        assert (queue.size(), queue.pending()) == (1, 0)
        clock.advance(9)
        assert queue.pop() is None  # the new lease is what it was
        queue.done(new)

    def test_a_lease_whose_item_another_finished_changes_nothing(
        self, queue: Queue[Any], clock: ManualClock
    ) -> None:
        queue.push("x")
        old = take(queue, 10)
        clock.advance(11)
        queue.done(take(queue))
        refused(queue.done, old)
        refused(queue.release, old)
        refused(queue.extend, old, 10)
        clock.advance(1000)
        assert (queue.size(), queue.pop()) == (0, None)

    @pytest.mark.parametrize("first", ["done", "release"])
    @pytest.mark.parametrize("second", ["done", "release"])
    def test_a_lease_settles_once(self, queue: Queue[Any], first: str, second: str) -> None:
        queue.push("x")
        lease = take(queue)
        getattr(queue, first)(lease)
        refused(getattr(queue, second), lease)
        refused(queue.extend, lease, 10)
        assert queue.pending() == (first == "release")

    def test_extending_keeps_the_item_and_the_lease_id(self, queue: Queue[Any], clock: ManualClock) -> None:
        queue.push("x")
        lease = take(queue, 10)
        for _ in range(3):
            clock.advance(9)
            longer = queue.extend(lease, 10)
            assert (longer.lease_id, longer.item_id, longer.attempt) == (lease.lease_id, lease.item_id, 1)
            assert longer.expires_at == pytest.approx(clock() + 10, abs=0.01)
        assert queue.pop() is None
        queue.done(lease)  # the lease as first returned is good as long as it is held

    def test_a_finished_item_is_not_extended_as_it_was_before(self, queue: Queue[Any]) -> None:
        queue.push("a")
        lease = take(queue, 5.0)
        extended = queue.extend(lease, 3.0)
        queue.done(extended)
        refused(queue.extend, extended, 3.0)  # the same request as before, at the same moment
        refused(queue.extend, lease, 3.0)
        assert queue.size() == 0

    def test_an_extended_lease_ends_when_it_says(self, queue: Queue[Any], clock: ManualClock) -> None:
        queue.push("x")
        lease = queue.extend(take(queue, 10), 50)
        clock.advance(49)
        assert queue.pop() is None
        clock.advance(2)
        assert take(queue).attempt == 2
        refused(queue.done, lease)

    def test_a_delayed_release_is_not_taken_before_its_time(
        self, queue: Queue[Any], clock: ManualClock
    ) -> None:
        queue.push_many("ab")
        queue.release(take(queue), delay=20)
        assert (queue.size(), queue.pending()) == (2, 1)
        queue.done(take(queue))
        assert queue.pop() is None
        clock.advance(20.1)
        assert queue.pending() == 1
        assert (lease := take(queue)).item == "a"
        assert lease.attempt == 2

    def test_peeking_leaves_the_item(self, queue: Queue[Any]) -> None:
        assert queue.peek() is None
        queue.push_many("ab")
        assert (queue.peek(), queue.peek()) == ("a", "a")
        lease = take(queue)
        assert queue.peek() == "b"
        queue.release(lease)
        assert queue.peek() == "a"

    def test_many_are_done_at_once(self, queue: Queue[Any]) -> None:
        queue.push_many(range(100))
        leases = queue.pop_many(60)
        queue.done_many(leases)
        assert queue.size() == 40
        refused(queue.done_many, [*leases, take(queue)])
        assert queue.size() == 39  # the good one among them is done
        queue.done_many([])
        assert queue.push_many([]) == []

    def test_so_many_are_taken_as_were_asked_for(self, queue: Queue[Any]) -> None:
        for item in range(5):
            queue.push(item)
        assert [lease.item for lease in queue.pop_many(3)] == [0, 1, 2]
        assert queue.pending() == 2


class DeadLetterPromises(QueueFixtures):
    """What becomes of an item that nobody can finish."""

    def test_an_item_is_given_up_after_its_last_release(self, limited: Queue[Any]) -> None:
        item_id = limited.push("poison")
        limited.push("good")
        for attempt in (1, 2):
            lease = take(limited)
            assert (lease.item, lease.attempt) == ("poison", attempt)
            limited.release(lease)
        assert (limited.size(), take(limited).item) == (1, "good")
        (letter,) = limited.dead_letters()
        assert (letter.item, letter.item_id, letter.attempts) == ("poison", item_id, 2)
        assert [(entry.number, entry.outcome) for entry in letter.history] == [
            (1, "released"),
            (2, "released"),
        ]
        refused(limited.done, lease)

    def test_an_item_is_given_up_after_its_last_expiry(self, limited: Queue[Any], clock: ManualClock) -> None:
        limited.push("poison")
        limited.release(take(limited))
        lease = take(limited, 10)
        clock.advance(11)
        assert (limited.size(), limited.pending(), limited.pop()) == (0, 0, None)
        (letter,) = limited.dead_letters()
        assert [entry.outcome for entry in letter.history] == ["released", "expired"]
        refused(limited.done, lease)

    def test_requeued_dead_letters_start_again_from_attempt_one(self, limited: Queue[Any]) -> None:
        ids = limited.push_many("abc")
        for _ in range(2):
            for lease in limited.pop_many(3):
                limited.release(lease)
        assert [letter.item for letter in limited.dead_letters()] == ["a", "b", "c"]
        assert limited.requeue_dead([ids[1], "no such item"]) == 1
        assert [letter.item for letter in limited.dead_letters()] == ["a", "c"]
        lease = take(limited)
        assert (lease.item, lease.item_id, lease.attempt) == ("b", ids[1], 1)
        assert limited.requeue_dead() == 2
        assert (limited.size(), limited.dead_letters()) == (3, [])
        limited.release(lease)
        again = next(taken for taken in limited.pop_many(3) if taken.item == "b")
        assert again.attempt == 2
        limited.release(again)
        assert [letter.item for letter in limited.dead_letters()] == ["b"]

    def test_without_a_limit_nothing_is_given_up(self, queue: Queue[Any]) -> None:
        queue.push("x")
        for attempt in range(1, 12):
            lease = take(queue)
            assert lease.attempt == attempt
            queue.release(lease)
        assert queue.dead_letters() == []
