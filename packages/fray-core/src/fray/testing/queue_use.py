"""What a queue promises to callers that wait, work in a block, share it, or call it wrongly."""

import pickle
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fray._contracts.queue import Queue
from fray._values.leases import Lease
from fray.testing.gates import until
from fray.testing.queue_fixtures import LONG, SOON, MakeQueue, ManualClock, QueueFixtures, refused, take
from fray.testing.queue_replies import SharedReplyPromises
from fray.testing.queue_unreadable import UnreadablePromises


class WaitingPromises(QueueFixtures):
    """Waiting pops, the `with` block, threads."""

    def test_a_waiting_pop_wakes_when_an_item_is_pushed(self, queue: Queue[Any]) -> None:
        assert self._wakes(queue, lambda: queue.push("x")) == "x"

    def test_a_waiting_pop_wakes_when_an_item_is_released(self, queue: Queue[Any]) -> None:
        queue.push("x")
        lease = take(queue)
        assert self._wakes(queue, lambda: queue.release(lease)) == "x"

    @staticmethod
    def _wakes(queue: Queue[Any], event: Callable[[], object]) -> object:
        found: list[Lease[Any] | None] = []
        waiter = threading.Thread(target=lambda: found.append(queue.pop(60, wait=LONG)))
        waiter.start()
        waiter.join(0.05)
        assert waiter.is_alive()
        event()
        waiter.join(SOON)
        assert not waiter.is_alive(), "the waiting pop did not wake"
        assert found[0] is not None
        return found[0].item

    def test_a_waiting_pop_gives_up_in_time(self, queue: Queue[Any]) -> None:
        start = time.monotonic()
        assert queue.pop(wait=0.2) is None
        assert 0.15 < time.monotonic() - start < SOON

    # --- the lease block ---

    def test_the_block_finishes_its_item(self, queue: Queue[Any]) -> None:
        queue.push("x")
        with queue.lease() as lease:
            assert lease is not None
            assert lease.item == "x"
        assert queue.size() == 0
        with queue.lease() as nothing:
            assert nothing is None

    def test_the_block_releases_its_item_when_it_raises(self, queue: Queue[Any]) -> None:
        queue.push("x")
        with pytest.raises(ZeroDivisionError), queue.lease():
            1 / 0  # noqa: B018
        assert queue.pending() == 1
        assert take(queue).attempt == 2

    def test_the_block_says_that_its_lease_was_lost(self, queue: Queue[Any], clock: ManualClock) -> None:
        queue.push("x")
        others: list[Lease[Any]] = []

        def work() -> None:
            with queue.lease(30):
                clock.advance(31)
                others.append(take(queue))

        refused(work)
        queue.done(others[0])

    def test_the_block_keeps_its_lease_alive(self, queue: Queue[Any], clock: ManualClock) -> None:
        queue.push("x")
        with queue.lease(0.3) as lease:
            assert lease is not None
            for _ in range(3):
                clock.advance(0.4)  # beyond its end; while nobody takes the item it can still be extended
                until(lambda: queue.pending() == 0, "a heartbeat extends the lease")
                assert queue.pop() is None
        assert queue.size() == 0

    # --- threads ---

    def test_threads_share_it_and_nothing_is_lost_or_taken_twice(self, queue: Queue[Any]) -> None:
        taken: list[int] = []

        def produce(first: int) -> None:
            for number in range(first, first + 25):
                queue.push(number)

        def consume() -> None:
            while len(taken) < 100:
                lease = queue.pop(wait=0.05)
                if lease is not None:
                    taken.append(lease.item)
                    queue.done(lease)

        threads = [threading.Thread(target=produce, args=(25 * index,)) for index in range(4)]
        threads += [threading.Thread(target=consume) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(taken) == list(range(100))
        assert queue.size() == 0


class InputPromises(QueueFixtures):
    """What is refused, and changes nothing."""

    def test_a_refused_push_changes_nothing(self, queue: Queue[Any]) -> None:
        queue.push("before")

        def items() -> Iterator[str]:
            yield "never stored"
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            queue.push_many(items())
        assert queue.size() == 1
        queue.push("after")
        assert [lease.item for lease in queue.pop_many(3)] == ["before", "after"]

    @pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), 10**400, "10", None, True])
    def test_a_lease_timeout_that_is_none_is_refused(self, queue: Queue[Any], timeout: Any) -> None:
        queue.push("x")
        for call in (queue.pop, lambda seconds: queue.pop_many(1, seconds)):
            with pytest.raises(ValueError, match="lease_timeout"):
                call(timeout)
        lease = take(queue)
        with pytest.raises(ValueError, match="lease_timeout"):
            queue.extend(lease, timeout)
        queue.done(lease)

    def test_other_bad_arguments_are_refused_and_change_nothing(self, queue: Queue[Any]) -> None:
        queue.push("x")
        for call in (
            lambda: queue.pop(wait=-1),
            lambda: queue.pop(wait=10**400),
            lambda: queue.pop_many(0),
            lambda: queue.pop_many(1.5),  # type: ignore[arg-type]
            lambda: queue.done("x"),  # type: ignore[arg-type]
            lambda: queue.release(None),  # type: ignore[arg-type]
        ):
            with pytest.raises(ValueError, match=r"^(wait|n|lease) must be "):
                call()
        lease = take(queue)
        for delay in (-1, 10**400):
            with pytest.raises(ValueError, match="delay"):
                queue.release(lease, delay=delay)
        queue.done(lease)

    @pytest.mark.parametrize("limit", [0, -1])
    def test_a_limit_of_attempts_below_one_is_refused(self, make_queue: MakeQueue, limit: int) -> None:
        with pytest.raises(ValueError, match="max_attempts"):
            make_queue(max_attempts=limit)

    def test_a_lease_that_nobody_gave_is_refused(self, queue: Queue[Any]) -> None:
        item_id = queue.push("x")
        for lease_id in ("", "made up", item_id, f"{item_id}.1"):
            refused(queue.done, Lease("x", lease_id, 0.0, item_id, 1, 0.0))
        assert queue.pending() == 1

    def test_a_lease_of_another_queue_is_refused(self, make_queue: MakeQueue) -> None:
        one, other = make_queue(), make_queue()
        one.push("x")
        other.push("y")
        foreign = take(other)
        mine = take(one)
        refused(one.done, foreign)
        refused(one.release, foreign)
        refused(one.extend, foreign, 10)
        assert (one.size(), one.pending(), other.size()) == (1, 0, 1)
        one.done(mine)
        other.done(foreign)


class SharedQueueContract(SharedReplyPromises, UnreadablePromises):
    """A queue that was pickled and unpickled is the same queue."""

    @pytest.fixture
    def other(self, queue: Queue[Any]) -> Queue[Any]:
        """A second client of the same queue."""
        copy: Queue[Any] = pickle.loads(pickle.dumps(queue))
        return copy

    def test_a_pickled_queue_is_the_same_queue(self, queue: Queue[Any], other: Queue[Any]) -> None:
        queue.push("a")
        other.push("b")
        assert (queue.size(), other.size()) == (2, 2)
        queue.done(take(other))
        assert (queue.size(), other.size()) == (1, 1)

    def test_what_cannot_be_pickled_is_named_and_not_stored(self, queue: Queue[Any]) -> None:
        for call in (queue.push, lambda item: queue.push_many(["fine", item])):
            with pytest.raises(ValueError, match="lock"):
                call(threading.Lock())
        assert queue.size() == 0

    def test_an_item_is_copied(self, queue: Queue[Any]) -> None:
        item = [1]
        queue.push(item)
        item.append(2)
        assert take(queue).item == [1]

    def test_a_lease_that_another_client_finished_is_no_longer_held(
        self, queue: Queue[Any], other: Queue[Any]
    ) -> None:
        queue.push_many(["a", "b"])
        first, second = take(queue), take(queue)
        other.done(first)
        refused(queue.extend, first, 90.0)
        refused(queue.release, first)
        queue.done(second)
        refused(other.extend, second, 90.0)
        assert queue.size() == 0
        assert queue.pop() is None

    def test_a_release_and_a_requeue_by_one_client_are_seen_by_another(self, make_queue: MakeQueue) -> None:
        one = make_queue(max_attempts=2)
        other: Queue[Any] = pickle.loads(pickle.dumps(one))
        one.push("x")
        one.release(take(one))
        one.release(take(other))
        assert [letter.item for letter in other.dead_letters()] == ["x"]
        assert one.requeue_dead() == 1
        assert take(other).attempt == 1
