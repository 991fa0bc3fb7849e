"""What a queue promises of answers: tickets, results, errors, and those that nobody fetches."""

import asyncio
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from fray._contracts.queue import Queue
from fray._contracts.replies import Ticket
from fray._queues.aio import async_queue
from fray._values.errors import GetTimeoutError, LeaseExpiredError, NoReplyError
from fray.testing.queue_asyncio import run
from fray.testing.queue_fixtures import LONG, SOON, ManualClock, take
from fray.testing.queue_options import OptionFixtures, declares


class WorkFailedError(Exception):
    """An error of a worker's own, with a constructor of its own."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(f"{why} ({code})")
        self.code, self.why = code, why


class ReplyPromises(OptionFixtures):
    """`push(reply=True)`: the asker gets what the worker answered, across crashes."""

    def replying(self, queue: Queue[Any]) -> bool:
        return self.having(queue, "replies", "reply", reply=True)

    def test_a_ticket_gives_what_the_worker_answered(self, queue: Queue[Any]) -> None:
        if not self.replying(queue):
            return
        ticket = queue.push("question", reply=True)
        assert isinstance(ticket, Ticket)
        assert not ticket.done()
        lease = take(queue)
        assert (lease.item_id, lease.item_id, lease.reply) == (ticket, ticket.item_id, True)
        queue.done(lease, result={"answer": 42})
        assert ticket.done()
        assert ticket.result(timeout=SOON) == {"answer": 42}
        assert ticket.result() == {"answer": 42}
        assert queue.size() == 0

    @pytest.mark.parametrize("result", [0, "", None, False, b"x", [1, {"a": None}]])
    def test_any_result_comes_back_equal(self, queue: Queue[Any], result: Any) -> None:
        if not self.replying(queue):
            return
        ticket = queue.push("question", reply=True)
        queue.done(take(queue), result=result)
        found = ticket.result(timeout=SOON)
        assert (found, type(found)) == (result, type(result))

    def test_who_waits_is_woken_by_the_answer(self, queue: Queue[Any]) -> None:
        if not self.replying(queue):
            return
        ticket = queue.push("question", reply=True)
        found: list[Any] = []
        asker = threading.Thread(target=lambda: found.append(ticket.result(timeout=LONG)))
        asker.start()
        asker.join(0.05)
        assert asker.is_alive()
        queue.done(take(queue), result="answer")
        asker.join(SOON)
        assert found == ["answer"]

    def test_a_ticket_gives_up_in_time_and_stays_good(self, queue: Queue[Any]) -> None:
        if not self.replying(queue):
            return
        ticket = queue.push("question", reply=True)
        for timeout in (0.0, 0.1):
            start = time.monotonic()
            with pytest.raises(GetTimeoutError, match="stays in its queue"):
                ticket.result(timeout=timeout)
            assert time.monotonic() - start < SOON
        queue.done(take(queue), result=1)
        assert ticket.result(timeout=SOON) == 1

    def test_an_error_arrives_as_itself(self, queue: Queue[Any]) -> None:
        if not self.replying(queue):
            return
        ticket = queue.push("question", reply=True)
        try:
            raise WorkFailedError(7, "out of memory") from KeyError("cause")
        except WorkFailedError as error:
            queue.done(take(queue), error=error)
        for _ in range(2):
            with pytest.raises(WorkFailedError, match="out of memory") as caught:
                ticket.result(timeout=SOON)
            assert (caught.value.code, caught.value.why) == (7, "out of memory")
            assert isinstance(caught.value.__cause__, KeyError)
        assert (queue.size(), queue.dead_letters()) == (0, [])

    def test_the_error_of_the_last_attempt_fails_the_ticket(self, limited: Queue[Any]) -> None:
        if not self.replying(limited):
            return
        ticket = limited.push("question", reply=True)
        limited.release(take(limited), error=ValueError("first"))
        assert not ticket.done()
        limited.release(take(limited), error=ValueError("second"))
        with pytest.raises(ValueError, match="second"):
            ticket.result(timeout=SOON)
        (letter,) = limited.dead_letters()
        assert [each.error for each in letter.history] == ["ValueError: first", "ValueError: second"]

    def test_an_item_that_is_given_up_fails_its_ticket(self, limited: Queue[Any], clock: ManualClock) -> None:
        if not self.replying(limited):
            return
        ticket = limited.push("question", reply=True)
        for _ in range(2):
            take(limited, 10.0)
            clock.advance(11.0)
        with pytest.raises(NoReplyError, match="requeue_dead") as caught:
            ticket.result(timeout=SOON)
        assert (caught.value.item_id, caught.value.reason) == (ticket.item_id, "dead")

    def test_a_requeued_item_may_still_be_answered(self, limited: Queue[Any]) -> None:
        if not self.replying(limited):
            return
        ticket = limited.push("question", reply=True)
        for _ in range(2):
            limited.release(take(limited))
        assert limited.requeue_dead() == 1
        with pytest.raises(GetTimeoutError):
            ticket.result(timeout=0.0)
        lease = take(limited)
        assert lease.reply
        limited.done(lease, result="late")
        assert ticket.result(timeout=SOON) == "late"

    def test_an_item_that_expires_fails_its_ticket(self, queue: Queue[Any], clock: ManualClock) -> None:
        if not self.replying(queue) or not declares(queue, "ttl"):
            return
        ticket = queue.push("question", reply=True, ttl=5.0)
        clock.advance(5.1)
        with pytest.raises(NoReplyError, match="ttl") as caught:
            ticket.result(timeout=SOON)
        assert caught.value.reason == "expired"

    def test_an_answer_that_nobody_fetches_is_dropped(self, queue: Queue[Any], clock: ManualClock) -> None:
        if not self.replying(queue):
            return
        early, late = (queue.push("question", reply=True, reply_ttl=100.0) for _ in range(2))
        queue.done_many(queue.pop_many(2), results=["one", "two"])
        clock.advance(99.0)
        assert early.result(timeout=SOON) == "one"
        clock.advance(2.0)
        with pytest.raises(NoReplyError, match="reply_ttl") as caught:
            late.result(timeout=SOON)
        assert caught.value.reason == "gone"

    def test_a_removed_item_fails_its_ticket(self, queue: Queue[Any]) -> None:
        if not self.replying(queue):
            return
        ticket = queue.push("question", reply=True)
        purge: Callable[[], int] = queue.purge  # type: ignore[attr-defined]
        assert purge() == 1
        with pytest.raises(NoReplyError):
            ticket.result(timeout=SOON)

    def test_a_lost_lease_answers_nothing(self, queue: Queue[Any], clock: ManualClock) -> None:
        if not self.replying(queue):
            return
        ticket = queue.push("question", reply=True)
        lost = take(queue, 10.0)
        clock.advance(11.0)
        held = take(queue, 100.0)
        with pytest.raises(LeaseExpiredError):
            queue.done(lost, result="wrong")
        assert not ticket.done()
        queue.done(held, result="right")
        with pytest.raises(LeaseExpiredError):
            queue.done(held, result="again")
        assert ticket.result(timeout=SOON) == "right"

    def test_many_are_asked_and_answered_at_once(self, queue: Queue[Any]) -> None:
        if not self.replying(queue):
            return
        tickets = queue.push_many(range(50), reply=True)
        leases = queue.pop_many(50)
        stale = take_one_and_finish(queue)
        with pytest.raises(LeaseExpiredError) as caught:
            queue.done_many([*leases, stale], results=[lease.item * 2 for lease in [*leases, stale]])
        assert caught.value.lease_ids == (stale.lease_id,)
        assert [ticket.result(timeout=SOON) for ticket in tickets] == [2 * number for number in range(50)]
        with pytest.raises(ValueError, match="results"):
            queue.done_many([stale], results=[1, 2])

    def test_a_result_that_nobody_asked_for_goes_nowhere(self, queue: Queue[Any]) -> None:
        queue.push("item")
        lease = take(queue)
        assert not lease.reply
        queue.done(lease, result=threading.Lock())
        assert queue.size() == 0

    def test_a_result_or_an_error_but_not_both(self, queue: Queue[Any]) -> None:
        queue.push("item")
        lease = take(queue)
        with pytest.raises(ValueError, match="not both"):
            queue.done(lease, result=1, error=ValueError())
        call: Any
        for call in (queue.done, queue.release):
            with pytest.raises(ValueError, match="error"):
                call(lease, error="text")
        queue.done(lease)

    def test_a_second_push_of_a_key_gives_a_ticket_for_the_first(
        self, queue: Queue[Any], clock: ManualClock
    ) -> None:
        if not self.replying(queue) or not declares(queue, "keys"):
            return
        queue.push("question", key="k")
        one = queue.push("again", key="k", reply=True)
        two = queue.push("again", key="k", reply=True)
        assert one == two
        lease = take(queue)
        assert (lease.item, lease.reply) == ("question", True)
        queue.done(lease, result="answer")
        assert one.result(timeout=SOON) == "answer"
        clock.advance(1000.0)
        assert two.result(timeout=SOON) == "answer"

    def test_who_asks_while_the_item_is_worked_on_is_answered(self, queue: Queue[Any]) -> None:
        if not self.replying(queue) or not declares(queue, "keys"):
            return
        queue.push("question", key="k")
        lease = take(queue)
        assert lease.reply
        ticket = queue.push("again", key="k", reply=True)
        queue.done(lease, result="answer")
        assert ticket.result(timeout=SOON) == "answer"

    def test_map_keeps_the_order_and_bounds_what_is_under_way(self, queue: Queue[Any]) -> None:
        if not self.replying(queue):
            with self.refuses("reply"):
                queue.map([1])
            return
        most = 0

        def work() -> None:
            nonlocal most
            for _ in range(40):
                lease = queue.pop(wait=LONG)
                assert lease is not None
                most = max(most, queue.size())
                queue.done(lease, result=lease.item * 2)

        worker = threading.Thread(target=work)
        worker.start()
        assert list(queue.map(range(40), in_flight=8, timeout=LONG)) == [2 * number for number in range(40)]
        worker.join(SOON)
        assert 1 < most <= 8

    def test_map_raises_what_failed_an_item_in_its_turn(self, queue: Queue[Any]) -> None:
        if not self.replying(queue):
            return
        answers = queue.map("abc", timeout=SOON)

        def work() -> None:
            for _ in range(3):
                lease = queue.pop(wait=LONG)
                assert lease is not None
                if lease.item == "b":
                    queue.done(lease, error=WorkFailedError(1, "b is bad"))
                else:
                    queue.done(lease, result=lease.item)

        worker = threading.Thread(target=work)
        worker.start()
        assert next(answers) == "a"
        with pytest.raises(WorkFailedError, match="b is bad"):
            next(answers)
        worker.join(SOON)
        with pytest.raises(ValueError, match="in_flight"):
            queue.map("abc", in_flight=0)

    def test_coroutines_that_wait_for_answers_keep_no_other_call_out(self, queue: Queue[Any]) -> None:
        if not self.replying(queue):
            return

        async def program() -> None:
            twin = async_queue(queue)

            async def ask(number: int) -> list[Any]:
                return [answer async for answer in twin.map([number])]

            tickets = await twin.push_many(range(20), reply=True)
            fetching = [asyncio.create_task(twin.fetch_replies([ticket], wait=LONG)) for ticket in tickets]
            maps = [asyncio.create_task(ask(number)) for number in range(20, 40)]
            for _ in range(40):
                lease = await twin.pop(wait=LONG)
                assert lease is not None
                await twin.done(lease, result=lease.item * 2)
            found = [reply for replies in await asyncio.gather(*fetching) for reply in replies.values()]
            assert [reply.get() for reply in found] == [2 * number for number in range(20)]
            assert await asyncio.gather(*maps) == [[2 * number] for number in range(20, 40)]

        run(program())

    def test_coroutines_await_tickets(self, queue: Queue[Any]) -> None:
        if not self.replying(queue):
            return
        tickets = queue.push_many(range(30), reply=True)

        def work() -> None:
            for number in range(30):
                lease = queue.pop(wait=LONG)
                assert lease is not None
                if number == 7:
                    queue.done(lease, error=WorkFailedError(number, "no"))
                else:
                    queue.done(lease, result=number)

        async def ask() -> list[Any]:
            waiting = [asyncio.ensure_future(_awaited(ticket)) for ticket in tickets]
            await asyncio.sleep(0.05)
            worker.start()
            return await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), LONG)

        worker = threading.Thread(target=work)
        found = asyncio.run(ask())
        worker.join(SOON)
        _watchers_ended()
        assert isinstance(found.pop(7), WorkFailedError)
        assert found == [*range(7), *range(8, 30)]

    def test_an_await_that_is_cancelled_leaves_the_ticket_good(self, queue: Queue[Any]) -> None:
        if not self.replying(queue):
            return
        ticket = queue.push("question", reply=True)

        async def ask() -> Any:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(_awaited(ticket), 0.05)
            queue.done(take(queue), result="answer")
            return await asyncio.wait_for(_awaited(ticket), SOON)

        assert asyncio.run(ask()) == "answer"
        _watchers_ended()


def _watchers_ended() -> None:
    """Wait until nobody asks the queue any more, whose server the test is about to stop."""
    end = time.monotonic() + LONG
    while any(thread.name == "fray-replies" for thread in threading.enumerate()):
        assert time.monotonic() < end, "a thread still asks for answers that nobody waits for"
        time.sleep(0.01)


async def _awaited(ticket: Ticket[Any]) -> Any:
    return await ticket


def take_one_and_finish(queue: Queue[Any]) -> Any:
    """Return a lease that is settled already."""
    queue.push(0, reply=True)
    lease = take(queue)
    queue.done(lease)
    return lease


class SharedReplyPromises(OptionFixtures):
    """Answers between processes: a ticket that was pickled is the same ticket."""

    def test_a_pickled_ticket_is_the_same_ticket(self, queue: Queue[Any]) -> None:
        if not self.having(queue, "replies", "reply", reply=True):
            return
        ticket = queue.push("question", reply=True)
        copy: Ticket[Any] = pickle.loads(pickle.dumps(ticket))
        assert (copy, copy.item_id) == (ticket, ticket.item_id)
        queue.done(take(queue), result="answer")
        assert copy.result(timeout=SOON) == "answer"
        assert ticket.result(timeout=SOON) == "answer"

    def test_a_result_that_cannot_be_pickled_changes_nothing(self, queue: Queue[Any]) -> None:
        if not self.having(queue, "replies", "reply", reply=True):
            return
        ticket = queue.push("question", reply=True)
        lease = take(queue)
        with pytest.raises(ValueError, match="lock"):
            queue.done(lease, result=threading.Lock())
        assert not ticket.done()
        queue.done(lease, result="instead")
        assert ticket.result(timeout=SOON) == "instead"

    def test_an_answer_that_was_fetched_may_be_fetched_again_for_a_while(
        self, queue: Queue[Any], clock: ManualClock
    ) -> None:
        if not self.having(queue, "replies", "reply", reply=True):
            return
        ticket = queue.push("question", reply=True)
        queue.done(take(queue), result="answer")
        for _ in range(2):
            assert queue.fetch_replies([ticket])[ticket.item_id].get() == "answer"
        clock.advance(61.0)
        assert queue.fetch_replies([ticket])[ticket.item_id].outcome == "gone"
