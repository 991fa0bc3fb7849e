"""A result or a failure that the queue does not take concerns its item, and no other."""

import asyncio
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import apsw
import pytest
from at_work import at_work
from local_server import send
from queue_proxy import SwallowingProxy

from fray import TaskError
from fray.queue import Queue
from fray_queue import HttpQueue, HttpQueueServer, LimitError, Limits, SqliteQueue, awork, work

LARGEST = 1 << 20


def _awork(queue: Queue[Any], fn: Callable[[Any], Any], **options: Any) -> None:
    async def afn(item: Any) -> Any:
        return fn(item)

    asyncio.run(awork(queue, afn, **options))


def check_large_result(
    queue: Any, size: int, pool: Callable[..., Any] = work, large: int = 2 * LARGEST
) -> None:
    """Have a pool answer twenty items in one go, one of them with more than the queue takes."""
    tickets = queue.push_many(range(20), reply=True)

    def fn(items: list[int]) -> list[bytes]:
        return [b"x" * (large if item == 7 else size) for item in items]

    with at_work(queue, fn, pool, batch=20, linger=5.0) as summary:
        for number, ticket in enumerate(tickets):
            if number == 7:
                with pytest.raises(LimitError, match=r"the result of item .* is too large"):
                    ticket.result(30)
            else:
                assert ticket.result(30) == b"x" * size
        last = queue.push_many(range(8, 28), reply=True)
        assert [len(ticket.result(30)) for ticket in last] == [size] * 20
    assert (summary.done, summary.lost, summary.failed) == (40, 0, 0)
    assert queue.size() == 0


@pytest.mark.parametrize("pool", [work, _awork])
@pytest.mark.parametrize("size", [10, 900_000])
def test_a_result_that_is_too_large_fails_its_asker_alone(size: int, pool: Callable[..., Any]) -> None:
    """Small results go to the server in one request, the larger ones in several."""
    with HttpQueueServer(limits=Limits(item_bytes=LARGEST)) as server, server.new_queue("q") as queue:
        check_large_result(queue, size, pool)


class SmallProxy(SwallowingProxy):
    """Refuses a larger request by itself, as reverse proxies do: by default nginx takes a megabyte."""

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        if int(request.headers.get("Content-Length", 0)) <= LARGEST:
            super().handle(request)
        else:
            self._read(request)
            send(request, 413, "text/html", b"<h1>413 Request Entity Too Large</h1>")


@pytest.mark.parametrize(("size", "large"), [(10, 2 * LARGEST), (10, 9 * LARGEST), (900_000, 2 * LARGEST)])
def test_a_result_that_is_too_large_for_a_proxy_fails_its_asker_alone(size: int, large: int) -> None:
    with HttpQueueServer() as server, SmallProxy(server.url) as proxy:
        server.new_queue("q")
        with HttpQueue[Any](proxy.url, "q") as queue:
            check_large_result(queue, size, large=large)
            with pytest.raises(LimitError, match="stands before the server"):
                queue.push(b"x" * 2 * LARGEST)


@pytest.mark.parametrize("max_attempts", [None, 1])
def test_an_exception_that_is_too_large_is_passed_on_in_short(max_attempts: int | None) -> None:
    def fn(item: int) -> int:
        if item == 0:
            raise ValueError("x" * (12 * LARGEST))
        return item

    with (
        HttpQueueServer(limits=Limits(item_bytes=LARGEST)) as server,
        server.new_queue("q", max_attempts=max_attempts) as queue,
        at_work(queue, fn) as summary,
    ):
        failed, good = queue.push(0, reply=True), queue.push(1, reply=True)
        with pytest.raises(TaskError, match="ValueError: xxx") as caught:
            failed.result(30)
        assert "too large" in str(caught.value)
        assert len(str(caught.value)) < 2000
        assert good.result(30) == 1
        assert len(queue.dead_letters()) == (0 if max_attempts is None else 1)
    assert (summary.done, summary.failed, summary.lost) == (1, 1, 0)


def test_an_error_that_is_too_large_as_well_holds_up_nobody() -> None:
    """The server takes less than any exception has; the item is left to its lease."""
    with (
        HttpQueueServer(limits=Limits(item_bytes=100)) as server,
        server.new_queue("q") as queue,
        at_work(queue, lambda item: b"x" * item) as summary,
    ):
        queue.push(1000, reply=True)
        assert queue.push(3, reply=True).result(30) == b"xxx"
    assert (summary.done, summary.lost) == (1, 1)


def test_results_go_in_as_many_requests_as_the_server_wants() -> None:
    with HttpQueueServer(limits=Limits(batch=3)) as server, server.new_queue("q") as queue:
        tickets = queue.push_many(range(10), reply=True)
        leases = queue.pop_many(10)
        queue.done_many(leases, results=[10 * lease.item for lease in leases])
        assert [ticket.result(30) for ticket in tickets] == [10 * number for number in range(10)]


def test_where_one_of_many_results_is_too_large_no_item_is_finished() -> None:
    with HttpQueueServer(limits=Limits(item_bytes=LARGEST)) as server, server.new_queue("q") as queue:
        queue.push_many(range(20), reply=True)
        leases = queue.pop_many(20)
        results = [b"x" * 900_000] * 19 + [b"x" * (2 * LARGEST)]
        with pytest.raises(LimitError, match="at most 1048576 bytes"):
            queue.done_many(leases, results=results)
        queue.done_many(leases)
        assert queue.size() == 0


@pytest.fixture
def small_sqlite() -> Iterator[None]:
    """An SQLite that takes a little more than `LARGEST` at once; by default that is 1 GB."""

    def limit(connection: apsw.Connection) -> None:
        connection.limit(apsw.SQLITE_LIMIT_LENGTH, LARGEST + 100_000)

    apsw.connection_hooks.append(limit)
    yield
    apsw.connection_hooks.remove(limit)


@pytest.mark.usefixtures("small_sqlite")
def test_what_sqlite_does_not_take_concerns_its_item_alone(tmp_path: Path) -> None:
    with SqliteQueue[Any](tmp_path / "q.db") as queue:
        with pytest.raises(LimitError, match="1 GB"):
            queue.push(b"x" * (2 * LARGEST))
        check_large_result(queue, 10)


@pytest.mark.usefixtures("small_sqlite")
def test_what_a_servers_sqlite_does_not_take_is_refused_at_once(tmp_path: Path) -> None:
    limits = Limits(item_bytes=8 * LARGEST)
    with HttpQueueServer(store=tmp_path / "store", limits=limits) as server, server.new_queue("q") as queue:
        with pytest.raises(LimitError, match="1 GB"):
            queue.push(b"x" * (2 * LARGEST))
        check_large_result(queue, 10)
