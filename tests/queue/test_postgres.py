"""PostgresQueue keeps the contract on a real PostgreSQL, and what it says of what is stored is so."""

import gc
import logging
import os
import re
import resource
import shutil
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from engine_checks import check_fail_over, check_rights
from engine_servers import PostgresServer, certificate_of_this_machine, fresh_name
from newer_release import FINISH, REFUSED, SIZE, NewerRelease, packed
from pools import Pools
from queue_processes import wait_until

from fray import QueueUnavailableError, SpecError, UnsupportedError
from fray.testing.queue import (
    MakeQueue,
    ManualClock,
    QueueContract,
    SharedQueueContract,
    check_queue_machine,
)
from fray_queue import (
    AccessRefusedError,
    HttpQueueServer,
    LimitError,
    PostgresQueue,
    QueueFullError,
    QueueVersionError,
)


class _Postgres:
    BACKEND = "postgresql"

    @pytest.fixture
    def make_queue(self, postgres_server: PostgresServer, clock: ManualClock) -> MakeQueue:
        return lambda **options: PostgresQueue(postgres_server.url, fresh_name(), clock=clock, **options)


class TestPostgresQueue(_Postgres, QueueContract):
    pass


class TestPoolsOnPostgres(_Postgres, Pools):
    pass


class TestSharedPostgresQueue(_Postgres, SharedQueueContract):
    pass


def test_every_history_agrees_with_the_model(postgres_server: PostgresServer) -> None:
    clock = ManualClock()

    def make_queue(**options: Any) -> Any:
        return PostgresQueue(postgres_server.url, fresh_name(), clock=clock, **options)

    def reopen(queue: Any) -> Any:
        return PostgresQueue(postgres_server.url, queue.name, clock=clock)

    check_queue_machine(make_queue, clock, reopen=reopen, pickles=True, examples=15, steps=40)


# --- what it says of what is stored ---


def test_what_is_stored_is_what_the_settings_say(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    queue: Any = PostgresQueue(postgres_server.url, fresh_name())
    assert not queue.capabilities.durable
    assert "fsync off" in queue.stats()["stored"]
    queue.close()
    with PostgresServer(tmp_path / "postgres", "fsync=on") as server:
        queue = PostgresQueue[Any](server.url, fresh_name())
        assert queue.capabilities.durable
        assert "on disk" in queue.stats()["stored"]
        server.sql("ALTER SYSTEM SET synchronous_commit = off", "SELECT pg_reload_conf()")
        queue.close()
        wait_until(lambda: server.sql("SHOW synchronous_commit") == [("off",)])
        queue = PostgresQueue[Any](server.url, fresh_name())
        assert not queue.capabilities.durable
        assert "synchronous_commit off" in queue.stats()["stored"]
        queue.close()


# --- versions ---


def test_a_newer_release_upgrades_the_tables_and_an_older_one_says_so(tmp_path: Path) -> None:
    with PostgresServer(tmp_path / "postgres") as server:
        old: Any = PostgresQueue(server.url, "q")
        old.push_many("ab")
        held = old.pop()
        server.sql("CREATE ROLE worker LOGIN", "SELECT fray.grant_rights('worker', 'worker')")
        newer = NewerRelease(
            tmp_path / "newer", "postgresql", "ALTER TABLE fray.items ADD COLUMN more text; -- @NEXT@"
        )
        for user in ("postgres", "worker"):
            assert newer.run(SIZE, f"{server.url_of(user)}?queue=q") == "2"
        url = f"{server.url}?queue=q"
        assert newer.run(FINISH, url, packed(held)) == "1"
        with pytest.raises(QueueVersionError, match="newer release"):
            old.push("x")
        old.close()
        versions = rf"version {newer.older + 1}.* reads version"
        with pytest.raises(QueueVersionError, match=rf"{versions} {newer.older}"):
            PostgresQueue[Any](server.url, "q").push("x")
        newest = NewerRelease(tmp_path / "newest", "postgresql", None, step=2)
        assert re.search(rf"{versions} {newer.older + 2}", newest.run(REFUSED, url))


_AS_VERSION_2 = [
    "UPDATE fray.items SET until = due WHERE state = 1",
    "DROP INDEX fray.items_due",
    "ALTER TABLE fray.items DROP COLUMN due",
    "CREATE INDEX items_held ON fray.items (queue, until) WHERE state = 1",
    "CREATE INDEX items_dated ON fray.items (queue, deadline) WHERE state = 0 AND deadline IS NOT NULL",
    "ALTER TABLE fray.queues DROP COLUMN waited_until",
    "CREATE UNLOGGED TABLE fray.waiters (queue integer, session bigint, until timestamptz)",
    "UPDATE fray.store SET version = 2",
]
_AS_VERSION_1 = [
    *_AS_VERSION_2,
    "ALTER TABLE fray.items DROP COLUMN pushed_at",
    "UPDATE fray.store SET version = 1",
]


@pytest.fixture(scope="module")
def old_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A server whose database a test makes one of an earlier release."""
    with PostgresServer(tmp_path_factory.mktemp("old") / "postgres") as server:
        yield server


def test_items_of_a_release_that_kept_no_push_times_are_taken_all_the_same(
    old_server: PostgresServer,
) -> None:
    with PostgresQueue[str](old_server.url, "first") as queue:
        queue.push("old")
    old_server.sql(*_AS_VERSION_1)
    with PostgresQueue[str](old_server.url, "first") as queue:
        queue.push("new")
        old, new = queue.pop_many(2)
        assert (old.item, old.pushed_at, old.seconds_in_queue) == ("old", None, None)
        assert new.item == "new"
        assert new.seconds_in_queue is not None
        queue.done_many([old, new])


def test_what_the_second_version_held_delayed_and_dated_is_so_after_the_upgrade(
    old_server: PostgresServer,
) -> None:
    clock = ManualClock()

    def open_it() -> Any:
        return PostgresQueue(old_server.url, "second", max_attempts=2, clock=clock)

    with open_it() as queue:
        queue.push("held")
        held = queue.pop(10.0)
        queue.push("delayed", delay=20.0)
        queue.push("dated", ttl=30.0)
        queue.push("plain", key="k")
    old_server.sql(*_AS_VERSION_2)
    with open_it() as queue:
        assert (queue.size(), queue.pending()) == (4, 2)
        queue.extend(held, 15.0)
        clock.advance(16.0)
        assert queue.pop(100.0).item == "held"
        clock.advance(5.0)
        assert queue.pop(100.0).item == "delayed"
        clock.advance(10.0)
        assert [letter.item for letter in queue.dead_letters()] == ["dated"]
        assert queue.pop(100.0).item == "plain"
        assert queue.push("again", key="k")
        assert queue.size() == 3


_AS_VERSION_3 = [
    "DO $$ DECLARE f regprocedure; BEGIN FOR f IN SELECT oid FROM pg_proc WHERE "
    "pronamespace = 'fray'::regnamespace LOOP EXECUTE 'DROP FUNCTION ' || f; END LOOP; END $$",
    "UPDATE fray.store SET version = 3",
]


def test_a_server_of_a_newer_release_serves_what_is_there(old_server: PostgresServer) -> None:
    """Before it opens a queue, it looks whether there is one, and how many."""
    with PostgresQueue[str](old_server.url, "fourth") as queue:
        queue.push("x")
    old_server.sql(*_AS_VERSION_3)
    with HttpQueueServer(engine=old_server.url) as server, server.new_queue("fourth") as served:
        assert served.size() == 1
    old_server.sql(*_AS_VERSION_3)
    assert PostgresQueue[str](old_server.url, "fourth").exists()
    old_server.sql(*_AS_VERSION_3)
    PostgresQueue[str](old_server.url, "fourth").delete()
    assert not PostgresQueue[str](old_server.url, "fourth").exists()


def test_a_database_that_never_had_queues_has_none_to_delete(postgres_server: PostgresServer) -> None:
    postgres_server.sql("CREATE DATABASE without_queues")
    queue = PostgresQueue[str](postgres_server.url.removesuffix("postgres") + "without_queues", "q")
    queue.delete()
    assert not queue.exists()


def test_a_queue_whose_schema_was_dropped_is_gone(tmp_path: Path) -> None:
    with PostgresServer(tmp_path / "postgres") as server, PostgresQueue[str](server.url, "q") as queue:
        queue.push("x")
        server.sql("DROP SCHEMA fray CASCADE")
        for call in (queue.pop, queue.size, lambda: queue.push("y")):
            with pytest.raises(QueueUnavailableError, match="not there any more"):
                call()


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1", "UTF8"])
@pytest.mark.parametrize("client", [None, "SQL_ASCII", "LATIN1"])
def test_a_queue_is_the_same_in_a_database_of_any_encoding(
    postgres_server: PostgresServer, encoding: str, client: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`initdb --locale=C` makes databases of SQL_ASCII, which know no encoding."""
    database = f"in_{encoding}_{client}".lower()
    postgres_server.sql(f"CREATE DATABASE {database} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    url = postgres_server.url.removesuffix("postgres") + database
    with PostgresQueue[str](url, "q", max_attempts=1) as queue:
        (ticket,) = queue.push_many(["mine"], keys=["schön ✓"], reply=True)
    if client is not None:
        monkeypatch.setenv("PGCLIENTENCODING", client)
    with PostgresQueue[str](url + "?application_name=other", "q") as queue:
        assert queue.push("again", key="schön ✓") == ticket.item_id
        lease = queue.pop()
        assert lease is not None
        assert lease.item_id == ticket.item_id
        queue.done(lease, result="schön ✓")
        assert ticket.result(30.0) == "schön ✓"
        queue.push("other")
        lease = queue.pop()
        assert lease is not None
        queue.release(lease, error=ValueError("schön ✓"))
        (letter,) = queue.dead_letters()
        assert letter.history[0].error == "ValueError: schön ✓"


@pytest.mark.parametrize("setting", ["", "-c statement_timeout=1000", "-c lock_timeout=1000"])
def test_an_upgrade_may_take_longer_than_any_call(
    old_server: PostgresServer, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for other sessions, or writes each row again; the engine may bound the user's calls, too."""
    monkeypatch.setenv("PGOPTIONS", setting)
    with PostgresQueue[str](old_server.url, "third") as queue:
        queue.push("x")
    old_server.sql(*_AS_VERSION_2)
    waits = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
        "AND clock_timestamp() - query_start > interval '2 s'"
    )
    with ThreadPoolExecutor() as threads, PostgresQueue[str](old_server.url, "third", timeout=1.0) as queue:
        with old_server.session() as session, session.transaction():
            session.execute("LOCK TABLE fray.items IN ACCESS SHARE MODE")
            size = threads.submit(queue.size)
            wait_until(lambda: size.done() or old_server.sql(waits) == [(1,)])
        assert size.result(30.0) == 1
        queue.purge()


# --- users and TLS ---


@pytest.mark.parametrize("password", ["hush-hush", "hush/hush", "hush?hush", "hush@hush"])
def test_a_url_with_a_password_is_refused_and_not_repeated(password: str) -> None:
    with pytest.raises(SpecError, match="PGPASSWORD") as caught:
        PostgresQueue[Any](f"postgresql://me:{password}@127.0.0.1/db", "q")
    assert "hush" not in str(caught.value)
    with pytest.raises(SpecError, match="PGPASSWORD") as caught:
        PostgresQueue[Any](f"postgresql://me@127.0.0.1/db?password={password}", "q")
    assert "hush" not in str(caught.value)


def test_an_at_sign_in_an_option_of_a_url_is_no_password() -> None:
    url = "postgresql://me@127.0.0.1:1/db?application_name=a@b"
    with pytest.raises(QueueUnavailableError):
        PostgresQueue[Any](url, "q", timeout=0.1).size()


def test_a_pooler_that_a_queue_cannot_use_is_reported_at_once() -> None:
    """It refuses `options`, as PgBouncer does."""
    fields = b"SFATAL\0C08P01\0Munsupported startup parameter: options\0\0"
    with socket.create_server(("127.0.0.1", 0)) as pooler, ThreadPoolExecutor(1) as pool:

        def refuse() -> None:
            client, _ = pooler.accept()
            with client:
                client.recv(4096)  # whether TLS is there
                client.sendall(b"N")
                client.recv(4096)
                client.sendall(b"E" + (len(fields) + 4).to_bytes(4, "big") + fields)

        refusing = pool.submit(refuse)
        url = f"postgresql://postgres@127.0.0.1:{pooler.getsockname()[1]}/postgres"
        with pytest.raises(UnsupportedError, match="pool_mode=session"):
            PostgresQueue[Any](url, "q").push("x")
        refusing.result(30)


def test_each_kind_of_user_may_do_what_it_needs_and_no_more(postgres_server: PostgresServer) -> None:
    name = fresh_name()
    PostgresQueue[Any](postgres_server.url, name, max_attempts=1).size()
    for user in ("a_producer", "a_worker", "an_admin"):
        kind = user.rpartition("_")[2]
        postgres_server.sql(f"CREATE ROLE {user} LOGIN", f"SELECT fray.grant_rights('{kind}', '{user}')")
    producer, worker, admin = (
        PostgresQueue[Any](postgres_server.url_of(user), name)
        for user in ("a_producer", "a_worker", "an_admin")
    )
    check_rights(producer, worker, admin, said="permission denied")
    assert admin.purge() == 2
    with postgres_server.session("an_admin") as session, pytest.raises(psycopg.errors.InsufficientPrivilege):
        session.execute("SELECT * FROM fray.items")
    admin.delete()


def test_a_user_who_may_not_make_the_tables_learns_who_may(postgres_server: PostgresServer) -> None:
    postgres_server.sql("CREATE ROLE stranger LOGIN", "CREATE DATABASE empty")
    url = postgres_server.url_of("stranger").replace("/postgres", "/empty")
    with pytest.raises(AccessRefusedError, match="create a schema"):
        PostgresQueue[Any](url, "q").push("x")
    with pytest.raises(AccessRefusedError, match="does not exist"):
        PostgresQueue[Any](postgres_server.url_of("nobody_here"), "q").push("x")


def test_a_password_and_tls_come_from_the_environment_and_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server = PostgresServer(tmp_path / "postgres")
    key, certificate = certificate_of_this_machine(server.home)
    for path in (key, certificate):
        shutil.chown(path, *(("postgres", "postgres") if os.geteuid() == 0 else (os.getuid(), os.getgid())))
    server.settings = ("ssl=on", f"ssl_key_file={key}", f"ssl_cert_file={certificate}")
    with server:
        server.sql(
            "CREATE ROLE someone LOGIN PASSWORD 'right-secret'",
            "GRANT CREATE ON DATABASE postgres TO someone",
        )
        rules = server.home / "data" / "pg_hba.conf"
        rules.write_text(
            "hostssl all someone 127.0.0.1/32 scram-sha-256\nhost all postgres 127.0.0.1/32 trust\n"
        )
        server.sql("SELECT pg_reload_conf()")
        url = server.url_of("someone")
        monkeypatch.setenv("PGSSLMODE", "verify-full")
        monkeypatch.setenv("PGSSLROOTCERT", str(certificate))
        monkeypatch.setenv("PGPASSWORD", "wrong-secret")
        with pytest.raises(AccessRefusedError, match="authentication failed") as caught:
            PostgresQueue[Any](url, "q").push("x")
        assert "wrong-secret" not in str(caught.value)
        monkeypatch.setenv("PGPASSWORD", "right-secret")
        queue: Any = PostgresQueue(url, "q")
        queue.push("x")
        assert queue.pop().item == "x"
        queue.close()
    with pytest.raises(QueueUnavailableError) as away:
        PostgresQueue[Any](url, "q", timeout=0.2).push("x")
    assert "secret" not in str(away.value) + caplog.text


# --- fail-over and space ---


def test_a_standby_that_is_promoted_goes_on_with_what_it_had(tmp_path: Path) -> None:
    """Writes that the standby had not are lost, as is declared; nothing else is."""
    with PostgresServer(tmp_path / "one") as one, PostgresServer(tmp_path / "two", copy_of=one) as two:
        url = f"postgresql://postgres@127.0.0.1:{two.port},127.0.0.1:{one.port}/postgres"
        check_fail_over(
            PostgresQueue(url, "q", max_attempts=3),
            standby_has_the_lease=lambda: wait_until(lambda: _held(two) == [(1,)]),
            promote=two.promote,
            crash=one.kill,
        )


def test_a_server_that_takes_no_writes_any_more_is_left_for_the_one_that_does(tmp_path: Path) -> None:
    """A switch-over: the one is fenced, sessions and all, before the other is promoted."""
    with PostgresServer(tmp_path / "one") as one, PostgresServer(tmp_path / "two", copy_of=one) as two:
        url = f"postgresql://postgres@127.0.0.1:{one.port},127.0.0.1:{two.port}/postgres"
        with PostgresQueue[str](url, "q", timeout=60.0) as queue:
            queue.push("a")
            held = queue.pop(600.0)
            assert held is not None
            wait_until(lambda: _held(two) == [(1,)])
            one.sql("ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
            wait_until(lambda: one.sql("SHOW default_transaction_read_only") == [("on",)])
            two.promote()
            queue.push("b")
            queue.done(held)
            assert queue.size() == 1


def test_a_batch_that_no_request_holds_is_refused(postgres_server: PostgresServer) -> None:
    with PostgresQueue[bytes](postgres_server.url, fresh_name()) as queue:
        with pytest.raises(LimitError, match="at most 1 GiB"):
            queue.push_many([b"x" * (1 << 26)] * 16)
        queue.push(b"x" * (1 << 26))
        assert queue.size() == 1


def _waits_twice(server: PostgresServer, function: str) -> bool:
    waits = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
        f"AND query LIKE '%fray.{function}%'"
    )
    return bool(server.sql(waits) == [(2,)])


def test_a_pop_that_is_repeated_while_the_first_is_not_over_loses_no_lease(
    postgres_server: PostgresServer,
) -> None:
    """The engine hangs for longer than a request may take, and does the first one after all."""
    with (
        PostgresQueue[str](postgres_server.url, fresh_name(), timeout=6.0) as queue,
        ThreadPoolExecutor() as threads,
    ):
        queue.push("x")
        with postgres_server.session() as session, session.transaction():
            session.execute("SELECT * FROM fray.slots FOR UPDATE")
            popping = threads.submit(queue.pop, 600.0)
            wait_until(lambda: popping.done() or _waits_twice(postgres_server, "pop"))
        lease = popping.result(60.0) or queue.pop(600.0, wait=30.0)
        assert lease is not None
        queue.done(lease)


def test_a_push_that_is_repeated_while_the_first_is_not_over_finds_its_own_room(
    postgres_server: PostgresServer,
) -> None:
    with (
        PostgresQueue[str](postgres_server.url, fresh_name(), max_size=1, timeout=6.0) as queue,
        ThreadPoolExecutor() as threads,
    ):
        assert queue.size() == 0
        with postgres_server.session() as session, session.transaction():
            session.execute("SELECT * FROM fray.queues FOR UPDATE")
            pushing = threads.submit(queue.push, "x", wait=0.0)
            wait_until(lambda: pushing.done() or _waits_twice(postgres_server, "push"))
        item_id = pushing.result(60.0)
        lease = queue.pop()
        assert lease is not None
        assert lease.item_id == item_id


def _held(server: PostgresServer) -> list[Any]:
    tables = server.sql("SELECT to_regclass('fray.items') IS NOT NULL")
    return server.sql("SELECT count(*) FROM fray.items WHERE state = 1") if tables == [(True,)] else []


def test_counts_are_what_is_there_when_clients_are_gone(postgres_server: PostgresServer) -> None:
    """Each client's connection keeps its own part of the counts; old parts are put together."""
    name = fresh_name()
    queue: Any = PostgresQueue(postgres_server.url, name, max_attempts=1)
    queue.push_many(range(5))
    queue.release(queue.pop())
    queue.pop()
    (number,) = postgres_server.sql(f"SELECT number FROM fray.queues WHERE name = '{name}'")[0]
    postgres_server.sql(
        "INSERT INTO fray.slots (queue, slot, ready, at) "
        f"SELECT {number}, n, 1, clock_timestamp() - interval '1 day' FROM generate_series(1, 600) AS n"
    )
    assert queue.stats()["pending"] == 603
    assert postgres_server.sql(f"SELECT count(*) < 20 FROM fray.slots WHERE queue = {number}") == [(True,)]
    assert (queue.pending(), queue.size(), queue.stats()["dead"]) == (603, 604, 1)
    queue.close()


def test_a_refusal_costs_no_session(postgres_server: PostgresServer) -> None:
    """A push that waits for room is refused at each look."""
    gc.collect()  # no session of an earlier test ends now
    queue: Any = PostgresQueue(postgres_server.url, fresh_name(), max_size=1)
    queue.push("the first")
    of_pushes = "SELECT pid FROM pg_stat_activity WHERE query LIKE '%fray.push%' AND pid <> pg_backend_pid()"
    before = postgres_server.sql(of_pushes)
    for _ in range(2):
        with pytest.raises(QueueFullError):
            queue.push("no room")
    after = postgres_server.sql(of_pushes)
    assert before
    assert set(before) <= set(after)
    queue.close()


@pytest.mark.parametrize("max_size", [None, 10_000])
def test_clients_that_are_gone_cost_those_that_push_nothing(
    postgres_server: PostgresServer, max_size: int | None
) -> None:
    """A push into a bounded queue adds up the parts of all clients, and nobody needs to count."""
    name = fresh_name()

    def client() -> PostgresQueue[int]:
        return PostgresQueue(postgres_server.url, name, max_size=max_size, max_attempts=1)

    def parts() -> int:
        ((count,),) = postgres_server.sql(f"SELECT count(*) FROM fray.slots WHERE queue = {number}")
        return int(count)

    with client() as queue:
        queue.push_many(range(5))
        lease = queue.pop()
        assert lease is not None
        queue.release(lease)
        (number,) = postgres_server.sql(f"SELECT number FROM fray.queues WHERE name = '{name}'")[0]
        postgres_server.sql(
            "INSERT INTO fray.slots (queue, slot, ready) "
            f"SELECT {number}, n, 1 FROM generate_series(1, 600) AS n",
            f"UPDATE fray.slots SET at = clock_timestamp() - interval '1 day' WHERE queue = {number}",
        )
        for _ in range(3):
            with client() as another:
                another.push(5)
        assert parts() < 10
        queue.push(6)  # its own part was put with the others
        assert (queue.size(), len(queue.dead_letters())) == (608, 1)


def test_answers_that_nobody_fetched_in_time_take_no_space(postgres_server: PostgresServer) -> None:
    clock, name = ManualClock(), fresh_name()
    queue: Any = PostgresQueue(postgres_server.url, name, clock=clock)
    for number in range(5):
        queue.push(number, reply=True, reply_ttl=10.0)
        queue.done(queue.pop(), result="x")
    kept = f"SELECT count(*) FROM fray.replies JOIN fray.queues ON queue = number WHERE name = '{name}'"
    assert postgres_server.sql(kept) == [(5,)]
    clock.advance(11.0)
    queue.size()
    assert postgres_server.sql(kept) == [(0,)]
    queue.close()


def test_the_tables_keep_their_size_while_items_come_and_go(postgres_server: PostgresServer) -> None:
    queue: Any = PostgresQueue(postgres_server.url, fresh_name())

    def size() -> int:
        ((found,),) = postgres_server.sql("SELECT pg_total_relation_size('fray.items')")
        return int(found)

    def turn_over() -> None:
        for _ in range(3):
            queue.push_many([b"x" * 100] * 1000)
            queue.done_many(queue.pop_many(1000))

    turn_over()
    once = size()
    for _ in range(5):
        postgres_server.sql("VACUUM fray.items")
        turn_over()
    assert size() <= 2 * once
    queue.close()


def test_an_answer_given_while_it_is_asked_for_arrives(postgres_server: PostgresServer) -> None:
    count = 800
    with PostgresQueue[int](postgres_server.url, fresh_name()) as queue:

        def answer() -> None:
            for _ in range(count):
                lease = queue.pop(wait=30)
                assert lease is not None
                queue.done(lease, result=-lease.item)

        with ThreadPoolExecutor(1) as pool:
            answering = pool.submit(answer)
            assert list(queue.map(range(count), in_flight=8, timeout=30)) == [-item for item in range(count)]
            answering.result(30)


@pytest.fixture
def many_files() -> Iterator[None]:
    """All descriptors up to 1,100 are in use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    with ExitStack() as stack:
        while stack.enter_context(Path(os.devnull).open()).fileno() < 1100:
            continue
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_a_process_may_have_more_than_a_thousand_files(postgres_server: PostgresServer) -> None:
    with PostgresQueue[int](postgres_server.url, fresh_name()) as queue, ThreadPoolExecutor(1) as pool:
        assert queue.size() == 0
        for item in range(3):
            popping = pool.submit(queue.pop, wait=30.0)  # is woken by a thread that listens
            queue.push(item)
            lease = popping.result(30)
            assert lease is not None
            assert lease.item == item
            queue.done(lease)
        assert queue.size() == 0
