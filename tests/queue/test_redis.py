"""RedisQueue keeps the contract on a real Redis, and what it says of what is stored is so."""

import logging
import pickle
import re
import socketserver
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from cutting_proxy import CuttingProxy
from engine_checks import check_fail_over, check_rights
from engine_servers import (
    REDIS_RIGHTS,
    RedisServer,
    certificate_of_this_machine,
    free_port,
    fresh_name,
    redis_cluster,
)
from newer_release import FINISH, REFUSED, SIZE, NewerRelease, packed
from pools import Pools
from queue_processes import wait_until

from fray import QueueUnavailableError, SpecError, UnsupportedError
from fray.queue import open_queue
from fray.testing.queue import (
    MakeQueue,
    ManualClock,
    QueueContract,
    SharedQueueContract,
    check_queue_machine,
)
from fray_queue import (
    AccessRefusedError,
    LimitError,
    QueueFullError,
    QueueVersionError,
    RedisQueue,
    work,
)


class _Redis:
    BACKEND = "redis"

    @pytest.fixture
    def make_queue(self, redis_server: RedisServer, clock: ManualClock) -> MakeQueue:
        return lambda **options: RedisQueue[Any](redis_server.url, fresh_name(), clock=clock, **options)


class TestRedisQueue(_Redis, QueueContract):
    pass


class TestPoolsOnRedis(_Redis, Pools):
    pass


class TestSharedRedisQueue(_Redis, SharedQueueContract):
    pass


def test_every_history_agrees_with_the_model(redis_server: RedisServer) -> None:
    clock = ManualClock()

    def make_queue(**options: Any) -> Any:
        return RedisQueue[Any](redis_server.url, fresh_name(), clock=clock, **options)

    def reopen(queue: Any) -> Any:
        return RedisQueue[Any](redis_server.url, queue.name, clock=clock)

    check_queue_machine(make_queue, clock, reopen=reopen, pickles=True, examples=60, steps=40)


# --- what it says of what is stored ---


def test_an_engine_that_keeps_items_in_memory_is_said_to(redis_server: RedisServer) -> None:
    queue: Any = RedisQueue[Any](redis_server.url, fresh_name())
    assert not queue.capabilities.durable
    assert RedisQueue.capabilities.durable
    queue.push("x")
    stats = queue.stats()
    assert (stats["durable"], stats["pending"]) == (False, 1)
    assert "appendonly no" in stats["stored"]


@pytest.mark.parametrize("command", ["CONFIG", "INFO"])
def test_an_engine_without_a_command_of_administrators_is_used(tmp_path: Path, command: str) -> None:
    settings = ("--appendonly", "yes", "--rename-command", command, "")
    with RedisServer(tmp_path / "redis", *settings) as server, RedisQueue[str](server.url, "q") as queue:
        queue.push("x")
        assert work(queue, str, stop_when_empty=True).done == 1
        assert not queue.capabilities.durable
        assert "unknown" in queue.stats()["stored"]


def test_an_engine_that_drops_keys_is_refused(tmp_path: Path) -> None:
    settings = ("--maxmemory", "20mb", "--maxmemory-policy", "allkeys-lru")
    with RedisServer(tmp_path / "redis", *settings) as server:
        queue: Any = RedisQueue[Any](server.url, fresh_name())
        with pytest.raises(UnsupportedError, match="noeviction"):
            queue.push("x")


def test_an_engine_whose_memory_is_full_refuses_pushes_and_goes_on(tmp_path: Path) -> None:
    settings = ("--maxmemory", "3mb", "--maxmemory-policy", "noeviction")
    with RedisServer(tmp_path / "redis", *settings) as server:
        queue: Any = RedisQueue[Any](server.url, fresh_name())
        queue.push("small")
        with pytest.raises(QueueFullError, match="maxmemory"):
            _fill(queue)
        while lease := queue.pop(0.01):  # who makes room may write, and what ran out may wait again
            time.sleep(0.02)
            assert queue.pending() > 0
            queue.done(lease)
        queue.push("again")


def test_a_worker_that_starts_while_the_memory_is_full_takes_items(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis", "--maxmemory-policy", "noeviction") as server:
        old, name = RedisQueue[Any](server.url, "of-the-release-before"), fresh_name()
        old.push("x")
        server.cli("HSET", "fray:{of-the-release-before}:meta", "version", "1")
        producer = RedisQueue[Any](server.url, name)
        producer.push_many("ab")
        server.cli("CONFIG", "SET", "maxmemory", "1mb")
        with pytest.raises(QueueFullError):
            producer.push("c")
        for worker in (RedisQueue[Any](server.url, name), RedisQueue[Any](server.url, old.name)):
            while lease := worker.pop():
                worker.done(lease)
            assert worker.size() == 0
        server.cli("CONFIG", "SET", "maxmemory", "100mb")
        producer.push("c")


def test_an_item_that_the_engine_does_not_take_is_refused_with_the_limit(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis", "--proto-max-bulk-len", "1mb") as server:
        queue: Any = RedisQueue[Any](server.url, fresh_name(), timeout=60.0)
        for size in (1 << 21, 1 << 26):
            with pytest.raises(LimitError, match="more than 1048576 bytes"):
                queue.push(b"x" * size)
        ticket = queue.push("x", reply=True)
        work(queue, lambda _: b"x" * (1 << 26), stop_when_empty=True)
        with pytest.raises(LimitError, match="the result of item"):
            ticket.result(30.0)


def _fill(queue: Any) -> None:
    for _ in range(30):
        queue.push(b"x" * 200_000)


# --- scripts and versions ---


def test_an_engine_that_forgot_the_scripts_is_sent_them_again(redis_server: RedisServer) -> None:
    queue: Any = RedisQueue[Any](redis_server.url, fresh_name())
    queue.push("x")
    redis_server.cli("SCRIPT", "FLUSH")
    lease = queue.pop()
    redis_server.cli("SCRIPT", "FLUSH")
    queue.done(lease)
    assert queue.size() == 0


def test_a_newer_release_upgrades_a_queue_and_an_older_one_says_so(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    name = fresh_name()
    old: Any = RedisQueue[Any](redis_server.url, name)
    old.push_many("ab")
    held = old.pop()
    upgrade = "redis.call('HSET', KEYS[1], 'version', @NEXT@, 'more', 'yes')"
    newer = NewerRelease(tmp_path / "newer", "redis", upgrade)
    url = f"{redis_server.url}?queue={name}"
    assert newer.run(SIZE, url) == newer.run(SIZE, url) == "2"
    versions = rf"version {newer.older + 1}.* reads version"
    for queue in (old, RedisQueue[Any](redis_server.url, name)):
        with pytest.raises(QueueVersionError, match=rf"{versions} {newer.older}"):
            queue.push("x")
    assert newer.run(FINISH, url, packed(held)) == "1"
    newest = NewerRelease(tmp_path / "newest", "redis", None, step=2)
    assert re.search(rf"{versions} {newer.older + 2}", newest.run(REFUSED, url))


def test_items_of_a_release_that_kept_no_push_times_are_taken_all_the_same(
    redis_server: RedisServer,
) -> None:
    """The first version of the keys had every item in `items`, and all that wait in `ready`."""
    name = fresh_name()
    meta, items, ready = (f"fray:{{{name}}}:{key}" for key in ("meta", "items", "ready"))
    bounds = ("attempts", "2", "size", "9", "dead", "100000", "pushed", "3", "dropped", "0")
    redis_server.cli("HSET", meta, "version", "1", "tag", "cafe", *bounds)
    for number, item in enumerate("abc", 1):
        redis_server.cli("HSET", items, f"{number:012x}", pickle.dumps(item, 0).decode())
        redis_server.cli("ZADD", ready, "0", f"{number:012x}")
    queue: Any = RedisQueue[Any](redis_server.url, name)
    assert queue.fetch_replies(["cafe-2"]) == {}  # under way
    assert (queue.push("new"), queue.size(), queue.peek()) == ("cafe-8", 4, "a")
    a, b = queue.pop_many(2)
    assert (a.item, a.item_id, a.pushed_at, a.seconds_in_queue) == ("a", "cafe-1", None, None)
    queue.done(a)
    queue.release(b)
    found = queue.pop_many(9)
    assert [lease.item for lease in found] == ["b", "c", "new"]
    assert found[2].seconds_in_queue is not None
    queue.release(found[0])
    assert [letter.item_id for letter in queue.dead_letters()] == ["cafe-2"]
    assert queue.purge() == 2


def test_the_oldest_item_is_found_behind_a_thousand_priorities(redis_server: RedisServer) -> None:
    clock = ManualClock()
    queue: Any = RedisQueue[Any](redis_server.url, fresh_name(), clock=clock)
    queue.push("oldest", priority=-2000)
    clock.advance(5.0)
    for priority in range(1010):
        queue.push(priority, priority=priority)
    assert queue.oldest_seconds() == pytest.approx(5.0, abs=0.01)


def test_a_key_of_somebody_else_is_left_alone(redis_server: RedisServer) -> None:
    name = fresh_name()
    redis_server.cli("HSET", f"fray:{{{name}}}:meta", "theirs", "1")
    with pytest.raises(QueueVersionError, match="not a queue"):
        RedisQueue[Any](redis_server.url, name).push("x")


# --- URLs, users, TLS ---


@pytest.mark.parametrize("password", ["hush-hush", "hush/hush", "hush?hush", "hush@hush"])
def test_a_url_with_a_password_is_refused_and_not_repeated(password: str) -> None:
    for url in (f"redis://me:{password}@127.0.0.1/0", f"redis://:{password}@127.0.0.1"):
        with pytest.raises(SpecError, match="FRAY_REDIS_PASSWORD") as caught:
            RedisQueue[Any](url, "q")
        assert "hush" not in str(caught.value)


def test_a_url_that_is_no_address_is_refused() -> None:
    for url in ("redis://host:port/0", "redis://host/zero", "redis://host:6379/-1"):
        with pytest.raises(SpecError, match="is not a Redis address"):
            open_queue(url)


def test_a_database_that_the_engine_has_not_is_named(redis_server: RedisServer) -> None:
    queue: Any = RedisQueue(redis_server.url.replace("/0", "/99"), "q")
    for call in (queue.exists, lambda: queue.push("x")):
        with pytest.raises(SpecError, match="no database 99"):
            call()


def test_each_kind_of_user_may_do_what_it_needs_and_no_more(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = redis_server.url.replace("//", "//{}@")
    for user in ("producer", "worker", "admin"):
        rights = ("reset", "on", ">hush-hush", "resetchannels", *REDIS_RIGHTS[user])
        redis_server.cli("ACL", "SETUSER", user, *rights)
    monkeypatch.setenv("FRAY_REDIS_PASSWORD", "hush-hush")
    name = fresh_name()
    users = ("producer", "worker", "admin")
    producer, worker, admin = (RedisQueue[Any](address.format(user), name, max_attempts=1) for user in users)
    check_rights(producer, worker, admin, said="lacks a right|refuses this user")
    assert "unknown" in producer.stats()["stored"]
    assert "appendonly no" in admin.stats()["stored"]
    assert admin.purge() == 2
    admin.delete()


def test_a_wrong_password_is_refused_at_once_and_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with RedisServer(tmp_path / "redis", "--requirepass", "right-secret") as server:
        monkeypatch.setenv("FRAY_REDIS_PASSWORD", "right-secret")
        RedisQueue[Any](server.url, "q").push("x")
        monkeypatch.setenv("FRAY_REDIS_PASSWORD", "wrong-secret")
        with pytest.raises(AccessRefusedError) as caught:
            RedisQueue[Any](server.url, "q").push("x")
        assert "wrong-secret" not in str(caught.value)
        monkeypatch.delenv("FRAY_REDIS_PASSWORD")
        with pytest.raises(AccessRefusedError, match="Authentication"):
            RedisQueue[Any](server.url, "q").push("x")
        monkeypatch.setenv("FRAY_REDIS_PASSWORD", "right-secret")
    with pytest.raises(QueueUnavailableError) as away:
        RedisQueue[Any](server.url, "q", timeout=0.2).push("x")
    assert "secret" not in str(away.value) + caplog.text


def test_a_connection_under_tls_checks_who_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = certificate_of_this_machine(tmp_path)
    server = RedisServer(tmp_path / "redis")
    plain = server.port
    tls = free_port()
    files = ("--tls-cert-file", str(certificate), "--tls-key-file", str(key), "--tls-auth-clients", "no")
    server.settings = ("--tls-port", str(tls), *files)
    with server:
        assert plain
        url = f"rediss://127.0.0.1:{tls}/0"
        with pytest.raises(QueueUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
            RedisQueue[Any](url, "q", timeout=0.2).push("x")
        monkeypatch.setenv("FRAY_REDIS_CA_FILE", str(certificate))
        queue: Any = RedisQueue[Any](url, "q")
        queue.push("x")
        assert queue.pop().item == "x"


_LACKS_A_RIGHT = b"ACL failure in script: User someone has no permissions to run the 'hget' command"
_KNOWS_NO_FLAGS = b"Error compiling script (new function): user_script:1: unexpected symbol near '#'"


@pytest.mark.parametrize(
    ("refusal", "error", "said"),
    [
        pytest.param(_LACKS_A_RIGHT, AccessRefusedError, r"lacks a right.*hget", id="valkey"),
        pytest.param(_KNOWS_NO_FLAGS, UnsupportedError, "use Redis 7", id="redis 6"),
    ],
)
def test_what_other_engines_say_of_scripts_is_understood(
    refusal: bytes, error: type[Exception], said: str
) -> None:
    """Valkey refuses a user in another sentence than Redis."""

    class Refusing(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            while data := self.request.recv(65536):
                answer = b"-ERR %b\r\n" % refusal if b"EVALSHA" in data else b"+OK\r\n" * data.count(b"*")
                self.request.sendall(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Refusing) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        queue = RedisQueue[str](f"redis://127.0.0.1:{server.server_address[1]}/0", "q", timeout=30.0)
        with pytest.raises(error, match=said):
            queue.push("x")
        queue.close()
        server.shutdown()


# --- fail-over and clusters ---


def test_a_replica_that_is_promoted_goes_on_with_what_it_had(tmp_path: Path) -> None:
    """Writes that the replica had not are lost, as is declared; nothing else is."""
    one = RedisServer(tmp_path / "one")
    two = RedisServer(tmp_path / "two", "--repl-diskless-sync-delay", "0")
    two.settings += ("--replicaof", f"127.0.0.1 {one.port}")
    one.settings = ("--repl-diskless-sync-delay", "0")
    with one, two:
        queue: Any = RedisQueue(f"redis://127.0.0.1:{two.port},127.0.0.1:{one.port}/0", "q", max_attempts=3)

        def replica_has_the_lease() -> None:
            assert "fail-over" in queue.stats()["stored"]
            wait_until(lambda: _has(two, "fray:{q}:held", 1))

        check_fail_over(
            queue,
            standby_has_the_lease=replica_has_the_lease,
            promote=lambda: two.cli("REPLICAOF", "NO", "ONE"),
            crash=one.kill,
        )


def test_a_client_behind_one_address_follows_the_fail_over(tmp_path: Path) -> None:
    """As behind a proxy or a service of Kubernetes: the old master answers on the old connections."""
    one = RedisServer(tmp_path / "one", "--repl-diskless-sync-delay", "0")
    two = RedisServer(tmp_path / "two", "--repl-diskless-sync-delay", "0")
    two.settings += ("--replicaof", f"127.0.0.1 {one.port}")
    with one, two, CuttingProxy(one.port) as proxy:
        queue: Any = RedisQueue(f"redis://127.0.0.1:{proxy.port}/0", "q")
        queue.push("before")
        lease = queue.pop()
        wait_until(lambda: _has(two, "fray:{q}:held", 1))
        proxy.lead_to(two.port)
        two.cli("REPLICAOF", "NO", "ONE")
        one.cli("REPLICAOF", "127.0.0.1", str(two.port))
        queue.push("after")
        queue.done(lease)
        assert queue.pop().item == "after"
        queue.close()


def _has(server: RedisServer, key: str, count: int) -> bool:
    return server.ask("ZCARD", key) == b":%d" % count


def test_a_cluster_sends_each_queue_to_its_own_node(tmp_path: Path) -> None:
    with redis_cluster(tmp_path) as (one, two):
        names = [fresh_name() for _ in range(8)]
        for name in names:
            queue: Any = RedisQueue(one.url, name)
            queue.push_many(range(10), keys=[str(number) for number in range(10)])
            lease = queue.pop(wait=5.0)
            queue.done(lease)
            assert queue.size() == 9
            queue.close()
        sizes = [int(server.ask("DBSIZE")[1:]) for server in (one, two)]
        assert all(sizes), "one node has all queues"
