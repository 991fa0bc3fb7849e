"""What a server's store keeps and reports: journals that rot, disks that fill, folders of others."""

import http.client
import shutil
import sqlite3
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from queue_processes import ServerProcess

from fray import QueueUnavailableError
from fray_queue import (
    DamagedError,
    HttpQueue,
    HttpQueueServer,
    Limits,
)
from fray_queue._errors import QueueFullError
from fray_queue._http.protocol.wire import pack
from fray_queue._http.server import hub as _hub
from fray_queue._http.server.journal import Journal
from fray_queue._http.server.machine import Entry
from fray_queue._http.server.rows import DELETE, Statement


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store as a killed server leaves it: 50 items in its write-ahead log."""
    with ServerProcess(tmp_path / "store", "--queue", "q") as server:
        queue: HttpQueue[int] = HttpQueue(server.url, "q")
        for number in range(50):
            queue.push(number)
        server.kill()
    return tmp_path / "store"


def _flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(bytes(data))


def test_a_store_opens_as_it_was_left(store: Path) -> None:
    with HttpQueueServer(store=store) as server:
        assert server.new_queue("q").size() == 50


@pytest.mark.parametrize("part", [0.2, 0.5, 0.8, 0.99])
def test_a_damaged_log_is_reported_and_left_as_it_is(store: Path, part: float) -> None:
    log = store / "journal.db-wal"
    _flip(log, int(log.stat().st_size * part))
    before = log.read_bytes()
    for _ in range(2):
        with pytest.raises(DamagedError, match="damaged"):
            HttpQueueServer(store=store).start()
    assert log.read_bytes() == before


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.95])
def test_a_log_that_was_cut_short_is_reported(store: Path, keep: float) -> None:
    log = store / "journal.db-wal"
    with log.open("r+b") as file:
        file.truncate(int(log.stat().st_size * keep))
    with pytest.raises(DamagedError):
        HttpQueueServer(store=store).start()


def test_a_flipped_bit_anywhere_in_a_settled_database_is_reported_or_harmless(
    store: Path, tmp_path: Path
) -> None:
    with HttpQueueServer(store=store):
        pass  # a clean stop moves the log into the database
    database = store / "journal.db"
    reported = 0
    size = database.stat().st_size
    for offset in range(100, size, size // 60):
        copy = tmp_path / f"copy{offset}"
        shutil.copytree(store, copy)
        _flip(copy / "journal.db", offset)
        try:
            with HttpQueueServer(store=copy) as server:
                queue = server.new_queue("q")
                assert sorted(lease.item for lease in queue.pop_many(100)) == list(range(50))
        except DamagedError:
            reported += 1
    print(f"\njournal: {reported} flipped bits reported, the others were in free space")
    assert reported > 5


def test_a_store_whose_database_is_gone_is_reported(store: Path) -> None:
    for file in store.glob("journal.db*"):
        file.unlink()
    with pytest.raises(DamagedError, match="gone"):
        HttpQueueServer(store=store).start()


@pytest.mark.parametrize("made", ["nothing", "a database without tables"])
def test_a_store_whose_server_was_killed_while_it_made_it_is_made_anew(tmp_path: Path, made: str) -> None:
    with sqlite3.connect(tmp_path / "journal.db") as database:
        if made != "nothing":
            database.execute("PRAGMA journal_mode = WAL")
    database.close()
    assert (tmp_path / "journal.db").exists()
    with HttpQueueServer(store=tmp_path) as server:
        server.new_queue("q").push("x")
    with HttpQueueServer(store=tmp_path) as server:
        assert server.new_queue("q").size() == 1
    (tmp_path / "journal.db").write_bytes(b"")  # with a witness of what was in it, it is no new one
    with pytest.raises(DamagedError):
        HttpQueueServer(store=tmp_path).start()


def test_a_foreign_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(ValueError, match=r"thesis\.tex"):
        HttpQueueServer(store=tmp_path).start()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_two_servers_do_not_share_a_store(tmp_path: Path) -> None:
    with HttpQueueServer(store=tmp_path), pytest.raises(ValueError, match="in use"):
        HttpQueueServer(store=tmp_path).start()


def test_a_full_store_refuses_pushes_and_keeps_what_it_has(tmp_path: Path) -> None:
    with HttpQueueServer(store=tmp_path, limits=Limits(store_bytes=400_000)) as server:
        queue = server.new_queue("q")
        ids: list[str] = []

        def push_on() -> None:
            while True:
                ids.append(queue.push(b"x" * 20_000))

        with pytest.raises(QueueFullError):
            push_on()
        stored = len(ids)
        assert stored > 5
        assert queue.size() == stored
        for lease in queue.pop_many(5):
            queue.done(lease)
        assert queue.size() == stored - 5
        queue.push(b"there is room again")
    with HttpQueueServer(store=tmp_path) as server:
        assert server.new_queue("q").size() == stored - 4


def test_pushes_leave_room_on_the_disk_for_workers(tmp_path: Path) -> None:
    with HttpQueueServer(store=tmp_path) as server:
        server.new_queue("q").push("x")
    with HttpQueueServer(store=tmp_path, limits=Limits(free_disk=1 << 60)) as server:
        queue = server.new_queue("q")
        with pytest.raises(QueueFullError, match="disk is full"):
            queue.push("y")
        lease = queue.pop()
        assert lease is not None
        queue.done(lease)
        assert queue.size() == 0


# --- a writer that meets what it cannot write ---


def test_a_limit_of_attempts_that_no_store_takes_is_refused(tmp_path: Path) -> None:
    with HttpQueueServer(store=tmp_path) as server:
        queue = server.new_queue("q")
        with pytest.raises(ValueError, match="max_attempts is at most"):
            HttpQueue[str](server.url, "x", create=True, max_attempts=10**20).size()
        queue.push("the server goes on")
        assert queue.size() == 1


def test_a_failed_write_fails_alone_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unwritable(number: int, entry: Entry[bytes]) -> Statement:
        return DELETE, (1 << 80,)  # SQLite's driver raises OverflowError, which is no error of SQLite's

    with HttpQueueServer(store=tmp_path) as server:
        queue = server.new_queue("q")
        queue.push("before")
        with monkeypatch.context() as patch:
            patch.setattr(_hub, "statement_for", unwritable)
            with pytest.raises(QueueFullError, match="cannot be written"):
                queue.push("lost")
        queue.push("after")
        assert [lease.item for lease in queue.pop_many(3)] == ["before", "after"]


def test_a_store_numbers_its_queues_anew_when_others_are_gone(tmp_path: Path) -> None:
    with HttpQueueServer(store=tmp_path) as server:
        server.new_queue("q").push("kept")
        server.new_queue("gone").push_many("xy")
    database = sqlite3.connect(tmp_path / "journal.db")
    database.execute("UPDATE queues SET number = ? WHERE name = 'gone'", (2**19 - 1,))
    database.execute("UPDATE meta SET items = 1")
    database.execute("DELETE FROM items WHERE id > ?", (2 << 44,))
    database.commit()
    database.close()
    with HttpQueueServer(store=tmp_path) as server:
        server.new_queue("next").push("beyond the last number but for those that are free")
        for _ in range(3):
            with server.new_queue("again") as queue:
                assert queue.size() == 0
                queue.push_many("ab")
                queue._connections.ask("DELETE", "/queues/again")
        server.new_queue("again").push("c")
    with HttpQueueServer(store=tmp_path) as server:
        assert [server.new_queue(name).size() for name in ("q", "next", "again")] == [1, 1, 1]
        assert server.new_queue("again").peek() == "c"


def test_a_push_whose_queue_is_deleted_under_way_is_not_stored(tmp_path: Path) -> None:
    body = pack([{"id": "late"}], [b"x"])
    with HttpQueueServer(store=tmp_path) as server:
        queue = server.new_queue("q")
        connection = http.client.HTTPConnection(server.url.partition("://")[2], timeout=20)
        connection.putrequest("POST", "/queues/q/push")
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body[:-1])
        queue._connections.ask("DELETE", "/queues/q")
        connection.send(body[-1:])
        assert connection.getresponse().status == 404
        connection.close()
        assert server.new_queue("q").size() == 0
    with HttpQueueServer(store=tmp_path) as server:
        assert server.new_queue("q").size() == 0


def test_a_witness_that_cannot_be_written_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with HttpQueueServer(store=tmp_path) as server:
        queue = server.new_queue("q")
        with monkeypatch.context() as patch:
            patch.setattr("os.pwrite", fail)
            queue.push("a")
        queue.push("b")
    with HttpQueueServer(store=tmp_path) as server:
        assert server.new_queue("q").size() == 2


def test_a_server_whose_writer_is_gone_says_so_and_keeps_what_it_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def die(*_: object) -> None:
        raise SystemError("out of luck")

    with HttpQueueServer(store=tmp_path) as server:
        queue: HttpQueue[str] = HttpQueue(server.url, "q", create=True, timeout=0.2)
        queue.push("kept")
        monkeypatch.setattr(Journal, "_commit_group", die)
        for _ in range(2):
            with pytest.raises(QueueUnavailableError, match="write its store no more"):
                queue.push("lost")
        with pytest.raises(QueueUnavailableError, match="write its store no more"):
            queue.pop()
        assert (queue.size(), queue.pending()) == (1, 1)
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"{server.url}/healthz", timeout=20)
    assert "out of luck" in caplog.text
    monkeypatch.undo()
    with HttpQueueServer(store=tmp_path) as server:
        assert server.new_queue("q").size() == 1
