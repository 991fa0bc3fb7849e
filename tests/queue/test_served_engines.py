"""A server in front of an engine keeps what one with a store of its own keeps."""

import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from cutting_proxy import CuttingProxy
from engine_servers import (
    REDIS_RIGHTS,
    PostgresServer,
    Program,
    RedisServer,
    fresh_name,
    redis_cluster,
)
from last_words import give_time
from live_objects import await_count, count_of
from program_ends import SERVES_AFTER_ITS_END, printed
from queue_processes import wait_until
from queue_proxy import SwallowingProxy
from two_askers import check_two_askers

from fray import LeaseExpiredError, QueueUnavailableError, SpecError, UnsupportedError
from fray.queue import open_queue
from fray.testing.queue import MakeQueue, ManualClock, QueueContract, SharedQueueContract
from fray_queue import (
    AccessRefusedError,
    HttpQueue,
    HttpQueueServer,
    LimitError,
    Limits,
    QueueNotFoundError,
    RedisQueue,
)

ENGINES = ["redis", "postgres"]


class _Served:
    @pytest.fixture(autouse=True)
    def last_words(self, monkeypatch: pytest.MonkeyPatch) -> None:
        give_time(monkeypatch)

    @pytest.fixture
    def server(self, engine: Program, clock: ManualClock) -> Iterator[HttpQueueServer]:
        with HttpQueueServer(engine=engine.url, clock=clock) as server:
            yield server

    @pytest.fixture
    def make_queue(self, server: HttpQueueServer) -> MakeQueue:
        return lambda **options: server.new_queue(fresh_name(), **options)


class _OnRedis(_Served):
    BACKEND = "http+redis"

    @pytest.fixture
    def engine(self, redis_server: RedisServer) -> RedisServer:
        return redis_server


class _OnPostgres(_Served):
    BACKEND = "http+postgresql"

    @pytest.fixture
    def engine(self, postgres_server: PostgresServer) -> PostgresServer:
        return postgres_server


class TestServedRedis(_OnRedis, QueueContract):
    pass


class TestSharedServedRedis(_OnRedis, SharedQueueContract):
    pass


class TestServedPostgres(_OnPostgres, QueueContract):
    pass


class TestSharedServedPostgres(_OnPostgres, SharedQueueContract):
    pass


@pytest.fixture(params=ENGINES, scope="session")
def engine(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(f"{request.param}_server")


@pytest.fixture
def served(engine: Any) -> Iterator[HttpQueueServer]:
    with HttpQueueServer(engine=engine.url) as server:
        yield server


def direct(engine: Any, name: str, **options: Any) -> Any:
    """Return the queue as programs have it that reach the engine."""
    queue: Any = open_queue(f"{engine.url}?queue={name}", **options)
    queue.size()  # makes it
    return queue


def call(
    server: HttpQueueServer, path: str, body: dict[str, Any] | None = None, **headers: str
) -> tuple[int, bytes]:
    """Make one request, as any program would; return the answer's status and body."""
    return call_url(server.url, server.token, path, body, **headers)


def call_url(
    url: str, token: str, path: str, body: dict[str, Any] | None = None, **headers: str
) -> tuple[int, bytes]:
    data = None if body is None else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(
        url + path, data, {"Authorization": f"Bearer {token}", "Content-Type": "application/json", **named}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


# --- one engine for many ---


def test_programs_that_reach_the_engine_and_those_that_may_not_share_a_queue(
    engine: Any, served: HttpQueueServer
) -> None:
    name = fresh_name()
    with direct(engine, name, max_attempts=3) as own, HttpQueue[Any](served.url, name) as client:
        ids = [own.push("from within"), client.push("from without")]
        leases = own.pop_many(2)
        assert [lease.item_id for lease in leases] == ids
        client.done(leases[0])
        own.release(leases[1])
        lease = client.pop()
        assert lease is not None
        assert (lease.item, lease.attempt) == ("from without", 2)
        own.done(lease)
        with pytest.raises(LeaseExpiredError):
            client.done(leases[1])
        assert client.stats()["max_attempts"] == 3


def test_waiting_pops_are_woken_by_pushes_that_another_server_or_the_engine_took(
    engine: Any, served: HttpQueueServer
) -> None:
    name = fresh_name()
    with HttpQueueServer(engine=engine.url) as second, direct(engine, name) as own:
        clients = [served.new_queue(name), HttpQueue[Any](served.url, name), second.new_queue(name)]
        found: list[Any] = []

        def take(client: Any) -> None:
            for _ in range(4):
                lease = client.pop(wait=60.0)
                client.done(lease)
                found.append(lease.item)

        waiters = [threading.Thread(target=take, args=(client,)) for client in clients]
        for waiter in waiters:
            waiter.start()
        own.push_many(range(5))
        clients[0].push_many(range(5, 8))
        for number in range(8, 12):
            own.push(number)
        for waiter in waiters:
            waiter.join(60)
        assert sorted(found) == list(range(12))


def test_who_waits_for_an_answer_or_for_room_at_a_server_learns_what_others_do(
    engine: Any, served: HttpQueueServer
) -> None:
    name = fresh_name()
    with direct(engine, name, max_size=2) as own, HttpQueue[Any](served.url, name, timeout=60.0) as client:
        ticket = client.push("question", reply=True)
        client.push("second")
        pushed: list[str] = []
        pusher = threading.Thread(target=lambda: pushed.append(client.push("third")))
        answers: list[Any] = []
        asker = threading.Thread(target=lambda: answers.append(ticket.result(timeout=60.0)))
        for each in (pusher, asker):
            each.start()
        own.done(own.pop(), result="answer")
        for each in (pusher, asker):
            each.join(60)
        assert (answers, len(pushed), own.size()) == (["answer"], 1, 2)


def test_an_answer_that_is_lost_and_fetched_again_is_still_there_for_another_asker(engine: Any) -> None:
    clock = ManualClock()
    with HttpQueueServer(engine=engine.url, clock=clock) as server:
        check_two_askers(server.url, fresh_name(), clock.advance)


def test_a_request_that_comes_again_through_another_server_is_done_once(
    engine: Any, served: HttpQueueServer
) -> None:
    name = fresh_name()
    with direct(engine, name, max_attempts=1) as own, HttpQueueServer(engine=engine.url) as second:
        own.push_many(range(6))
        both = (served, second)
        pops = {call(each, f"/queues/{name}/pop", {"n": 3}, Fray_Request="abc/1") for each in both}
        assert len(pops) == 1  # the same items under the same leases
        assert own.pending() == 3
        for lease in own.pop_many(3):
            own.release(lease)
        told = [call(each, f"/queues/{name}/requeue", {}, Fray_Request="abc/2") for each in both]
        assert told == [(200, b'{"count":3}')] * 2
        late = call(second, f"/queues/{name}/pop", {"n": 3}, Fray_Request="abc/1")
        assert late[0] == 409
        assert own.pending() == 3


class FailingOver(SwallowingProxy):
    """Loses the answer to a removal, and leads to another server from then on."""

    def __init__(self, url: str, other: str) -> None:
        super().__init__(url)
        self._other = urlsplit(other)
        self.swallow_every, self.swallow_only = 1, ("DELETE",)

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        super().handle(request)
        if self.swallowed:
            self._target, self.swallow_every = self._other, 0


def test_a_removal_that_comes_again_through_another_server_is_done(
    engine: Any, served: HttpQueueServer
) -> None:
    name = fresh_name()
    direct(engine, name).close()
    with (
        HttpQueueServer(engine=engine.url) as other,
        FailingOver(served.url, other.url) as proxy,
        HttpQueue[str](proxy.url, name) as queue,
    ):
        queue.delete()
        assert proxy.swallowed == 1
        assert not queue.exists()
        with pytest.raises(QueueNotFoundError):
            queue.delete()


def test_a_repeated_pop_shows_what_is_still_leased(engine: Any, served: HttpQueueServer) -> None:
    name = fresh_name()
    with direct(engine, name) as own:
        own.push_many(["first", "second"])
        first, again = (call(served, f"/queues/{name}/pop", {"n": 1}, Fray_Request="abc/1") for _ in range(2))
        assert first == again
        own.purge()
        assert b"lease_id" not in call(served, f"/queues/{name}/pop", {"n": 1}, Fray_Request="abc/1")[1]


def test_a_client_that_can_give_no_answers_gets_no_item_that_wants_one(
    engine: Any, served: HttpQueueServer
) -> None:
    name = fresh_name()
    with direct(engine, name) as own:
        own.push("question", reply=True)
        status, body = call(served, f"/queues/{name}/pop", {"n": 1})
        assert (status, json.loads(body)["error"]) == (426, "upgrade")
        lease = own.pop()
        assert (lease.item, lease.attempt) == ("question", 1)


def test_dead_letters_come_in_pages(engine: Any, served: HttpQueueServer) -> None:
    name = fresh_name()
    with direct(engine, name, max_attempts=1) as own:
        own.push_many(range(250))
        for lease in own.pop_many(250):
            own.release(lease, error=ValueError("no"))
        with HttpQueue[Any](served.url, name) as client:
            assert sorted(letter.item for letter in client.dead_letters()) == list(range(250))
            page = json.loads(call(served, f"/queues/{name}/dead?limit=100")[1])
            assert (len(page["dead"]), page["more"]) == (100, True)
            after = page["dead"][-1]["place"]
            rest = json.loads(call(served, f"/queues/{name}/dead?limit=1000&after={after}")[1])
            assert (len(rest["dead"]), rest["more"]) == (150, False)
            assert client.requeue_dead([page["dead"][0]["item_id"], "nobody-7"]) == 1
            assert client.purge_dead() == 249
            assert client.purge() == 1


def test_a_look_at_large_dead_letters_reads_no_more_than_it_shows(engine: Any) -> None:
    name, size = fresh_name(), 1 << 20
    with direct(engine, name, max_attempts=1) as own:
        for _ in range(20):
            own.push(b"x" * size)
            own.release(own.pop())
        with (
            CuttingProxy(engine.port) as proxy,
            HttpQueueServer(
                engine=engine.url.replace(f":{engine.port}", f":{proxy.port}"),
                limits=Limits(item_bytes=2 * size),
            ) as server,
        ):

            def moved(path: str) -> tuple[Any, int]:
                before = proxy.answered_bytes
                status, body = call(server, path)
                assert status == 200
                return body, proxy.answered_bytes - before

            body, count = moved(f"/queues/{name}/dead?limit=1")
            (letter,), more = json.loads(body)["dead"], json.loads(body)["more"]
            assert (letter["bytes"] // size, more, count < size // 2) == (1, True, True)
            assert len(json.loads(moved(f"/queues/{name}/dead")[0])["dead"]) == 20
            body, count = moved(f"/queues/{name}/dead/records")
            assert 2 * size < len(body) <= count < 4 * size
            with HttpQueue[bytes](server.url, name) as client:
                assert [len(each.item) for each in client.dead_letters()] == [size] * 20
        own.purge_dead()


def test_a_queue_that_others_removed_is_missing_and_one_of_its_name_is_found(
    engine: Any, served: HttpQueueServer
) -> None:
    name = fresh_name()
    with HttpQueue[Any](served.url, name) as client:
        with pytest.raises(QueueNotFoundError):
            client.push("x")
        with direct(engine, name) as own:
            own.push("x")
            assert client.size() == 1
            own.delete()
        with pytest.raises(QueueNotFoundError):
            client.push("x")
        with direct(engine, name) as own:
            own.push("new")
            lease = client.pop()
            assert lease is not None
            assert lease.item == "new"
            client.done(lease)
            client.delete()
            assert not own.exists()


# --- page, metrics, tokens, bounds ---


def test_nothing_is_kept_of_a_queue_that_others_removed(engine: Any, served: HttpQueueServer) -> None:
    """What is kept is checked at the engine each second."""
    name, before = fresh_name(), count_of("Traffic")
    with direct(engine, name) as own, HttpQueue[Any](served.url, name) as client:
        client.push("x")
        assert count_of("Traffic") == before + 1
        own.delete()
        await_count("Traffic", before)
        with pytest.raises(QueueNotFoundError):
            client.pop(wait=60.0)
        await_count("Traffic", before)


def test_the_page_the_list_and_the_metrics_show_all_queues_of_the_engine(
    engine: Any, served: HttpQueueServer
) -> None:
    name = fresh_name()
    with direct(engine, name, max_attempts=1) as own:
        own.push_many(range(3))
        own.release(own.pop())
        own.pop()
        listed = {each["name"]: each for each in json.loads(call(served, "/queues")[1])["queues"]}
        told = listed[name]
        assert (told["pending"], told["in_flight"], told["dead"], told["size"]) == (1, 1, 1, 2)
        metrics = call(served, "/metrics")[1].decode()
        assert f'fray_queue_pending{{queue="{name}"}} 1\n' in metrics
        assert f'fray_queue_dead{{queue="{name}"}} 1\n' in metrics
        for path in ("/", f"/part/queues?q={name}", f"/part/queue?name={name}", f"/part/letters?name={name}"):
            status, page = call(served, path)
            assert status == 200
            assert b"None" not in page
        assert name.encode() in call(served, f"/part/queues?q={name}")[1]


def test_what_is_stored_is_what_the_engine_says(engine: Any, served: HttpQueueServer) -> None:
    name = fresh_name()
    with direct(engine, name) as own, HttpQueue[Any](served.url, name) as queue:
        assert queue.stats()["stored"] == own.stats()["stored"]
        assert queue.capabilities.durable is own.capabilities.durable is False
        assert not queue.capabilities.steady_clock


def test_a_bound_on_queues_holds_for_those_of_the_engine(engine: Any) -> None:
    with direct(engine, fresh_name()) as own:
        own.size()
        with HttpQueueServer(engine=engine.url, limits=Limits(queues=1)) as server:
            with pytest.raises(LimitError, match="1 queues"):
                server.new_queue(fresh_name())
            server.new_queue(own.name)


def test_what_an_engine_cannot_keep_is_refused(engine: Any, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="total_bytes"):
        HttpQueueServer(engine=engine.url, limits=Limits(total_bytes=1 << 20))
    with pytest.raises(ValueError, match="not on both"):
        HttpQueueServer(engine=engine.url, store=tmp_path)
    for url in ("sqlite:q.db", f"{engine.url}?queue=q"):
        with pytest.raises(SpecError, match="engine"):
            HttpQueueServer(engine=url)


# --- an engine that goes away ---


def own_engine(kind: str, folder: Path) -> Any:
    if kind == "postgres":
        return PostgresServer(folder)
    return RedisServer(folder, "--appendonly", "yes", "--appendfsync", "always")


@pytest.mark.parametrize("kind", ENGINES)
def test_an_engine_that_goes_away_is_reported_and_found_again(kind: str, tmp_path: Path) -> None:
    with own_engine(kind, tmp_path / "engine") as engine, HttpQueueServer(engine=engine.url) as server:
        queue = server.new_queue("q", max_attempts=3)
        queue.push_many("ab")
        held = queue.pop()
        assert held is not None
        engine.kill()
        status, body = call(server, "/queues/q/pop", {"n": 1}, Fray_Request="abc/1")
        assert (status, json.loads(body)["error"]) == (503, "unavailable")
        assert "engine does not answer" in json.loads(body)["message"]
        assert wait_until(lambda: call(server, "/healthz")[0] == 503)
        found: list[Any] = []
        with HttpQueue[Any](server.url, "q", timeout=120.0) as patient:
            waiter = threading.Thread(target=lambda: found.append(patient.pop(wait=60.0)))
            waiter.start()
            engine.start()
            waiter.join(120)
        assert [lease.item for lease in found] == ["b"]
        queue.done(held)
        assert call(server, "/healthz")[0] == 200
        assert queue.size() == 1
        queue.close()


def test_an_engine_is_found_again_after_an_error_of_another_kind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with PostgresServer(tmp_path / "engine") as engine, HttpQueueServer(engine=engine.url) as server:
        with server.new_queue("q") as queue:
            queue.push("x")
        engine.sql("ALTER TABLE fray.replies RENAME TO others")
        assert wait_until(lambda: "no sample of the queues" in caplog.text)
        engine.kill()
        assert wait_until(lambda: call(server, "/healthz")[0] == 503)
        engine.start()
        assert wait_until(lambda: call(server, "/healthz")[0] == 200)


@pytest.mark.parametrize("kind", ENGINES)
def test_a_server_does_not_start_without_its_engine(kind: str, tmp_path: Path) -> None:
    engine = own_engine(kind, tmp_path / "engine")
    with pytest.raises(QueueUnavailableError, match="engine does not answer"):
        HttpQueueServer(engine=engine.url).start()
    engine.__exit__()


def listed(server: HttpQueueServer) -> set[str]:
    return {each["name"] for each in json.loads(call(server, "/queues")[1])["queues"]}


def test_a_server_has_queues_on_every_node_of_a_cluster(tmp_path: Path) -> None:
    with redis_cluster(tmp_path) as (one, two):
        both = f"{one.url.removesuffix('/0')},127.0.0.1:{two.port}/0"
        with HttpQueueServer(engine=both) as server:
            for number in range(8):
                queue = server.new_queue(f"q{number}")
                queue.push(number)
                lease = queue.pop()
                assert lease is not None
                assert lease.item == number
                queue.close()
            assert listed(server) == {f"q{number}" for number in range(8)}
        sizes = [int(node.ask("DBSIZE")[1:]) for node in (one, two)]
        assert all(sizes), "one node has all queues"


@pytest.fixture(params=["is gone", "is a replica"])
def first_takes_no_writes(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of two nodes, of which the second takes writes."""
    with RedisServer(tmp_path / "two") as two:
        replica = ("--replicaof", f"127.0.0.1 {two.port}", "--repl-diskless-sync-delay", "0")
        one = RedisServer(tmp_path / "one", *replica)
        url = f"{one.url.removesuffix('/0')},127.0.0.1:{two.port}/0"
        if request.param == "is gone":
            yield url
        else:
            with one:
                wait_until(lambda: b"master_link_status:up" in one.everything("INFO", "replication"))
                yield url


def test_a_server_finds_the_node_that_took_the_others_place(first_takes_no_writes: str) -> None:
    """A queue that a program makes then, and one that it had not opened before."""
    direct_queue: Any = RedisQueue(first_takes_no_writes, "there")
    direct_queue.push("x")
    with HttpQueueServer(engine=first_takes_no_writes) as server:
        for name in ("there", "new"):
            queue: Any = server.new_queue(name)
            queue.push("y")
            assert queue.pop() is not None
            queue.close()
        assert listed(server) == {"there", "new"}


def test_answers_of_the_engine_that_are_lost_are_asked_for_again(engine: Any) -> None:
    with CuttingProxy(engine.port) as proxy:
        url = engine.url.replace(str(engine.port), str(proxy.port))
        with HttpQueueServer(engine=url) as server:
            queue = server.new_queue(fresh_name(), max_attempts=3)
            proxy.cut_every = 7
            ids = [queue.push(number) for number in range(20)]
            leases = [lease for _ in range(5) for lease in queue.pop_many(4)]
            assert [lease.item_id for lease in leases] == ids
            assert {lease.attempt for lease in leases} == {1}
            for lease in leases[:10]:
                queue.done(lease)
            assert (queue.size(), queue.pending()) == (10, 0)
            assert proxy.cuts > 3
            proxy.cut_every = 0
            queue.close()


# --- secrets ---


def test_the_password_is_in_no_list_of_processes_log_page_or_error(tmp_path: Path) -> None:
    secret = "hush-hush-0815"
    file = tmp_path / "engine-url"
    with RedisServer(tmp_path / "redis", "--requirepass", secret) as engine:
        file.write_text(engine.url.replace("//", f"//:{secret}@"))
        file.chmod(0o600)
        command = [sys.executable, "-m", "fray", "queue", "serve"]
        log = (tmp_path / "log").open("w+b")
        with (
            log,
            subprocess.Popen(
                [*command, "--engine-file", str(file), "--queue", "q"],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            ) as program,
        ):
            assert program.stdout is not None
            url = program.stdout.readline().strip()
            token = os.environ["FRAY_QUEUE_TOKEN"]
            shown = [Path(f"/proc/{program.pid}/cmdline").read_bytes()]
            shown += [call_url(url, token, path)[1] for path in ("/", "/queues", "/metrics", "/part/queues")]
            assert b'"q"' in shown[2]
            engine.kill()
            shown += [call_url(url, token, "/queues/q/pop", {"n": 1})[1], call_url(url, token, "/queues")[1]]
            program.terminate()
            shown.append(program.stdout.read().encode())
            assert program.wait(60) == 0
            log.seek(0)
            shown.append(log.read())
    assert not any(secret.encode() in each for each in shown)


def test_a_password_on_a_command_line_or_in_a_file_for_all_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from fray.testing.command_line import main

    file, slashed = tmp_path / "engine-url", tmp_path / "slashed"
    file.write_text("redis://:hush-hush@127.0.0.1:1/0")
    slashed.write_text("postgresql://me:hush-hush/x@127.0.0.1:1/db")
    file.chmod(0o644)
    slashed.chmod(0o644)
    for arguments, why in (
        (["--engine", "redis://me:hush-hush@127.0.0.1:1/0"], "must hold no password"),
        (["--engine", "postgresql://me:hush-hush@127.0.0.1:1/db"], "must hold no password"),
        (["--engine", "redis://me:hush-hush/x@127.0.0.1:1/0"], "must hold no password"),
        (["--engine-file", str(file)], "chmod 600"),
        (["--engine-file", str(slashed)], "chmod 600"),
        (["--engine", "redis://127.0.0.1:1/0", "--store", str(tmp_path)], "--store"),
        (["--engine", "redis://127.0.0.1:1/0", "--engine-file", str(file)], "one of them"),
    ):
        assert main(["queue", "serve", *arguments]) != 0
        told = "".join(capsys.readouterr())
        assert why in told
        assert "hush-hush" not in told


@pytest.mark.parametrize("password", ["hush-hush", "hush/hush"])
def test_the_engine_may_be_named_by_the_environment_with_its_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], password: str
) -> None:
    from fray.testing.command_line import main

    monkeypatch.setenv("FRAY_REDIS_PASSWORD", "before")  # so that it is put back
    monkeypatch.setenv("FRAY_QUEUE_ENGINE", f"redis://:{password}@127.0.0.1:1/0")
    assert main(["queue", "serve"]) == 1
    assert os.environ["FRAY_REDIS_PASSWORD"] == password
    told = "".join(capsys.readouterr())
    assert "127.0.0.1:1" in told
    assert "engine does not answer" in told
    assert "hush" not in told


def test_a_server_needs_the_rights_of_an_admin_and_no_more(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(engine, RedisServer):
        rights = ("reset", "on", ">hush-hush", "resetchannels", *REDIS_RIGHTS["server"])
        engine.cli("ACL", "SETUSER", "front", *rights)
        monkeypatch.setenv("FRAY_REDIS_PASSWORD", "hush-hush")
        url = engine.url.replace("//", "//front@")
    else:
        with direct(engine, fresh_name()):
            engine.sql("CREATE ROLE front LOGIN", "SELECT fray.grant_rights('admin', 'front')")
        url = engine.url_of("front")
    with (
        HttpQueueServer(engine=url) as server,
        HttpQueue[Any](server.url, fresh_name(), max_attempts=1) as queue,
    ):
        ticket: Any = queue.push("question", reply=True, priority=2, ttl=100.0)
        queue.push_many(["second", "third"], keys=["a", "b"])
        lease = queue.pop(wait=10.0)
        assert lease is not None
        queue.done(queue.extend(lease, 50.0), result="answer")
        assert ticket.result(timeout=10.0) == "answer"
        lease = queue.pop()
        assert lease is not None
        queue.release(lease)
        assert [letter.item for letter in queue.dead_letters()] == ["second"]
        if isinstance(engine, RedisServer):  # what the documentation did not list before
            engine.cli("ACL", "SETUSER", "front", "-hstrlen")
            assert [letter.item for letter in queue.dead_letters()] == ["second"]
        assert (queue.requeue_dead(), queue.purge()) == (1, 2)
        assert call(server, "/metrics")[0] == call(server, "/queues")[0] == 200
        queue.delete()


def test_an_engine_that_refuses_the_servers_user_says_so_to_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RedisServer(tmp_path / "redis") as engine:
        engine.cli("ACL", "SETUSER", "few", "on", "nopass", "~*", "+time", "+exists", "+eval", "+evalsha")
        url = engine.url.replace("//", "//few@")
        monkeypatch.setenv("FRAY_REDIS_PASSWORD", "any")
        with HttpQueueServer(engine=url) as server, pytest.raises(AccessRefusedError):
            server.new_queue("q")


def test_a_queue_of_another_release_hides_none_that_can_be_read(redis_server: RedisServer) -> None:
    strange, name = fresh_name(), fresh_name()
    redis_server.cli("HSET", f"fray:{{{strange}}}:meta", "version", "99")
    with HttpQueueServer(engine=redis_server.url) as server, server.new_queue(name) as queue:
        queue.push("x")
        status, body = call(server, "/queues")
        names = [each["name"] for each in json.loads(body)["queues"]]
        assert (status, name in names, strange in names) == (200, True, False)


def test_a_server_serves_and_stops_after_the_last_line_of_its_program(engine: Program) -> None:
    assert printed(SERVES_AFTER_ITS_END, engine.url, fresh_name()) == "1\nstopped\n"
