"""FileQueue on a local disk keeps the contract."""

import errno
import itertools
import os
import threading
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pools import Pools
from queue_processes import check_forked

from fray.queue import LeaseExpiredError, open_queue
from fray.testing.queue import (
    MakeQueue,
    ManualClock,
    QueueContract,
    SharedQueueContract,
    check_queue_machine,
)
from fray_queue import FileQueue
from fray_queue.testing import Claim, Claims, LocalStore, Record, temporary


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


class _Local:
    BACKEND = "file"

    @pytest.fixture
    def make_queue(self, clock: ManualClock, tmp_path: Path) -> MakeQueue:
        numbers = itertools.count()
        return lambda **options: FileQueue(
            tmp_path / f"q{next(numbers)}", clock=clock, fsync=False, **options
        )


class TestFileQueue(_Local, QueueContract):
    pass


class TestPoolsOnFiles(_Local, Pools):
    pass


class TestSharedFileQueue(_Local, SharedQueueContract):
    pass


def test_it_declares_what_it_can_do_as_it_is_configured(tmp_path: Path) -> None:
    can = open_queue(f"file:{tmp_path}/q").capabilities  # type: ignore[attr-defined]
    assert can.durable
    assert can.shared_between_machines
    assert not can.exact_order
    assert not can.priorities
    assert not FileQueue(tmp_path / "q", fsync=False).capabilities.durable
    assert not FileQueue("memory://queues/declared").capabilities.shared_between_processes
    assert FileQueue.capabilities.durable


def test_every_history_agrees_with_the_model(tmp_path: Path) -> None:
    clock = ManualClock()
    numbers = itertools.count()
    check_queue_machine(
        lambda **options: FileQueue(tmp_path / f"q{next(numbers)}", clock=clock, fsync=False, **options),
        clock,
        examples=30,
        steps=40,
    )


# --- folders ---


def test_a_foreign_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    queue: FileQueue[int] = FileQueue(tmp_path)
    for call in (lambda: queue.push(1), queue.pop, queue.size):
        with pytest.raises(ValueError, match=r"thesis\.tex"):
            call()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        FileQueue(path)


def test_a_push_is_on_disk_when_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    queue: FileQueue[str] = FileQueue(tmp_path / "q")
    queue.push("x")
    (item,) = (tmp_path / "q").glob("*-*/*")
    assert {item.stat().st_ino, item.parent.stat().st_ino, (tmp_path / "q").stat().st_ino} <= set(synced)
    synced.clear()
    FileQueue[str](tmp_path / "q", fsync=False).push("y")
    assert synced == []


def test_a_full_disk_refuses_and_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue: FileQueue[str] = FileQueue(tmp_path / "q", clock=ManualClock())
    queue.push_many("ab")
    held = queue.pop()
    assert held is not None
    files = sorted(tmp_path.rglob("*"))

    def full(descriptor: int, data: bytes) -> None:
        os.write(descriptor, data[:3])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(temporary, "_write_all", full)
        for refused in (lambda: queue.push("c"), lambda: queue.release(held)):
            with pytest.raises(OSError, match="No space left"):
                refused()
        assert sorted(tmp_path.rglob("*")) == files
    queue.release(held)
    assert [lease.item for lease in queue.pop_many(3)] == ["a", "b"]


def test_a_closed_queue_leaves_no_temporary_file(tmp_path: Path) -> None:
    with FileQueue[int](tmp_path / "q", fsync=False) as queue:
        queue.push_many(range(1200))
        for lease in queue.pop_many(1200):
            queue.done(lease)
        assert len(list((tmp_path / "q").rglob("*"))) < 10
    assert sorted(path.name for path in (tmp_path / "q").rglob("*")) == [".tmp", "fray-queue.json"]


def test_a_forked_child_gives_other_names(tmp_path: Path) -> None:
    queue: FileQueue[int] = FileQueue(tmp_path / "q", fsync=False)
    queue.push(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of fork in a process with threads
        child = os.fork()
    if child == 0:
        queue.push(1)
        os._exit(0)
    queue.push(2)
    assert os.waitpid(child, 0)[1] == 0
    assert sorted(lease.item for lease in queue.pop_many(5)) == [0, 1, 2]


def test_a_forked_child_is_not_taken_for_its_parent(tmp_path: Path) -> None:
    # The clock stands still, so that what both write next could be one and the same record.
    queue: FileQueue[int] = FileQueue(tmp_path / "q", clock=ManualClock(), fsync=False)
    queue.push_many(range(3))
    assert queue.pop() is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of fork in a process with threads
        child = os.fork()
    if child == 0:
        lease = queue.pop()
        os._exit(100 if lease is None else lease.item)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    lease = queue.pop()
    assert lease is not None
    assert lease.item == 2
    queue.done(lease)
    assert queue.size() == 2


def test_a_child_that_is_forked_during_a_listing_can_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue: FileQueue[int] = FileQueue(tmp_path / "q", fsync=False)
    queue.push_many(range(2))
    parent, listing, go, names = os.getpid(), threading.Event(), threading.Event(), LocalStore.names

    def slowly(store: LocalStore, folder: str) -> list[str]:
        if os.getpid() == parent and folder:
            listing.set()
            assert go.wait(60)
        return names(store, folder)

    monkeypatch.setattr(LocalStore, "names", slowly)
    with ThreadPoolExecutor(1) as pool:
        popping = pool.submit(queue.pop)
        assert listing.wait(30)
        check_forked(queue.pop)
        go.set()
        lease = popping.result(30)
    assert lease is not None
    assert lease.item == 1


def test_of_threads_that_finish_one_lease_one_gets_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue: FileQueue[str] = FileQueue(tmp_path / "q", fsync=False)
    queue.push("x")
    lease = queue.pop()
    assert lease is not None
    found, told = threading.Barrier(4), threading.Barrier(4)
    done_record, delete = Claims._done, LocalStore.delete

    def together(claims: Claims, claim: Claim) -> Record:
        found.wait(30)  # all have found the lease good
        return done_record(claims, claim)

    def finish(_: int) -> bool:
        try:
            queue.done(lease)
        except LeaseExpiredError:
            told.wait(30)
            return False
        return True

    def delete_late(store: LocalStore, paths: Sequence[str]) -> None:
        told.wait(30)  # the others have their answer
        delete(store, paths)

    monkeypatch.setattr(Claims, "_done", together)
    monkeypatch.setattr(LocalStore, "delete", delete_late)
    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(finish, range(4))) == [False, False, False, True]


def test_a_taker_that_pauses_sees_a_later_extension(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    holder, taker = (FileQueue[str](tmp_path / "q", clock=clock, fsync=False) for _ in range(2))
    holder.push("job")
    held = holder.pop(60)
    assert held is not None
    clock.advance(40)
    held = holder.extend(held, 60)
    clock.advance(40)  # the first end is over, the second is not
    ends: list[float] = []

    def read(store: LocalStore, path: str) -> bytes | None:
        data = real(store, path)
        if path.endswith("+") and not ends:
            clock.advance(15)
            ends.append(holder.extend(held, 60).expires_at)  # in time
            clock.advance(6)  # the second is over, too
        return data

    real = LocalStore.read
    monkeypatch.setattr(LocalStore, "read", read)
    assert taker.pop() is None
    assert clock() < ends[0]
    holder.done(held)
    assert taker.size() == 0


def test_a_url_names_a_folder(tmp_path: Path) -> None:
    for url in (f"file:{tmp_path}/q", f"file://{tmp_path}/q?fsync=false&max_attempts=3"):
        open_queue(url).push(1)
    assert FileQueue[int](tmp_path / "q").size() == 2
