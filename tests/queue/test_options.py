"""What the options of push and answers mean between processes, after crashes, and in stores of before."""

import contextlib
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import apsw
import pytest
from wall_clock import WallClock

from fray import LeaseExpiredError
from fray.queue import NoReplyError, QueueFullError, Ticket, open_queue
from fray_queue import HttpQueueServer, MemoryQueue, QueueExistsError, SqliteQueue

BEFORE = """
CREATE TABLE store (only INTEGER PRIMARY KEY CHECK (only = 1), version INTEGER NOT NULL, axis TEXT NOT NULL)
    STRICT;
CREATE TABLE queues (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, tag TEXT NOT NULL, max_attempts INTEGER,
    pushed INTEGER NOT NULL, cursor INTEGER NOT NULL, returned INTEGER NOT NULL, held INTEGER NOT NULL,
    dead INTEGER NOT NULL, bytes INTEGER NOT NULL, seen REAL NOT NULL
) STRICT;
CREATE TABLE items (id INTEGER PRIMARY KEY, item_id TEXT, pushed_at REAL NOT NULL, payload BLOB NOT NULL)
    STRICT;
CREATE TABLE leases (
    id INTEGER PRIMARY KEY, queue INTEGER NOT NULL, state INTEGER NOT NULL, attempt INTEGER NOT NULL,
    lease_id TEXT NOT NULL, leased_at REAL NOT NULL, until REAL NOT NULL, history TEXT NOT NULL,
    bytes INTEGER NOT NULL
) STRICT;
CREATE INDEX leases_returned ON leases (queue) WHERE state = 0;
CREATE INDEX leases_held ON leases (queue, until) WHERE state = 1;
CREATE INDEX leases_dead ON leases (queue) WHERE state = 2;
CREATE TABLE answers (slot TEXT PRIMARY KEY, number INTEGER NOT NULL, at REAL NOT NULL, reply TEXT NOT NULL)
    STRICT;
"""


def store_of_before(path: Path, version: int = 2) -> None:
    """Make a store as the release before made it: four items, of which one is leased and one is dead."""
    connection = apsw.Connection(str(path))
    connection.execute(BEFORE)
    connection.pragma("application_id", 0x46725131)
    connection.execute("INSERT INTO store VALUES (1, ?, 'manual')", (version,))
    connection.execute("INSERT INTO queues VALUES (1, 'default', 'tag', 2, 4, 2, 0, 1, 1, 60, 1000.0)")
    for seq in range(1, 5):
        payload = pickle.dumps(f"item {seq}")
        connection.execute("INSERT INTO items VALUES (?, NULL, 900.0, ?)", ((1 << 44) + seq, payload))
    history = '[[1, "released", 1.0, 2.0], [2, "released", 3.0, 4.0]]'
    leases = [(1, 1, 1, "1.abc", 990.0, 1050.0, ""), (2, 2, 2, "", 0.0, 0.0, history)]
    for seq, state, attempt, lease_id, leased_at, until, text in leases:
        row = ((1 << 44) + seq, 1, state, attempt, lease_id, leased_at, until, text, 15)
        connection.execute("INSERT INTO leases VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
    connection.close()


@pytest.mark.parametrize("kind", ["memory", "sqlite", "server", "server with a store"])
def test_a_push_that_no_store_can_hold_leaves_the_queue_as_it_was(kind: str, tmp_path: Path) -> None:
    with HttpQueueServer(store=tmp_path / "store" if "store" in kind else None) as server:
        queue: Any
        if kind == "memory":
            queue = MemoryQueue()
        else:
            queue = SqliteQueue(tmp_path / "q.db") if kind == "sqlite" else server.new_queue("q")
        with pytest.raises(ValueError, match="key must be text"):
            queue.push_many(["a", "b"], keys=["plain", "of a file name: \udcff"])
        ticket = queue.push("x", reply=True, reply_ttl=2**63)
        queue.push("y", key="plain")
        queue.push("z")
        leases = queue.pop_many(9)
        assert [lease.item for lease in leases] == ["x", "y", "z"]
        queue.done(leases[0], result=1)
        assert ticket.result(timeout=30) == 1


def test_a_store_of_the_release_before_is_brought_up_with_all_that_is_in_it(tmp_path: Path) -> None:
    store_of_before(tmp_path / "q.db")
    now = 1000.0
    with SqliteQueue[str](tmp_path / "q.db", clock=lambda: now) as queue:
        assert (queue.size(), queue.pending(), len(queue.dead_letters())) == (3, 2, 1)
        queue.push("urgent", priority=1, ttl=100.0, key="k")
        leases = queue.pop_many(5)
        assert [lease.item for lease in leases] == ["urgent", "item 3", "item 4"]
        queue.done_many(leases)
        now = 1051.0
        lease = queue.pop()
        assert lease is not None
        assert (lease.item, lease.attempt, lease.pushed_at) == ("item 1", 2, 900.0)
        queue.done(lease)
        assert queue.requeue_dead() == 1
        assert [each.item for each in queue.pop_many(5)] == ["item 2"]


def test_a_server_takes_over_a_store_of_the_release_before(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    store_of_before(tmp_path / "store" / "queues.db")
    with HttpQueueServer(clock=lambda: 1000.0, store=tmp_path / "store") as server:
        queue = server.new_queue("default", max_attempts=2)
        assert (queue.size(), queue.pending()) == (3, 2)
        assert [lease.item for lease in queue.pop_many(5)] == ["item 3", "item 4"]


@pytest.mark.parametrize("version", [1, 4])
def test_a_store_of_another_version_is_refused_in_clear_words(tmp_path: Path, version: int) -> None:
    store_of_before(tmp_path / "q.db", version)
    with pytest.raises(ValueError, match=rf"version {version}, and this release reads version 3"):
        SqliteQueue[str](tmp_path / "q.db").size()
    connection = apsw.Connection(str(tmp_path / "q.db"))
    assert connection.execute("SELECT count(*) FROM items").get == 4
    assert len(list(connection.execute("PRAGMA table_info(leases)"))) == 9
    connection.close()


def test_the_release_before_refuses_a_store_of_this_one(tmp_path: Path) -> None:
    with SqliteQueue[str](tmp_path / "q.db") as queue:
        queue.push("x")
    connection = apsw.Connection(str(tmp_path / "q.db"))
    assert connection.execute("SELECT version FROM store").get == 3  # which it reads before anything else
    connection.close()


def _answer_all(path: Path) -> None:
    queue: SqliteQueue[int] = SqliteQueue(path)
    while lease := queue.pop(wait=60.0):
        if lease.item < 0:
            break
        queue.done(lease, result=(os.getpid(), lease.item * 2))


def test_another_process_answers(tmp_path: Path) -> None:
    context: Any = multiprocessing.get_context("fork")
    path = tmp_path / "q.db"
    worker = context.Process(target=_answer_all, args=(path,))
    with SqliteQueue[int](path) as queue:
        queue.size()
    worker.start()
    with SqliteQueue[int](path) as queue:
        assert list(queue.map(range(30), timeout=60.0)) == [(worker.pid, 2 * number) for number in range(30)]
        ticket = queue.push(21, reply=True)
        copy: Ticket[Any] = pickle.loads(pickle.dumps(ticket))
        assert copy.result(timeout=60.0) == (worker.pid, 42)
        copy.queue.close()  # type: ignore[attr-defined]
        queue.push(-1)
        worker.join(60)
    assert worker.exitcode == 0


def _answer_slowly(path: Path) -> None:
    queue: SqliteQueue[int] = SqliteQueue(path)
    while True:
        lease = queue.pop(0.5, wait=30.0)
        if lease is not None:
            time.sleep(0.01)
            with contextlib.suppress(LeaseExpiredError):  # on a busy machine: another worker has the item
                queue.done(lease, result=lease.item * 2)


def test_every_asker_is_answered_while_workers_are_killed(tmp_path: Path, torture: int) -> None:
    context: Any = multiprocessing.get_context("fork")
    path, count = tmp_path / "q.db", 100 * torture
    with SqliteQueue[int](path, max_size=30) as queue:
        queue.size()
    workers = [context.Process(target=_answer_slowly, args=(path,)) for _ in range(3)]
    for worker in workers:
        worker.start()
    with SqliteQueue[int](path) as queue:
        found = []
        for index, answer in enumerate(queue.map(range(count), in_flight=20, timeout=60.0)):
            found.append(answer)
            if index % 10 == 5:
                workers[index % 3].kill()
                workers[index % 3].join()
                workers[index % 3].close()
                workers[index % 3] = context.Process(target=_answer_slowly, args=(path,))
                workers[index % 3].start()
        assert found == [2 * number for number in range(count)]
        assert (queue.size(), queue.dead_letters()) == (0, [])
    for worker in workers:
        worker.kill()
        worker.join()
        worker.close()


def test_answers_and_options_outlast_a_killed_process(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    program = (
        "import os, pickle, signal, sys; from fray_queue import SqliteQueue\n"
        "queue = SqliteQueue(sys.argv[1], max_size=5)\n"
        "tickets = queue.push_many(['answered', 'open'], reply=True)\n"
        "queue.done(queue.pop(), result='answer')\n"
        "queue.push('later', delay=3600.0); queue.push('urgent', priority=9, key='k')\n"
        "print(*tickets, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], check=False, stdout=subprocess.PIPE, text=True
    )
    assert done.returncode == -signal.SIGKILL
    answered, still_open = done.stdout.split()
    with SqliteQueue[str](path) as queue:
        assert Ticket(answered, queue).result(timeout=0) == "answer"
        assert not Ticket(still_open, queue).done()
        assert (queue.size(), queue.pending(), queue.peek()) == (3, 2, "urgent")
        assert queue.push("again", key="k") == queue.pop_many(1)[0].item_id
        queue.push_many("ab", wait=0)
        with pytest.raises(QueueFullError, match="max_size=5"):
            queue.push("c", wait=0)


def test_a_bound_is_kept_with_the_queue(tmp_path: Path) -> None:
    with SqliteQueue[str](tmp_path / "q.db", max_size=2, max_dead=7) as queue:
        queue.push("x")
    with pytest.raises(QueueExistsError, match="max_size=2, not 3"):
        SqliteQueue[str](tmp_path / "q.db", max_size=3).size()
    opened: Any = open_queue(f"sqlite:{tmp_path}/q.db")
    opened.push("y")
    with pytest.raises(QueueFullError):
        opened.push("z", wait=0)
    opened.close()
    named: Any = open_queue("memory://bounded?max_size=1")
    named.push("x")
    with pytest.raises(QueueFullError):
        open_queue("memory://bounded?max_size=1").push("y", wait=0)
    with pytest.raises(QueueFullError):
        open_queue("memory://bounded").push("y", wait=0)
    with pytest.raises(ValueError, match="max_size"):
        open_queue("memory://bounded?max_size=2")


def test_a_queue_without_room_raises_after_its_own_timeout() -> None:
    queue: MemoryQueue[str] = MemoryQueue(max_size=1, timeout=0.1)
    queue.push("x")
    start = time.monotonic()
    with pytest.raises(QueueFullError, match=r"waited 0\.1 s"):
        queue.push("y")
    assert 0.05 < time.monotonic() - start < 5


def test_a_waiting_asker_notices_an_item_that_expires() -> None:
    queue: MemoryQueue[str] = MemoryQueue()
    ticket = queue.push("x", reply=True, ttl=0.2)
    with pytest.raises(NoReplyError, match="ttl"):
        ticket.result(timeout=20.0)


def test_a_step_of_the_wall_clock_moves_no_delay_and_no_ttl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = WallClock(monkeypatch)
    memory: MemoryQueue[str] = MemoryQueue()
    with SqliteQueue[str](tmp_path / "q.db") as sqlite:
        each: Any
        for each in (memory, sqlite):
            each.push("later", delay=60.0)
            each.push("fresh", ttl=60.0)
            for clock.step in (3600.0, -3600.0):
                assert (each.size(), each.pending(), each.dead_letters()) == (2, 1, [])
            clock.step = 0.0
