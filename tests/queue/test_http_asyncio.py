"""`aio` of a queue on a server: no thread, few sockets, and nothing that a cancelled call leaves leased."""

import asyncio
import http.client
import json
import multiprocessing
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any, cast

import psutil
import pytest
import uvloop
from last_words import give_time
from queue_proxy import SwallowingProxy

from fray import QueueUnavailableError, UnreadableItemError
from fray.queue import Ticket
from fray_queue import HttpQueue, HttpQueueServer, LimitError, Limits, QueueFullError

AGES = 60.0  # seconds; what takes as long has failed
SOON = 10.0


@pytest.fixture
def server() -> Iterator[HttpQueueServer]:
    with HttpQueueServer() as server:
        yield server


@pytest.fixture
def queue(server: HttpQueueServer) -> Iterator[HttpQueue[Any]]:
    with server.new_queue("q") as queue:
        yield queue


def sockets() -> int:
    return len([each for each in psutil.Process().net_connections("tcp") if each.status == "ESTABLISHED"])


def test_a_thousand_that_wait_take_no_thread_and_few_sockets(queue: HttpQueue[Any]) -> None:
    async def program() -> None:
        await queue.aio.size()
        threads, before = threading.active_count(), sockets()
        waiting = [asyncio.create_task(queue.aio.pop(wait=AGES)) for _ in range(1000)]
        await asyncio.sleep(0.2)
        assert threading.active_count() == threads
        assert sockets() - before <= 2 * 34  # both ends are in this process
        await queue.aio.push_many(range(1000))
        leases = await asyncio.gather(*waiting)
        assert sorted(lease.item for lease in leases if lease is not None) == list(range(1000))
        await queue.aio.done_many(lease for lease in leases if lease is not None)
        assert await queue.aio.size() == 0

    asyncio.run(program())


def test_leases_that_are_over_at_once_are_leased_on_a_busy_server(
    queue: HttpQueue[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvloop's handle of a call that is due by now has no time, and the next pop asked it for one."""
    call_at = uvloop.Loop.call_at

    def late(loop: uvloop.Loop, when: float, *given: Any, **options: Any) -> asyncio.Handle:
        time.sleep(max(0.0, min(when - loop.time(), 0.005)))  # as a thread that others keep waiting
        return call_at(loop, when, *given, **options)

    async def program() -> None:
        await queue.aio.push_many(range(50))
        leases = await asyncio.gather(*(queue.aio.pop(lease_timeout=0.001, wait=AGES) for _ in range(50)))
        assert all(leases)

    monkeypatch.setattr(uvloop.Loop, "call_at", late)
    asyncio.run(program())


def test_a_thousand_that_await_answers_take_no_thread(queue: HttpQueue[Any]) -> None:
    async def program() -> None:
        threads = threading.active_count()
        tickets = await queue.aio.push_many(range(1000), reply=True)
        answers = asyncio.gather(*cast("list[Ticket[int]]", tickets))
        await asyncio.sleep(0.05)
        leases = await queue.aio.pop_many(1000)
        await queue.aio.done_many(leases, results=[2 * lease.item for lease in leases])
        assert await answers == [2 * number for number in range(1000)]
        assert threading.active_count() == threads

    asyncio.run(program())


def held_answer(proxy: SwallowingProxy) -> asyncio.Event:
    """Let the next answer end after its first line; return what is set when it came."""
    granted, loop = asyncio.Event(), asyncio.get_running_loop()

    def hold(body: bytes) -> tuple[list[bytes], bool]:
        proxy.reshape = None
        loop.call_soon_threadsafe(granted.set)
        return [b"HTTP/1.1 200 OK\r\n"], True  # the rest never comes

    proxy.reshape = hold
    return granted


def test_a_pop_whose_answer_was_under_way_gives_its_lease_back(
    server: HttpQueueServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server granted the item; the answer is held up; then the caller is cancelled."""
    give_time(monkeypatch)
    direct = server.new_queue("q")
    with SwallowingProxy(server.url) as proxy:
        queue: HttpQueue[str] = HttpQueue(proxy.url, "q")

        async def program() -> None:
            direct.push("x")
            granted = held_answer(proxy)
            popping = asyncio.create_task(queue.aio.pop(wait=AGES))
            await granted.wait()
            popping.cancel()
            with pytest.raises(asyncio.CancelledError):
                await popping
            assert (direct.size(), direct.pending()) == (1, 1)
            lease = await queue.aio.pop()
            assert lease is not None
            assert lease.attempt == 1  # nobody worked on it
            await queue.aio.done(lease)

        asyncio.run(program())
        queue.close()
    direct.close()


def test_a_pop_that_is_cancelled_before_it_arrived_leases_nothing_later(server: HttpQueueServer) -> None:
    """A request that comes after its own withdrawal is answered with nothing."""
    queue = server.new_queue("q")
    queue.push("x")
    connection = http.client.HTTPConnection(server.url.partition("://")[2], timeout=AGES)
    headers = {"Authorization": f"Bearer {server.token}", "Content-Type": "application/json"}
    connection.request("POST", "/queues/q/withdraw", json.dumps({"request": "late/1"}), headers)
    assert connection.getresponse().read() == b"{}"
    connection.request("POST", "/queues/q/pop", b"{}", {**headers, "Fray-Request": "late/1"})
    connection.getresponse().read()
    connection.request("POST", "/queues/q/withdraw", b'{"request": 7}', headers)
    response = connection.getresponse()
    assert (response.status, b"name/7" in response.read()) == (400, True)
    connection.close()
    assert (queue.size(), queue.pending()) == (1, 1)
    queue.close()


def test_one_queue_serves_one_loop_after_another(queue: HttpQueue[Any]) -> None:
    async def program(number: int) -> None:
        await queue.aio.push(number)
        async with queue.aio.lease() as lease:
            assert lease is not None
            assert lease.item == number

    for number in range(3):
        asyncio.run(program(number))
    loop = asyncio.new_event_loop()  # one that is closed without a word
    loop.run_until_complete(program(3))
    loop.close()
    asyncio.run(program(4))
    assert queue.size() == 0


def test_loops_of_two_threads_share_a_queue(queue: HttpQueue[Any]) -> None:
    taken: list[int] = []

    async def program() -> None:
        while (lease := await queue.aio.pop()) is not None:
            taken.append(lease.item)
            await queue.aio.done(lease)

    queue.push_many(range(40))
    threads = [threading.Thread(target=asyncio.run, args=(program(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(AGES)
    assert sorted(taken) == list(range(40))


def _push_in_child(queue: HttpQueue[Any]) -> None:
    asyncio.run(_push_one(queue))


async def _push_one(queue: HttpQueue[Any]) -> None:
    await queue.aio.push("from the child")


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_sockets_of_its_own(queue: HttpQueue[Any]) -> None:
    async def program() -> None:
        await queue.aio.push("from the parent")
        child = multiprocessing.get_context("fork").Process(target=_run_apart, args=(queue,))
        child.start()
        await asyncio.to_thread(child.join, AGES)
        assert child.exitcode == 0
        assert [lease.item for lease in await queue.aio.pop_many(9)] == ["from the parent", "from the child"]

    asyncio.run(program())


def _run_apart(queue: HttpQueue[Any]) -> None:
    # A child that is forked while a loop runs believes that it runs there as well; a thread does not.
    thread = threading.Thread(target=_push_in_child, args=(queue,))
    thread.start()
    thread.join()


def test_an_answer_may_be_lost_and_nothing_happens_twice(server: HttpQueueServer) -> None:
    with SwallowingProxy(server.url) as proxy:
        proxy.swallow_every = 3
        queue: HttpQueue[int] = HttpQueue(proxy.url, "q", create=True)

        async def program() -> None:
            await queue.aio.push_many(range(5))
            await queue.aio.push_many(range(5, 10))
            leases = [lease for _ in range(10) if (lease := await queue.aio.pop())]
            assert [(lease.item, lease.attempt) for lease in leases] == [(number, 1) for number in range(10)]
            await queue.aio.done_many(leases)
            assert await queue.aio.size() == 0

        asyncio.run(program())
        assert proxy.swallowed > 3
        queue.close()


def test_a_server_that_is_away_is_an_error_in_time() -> None:
    queue: HttpQueue[int] = HttpQueue("http://127.0.0.1:9", "q", timeout=0.2)

    async def program() -> None:
        with pytest.raises(QueueUnavailableError, match=r"did not answer for 0\.2 s"):
            await queue.aio.push(1)

    asyncio.run(program())


def test_errors_are_those_of_the_calls_that_block(server: HttpQueueServer) -> None:
    with HttpQueueServer(limits=Limits(item_bytes=100_000)) as small, small.new_queue("q") as queue:

        async def program() -> None:
            with pytest.raises(LimitError, match="at most 100000 bytes when pickled"):
                await queue.aio.push(b"x" * 200_000)
            with pytest.raises(TypeError, match="colour"):
                await queue.aio.push(1, colour="red")
            with pytest.raises(ValueError, match="wait"):
                await queue.aio.pop(wait=-1)
            await queue.aio.push(Unloadable())
            with pytest.raises(UnreadableItemError):
                await queue.aio.peek()
            assert await queue.aio.pop() is None  # set aside

        asyncio.run(program())


class Unloadable:
    def __reduce__(self) -> Any:
        return int, ("no number",)


def test_a_push_waits_for_room_and_many_of_them_keep_nobody_out(server: HttpQueueServer) -> None:
    queue: HttpQueue[str] = HttpQueue(server.url, "small", create=True, max_size=2)

    async def program() -> None:
        await queue.aio.push_many("ab")
        pushing = [asyncio.create_task(queue.aio.push(item)) for item in "cdefgh" * 10]
        await asyncio.sleep(0.05)
        taken: list[str] = []
        while len(taken) < 62:
            lease = await queue.aio.pop(wait=AGES)
            assert lease is not None
            taken.append(lease.item)
            await queue.aio.done(lease)
        await asyncio.gather(*pushing)
        assert sorted(taken) == sorted(["a", "b", *"cdefgh" * 10])

    asyncio.run(program())
    queue.close()


@pytest.mark.parametrize("release", ["this", "first"])
def test_a_push_sends_its_items_again_only_when_there_is_room(server: HttpQueueServer, release: str) -> None:
    """A server of the first release does not say whether there is: it answers early."""
    looks, refusals = [], []

    def note(answer: bytes) -> bytes:
        if b'"full"' in answer:
            refusals.append(answer)
        if b'"free"' not in answer:
            return answer
        looks.append(answer)
        return answer if release == "this" else b"{}"

    async def program(url: str) -> None:
        queue: HttpQueue[str] = HttpQueue(url, "small", create=True, max_size=1)
        await queue.aio.push("a")
        pushing = asyncio.create_task(queue.aio.push("b", wait=AGES))
        async with asyncio.timeout(AGES):
            while len(looks) < 3:
                await asyncio.sleep(0.01)
        lease = await queue.aio.pop()
        assert lease is not None
        await queue.aio.done(lease)
        await asyncio.wait_for(pushing, SOON)
        queue.close()

    with SwallowingProxy(server.url) as proxy:
        proxy.rewrite = note
        asyncio.run(program(proxy.url))
    assert len(refusals) == 1


def test_a_push_waits_no_longer_for_room_than_it_may_though_another_does(server: HttpQueueServer) -> None:
    queue: HttpQueue[str] = HttpQueue(server.url, "full", create=True, max_size=1)

    async def program() -> None:
        await queue.aio.push("a")
        patient = asyncio.create_task(queue.aio.push("b", wait=AGES))
        await asyncio.sleep(0.2)  # nothing tells that it waits at the server
        with pytest.raises(QueueFullError):
            async with asyncio.timeout(SOON):
                await queue.aio.push("c", wait=0.1)
        lease = await queue.aio.pop()
        assert lease is not None
        await queue.aio.done(lease)
        await patient

    asyncio.run(program())
    queue.close()


class HoldingProxy(SwallowingProxy):
    """Lets the first pop pass and holds the next ones up."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.pops = 0
        self.holds, self.goes_on = threading.Event(), threading.Event()

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        if request.path.endswith("/pop"):
            self.pops += 1
            if self.pops > 1:
                self.holds.set()
                self.goes_on.wait(AGES)
        super().handle(request)


def test_a_pop_that_is_cancelled_between_its_requests_counts_no_attempt(
    server: HttpQueueServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_time(monkeypatch)
    direct = server.new_queue("once", max_attempts=1)
    direct.push_many(range(1200))  # more than one request leases
    with HoldingProxy(server.url) as proxy, HttpQueue[int](proxy.url, "once") as queue:

        async def program() -> None:
            popping = asyncio.create_task(queue.aio.pop_many(1200))
            assert await asyncio.to_thread(proxy.holds.wait, AGES)
            popping.cancel()
            with pytest.raises(asyncio.CancelledError):
                await popping

        try:
            asyncio.run(program())
            assert (direct.pending(), direct.dead_letters()) == (1200, [])
        finally:
            proxy.goes_on.set()
    direct.close()


class LateWithdrawals(SwallowingProxy):
    """Holds up what gives a pop back."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.holds, self.goes_on = threading.Event(), threading.Event()

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        if request.path.endswith("/withdraw"):
            self.holds.set()
            self.goes_on.wait(AGES)
        super().handle(request)


def test_a_pop_that_is_cancelled_twice_gives_its_lease_back_beside_other_requests(
    server: HttpQueueServer,
) -> None:
    direct = server.new_queue("q")
    direct.push("x")
    with LateWithdrawals(server.url) as proxy, HttpQueue[str](proxy.url, "q") as queue:

        async def program() -> None:
            granted = held_answer(proxy)
            popping = asyncio.create_task(queue.aio.pop())
            await granted.wait()
            popping.cancel()
            assert await asyncio.to_thread(proxy.holds.wait, AGES)
            popping.cancel()
            with pytest.raises(asyncio.CancelledError):
                await popping
            await queue.aio.push("y")
            proxy.goes_on.set()
            async with asyncio.timeout(SOON):
                while direct.pending() < 2:
                    await asyncio.sleep(0.01)

        try:
            asyncio.run(program())
        finally:
            proxy.goes_on.set()
    direct.close()
