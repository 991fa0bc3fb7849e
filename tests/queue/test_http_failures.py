"""What HttpQueue and its server do when answers are lost, servers die and requests are beyond limits."""

import asyncio
import contextlib
import http.client
import importlib
import json
import pickle
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from live_objects import await_count, count_of
from queue_processes import ServerProcess
from queue_proxy import SwallowingProxy

from fray import LeaseExpiredError, QueueUnavailableError
from fray.queue import UnreadableItem, open_queue
from fray.testing.queue import ManualClock
from fray_queue import (
    HttpQueue,
    HttpQueueServer,
    LimitError,
    Limits,
    QueueExistsError,
    QueueNotFoundError,
)
from fray_queue.testing import QueueStore, Wire, connections_of


def test_a_lost_answer_is_asked_for_again_and_nothing_happens_twice(tmp_path: Path) -> None:
    with HttpQueueServer(store=tmp_path) as server, SwallowingProxy(server.url) as proxy:
        queue: HttpQueue[int] = HttpQueue(proxy.url, "q", create=True)
        proxy.swallow_every = 2  # of the answers
        queue.push_many(range(10))
        for number in range(10):
            lease = queue.pop()
            assert lease is not None
            assert (lease.item, lease.attempt) == (number, 1)
            lease = queue.extend(lease, 30)
            if number % 2:
                queue.done(lease)
                with pytest.raises(LeaseExpiredError):
                    queue.done(lease)
            else:
                queue.release(lease, delay=1000)
        assert (queue.size(), queue.pending()) == (5, 0)
        assert proxy.swallowed > 15


def test_a_request_whose_body_was_cut_off_does_not_hold_up_its_repetition() -> None:
    with HttpQueueServer() as server:
        server.new_queue("q").push("x")
        body = b'{"n": 1, "wait": 0}'
        head = (
            f"POST /queues/q/pop HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nFray-Protocol: 2\r\n"
            f"Authorization: Bearer {server.token}\r\nFray-Request: line/1\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        address = ("127.0.0.1", server.port)
        # A middlebox lost the first connection: the client noticed, and the server did not.
        with socket.create_connection(address, 20) as first, socket.create_connection(address, 20) as second:
            first.sendall(head.encode() + body[:5])
            second.sendall(head.encode() + body)
            answer = second.recv(1 << 16)
            assert answer.startswith(b"HTTP/1.1 200"), answer


def test_a_push_whose_answer_was_lost_is_stored_once_though_the_item_is_done_meanwhile(
    tmp_path: Path,
) -> None:
    with HttpQueueServer(store=tmp_path) as server, SwallowingProxy(server.url) as proxy:
        direct: HttpQueue[str] = HttpQueue(server.url, "q", create=True)
        direct.size()
        queue: HttpQueue[str] = HttpQueue(proxy.url, "q")
        proxy.hold_answers()
        pusher = threading.Thread(target=queue.push, args=("x",))
        pusher.start()
        lease = direct.pop(wait=30)
        assert lease is not None
        direct.done(lease)
        proxy.drop_held()
        pusher.join(30)
        assert direct.size() == 0


def test_everything_answered_survives_sigkill(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "store", "--queue", "q", "--max-attempts", "2") as server:
        queue: HttpQueue[str] = HttpQueue(server.url, "q")
        queue.push_many(["dead", "done", "leased", "delayed", "waiting"])
        queue.release(_pop(queue))
        queue.release(_pop(queue))
        queue.done(_pop(queue))
        leased, delayed = _pop(queue), _pop(queue)
        queue.release(delayed, delay=500)
        server.kill()
        server.start()
        assert [letter.item for letter in queue.dead_letters()] == ["dead"]
        assert [attempt.outcome for attempt in queue.dead_letters()[0].history] == ["released", "released"]
        assert (queue.size(), queue.pending()) == (3, 1)
        queue.done(queue.extend(leased, 30))
        assert _pop(queue).item == "waiting"
        assert queue.requeue_dead() == 1
        server.kill()
        server.start()
        assert _pop(queue).item == "dead"


def test_a_waiting_pop_and_a_push_outlive_a_restart(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "store", "--queue", "q") as server:
        queue: HttpQueue[str] = HttpQueue(server.url, "q")
        found: list[Any] = []
        waiter = threading.Thread(target=lambda: found.append(queue.pop(wait=60)))
        waiter.start()
        queue.size()
        server.kill()
        pusher = threading.Thread(target=HttpQueue[str](server.url, "q").push, args=("x",))
        pusher.start()
        server.start()
        pusher.join(30)
        waiter.join(30)
        assert found[0].item == "x"
        assert server.stop() == 0


def test_a_server_that_goes_away_late_in_a_long_wait_is_asked_again() -> None:
    with HttpQueueServer() as server, SwallowingProxy(server.url) as proxy:
        HttpQueue[str](server.url, "q", create=True).push("x")
        queue: HttpQueue[str] = HttpQueue(proxy.url, "q", timeout=0.5)
        proxy.hold_answers()
        found: list[Any] = []
        waiter = threading.Thread(target=lambda: found.append(queue.pop(wait=10.0)))
        waiter.start()
        time.sleep(1.0)  # the wait has to outlast the timeout before its answer is lost: no event tells that
        proxy.drop_held()
        waiter.join(30)
        assert [lease.item for lease in found] == ["x"]


@pytest.mark.parametrize("status", [408, 429, 500, 502, 520])
def test_what_a_proxy_answers_in_trouble_is_asked_again(status: int) -> None:
    page = b"<html>try again later</html>"
    with HttpQueueServer() as server, SwallowingProxy(server.url) as proxy:
        queue = server.new_queue("q")
        answers = [[b"HTTP/1.1 %d No\r\nContent-Length: %d\r\n\r\n%b" % (status, len(page), page)]] * 2

        def answer(body: bytes) -> tuple[list[bytes], bool]:
            own = [b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)]
            return answers.pop() if answers else own, True

        proxy.reshape = answer
        with HttpQueue[str](proxy.url, "q") as through:
            through.push("x")
        assert (answers, queue.size()) == ([], 1)
        queue.close()


def test_a_server_that_stays_away_is_an_error_in_time() -> None:
    with HttpQueueServer() as server:
        server.new_queue("q").push(1)
        queue = HttpQueue[int](server.url, "q", timeout=0.5)
        with contextlib.suppress(QueueUnavailableError):  # on a busy machine it may take longer
            queue.size()  # it has a connection, which the server's end closes
    start = time.monotonic()
    with pytest.raises(QueueUnavailableError, match=r"0\.5 s"):
        queue.push(2)
    assert time.monotonic() - start < 5
    assert isinstance(QueueUnavailableError(), ConnectionError)


def test_a_pickled_queue_is_made_by_whatever_uses_it_first() -> None:
    with HttpQueueServer() as server:
        every: list[dict[str, Any]] = [
            {"create": True},
            {"max_attempts": 3},
            {"create": True, "max_attempts": 3},
        ]
        for number, options in enumerate(every):
            queue: HttpQueue[int] = HttpQueue(server.url, f"q{number}", **options)
            copy = pickle.loads(pickle.dumps(queue))
            copy.push(1)
            assert copy.stats()["max_attempts"] == options.get("max_attempts")
            assert queue.size() == 1


def test_a_client_that_is_gone_gets_no_lease() -> None:
    with HttpQueueServer() as server:
        queue = server.new_queue("q")
        address = server.url.removeprefix("http://")
        connection = http.client.HTTPConnection(address)
        connection.request(
            "POST",
            "/queues/q/pop",
            json.dumps({"wait": 60}),
            {"Host": address, "Authorization": f"Bearer {server.token}"},
        )
        queue.stats()
        connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()
        time.sleep(0.1)  # the server's loop has to see the end of the connection; nothing tells when it did
        queue.push("x")
        lease = queue.pop(wait=5)
        assert lease is not None
        assert lease.attempt == 1


# --- names, limits, settings ---


def test_unknown_queues_are_named_with_what_is_close() -> None:
    with HttpQueueServer() as server:
        server.new_queue("tasks")
        with pytest.raises(QueueNotFoundError, match="did you mean 'tasks'"):
            open_queue(f"{server.url}/task").push(1)
        open_queue(f"{server.url}/task", create=True).push(1)
        open_queue(f"{server.url}/limited?max_attempts=3").push(1)
        with pytest.raises(QueueExistsError, match="max_attempts=3"):
            server.new_queue("limited", max_attempts=4)


def test_nothing_is_kept_of_queues_that_are_not_there() -> None:
    media = "application/json"
    with HttpQueueServer() as server:
        before = count_of("Traffic")
        for number in range(10):
            with HttpQueue[str](server.url, f"missing{number}") as missing:
                with pytest.raises(QueueNotFoundError):
                    missing.pop(wait=60.0)
                with pytest.raises(QueueNotFoundError):
                    missing.fetch_replies(["x"], wait=60.0)
                with pytest.raises(QueueNotFoundError):
                    Wire(missing).send("room", b'{"wait": 60}', media)
                Wire(missing).send("withdraw", b'{"request": "line/1"}', media)
        await_count("Traffic", before)


def arrivals(monkeypatch: pytest.MonkeyPatch, *verbs: str) -> dict[str, threading.Event]:
    """Return events that are set when a server's writer has a request, and when a pop has looked."""
    module = importlib.import_module(f"{HttpQueueServer.__module__.rpartition('.')[0]}.sqlite_store")
    arrived = {verb: threading.Event() for verb in verbs}

    def watch(verb: str) -> None:
        real = getattr(module.SqliteStore, verb)

        async def call(*args: Any, **options: Any) -> Any:
            # In the loop's next step the writer has the request, or the pop waits.
            tell = partial(asyncio.get_running_loop().call_soon, arrived[verb].set)
            if verb != "pop":
                tell()
                return await real(*args, **options)
            found = await real(*args, **options)
            tell()
            return found

        monkeypatch.setattr(module.SqliteStore, verb, call)

    for verb in verbs:
        watch(verb)
    return arrived


def test_a_pop_that_waits_gets_what_is_pushed_to_a_queue_that_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two looks of the pop its queue is removed and made again, while the store is busy."""
    busy, go = threading.Event(), threading.Event()
    real = QueueStore.push

    def push(self: QueueStore, queue: Any, *args: Any) -> list[str]:
        if queue.name == "other":
            busy.set()
            go.wait(30)
        return real(self, queue, *args)

    monkeypatch.setattr(QueueStore, "push", push)
    with (
        HttpQueueServer(store=tmp_path) as server,
        HttpQueue[str](server.url, "q") as taker,
        ThreadPoolExecutor(4) as pool,
    ):
        queue, other = server.new_queue("q"), server.new_queue("other")
        arrived = arrivals(monkeypatch, "pop", "delete", "create")
        popped = pool.submit(taker.pop, wait=60.0)
        assert arrived["pop"].wait(30)
        pool.submit(other.push, "x")
        assert busy.wait(30)
        removed = pool.submit(queue.delete)
        assert arrived["delete"].wait(30)
        made = pool.submit(server.new_queue, "q")
        assert arrived["create"].wait(30)
        go.set()
        removed.result(30)
        made.result(30).push("y")
        lease = popped.result(10)
        assert lease is not None
        assert lease.item == "y"


@pytest.mark.parametrize("name", ["", "a/b", "..", "a..b", "x\0", "\N{SNOWMAN}", "-x", "n" * 101, "<b>"])
def test_bad_names_are_refused(name: str) -> None:
    with HttpQueueServer() as server, pytest.raises(ValueError, match="name"):
        server.new_queue(name)


def test_limits_are_reported_on_both_sides() -> None:
    with HttpQueueServer(limits=Limits(item_bytes=100_000, batch=10, queues=1)) as server:
        queue = server.new_queue("q")
        with pytest.raises(LimitError, match="at most 100000 bytes when pickled; this one has 2000"):
            queue.push(b"x" * 200_000)
        with pytest.raises(LimitError, match="at most 9437184 bytes, an item 100000"):
            Wire(queue).send("push", b"x" * 10_000_000, "application/octet-stream")
        with pytest.raises(LimitError, match="at most 10 items; this one has 11"):
            Wire(queue).send_items([[b"x"] * 11])
        with pytest.raises(LimitError, match="takes no more"):
            server.new_queue("another")
        with pytest.raises(LimitError, match="at most 100000 bytes"):
            queue.push(b"x" * (64 << 20))
        assert queue.size() == 0


def test_a_server_may_take_larger_items_than_by_default() -> None:
    with HttpQueueServer(limits=Limits(item_bytes=80 << 20)) as server:
        queue = server.new_queue("q")
        queue.push(b"x" * (65 << 20))
        lease = queue.pop()
        assert lease is not None
        assert len(lease.item) == 65 << 20


@pytest.mark.parametrize("limits", [Limits(item_bytes=1 << 20), Limits(item_bytes=1 << 20, batch=7)])
def test_items_within_the_limits_are_taken_however_many_they_are(limits: Limits) -> None:
    with HttpQueueServer(limits=limits) as server:
        queue = server.new_queue("q")
        for items in ([b"x" * 900_000] * 20, list(range(50))):
            ids = queue.push_many(items)
            leases = queue.pop_many(100)
            assert [lease.item_id for lease in leases] == ids
            assert [lease.item for lease in leases] == items
            queue.done_many(leases)
        assert queue.push_many([]) == []


def test_an_item_beyond_the_limit_keeps_all_that_is_pushed_with_it_out() -> None:
    with HttpQueueServer(limits=Limits(item_bytes=100_000)) as server:
        queue = server.new_queue("q")
        for good in (1500, 5):
            with pytest.raises(LimitError, match="at most 100000 bytes when pickled; this one has 2000"):
                queue.push_many([*range(good), b"x" * 200_000])
        assert queue.size() == 0


def test_dead_letters_come_in_answers_of_a_bounded_size() -> None:
    with HttpQueueServer(limits=Limits(item_bytes=10_000, batch=4)) as server:
        queue = server.new_queue("q", max_attempts=1)
        items = [b"x" * 6000, *range(9), b"y" * 6000, b"z" * 6000, 10]
        queue.push_many(items)
        for lease in reversed(queue.pop_many(100)):
            queue.release(lease)
        assert [letter.item for letter in queue.dead_letters()] == items
        answers = [len(Wire(queue).read(f"dead/records?after={place}")) for place in (0, 9, 13)]
        assert answers == [4, 3, 0]
        with pytest.raises(ValueError, match="after is"):
            Wire(queue).read("dead/records?after=-1")
        assert len(queue.dead_facts()) == len(items)
        assert queue.requeue_dead() == len(items)
        assert queue.dead_letters() == []


def test_large_batches_are_split(tmp_path: Path) -> None:
    with HttpQueueServer(store=tmp_path) as server:
        queue = server.new_queue("q")
        ids = queue.push_many(range(2500))
        leases = queue.pop_many(2500)
        assert [lease.item_id for lease in leases] == ids
        queue.done_many(leases)
        assert queue.size() == 0


def test_the_server_never_unpickles(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "exploded",)

    with HttpQueueServer(store=tmp_path / "store") as server:
        queue = server.new_queue("q")
        queue.push(Bomb())
        queue.stats()
        assert not (tmp_path / "exploded").exists()
        queue.pop()
        assert (tmp_path / "exploded").exists()


def test_a_batch_whose_second_request_fails_is_what_the_first_leased(monkeypatch: pytest.MonkeyPatch) -> None:
    with HttpQueueServer(limits=Limits(batch=10)) as server:
        queue = server.new_queue("q")
        for start in range(0, 20, 10):
            queue.push_many(range(start, start + 10))
        real = connections_of(queue).ask
        calls: list[str] = []

        async def failing(request: Any) -> Any:
            calls.append(request.path)
            if len(calls) > 1:
                raise QueueUnavailableError("gone")
            return await real(request)

        monkeypatch.setattr(connections_of(queue), "ask", failing)
        assert [lease.item for lease in queue.pop_many(20)] == list(range(10))
        with pytest.raises(QueueUnavailableError):
            queue.pop_many(20)
        queue.close()


def test_a_batch_that_takes_longer_than_its_lease_has_each_item_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    with HttpQueueServer(limits=Limits(batch=10), clock=clock) as server:
        queue = server.new_queue("q")
        for start in range(0, 30, 10):
            queue.push_many(range(start, start + 10))
        real = connections_of(queue).ask

        async def slow(request: Any) -> Any:
            clock.advance(11.0)
            return await real(request)

        with monkeypatch.context() as patched:
            patched.setattr(connections_of(queue), "ask", slow)
            leases = queue.pop_many(30, 10.0)
        assert len({lease.item_id for lease in leases}) == len(leases) >= 10
        queue.done_many(leases[-5:])
        queue.close()


def test_what_no_client_can_read_is_set_aside_with_its_bytes() -> None:
    clock = ManualClock()
    with HttpQueueServer(clock=clock) as server:
        queue = server.new_queue("q", max_attempts=1)
        queue.push_many(range(5))
        Wire(queue).send("push", _packed("poison", b"no pickle"), "application/octet-stream")
        queue.push_many(range(5, 10))
        leases = queue.pop_many(100)
        assert [(lease.item, lease.attempt) for lease in leases] == [(number, 1) for number in range(10)]
        queue.done_many(leases)
        (letter,) = queue.dead_letters()
        assert letter.item_id == "poison"
        assert letter.item == UnreadableItem(b"no pickle", letter.item.error)
        assert "UnpicklingError" in (letter.error or "")


def _packed(item_id: str, payload: bytes) -> bytes:
    from fray_queue.testing import pack

    return pack([{"id": item_id}], [payload])


def _pop(queue: HttpQueue[Any]) -> Any:
    lease = queue.pop()
    assert lease is not None
    return lease
