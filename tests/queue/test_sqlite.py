"""SqliteQueue keeps the contract, among processes too, and what it stores lasts."""

import errno
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw
import pytest
from pools import Pools
from queue_processes import check_forked, wait_until
from wall_clock import WallClock, check_leases_last

from fray import QueueUnavailableError, UnsupportedError, WrongProcessError
from fray.queue import Lease, open_queue
from fray.testing.queue import (
    MakeQueue,
    ManualClock,
    QueueContract,
    SharedQueueContract,
    check_queue_machine,
)
from fray_queue import DamagedError, MemoryQueue, QueueExistsError, QueueFullError, SqliteQueue
from fray_queue.testing import LeaseClock, sqlite_queue
from fray_queue.testing import sqlite_connection as connection
from fray_queue.testing import sqlite_library as library


class _Sqlite:
    BACKEND = "sqlite"

    @pytest.fixture
    def make_queue(self, clock: ManualClock, tmp_path: Path) -> MakeQueue:
        numbers = itertools.count()
        return lambda **options: SqliteQueue(tmp_path / f"q{next(numbers)}.db", clock=clock, **options)


class TestSqliteQueue(_Sqlite, QueueContract):
    pass


class TestPoolsOnSqlite(_Sqlite, Pools):
    pass


class TestSharedSqliteQueue(_Sqlite, SharedQueueContract):
    pass


def test_a_queue_that_another_program_removed_is_not_there(tmp_path: Path) -> None:
    queue, other = SqliteQueue[str](tmp_path / "q.db"), SqliteQueue[str](tmp_path / "q.db")
    queue.push("x")
    assert queue.exists()
    other.delete()
    assert not queue.exists()
    other.push("y")
    assert queue.exists()


def test_a_call_that_fails_when_part_of_it_is_done_is_undone(tmp_path: Path) -> None:
    queue: SqliteQueue[str] = SqliteQueue(tmp_path / "q.db")
    queue.push_many(["x", "y"])
    first, second = queue.pop_many(2)
    strange = Lease("y", f"{second.lease_id}\udcff", second.timestamp, second.item_id, 1, second.expires_at)
    with pytest.raises(ValueError, match="surrogates"):
        queue.done_many([first, strange])
    queue.done_many([first, second])
    assert queue.size() == 0


def test_every_history_agrees_with_the_model(tmp_path: Path) -> None:
    clock = ManualClock()
    numbers = itertools.count()

    def make_queue(**options: Any) -> Any:
        return SqliteQueue(tmp_path / "q.db", f"q{next(numbers)}", clock=clock, **options)

    def reopen(queue: Any) -> Any:
        return SqliteQueue(tmp_path / "q.db", queue.name, clock=clock)

    check_queue_machine(make_queue, clock, reopen=reopen, pickles=True, examples=30, steps=40)


def steps_of(queue: SqliteQueue[int], call: Callable[[], Any]) -> int:
    """Count the instructions of SQLite that a call takes."""
    connection, steps = queue._opened.store()._store.file.connection, itertools.count()
    connection.set_progress_handler(lambda: next(steps) < 0, 1)
    try:
        call()
    finally:
        connection.set_progress_handler(None)
    return next(steps)


def filled_queue(path: Path, many: int) -> SqliteQueue[int]:
    """Return a queue with items 0, 1, ... in line: two plain ones, `many` with an option, and two plain."""
    queue: SqliteQueue[int] = SqliteQueue(path)
    queue.push_many([0, 1])
    queue.push_many(range(2, many + 2), reply=True)
    queue.push_many([many + 2, many + 3])
    return queue


def steps_of_work(queue: SqliteQueue[int], many: int) -> list[int]:
    """Count what calls cost whose next plain item is behind `many` others; what they return is right."""
    found: list[Any] = []
    calls: list[Callable[[], Any]] = [
        *[lambda: found.append(queue.peek()), queue.oldest_seconds, queue.size, queue.pending] * 2,
        *[lambda: found.append([lease.item for lease in queue.pop_many(2)])] * 2,
    ]
    first = [lease.item for lease in queue.pop_many(1)]
    taken = steps_of(queue, lambda: first.extend(lease.item for lease in queue.pop_many(2)))
    steps = [taken, *(steps_of(queue, call) for call in calls)]
    assert (first, found) == ([0, 1, 2], [3, 3, [3, 4], [5, 6]])
    assert [lease.item for lease in queue.pop_many(many)] == list(range(7, many + 4))
    return steps


def test_a_plain_item_costs_the_same_behind_many_items_with_options_as_behind_few(tmp_path: Path) -> None:
    steps = []
    for many in (1000, 5000):
        with filled_queue(tmp_path / f"{many}.db", many) as queue:
            steps.append(steps_of_work(queue, many))
    assert steps[0] == steps[1]


def test_a_file_whose_plain_items_have_others_between_them_is_walked_once(tmp_path: Path) -> None:
    """Such as the release before made."""
    path, many = tmp_path / "q.db", 2000
    filled_queue(path, many).close()
    with apsw.Connection(str(path)) as file:
        file.execute("DELETE FROM leases WHERE id IN (SELECT id FROM items ORDER BY id DESC LIMIT 2)")
        file.execute("UPDATE queues SET fresh = 4, returned = ?", (many,))
    file.close()
    with SqliteQueue[int](path) as queue:
        steps = steps_of_work(queue, many)
    assert sum(each > many for each in steps) <= 1, steps


# --- what lasts ---


def test_what_a_killed_process_pushed_and_leased_is_there(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    program = (
        "import os, signal, sys; from fray_queue import SqliteQueue\n"
        "queue = SqliteQueue(sys.argv[1], max_attempts=3)\n"
        "queue.push_many(range(10)); queue.done(queue.pop()); queue.pop(3600.0)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    with SqliteQueue[int](path) as queue:
        assert (queue.size(), queue.pending()) == (9, 8)
        assert [lease.item for lease in queue.pop_many(10)] == list(range(2, 10))


def test_a_push_is_on_the_disk_when_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = connection._fdatasync

    def recording(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real(descriptor)

    monkeypatch.setattr(connection, "_fdatasync", recording)
    with SqliteQueue[str](tmp_path / "q.db") as queue:
        queue.push("x")
        assert synced[-1:] == ["q.db-wal"]
        count = len(synced)
        queue.push_many(["y"] * 100)
        assert len(synced) == count + 1


def test_a_flush_that_fails_fails_all_that_wait_for_it_and_the_file_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux reports a flush that failed once, and the next one as good, though the disk has nothing of it."""
    path, copied = tmp_path / "q.db", tmp_path / "copy.db"
    flushing, both = threading.Event(), threading.Event()

    def fdatasync(descriptor: int) -> None:
        if not flushing.is_set():
            flushing.set()
            assert both.wait(30)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.fdatasync(descriptor)

    with SqliteQueue[str](path) as queue, SqliteQueue[str](path) as other, ThreadPoolExecutor(2) as pool:
        queue.push("kept")
        assert other.size() == 1
        monkeypatch.setattr(connection, "_fdatasync", fdatasync)
        pushes = [pool.submit(queue.push, "a")]
        assert flushing.wait(30)
        pushes.append(pool.submit(queue.push, "b"))
        wait_until(lambda: other.size() == 3)
        both.set()
        for push in pushes:
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                push.result(30)
        assert queue.size() == 3
        # After a power failure the log has nothing any more that the disk did not take.
        subprocess.run(["cp", path, copied], check=True)
        with SqliteQueue[str](copied) as copy:
            assert copy.size() == 3
        queue.push("c")
        assert [lease.item for lease in other.pop_many(4)] == ["kept", "a", "b", "c"]


def test_after_a_reboot_a_lease_has_what_was_left_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    booted = [LeaseClock(lambda: 1000.0, "first boot")]
    monkeypatch.setattr(sqlite_queue, "boot_clock", lambda: booted[0])
    with SqliteQueue[str](tmp_path / "q.db") as queue:
        queue.push_many("ab")
        lease, _ = queue.pop(60.0), queue.pop(20.0)
        assert lease is not None
    now = 5.0  # since the machine was started again
    booted[0] = LeaseClock(lambda: now, "second boot")
    with SqliteQueue[str](tmp_path / "q.db") as queue:
        assert queue.pending() == 0
        now = 30.0
        assert [taken.item for taken in queue.pop_many(2)] == ["b"]
        now = 60.0
        queue.done(lease)
        assert queue.size() == 1


def test_a_step_of_the_wall_clock_ends_no_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = WallClock(monkeypatch)
    check_leases_last(MemoryQueue[str](), clock)
    with SqliteQueue[str](tmp_path / "q.db") as queue:
        check_leases_last(queue, clock)


# --- processes ---


_END = -1  # an item for each worker, behind all others


def _take_all(path: Path, found: Any) -> None:
    queue: SqliteQueue[int] = SqliteQueue(path)
    while lease := queue.pop(wait=60.0):
        queue.done(lease)
        if lease.item == _END:
            break
        found.put(lease.item)


def test_processes_share_it_and_nothing_is_lost_or_taken_twice(tmp_path: Path) -> None:
    context: Any = multiprocessing.get_context("fork")
    path, found = tmp_path / "q.db", context.Queue()
    with SqliteQueue[int](path) as queue:
        workers = [context.Process(target=_take_all, args=(path, found)) for _ in range(4)]
        for worker in workers:
            worker.start()
        for start in range(0, 200, 10):
            queue.push_many(range(start, start + 10))
        queue.push_many([_END] * len(workers))
        taken = sorted(found.get(timeout=60) for _ in range(200))
        for worker in workers:
            worker.join(60)
        assert taken == list(range(200))
        assert queue.size() == 0
    found.close()
    found.join_thread()


def test_many_that_open_a_new_file_at_the_same_moment_share_it(tmp_path: Path) -> None:
    """Of 150 files one in fifteen was refused as another program's database, which it never was."""
    for number in range(100):
        path, together = tmp_path / f"{number}.db", threading.Barrier(6)

        def push(path: Path, together: threading.Barrier) -> str:
            with SqliteQueue[int](path) as queue:
                together.wait(60)
                return queue.push(1)

        with ThreadPoolExecutor(6) as threads:
            pushed = [threads.submit(push, path, together) for _ in range(6)]
        assert len({each.result() for each in pushed}) == 6


def test_a_forked_child_opens_the_file_anew(tmp_path: Path) -> None:
    queue: SqliteQueue[str] = SqliteQueue(tmp_path / "q.db")
    queue.push("before")
    context = multiprocessing.get_context("fork")

    def child() -> None:
        lease = queue.pop()
        assert lease is not None
        queue.push(f"{lease.item} the fork")
        queue.done(lease)

    with queue._opened.opening:  # as another thread may have it at that moment
        process = context.Process(target=child)
        process.start()
    process.join(60)
    assert process.exitcode == 0
    queue.push("after")
    assert [lease.item for lease in queue.pop_many(3)] == ["before the fork", "after"]
    queue.close()


def test_what_a_forked_child_pushes_outlasts_the_end_of_its_parents_use(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    pushed, closed = context.Event(), context.Event()

    def child() -> None:
        queue.push("while the parent has it open")
        pushed.set()
        assert closed.wait(30)
        queue.push("after")  # into a log that SQLite removed

    with SqliteQueue[str](tmp_path / "q.db") as queue:
        queue.push("before")
        process = context.Process(target=child)
        process.start()
        assert pushed.wait(30)
    closed.set()
    process.join(60)
    assert process.exitcode == 0
    with SqliteQueue[str](tmp_path / "q.db") as queue:
        items = [lease.item for lease in queue.pop_many(4)]
    assert items == ["before", "while the parent has it open", "after"]


def test_a_child_that_is_forked_while_threads_work_can_work_as_well(tmp_path: Path) -> None:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            for lease in queue.pop_many(5):
                queue.release(lease)

    def child() -> None:
        assert queue.pop() is not None

    with SqliteQueue[int](tmp_path / "q.db") as queue:
        queue.push_many(range(100))
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(20):
                check_forked(child)
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def test_a_child_that_is_forked_within_a_call_is_refused(tmp_path: Path) -> None:
    def child() -> None:
        for queue in (parents, SqliteQueue[int](tmp_path / "q.db")):
            with pytest.raises(WrongProcessError, match="fork while no call is under way"):
                queue.push(2)

    with SqliteQueue[int](tmp_path / "q.db") as parents:
        parents.push(1)
        process = multiprocessing.get_context("fork").Process(target=child)
        with parents._opened.store().at_work:  # as another thread may have it, for long
            process.start()
        process.join(60)
        assert process.exitcode == 0
        assert parents.size() == 1


def test_a_waiting_pop_notices_another_process(tmp_path: Path) -> None:
    program = "import sys; from fray_queue import SqliteQueue; SqliteQueue(sys.argv[1]).push('x')"
    with SqliteQueue[str](tmp_path / "q.db") as queue:
        child = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "q.db")])
        lease = queue.pop(wait=60.0)
        assert child.wait(60) == 0
        assert lease is not None


# --- what is refused ---


def test_a_file_system_whose_locks_do_not_hold_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in ((0x6969, "NFS"), (0x01021997, "9p"), (0x65735546, "FUSE")):
        monkeypatch.setattr(library, "file_system", lambda folder, number=number: number)
        with pytest.raises(UnsupportedError, match=name):
            SqliteQueue[str](tmp_path / "q.db").push("x")
    assert not list(tmp_path.iterdir())


def test_the_file_system_is_asked_for() -> None:
    assert library.file_system(Path("/proc")) == 0x9FA0
    assert library.file_system(Path("/dev/shm")) == 0x01021994


@pytest.mark.parametrize(
    ("version", "safe"),
    [
        ("3.40.1", False),
        ("3.51.2", False),
        ("3.50.6", False),
        ("3.51.3", True),
        ("3.50.7", True),
        ("3.44.6", True),
        ("3.54.1", True),
    ],
)
def test_an_sqlite_that_loses_commits_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, safe: bool
) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: version)
    queue: SqliteQueue[str] = SqliteQueue(tmp_path / "q.db")
    if safe:
        queue.push("x")
    else:
        with pytest.raises(UnsupportedError, match="may lose commits"):
            queue.push("x")
    queue.close()


def test_what_is_no_queue_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("mine" * 1000)
    with pytest.raises(DamagedError, match=r"text\.db.*\.recover"):  # `fray queue repair` is for files
        SqliteQueue[str](tmp_path / "text.db").push("x")
    assert (tmp_path / "text.db").read_text() == "mine" * 1000
    other = apsw.Connection(str(tmp_path / "other.db"))
    other.execute("CREATE TABLE thesis (chapter TEXT)")
    other.close()
    with pytest.raises(ValueError, match="thesis"):
        SqliteQueue[str](tmp_path / "other.db").push("x")

    assert apsw.Connection(str(tmp_path / "other.db")).pragma("journal_mode") == "delete"


def test_items_are_readable_for_their_user_alone(tmp_path: Path) -> None:
    """In the log as well, where they are until it is moved into the file."""
    code = (
        "import os, sys; os.umask(0o022); from fray_queue import SqliteQueue; "
        "queue = SqliteQueue('q.db'); queue.push('secret'); "
        "print(*[f'{file.name} {file.stat().st_mode & 0o077}' for file in os.scandir() "
        "if b'secret' in open(file, 'rb').read()], sep='\\n')"
    )
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60)
    assert ended.stdout.splitlines() == ["q.db-wal 0"]


class Interrupted:
    """A connection that is interrupted when it has done a statement, and before the call returns."""

    def __init__(self, connection: Any, statement: str) -> None:
        self.connection, self.statement, self.began = connection, statement, ""

    def execute(self, statement: str, *arguments: Any) -> Any:
        result = self.connection.execute(statement, *arguments)
        self.began = statement if statement.startswith("BEGIN") else self.began
        if statement == self.statement and (statement != "COMMIT" or self.began == "BEGIN IMMEDIATE"):
            raise KeyboardInterrupt
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)


@pytest.mark.parametrize("statement", ["BEGIN IMMEDIATE", "BEGIN", "COMMIT"])
def test_an_interrupt_leaves_no_transaction_open_and_no_item_leased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    with SqliteQueue[str](tmp_path / "q.db", max_attempts=1) as queue:
        queue.push("before")
        file = queue._opened.store()._store.file
        call = queue.size if statement == "BEGIN" else queue.pop
        with monkeypatch.context() as patch:
            patch.setattr(file, "connection", Interrupted(file.connection, statement))
            with pytest.raises(KeyboardInterrupt):
                call()
        queue.push("after")
        with SqliteQueue[str](tmp_path / "q.db", timeout=1) as other:  # as another process
            other.push("other")
        assert [lease.item for lease in queue.pop_many(9)] == ["before", "after", "other"]


class InterruptedDeque(deque[Any]):
    """Is interrupted when its second element was taken out, and before the call returns."""

    taken = 0

    def popleft(self) -> Any:
        element = super().popleft()
        self.taken += 1
        if self.taken == 2:
            raise KeyboardInterrupt
        return element


def test_an_interrupt_of_one_thread_loses_no_call_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes to the thread that collects what all of them are to commit."""
    with SqliteQueue[str](tmp_path / "q.db") as queue, ThreadPoolExecutor(2) as pool:
        queue.push_many("ab")
        leases, commits, waiting = queue.pop_many(2), queue._opened.store(), InterruptedDeque()
        monkeypatch.setattr(commits, "_waiting", waiting)
        with commits.at_work:
            calls = {lease.item: pool.submit(queue.done, lease) for lease in leases}
            wait_until(lambda: len(waiting) == 2)
        failed = {item for item, call in calls.items() if call.exception(30) is not None}
        assert len(failed) == 1
        with SqliteQueue[str](tmp_path / "q.db") as other:
            assert other.size() == 1
        queue.release(next(lease for lease in leases if lease.item in failed))
        assert queue.peek() in failed


def test_a_queue_can_be_closed_while_other_threads_use_it(tmp_path: Path) -> None:
    queue: SqliteQueue[int] = SqliteQueue(tmp_path / "q.db")
    over = threading.Event()

    def work() -> int:
        calls = 0
        while not over.is_set():
            queue.push(calls)
            queue.pending()
            calls += 1
        return calls

    with ThreadPoolExecutor(4) as threads:
        working = [threads.submit(work) for _ in range(4)]
        for _ in range(100):
            queue.close()
            over.wait(0.005)
        over.set()
        pushed = sum(each.result(timeout=60) for each in working)
    assert queue.size() == pushed
    queue.close()


def test_a_removed_file_is_an_error_and_no_silent_new_queue(tmp_path: Path) -> None:
    queue: SqliteQueue[str] = SqliteQueue(tmp_path / "q.db")
    queue.push("x")
    for file in tmp_path.iterdir():
        file.unlink()
    for call in (lambda: queue.push("lost"), queue.size, queue.pop):
        with pytest.raises(QueueUnavailableError, match="removed or replaced"):
            call()
    assert not queue.exists()
    queue.close()
    assert queue.size() == 0  # opened again, on purpose
    queue.close()


def test_another_limit_of_attempts_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    SqliteQueue[str](path).push("x")
    with SqliteQueue[str](path, max_attempts=2) as queue:  # a limit may come later
        assert queue.size() == 1
    with SqliteQueue[str](path) as queue:
        lease = queue.pop()
        assert lease is not None
        queue.release(lease)
        queue.release(queue.pop())  # type: ignore[arg-type]
        assert len(queue.dead_letters()) == 1
    with pytest.raises(QueueExistsError, match="max_attempts=2"):
        SqliteQueue[str](path, max_attempts=3).size()


def test_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    open_queue(f"sqlite:{tmp_path}/a/q.db").push(1)
    for url in (f"sqlite://{tmp_path}/a/q.db", "sqlite:a/q.db", f"sqlite://localhost{tmp_path}/a/q.db"):
        assert open_queue(url).size() == 1
    assert open_queue("sqlite:a/q.db?queue=other&max_attempts=2").size() == 0
    for url in ("sqlite:", "sqlite://host/q.db"):
        with pytest.raises(ValueError, match=r"sqlite:/data/q\.db"):
            open_queue(url)


def test_a_full_disk_refuses_pushes_and_lets_workers_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database may not grow, as on a full disk; what is held back for workers is given to them."""
    with SqliteQueue[bytes](tmp_path / "q.db") as queue:
        queue.push_many([b"x" * 1000] * 100)
        file = queue._opened.store()._store.file
        pages: Any = file.connection.pragma("page_count")
        file.connection.pragma("max_page_count", pages)
        made: list[bool] = []
        real = file.make_room

        def make_room() -> bool:
            file.connection.pragma("max_page_count", pages + 16)
            made.append(real())
            return made[-1]

        monkeypatch.setattr(file, "make_room", make_room)

        def push_on() -> None:
            while True:
                queue.push(b"y" * 10_000)

        with pytest.raises(QueueFullError):
            push_on()
        assert not made
        assert (tmp_path / "q.db-reserve").exists()
        while leases := queue.pop_many(10):
            queue.done_many(leases)
        assert queue.size() == 0
        queue.push(b"there is room again")
