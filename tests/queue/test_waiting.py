"""Calls that wait notice what changes by itself, though who saw it coming waits no more."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fray.queue import Lease
from fray_queue import HttpQueueServer, MemoryQueue, SqliteQueue

pytestmark = pytest.mark.timeout(60)
AGES = 30.0  # seconds that nobody has to wait
SOON = 10.0
BRIEF = 0.5  # of a lease
KINDS = ("memory", "sqlite", "served", "served and stored")

Make = Callable[..., Any]


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    with contextlib.ExitStack() as stack:

        def made(**bounds: Any) -> Any:
            if request.param == "memory":
                return MemoryQueue(**bounds)
            if request.param == "sqlite":
                return stack.enter_context(SqliteQueue(tmp_path / "q.db", **bounds))
            store = tmp_path / "store" if request.param == "served and stored" else None
            server = stack.enter_context(HttpQueueServer(store=store))
            return stack.enter_context(server.new_queue("q", **bounds))

        yield made


class InThread:
    """A call in a thread, which waits when this returns."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._found: list[Any] = []
        self._thread = threading.Thread(target=lambda: self._found.append(call()))
        self._thread.start()
        time.sleep(0.3)  # nothing tells when a call waits

    @property
    def found(self) -> Any:
        self._thread.join(AGES + SOON)
        (found,) = self._found
        return found


@contextlib.contextmanager
def in_time() -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < SOON


def pop(queue: Any, lease_timeout: float = 60.0, wait: float = AGES) -> InThread:
    return InThread(lambda: queue.pop(lease_timeout, wait=wait))


def test_a_pop_gets_what_another_took_that_waited_before_it(make: Make) -> None:
    queue = make()
    first, second = pop(queue, BRIEF), pop(queue, BRIEF)
    queue.push("x")
    with in_time():
        found: list[Lease[str]] = [first.found, second.found]
    assert sorted(lease.attempt for lease in found) == [1, 2]


def test_a_pop_gets_what_was_delayed_beyond_the_wait_of_another(make: Make) -> None:
    queue = make()
    first, second = pop(queue, wait=0.8), pop(queue)
    queue.push("x", delay=1.5)
    with in_time():
        assert (first.found, second.found.item) == (None, "x")


def test_pops_get_all_that_comes_back_at_one_time(make: Make) -> None:
    queue = make()
    first = InThread(lambda: queue.pop_many(4, BRIEF, wait=SOON))  # takes what those behind it do not
    others = [pop(queue) for _ in range(4)]
    queue.push_many("abcd")
    with in_time():
        assert sorted(other.found.item for other in others) == list("abcd")
    assert first.found is not None


def test_a_pop_notices_that_a_lease_was_made_shorter(make: Make) -> None:
    queue = make()
    queue.push("x")
    lease = queue.pop(AGES)
    waiting = pop(queue)
    queue.extend(lease, BRIEF)
    with in_time():
        assert waiting.found.attempt == 2


def test_a_push_gets_the_room_of_an_item_that_is_given_up(make: Make) -> None:
    queue = make(max_size=1, max_attempts=1)
    queue.push("x")
    pushing = InThread(lambda: queue.push("y", wait=AGES))
    assert queue.pop(BRIEF) is not None
    with in_time():
        assert pushing.found


def test_an_asker_learns_that_its_item_was_given_up(make: Make) -> None:
    queue = make(max_attempts=1)
    ticket = queue.push("x", reply=True)
    asking = InThread(lambda: queue.fetch_replies([ticket.item_id], wait=AGES))
    assert queue.pop(BRIEF) is not None
    with in_time():
        assert asking.found[ticket.item_id].outcome == "dead"


def test_an_answer_arrives_though_another_who_asked_for_it_left_meanwhile(tmp_path: Path) -> None:
    async def program(queue: Any) -> None:
        for number in range(8):
            ticket = await queue.aio.push(number, reply=True)
            brief, long = (
                asyncio.create_task(queue.aio.fetch_replies([ticket.item_id], wait=wait))
                for wait in (0.0, AGES)  # the first leaves between the second's look and its sleep
            )
            assert await brief == {}
            lease = await queue.aio.pop()
            with in_time():
                await queue.aio.done(lease, result=number)
                assert list(await long) == [ticket.item_id]

    with HttpQueueServer(store=tmp_path / "store") as server, server.new_queue("q") as queue:
        asyncio.run(program(queue))
