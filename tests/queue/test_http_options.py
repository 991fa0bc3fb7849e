"""Options of push and answers over HTTP: restarts, lost answers, bounds, clients and servers of before."""

import asyncio
import http.client
import itertools
import json
import pickle
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from local_server import LocalServer, send
from queue_processes import wait_until
from two_askers import check_two_askers

from fray import UnsupportedError
from fray.queue import NoReplyError, QueueFullError, Ticket
from fray.testing.queue import ManualClock, check_queue_machine
from fray_queue import HttpQueue, HttpQueueServer, LimitError, Limits
from fray_queue.testing import connections_of

TOKEN = "of-the-tests"


def ask(server: HttpQueueServer, path: str, body: bytes, media: str, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=30)
    given = {"Authorization": f"Bearer {server.token}", "Content-Type": media, **headers}
    connection.request("POST", path, body, given)
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def requests_of(queue: HttpQueue[Any]) -> list[str]:
    """Return the paths that a client asks its server for from now on; they are added as they are sent."""
    asked: list[str] = []
    real = connections_of(queue).ask

    async def noting(request: Any) -> bytes:
        asked.append(request.path)
        answer: bytes = await real(request)
        return answer

    connections_of(queue).ask = noting
    return asked


def test_a_restart_keeps_pending_answers_keys_delays_and_bounds(tmp_path: Path) -> None:
    with HttpQueueServer(store=tmp_path) as server:
        port = int(server.url.rpartition(":")[2])
        queue = server.new_queue("q", max_size=6)
        answered, waiting = queue.push_many(["answered", "waiting"], reply=True)
        lease = queue.pop()
        assert lease is not None
        queue.done(lease, result={"answer": 1})
        queue.push("later", delay=3600.0)
        keyed = queue.push("urgent", priority=5, key="k")
        queue.close()
    with HttpQueueServer(store=tmp_path, port=port) as server:
        queue = HttpQueue(server.url, "q", server.token)
        assert Ticket(answered, queue).result(timeout=10) == {"answer": 1}
        copy: Ticket[Any] = pickle.loads(pickle.dumps(Ticket(waiting, queue)))
        assert not copy.done()
        assert (queue.size(), queue.pending(), queue.peek()) == (3, 2, "urgent")
        assert queue.push("again", key="k") == keyed
        queue.push_many("abc", wait=0)
        with pytest.raises(QueueFullError, match="max_size=6"):
            queue.push("d", wait=0)
        urgent, lease = queue.pop_many(2)
        assert (urgent.item, lease.item, lease.reply) == ("urgent", "waiting", True)
        queue.done(lease, error=KeyError("why"))
        with pytest.raises(KeyError, match="why"):
            copy.result(timeout=10)
        copy.queue.close()  # type: ignore[attr-defined]
        queue.close()


def test_an_asker_outlasts_a_server_that_restarts(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        with HttpQueueServer(store=tmp_path) as server:
            port = int(server.url.rpartition(":")[2])
            queue = server.new_queue("q")
            ticket = queue.push("question", reply=True)
            requests = requests_of(queue)
            asked = pool.submit(ticket.result, 60.0)
            wait_until(lambda: requests)
        with HttpQueueServer(store=tmp_path, port=port):
            lease = queue.pop(wait=30.0)
            assert lease is not None
            queue.done(lease, result="answer")
            assert asked.result(60) == "answer"
            queue.close()


@pytest.mark.parametrize("stored", [False, True])
def test_requests_that_are_sent_again_are_done_once(stored: bool, tmp_path: Path) -> None:
    from fray_queue.testing import pack

    with HttpQueueServer(store=tmp_path if stored else None) as server:
        queue = server.new_queue("q")
        body = pack([{"options": {"reply_ttl": 60.0, "priority": 1}}], [pickle.dumps("question")])
        first = ask(server, "/queues/q/submit", body, "application/octet-stream", **{"Fray-Request": "a/1"})
        again = ask(server, "/queues/q/submit", body, "application/octet-stream", **{"Fray-Request": "a/1"})
        assert first == again
        assert (first[0], queue.size()) == (200, 1)
        lease = queue.pop()
        assert lease is not None
        meta = {"item_id": lease.item_id, "lease_id": lease.lease_id, "outcome": "value"}
        body = pack([meta], [pickle.dumps("answer")])
        for _ in range(2):
            status, answer = ask(
                server, "/queues/q/finish", body, "application/octet-stream", **{"Fray-Request": "a/2"}
            )
            assert (status, json.loads(answer)) == (200, {"refused": []})
        ticket: Ticket[Any] = Ticket(json.loads(first[1])["ids"][0], queue)
        assert ticket.result(timeout=10) == "answer"
        queue.close()


def test_a_push_waits_for_room_without_holding_its_items_in_the_server() -> None:
    with HttpQueueServer() as server:
        queue = server.new_queue("q", max_size=2)
        queue.push_many("ab")
        with ThreadPoolExecutor(3) as pool:
            requests = requests_of(queue)
            pushes = [pool.submit(queue.push, item, wait=60.0) for item in "cde"]
            wait_until(lambda: len(requests) >= 4)  # three that were refused, and who waits first for room
            assert queue.size() == 2
            taken: list[str] = []
            while len(taken) < 5:
                lease = queue.pop(wait=30.0)
                assert lease is not None
                taken.append(lease.item)
                queue.done(lease)
                assert queue.size() <= 2
            assert all(push.result(60) for push in pushes)
        assert sorted(taken) == list("abcde")
        queue.close()


def test_a_waiting_asker_costs_few_requests() -> None:
    """It is one long poll, not many looks: counted at the socket."""
    with HttpQueueServer() as server:
        queue = server.new_queue("q")
        ticket = queue.push("question", reply=True)
        asked = requests_of(queue)
        answers: list[Any] = []
        asker = threading.Thread(target=lambda: answers.append(ticket.result(timeout=60.0)))
        asker.start()
        time.sleep(1.0)  # in which an asker that polls would ask many times
        lease = queue.pop()
        assert lease is not None
        queue.done(lease, result="answer")
        asker.join(60)
        assert answers == ["answer"]
        assert asked.count("/queues/q/replies") == 1
        queue.close()


@pytest.mark.parametrize("on_disk", [False, True])
def test_an_answer_that_is_lost_and_fetched_again_is_still_there_for_another_asker(
    on_disk: bool, tmp_path: Path
) -> None:
    clock = ManualClock()
    with HttpQueueServer(store=tmp_path if on_disk else None, clock=clock) as server:
        check_two_askers(server.url, "q", clock.advance)


def test_many_askers_at_once_get_each_its_own() -> None:
    with HttpQueueServer() as server:
        queue = server.new_queue("q")
        worker = threading.Thread(target=_double, args=(queue, 40))
        worker.start()

        def request(number: int) -> Any:
            return queue.push(number, reply=True).result(timeout=60.0)

        with ThreadPoolExecutor(20) as pool:
            assert list(pool.map(request, range(40))) == [2 * number for number in range(40)]
        worker.join(60)
        queue.close()


@pytest.mark.parametrize(("most", "count"), [(3, 10), (1000, 2500)])
def test_answers_of_more_items_than_one_request_may_ask_for(most: int, count: int) -> None:
    with HttpQueueServer(limits=Limits(batch=most)) as server, server.new_queue("q") as queue:
        tickets = queue.push_many(range(count), reply=True)
        leases = queue.pop_many(count)
        late = threading.Timer(0.2, lambda: queue.done(leases[-1], result="last"))
        late.start()
        found = queue.fetch_replies([ticket.item_id for ticket in tickets], wait=30)
        late.join()
        assert list(found) == [tickets[-1].item_id]
        queue.done_many(leases[:-1], results=range(count - 1))
        assert [ticket.result(30) for ticket in tickets[::400]] == list(range(count - 1))[::400]

        async def results() -> list[Any]:
            return list(await asyncio.gather(*tickets))

        assert asyncio.run(results())[-1] == "last"


def _double(queue: HttpQueue[int], count: int) -> None:
    while count:
        leases = queue.pop_many(10, wait=30.0)
        queue.done_many(leases, results=[2 * lease.item for lease in leases])
        count -= len(leases)


def test_a_removed_queue_ends_the_waiting_of_askers(tmp_path: Path) -> None:
    with HttpQueueServer() as server:
        queue = server.new_queue("q")
        ticket = queue.push("question", reply=True)
        with ThreadPoolExecutor(1) as pool:
            requests = requests_of(queue)
            asked = pool.submit(ticket.result, 60.0)
            wait_until(lambda: requests)
            queue.purge()
            with pytest.raises(NoReplyError, match="removed"):
                asked.result(30)
        queue.close()


@pytest.mark.parametrize("limits", [Limits(queue_bytes=500), Limits(total_bytes=500)])
@pytest.mark.parametrize("stored", [False, True])
def test_answers_that_nobody_fetched_in_time_refuse_no_push(
    limits: Limits, stored: bool, tmp_path: Path
) -> None:
    clock = ManualClock()
    with HttpQueueServer(limits=limits, store=tmp_path if stored else None, clock=clock) as server:
        queue: HttpQueue[str] = server.new_queue("q")
        for _ in range(4):
            queue.push("x", reply=True, reply_ttl=10.0)
            for lease in queue.pop_many(1):
                queue.done(lease, result="y" * 100)
        with pytest.raises(QueueFullError):
            queue.push("z" * 100)
        clock.advance(11.0)
        queue.push("z" * 100)


def test_an_answer_beyond_the_limit_is_refused_and_the_lease_stays_good() -> None:
    with HttpQueueServer(limits=Limits(item_bytes=1000)) as server:
        queue = server.new_queue("q")
        ticket = queue.push("question", reply=True)
        lease = queue.pop()
        assert lease is not None
        with pytest.raises(LimitError, match="1000"):
            queue.done(lease, result=b"x" * 2000)
        queue.done(lease, result="short")
        assert ticket.result(timeout=10) == "short"
        queue.close()


@pytest.mark.parametrize(
    "options",
    [
        {"priority": "high"},
        {"priority": 2**40},
        {"delay": -1},
        {"ttl": 0},
        {"reply_ttl": "long"},
        {"unknown": 1},
        [1],
    ],
)
def test_options_that_make_no_sense_are_refused_and_store_nothing(options: Any) -> None:
    from fray_queue.testing import pack

    with HttpQueueServer() as server:
        queue = server.new_queue("q")
        body = pack([{"options": options}], [b"x"])
        assert ask(server, "/queues/q/submit", body, "application/octet-stream")[0] == 400
        for media, path, bad in (
            ("application/octet-stream", "submit", pack([{"key": 7}], [b"x"])),
            ("application/octet-stream", "finish", pack([{"outcome": "perhaps"}], [b"x"])),
            ("application/json", "replies", b'{"item_ids": [1]}'),
            ("application/json", "room", b'{"count": 0}'),
        ):
            assert ask(server, f"/queues/q/{path}", bad, media)[0] == 400
        assert queue.size() == 0
        queue.close()


# --- the release before ---


def test_a_client_of_the_release_before_works_on_plain_items_alone() -> None:
    with HttpQueueServer() as server:
        queue = server.new_queue("q")
        queue.push("plain")
        status, _ = ask(server, "/queues/q/pop", b"{}", "application/json")
        assert status == 200
        queue.push("question", reply=True)
        status, answer = ask(server, "/queues/q/pop", b"{}", "application/json")
        assert status == 426
        assert "update fray-queue" in json.loads(answer)["message"]
        assert queue.pending() == 1
        status, _ = ask(server, "/queues/q/pop", b"{}", "application/json", **{"Fray-Protocol": "2"})
        assert status == 200
        queue.close()


class _OfBefore(LocalServer):
    """Answers as a server of the first release does: it knows no route that came later."""

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        request.rfile.read(int(request.headers.get("Content-Length", 0)))
        status, answer = self._answer(request.command, request.path)
        send(request, status, "application/json", json.dumps(answer).encode())

    @staticmethod
    def _answer(method: str, path: str) -> tuple[int, dict[str, Any]]:
        if method == "GET":
            return 200, {"size": 0, "pending": 0, "durable": False, "item_bytes": 1 << 20, "batch": 1000}
        if path.endswith("/push"):
            return 200, {"stored": 1}
        return 404, {"error": "http", "message": "Not Found", "facts": []}


@pytest.fixture
def server_of_before() -> Iterator[str]:
    with _OfBefore() as server:
        yield server.url


def test_a_server_of_the_release_before_is_named_and_takes_plain_items(server_of_before: str) -> None:
    queue: HttpQueue[str] = HttpQueue(server_of_before, "q", TOKEN)
    queue.push("plain")
    for options in ({"priority": 1}, {"reply": True}, {"key": "k"}, {"ttl": 5.0}, {"delay": 5.0}):
        with pytest.raises(UnsupportedError, match="release without options"):
            queue.push("x", **options)
    assert not queue.capabilities.replies
    assert HttpQueue.capabilities.replies
    queue.close()


# --- histories ---


def test_histories_with_restarts_of_the_server_agree_with_the_model(tmp_path: Path) -> None:
    """What the model calls a crash of the client is here one of the server: its store is all that stays."""
    clock = ManualClock()
    numbers = itertools.count()
    server = HttpQueueServer(clock=clock, store=tmp_path / "store").start()

    def make_queue(**options: Any) -> Any:
        return server.new_queue(f"q{next(numbers)}", **options)

    def restart(queue: Any) -> Any:
        nonlocal server
        queue.close()
        server.stop()
        server = HttpQueueServer(clock=clock, store=tmp_path / "store").start()
        return HttpQueue(server.url, queue._name)

    try:
        check_queue_machine(make_queue, clock, reopen=restart, pickles=True, examples=10, steps=40)
    finally:
        server.stop()
