"""What HttpQueue and its server do when answers are lost, servers die, disks fill and journals rot."""

import http.client
import json
import pickle
import shutil
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from queue_processes import ServerProcess
from queue_proxy import SwallowingProxy

from fray import LeaseExpiredError, QueueUnavailableError
from fray.queue import open_queue
from fray_queue import DamagedError, HttpQueue, HttpQueueServer, Limits, QueueExistsError, QueueNotFoundError
from fray_queue._errors import QueueFullError


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


def test_a_server_that_stays_away_is_an_error_in_time() -> None:
    with HttpQueueServer() as server:
        queue = HttpQueue[int](server.url, "q", create=True, timeout=0.5)
        queue.push(1)
    start = time.monotonic()
    with pytest.raises(QueueUnavailableError, match=r"0\.5 s"):
        queue.push(2)
    assert time.monotonic() - start < 5
    assert isinstance(QueueUnavailableError(), ConnectionError)


def test_a_client_that_is_gone_gets_no_lease() -> None:
    with HttpQueueServer() as server:
        queue = server.new_queue("q")
        address = server.url.removeprefix("http://")
        connection = http.client.HTTPConnection(address)
        connection.request("POST", "/queues/q/pop", json.dumps({"wait": 60}), {"Host": address})
        queue.stats()
        connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()
        time.sleep(0.1)  # the server's loop has to see the end of the connection; nothing tells when it did
        queue.push("x")
        lease = queue.pop(wait=5)
        assert lease is not None
        assert lease.attempt == 1


# --- stores ---


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
        queue.done(_pop(queue))
        assert queue.size() == 0


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


@pytest.mark.parametrize("name", ["", "a/b", "..", "a..b", "x\0", "\N{SNOWMAN}", "-x", "n" * 101, "<b>"])
def test_bad_names_are_refused(name: str) -> None:
    with HttpQueueServer() as server, pytest.raises(ValueError, match="name"):
        server.new_queue(name)


def test_limits_are_told_on_both_sides() -> None:
    with HttpQueueServer(limits=Limits(item_bytes=100_000, batch=10, queues=1)) as server:
        queue = server.new_queue("q")
        with pytest.raises(ValueError, match="Too Large"):
            queue.push(b"x" * 200_000)
        with pytest.raises(ValueError, match="takes no more"):
            server.new_queue("another")
        assert queue.size() == 0
        with pytest.raises(ValueError, match="at most 67108864 bytes"):
            queue.push(b"x" * (64 << 20))


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


def test_what_a_worker_cannot_unpickle_goes_back() -> None:
    with HttpQueueServer() as server:
        queue = server.new_queue("q")
        queue._send("push", _packed("1", b"no pickle"), "application/octet-stream")
        with pytest.raises(pickle.UnpicklingError):
            queue.pop()
        assert queue.pending() == 1


def _packed(item_id: str, payload: bytes) -> bytes:
    from fray_queue._wire import pack

    return pack([{"id": item_id}], [payload])


def _pop(queue: HttpQueue[Any]) -> Any:
    lease = queue.pop()
    assert lease is not None
    return lease
