"""What a server's store keeps and refuses: crashes, full disks, others' folders, too many pushes."""

import errno
import http.client
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw
import pytest
from queue_processes import ServerProcess, wait_until
from wall_clock import WallClock, check_leases_last

from fray import QueueUnavailableError
from fray.testing.queue import ManualClock
from fray_queue import (
    DamagedError,
    HttpQueue,
    HttpQueueServer,
    Limits,
    QueueFullError,
)
from fray_queue.testing import QueueStore, Wire, pack
from fray_queue.testing import sqlite_commits as commits
from fray_queue.testing import sqlite_connection as connection


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store as a killed server leaves it: 50 items in its write-ahead log."""
    with ServerProcess(tmp_path / "store", "--queue", "q") as server:
        queue: HttpQueue[int] = HttpQueue(server.url, "q")
        for number in range(50):
            queue.push(number)
        server.kill()
    return tmp_path / "store"


def test_a_store_opens_as_it_was_left(store: Path) -> None:
    with HttpQueueServer(store=store) as server:
        assert server.new_queue("q").size() == 50


def test_what_is_no_database_is_refused_and_left_as_it_is(store: Path) -> None:
    with HttpQueueServer(store=store):
        pass  # a clean stop moves the log into the database
    database = store / "queues.db"
    data = bytearray(database.read_bytes())
    data[:100] = bytes(100)
    database.write_bytes(data)
    for _ in range(2):
        with pytest.raises(DamagedError, match=r"queues\.db"):
            HttpQueueServer(store=store).start()
    assert database.read_bytes() == data


def test_a_damaged_page_is_named_and_gives_nobody_a_wrong_item(store: Path, tmp_path: Path) -> None:
    with HttpQueueServer(store=store):
        pass
    pages = (store / "queues.db").stat().st_size // 4096
    told = 0
    for page in range(1, pages, 3):
        copy = tmp_path / f"copy{page}"
        shutil.copytree(store, copy)
        data = bytearray((copy / "queues.db").read_bytes())
        data[page * 4096 : page * 4096 + 16] = b"\xff" * 16
        (copy / "queues.db").write_bytes(data)
        try:
            with HttpQueueServer(store=copy) as server, HttpQueue[int](server.url, "q", timeout=0.2) as queue:
                assert {lease.item for lease in queue.pop_many(100)} <= set(range(50))
        except (DamagedError, QueueUnavailableError):
            told += 1
    assert told


def test_a_foreign_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(ValueError, match=r"thesis\.tex"):
        HttpQueueServer(store=tmp_path).start()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_store_of_the_first_release_is_refused_in_plain_words(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_bytes(b"SQLite format 3\0")
    with pytest.raises(ValueError, match=r"fray-queue 0\.1\.0"):
        HttpQueueServer(store=tmp_path).start()
    assert [path.name for path in tmp_path.iterdir()] == ["journal.db"]


def test_two_servers_do_not_share_a_store(tmp_path: Path) -> None:
    with HttpQueueServer(store=tmp_path), pytest.raises(ValueError, match="in use"):
        HttpQueueServer(store=tmp_path).start()


def test_a_restart_keeps_what_was_left_of_a_lease(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "store", "--queue", "q") as server:
        queue: HttpQueue[str] = HttpQueue(server.url, "q")
        queue.push("x")
        lease = queue.pop(3.0)
        assert lease is not None
        server.kill()
        time.sleep(3.1)  # of which the lease notices nothing
        server.start()
        assert queue.pop() is None
        queue.done(queue.extend(lease, 60.0))
        assert queue.size() == 0


# --- what is full ---


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


@pytest.mark.parametrize("store", ["redis://cache:6379/0", "postgresql://app@db/work", "s3://bucket/q"])
def test_a_url_is_no_folder_of_a_server(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for given in (store, Path(store)):
        with pytest.raises(ValueError, match=r"give a Redis or PostgreSQL .* as engine="):
            HttpQueueServer(store=given)
    assert list(tmp_path.iterdir()) == []


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


@pytest.mark.parametrize(
    "limits", [Limits(queue_items=3), Limits(queue_bytes=100), Limits(total_items=4), Limits(total_bytes=130)]
)
@pytest.mark.parametrize("stored", [False, True])
def test_a_limit_refuses_its_pusher_alone(limits: Limits, stored: bool, tmp_path: Path) -> None:
    with HttpQueueServer(limits=limits, store=tmp_path if stored else None) as server:
        full, other = server.new_queue("full"), server.new_queue("other")
        other.push("x")
        refusals = 0
        while not refusals:
            try:
                full.push("y" * 20)
            except QueueFullError:
                refusals += 1
        assert 1 < full.size() < 6
        lease = other.pop()
        assert lease is not None
        other.done(lease)
        for lease in full.pop_many(2):
            full.done(lease)
        full.push("there is room again")


def test_a_server_in_memory_is_full_before_its_small_items_take_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, memory = os.sysconf, 8 << 20
    pages = memory // real("SC_PAGE_SIZE")
    monkeypatch.setattr(os, "sysconf", lambda name: pages if name == "SC_PHYS_PAGES" else real(name))
    before = apsw.memory_used()
    with HttpQueueServer() as server, server.new_queue("q") as queue:

        def fill() -> None:
            for _ in range(memory):
                queue.push_many([1] * 200)

        with pytest.raises(QueueFullError, match="total_bytes"):
            fill()
        while queue.pop_many(1000):
            pass
        assert apsw.memory_used() - before < memory // 4 + (512 << 10)  # what a server has without items
        assert queue.size() > 1000


def test_a_write_that_fails_fails_alone_and_changes_nothing_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many clients share a commit; what the disk refuses of one leaves the others' in it."""
    real = QueueStore.push

    def push(self: QueueStore, queue: object, records: list[tuple[str, bytes]]) -> list[str]:
        ids = real(self, queue, records)  # type: ignore[arg-type]
        if any(payload.endswith(b"poison") for _, payload in records):
            self.file.connection.execute("INSERT INTO items VALUES (1, 2, 3, 4, 5)")
        return ids

    monkeypatch.setattr(QueueStore, "push", push)
    with HttpQueueServer(store=tmp_path) as server:
        queue = server.new_queue("q")
        failures: list[BaseException] = []

        def produce(name: str) -> None:
            client: HttpQueue[bytes] = HttpQueue(server.url, "q")
            for number in range(20):
                try:
                    Wire(client).send_items([[f"{name}{number}".encode()]])
                except QueueUnavailableError as error:
                    failures.append(error)
            client.close()

        threads = [threading.Thread(target=produce, args=(f"p{index}-",)) for index in range(4)]
        threads.append(threading.Thread(target=_refused, args=(server.url,)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not failures
        assert queue.size() == 80


def _refused(url: str) -> None:
    client: HttpQueue[bytes] = HttpQueue(url, "q", timeout=0.1)
    for _ in range(3):
        with pytest.raises(QueueUnavailableError):
            Wire(client).send_items([[b"poison"]])
    client.close()


def test_a_push_whose_queue_is_deleted_under_way_is_not_stored(tmp_path: Path) -> None:
    body = pack([{"id": "late"}], [b"x"])
    with HttpQueueServer(store=tmp_path) as server:
        queue = server.new_queue("q")
        connection = http.client.HTTPConnection(server.url.partition("://")[2], timeout=20)
        connection.putrequest("POST", "/queues/q/push")
        connection.putheader("Content-Length", str(len(body)))
        connection.putheader("Authorization", f"Bearer {server.token}")
        connection.endheaders(body[:-1])
        queue.delete()
        connection.send(body[-1:])
        assert connection.getresponse().status == 404
        connection.close()
        assert server.new_queue("q").size() == 0
    with HttpQueueServer(store=tmp_path) as server:
        assert server.new_queue("q").size() == 0


def test_queues_are_made_and_removed_again_and_again(tmp_path: Path) -> None:
    with HttpQueueServer(store=tmp_path, limits=Limits(queues=2)) as server:
        server.new_queue("kept").push("x")
        for _ in range(3):
            with server.new_queue("again") as queue:
                assert queue.size() == 0
                queue.push_many("ab")
                queue.delete()
    with HttpQueueServer(store=tmp_path) as server:
        assert server.new_queue("kept").size() == 1


def test_a_limit_of_attempts_that_no_store_takes_is_refused(tmp_path: Path) -> None:
    with HttpQueueServer(store=tmp_path) as server:
        queue = server.new_queue("q")
        with pytest.raises(ValueError, match="max_attempts is at most"):
            HttpQueue[str](server.url, "x", create=True, max_attempts=10**20).size()
        queue.push("the server goes on")
        assert queue.size() == 1


def test_a_request_that_fails_as_nobody_foresaw_is_undone_and_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = QueueStore.done

    def fail(store: QueueStore, *arguments: Any) -> None:
        done(store, *arguments)
        raise TypeError("nobody foresaw that")

    with HttpQueueServer(store=tmp_path) as server:
        queue = server.new_queue("q")
        queue.push_many(["x", "y"])
        lease = queue.pop()
        assert lease is not None
        with monkeypatch.context() as patch:
            patch.setattr(QueueStore, "done", fail)
            with pytest.raises(ValueError, match="the server failed"):
                queue.done(lease)
        queue.done(lease)
        assert queue.size() == 1


def test_a_server_whose_writer_is_gone_says_so_and_keeps_what_it_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def die(*_: object) -> None:
        raise SystemError("out of luck")

    with HttpQueueServer(store=tmp_path) as server:
        server.new_queue("q").push("kept")
        # Within its time one try, at least, has to get the server's own words.
        queue: HttpQueue[str] = HttpQueue(server.url, "q", timeout=3.0)
        monkeypatch.setattr(commits, "_commit_together", die)
        with pytest.raises(QueueUnavailableError, match="use its store no more"):
            queue.push("lost")
        with ThreadPoolExecutor(2) as pool:
            for refused in (pool.submit(queue.push, "lost"), pool.submit(queue.pop)):
                with pytest.raises(QueueUnavailableError, match="use its store no more"):
                    refused.result(60)
    assert "out of luck" in caplog.text
    monkeypatch.undo()
    with HttpQueueServer(store=tmp_path) as server:
        assert server.new_queue("q").size() == 1


@pytest.mark.parametrize("call", ["push", "pop", "done"])
def test_a_flush_that_fails_ends_the_server_and_what_is_sent_again_is_done_once(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing, failed = threading.Event(), threading.Event()

    def fdatasync(descriptor: int) -> None:
        if failing.is_set():
            failing.clear()  # Linux reports it once, and the next flush as good
            failed.set()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.fdatasync(descriptor)

    monkeypatch.setattr(connection, "_fdatasync", fdatasync)
    with ThreadPoolExecutor(1) as pool:
        with HttpQueueServer(store=tmp_path) as server:
            queue = server.new_queue("q")
            queue.push_many("ab")
            lease: Any = queue.pop()
            calls: dict[str, Any] = {"push": lambda: queue.push("c"), "pop": queue.pop}
            failing.set()
            answer = pool.submit(calls.get(call, lambda: queue.done(lease)))
            assert failed.wait(30)
            wait_until(lambda: answer.done() or not _is_healthy(server))
        with HttpQueueServer(port=server.port, store=tmp_path):
            found: Any = answer.result(60)
            if call == "pop":
                assert (found.item, found.attempt) == ("b", 1)
            expected = {"push": (3, 2), "pop": (2, 0), "done": (1, 1)}
            assert (queue.size(), queue.pending()) == expected[call]
    assert os.strerror(errno.EIO) in caplog.text
    caplog.clear()  # its traceback holds the log open


def _is_healthy(server: HttpQueueServer) -> bool:
    connection = http.client.HTTPConnection(server.url.partition("://")[2], timeout=20)
    connection.request("GET", "/healthz")
    status = connection.getresponse().status
    connection.close()
    return status == 200


def test_what_the_log_has_is_in_the_database_when_a_server_has_opened_it(store: Path, tmp_path: Path) -> None:
    """A flush of the log may have failed: what the kernel takes for written since then is written again."""
    copy = tmp_path / "copy"
    copy.mkdir()
    with ServerProcess(store):
        shutil.copy(store / "queues.db", copy)
    with HttpQueueServer(store=copy) as server:
        assert server.new_queue("q").size() == 50


def test_a_push_is_stored_though_the_room_that_is_held_back_cannot_be_looked_at(tmp_path: Path) -> None:
    with HttpQueueServer(store=tmp_path) as server:
        queue = server.new_queue("q")
        reserve = tmp_path / "queues.db-reserve"
        reserve.unlink(missing_ok=True)
        reserve.symlink_to(reserve)
        queue.push("x")
        assert queue.size() == 1


def test_a_step_of_the_wall_clock_ends_no_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = WallClock(monkeypatch)
    for folder in (None, tmp_path / "store"):
        with HttpQueueServer(store=folder) as server:
            check_leases_last(server.new_queue("q"), clock)


def test_memory_does_not_grow_with_what_is_pending(tmp_path: Path) -> None:
    """100,000 items of 1 kB: a tenth of what the benchmark holds, and 100 MB if they were kept."""
    program = (
        "import resource, sys; from fray_queue import HttpQueueServer\n"
        "with HttpQueueServer(store=sys.argv[1]) as server:\n"
        "    queue = server.new_queue('q'); before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "    for _ in range(200): queue.push_many([b'x' * 1024] * 500)\n"
        "    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "store")], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 60_000


def test_expired_leases_are_seen_by_whatever_waits(tmp_path: Path) -> None:
    clock = ManualClock()
    with HttpQueueServer(store=tmp_path, clock=clock) as server:
        queue = server.new_queue("q", max_attempts=1)
        queue.push("x")
        queue.pop(5.0)
        clock.advance(6.0)
        assert (queue.size(), queue.stats()["dead"]) == (0, 1)
