"""What a queue promises about items that their taker cannot unpickle."""

import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from fray._contracts.queue import Queue
from fray._values.capabilities import QueueCapabilities
from fray._values.errors import UnreadableItemError
from fray._values.leases import UnreadableItem
from fray.testing.queue_fixtures import SOON, MakeQueue, ManualClock, QueueFixtures, take

_TEN_MINUTES = 600.0
_failures: list[BaseException] = []  # what the next unpickling of a `Newer` raises; empty: nothing


def _revive(text: str) -> "Newer":
    if _failures:
        raise _failures[0]
    return Newer(text)


class Newer:
    """An item of a class that a taker may not have yet."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (self.text,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Newer) and other.text == self.text

    __hash__ = None  # type: ignore[assignment]


class UnreadablePromises(QueueFixtures):
    """One item that cannot be unpickled stops no other, and is never lost."""

    @pytest.fixture
    def unreadable(self) -> Iterator[list[BaseException]]:
        """While the list has an error, a `Newer` cannot be unpickled; emptied, it can be again."""
        _failures[:] = [ModuleNotFoundError("No module named 'newer'")]
        yield _failures
        _failures.clear()

    def test_an_unreadable_item_is_set_aside_and_the_next_is_delivered(
        self, queue: Queue[Any], unreadable: list[BaseException]
    ) -> None:
        queue.push_many([Newer("a"), Newer("b"), "good"])
        assert take(queue).item == "good"
        assert queue.pop() is None
        assert (queue.size(), queue.pending()) == (3, 0)

    def test_a_batch_is_what_can_be_read_each_item_once(
        self, queue: Queue[Any], unreadable: list[BaseException]
    ) -> None:
        queue.push_many([0, Newer("a"), 1, Newer("b"), 2, 3])
        leases = queue.pop_many(4) + queue.pop_many(4)
        assert [lease.item for lease in leases] == [0, 1, 2, 3]
        queue.done_many(leases)
        assert queue.size() == 2

    def test_a_newer_worker_gets_an_item_that_was_set_aside(
        self, queue: Queue[Any], clock: ManualClock, unreadable: list[BaseException]
    ) -> None:
        item_id = queue.push(Newer("a"))
        assert queue.pop() is None
        unreadable.clear()
        clock.advance(_TEN_MINUTES)
        lease = take(queue)
        assert (lease.item, lease.item_id, lease.attempt) == (Newer("a"), item_id, 2)
        queue.done(lease)

    def test_it_is_given_up_after_five_attempts_and_ten_minutes_with_its_bytes_and_error(
        self, queue: Queue[Any], clock: ManualClock, unreadable: list[BaseException]
    ) -> None:
        item_id = queue.push(Newer("a"))
        start = clock()
        while not (letters := queue.dead_letters()):
            assert queue.pop() is None
            assert queue.size() + len(queue.dead_letters()) == 1
            clock.advance(20.0)
            assert clock() < start + 10 * _TEN_MINUTES, "it is never given up"
        assert clock() >= start + _TEN_MINUTES
        (letter,) = letters
        assert (letter.item_id, letter.attempts) == (item_id, 5)
        assert [each.outcome for each in letter.history] == ["unreadable"] * 5
        assert "No module named 'newer'" in (letter.error or "")
        assert isinstance(letter.item, UnreadableItem)
        unreadable.clear()
        assert pickle.loads(letter.item.payload) == Newer("a")
        assert [letter.item for letter in queue.dead_letters()] == [Newer("a")]
        assert queue.requeue_dead([item_id]) == 1
        assert take(queue).item == Newer("a")

    def test_a_limit_of_attempts_holds_for_unreadable_items_too(
        self, limited: Queue[Any], clock: ManualClock, unreadable: list[BaseException]
    ) -> None:
        limited.push(Newer("a"))
        assert limited.pop() is None
        clock.advance(_TEN_MINUTES)
        assert limited.pop() is None
        assert limited.size() == 0
        (letter,) = limited.dead_letters()
        assert letter.attempts == 2

    def test_an_item_that_ends_programs_is_unreadable(
        self, queue: Queue[Any], unreadable: list[BaseException]
    ) -> None:
        unreadable[:] = [SystemExit(3)]
        queue.push_many([Newer("a"), "good"])
        assert take(queue).item == "good"

    def test_an_item_that_panics_is_unreadable(
        self, queue: Queue[Any], unreadable: list[BaseException]
    ) -> None:
        class PanicError(BaseException):
            """As libraries that are written in Rust raise it: it is no Exception."""

        unreadable[:] = [PanicError("called `unwrap` on a `None` value")]
        queue.push_many([Newer("a"), "good"])
        assert take(queue).item == "good"

    def test_an_interrupt_gives_back_what_was_in_hand(
        self, queue: Queue[Any], unreadable: list[BaseException]
    ) -> None:
        unreadable[:] = [KeyboardInterrupt()]
        queue.push_many(["before", Newer("a"), "after"])
        with pytest.raises(KeyboardInterrupt):
            queue.pop_many(3)
        unreadable.clear()
        leases = queue.pop_many(3)
        assert [lease.item for lease in leases] == ["before", Newer("a"), "after"]
        declared = QueueCapabilities.of(type(queue))
        if declared is not None and declared.give_back:  # nobody worked on them
            assert [lease.attempt for lease in leases] == [1, 1, 1]

    def test_looking_at_an_unreadable_item_says_which_it_is(
        self, queue: Queue[Any], unreadable: list[BaseException]
    ) -> None:
        item_id = queue.push(Newer("a"))
        with pytest.raises(UnreadableItemError, match="newer") as error:
            queue.peek()
        assert error.value.item_id == item_id
        assert queue.pending() == 1

    def test_a_waiting_pop_outlasts_an_unreadable_item(
        self, make_queue: MakeQueue, unreadable: list[BaseException]
    ) -> None:
        queue = make_queue()
        queue.push(Newer("a"))
        assert queue.pop(wait=0.1) is None
        queue.push("good")
        lease = queue.pop(wait=SOON)
        assert lease is not None
        assert lease.item == "good"
