"""FileQueue on a local disk keeps the contract."""

import itertools
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fray.queue import LeaseExpiredError, open_queue
from fray.testing.queue import (
    MakeQueue,
    ManualClock,
    QueueContract,
    SharedQueueContract,
    check_queue_machine,
)
from fray_queue import DamagedError, FileQueue, _file
from fray_queue._chains import Chains
from fray_queue._histories import Claim
from fray_queue._records import Record
from fray_queue._store import LocalStore


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


class TestSharedFileQueue(_Local, SharedQueueContract):
    pass


def test_every_history_agrees_with_the_model(tmp_path: Path) -> None:
    clock = ManualClock()
    numbers = itertools.count()
    check_queue_machine(
        lambda **options: FileQueue(tmp_path / f"q{next(numbers)}", clock=clock, fsync=False, **options),
        clock,
        examples=60,
        steps=40,
    )


# --- crashes: a client that dies before or after any of its requests ---


class CrashError(BaseException):
    pass


class CrashingStore(LocalStore):
    """Dies at one of its requests, before or after it takes effect."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.left = 1 << 30
        self.after = False

    def _request(self, effect: Callable[[], Any]) -> Any:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise CrashError
        result = effect()
        if self.left == 0:
            raise CrashError
        return result

    def create(self, path: str, data: bytes) -> bool:
        return bool(self._request(lambda: super(CrashingStore, self).create(path, data)))

    def put(self, files: Sequence[tuple[str, bytes]]) -> None:
        for file in files:
            self._request(partial(super().put, [file]))

    def write(self, path: str, data: bytes) -> None:
        self._request(lambda: super(CrashingStore, self).write(path, data))

    def read(self, path: str) -> bytes | None:
        data: bytes | None = self._request(lambda: super(CrashingStore, self).read(path))
        return data

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._request(partial(super().delete, [path]))


def _live(queue: FileQueue[str], clock: ManualClock, settle: str) -> None:
    queue.push("x")
    lease = queue.pop(10)
    assert lease is not None
    lease = queue.extend(lease, 20)
    clock.advance(21)
    lease = queue.extend(lease, 20)  # late: by a new record
    getattr(queue, settle)(lease)


@pytest.mark.parametrize("settle", ["done", "release"])
@pytest.mark.parametrize("after", [False, True])
def test_the_next_worker_repairs_what_a_crash_leaves(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, settle: str, after: bool
) -> None:
    outcomes: dict[str, int] = {"nothing there": 0, "redelivered": 0, "done": 0}
    for request in itertools.count(1):
        folder = tmp_path / str(request)
        monkeypatch.setattr(_file, "open_store", lambda path, *_, **__: CrashingStore(path, fsync=False))
        queue: FileQueue[str] = FileQueue(folder, clock=clock)
        queue.size()
        assert isinstance(queue._store, CrashingStore)
        queue._store.left, queue._store.after = request, after
        try:
            _live(queue, clock, settle)
        except CrashError:
            pass
        else:
            break
        monkeypatch.undo()
        outcomes[_repair(folder, clock)] += 1
    print(
        f"\ncrash {'after' if after else 'before'} each of {request - 1} requests, "
        f"push … {settle}: {outcomes}"
    )
    assert outcomes["redelivered"] >= 5
    assert settle == "done" or not outcomes["done"]


def _repair(folder: Path, clock: ManualClock) -> str:
    """Let another client take what is left; nothing may stay behind."""
    stored = bool(list(folder.glob("*-*/*")))
    finder: FileQueue[str] = FileQueue(folder, clock=clock, fsync=False)
    clock.advance(1000)
    lease = finder.pop()
    if lease is not None:
        assert lease.item == "x"
        finder.done(lease)
    clock.advance(1000)
    assert (finder.pop(), finder.size()) == (None, 0)
    assert [path.name for path in folder.iterdir() if not path.name.startswith(".")] == ["fray-queue.json"]
    return "redelivered" if lease is not None else "done" if stored else "nothing there"


# --- what it costs ---


class CountingStore(LocalStore):
    """A store in a dict that counts its requests."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__("counting")
        self.folders: dict[str, dict[str, bytes]] = {"": {}}
        self.requests = 0

    def create(self, path: str, data: bytes) -> bool:
        self.requests += 1
        folder, _, name = path.rpartition("/")
        files = self.folders.setdefault(folder, {})
        if name in files:
            return False
        files[name] = data
        return True

    def put(self, files: Sequence[tuple[str, bytes]]) -> None:
        for path, data in files:
            self.create(path, data)

    def read(self, path: str) -> bytes | None:
        self.requests += 1
        folder, _, name = path.rpartition("/")
        return self.folders.get(folder, {}).get(name)

    def exists(self, path: str) -> bool:
        return self.read(path) is not None

    def names(self, folder: str) -> list[str]:
        self.requests += 1
        return list(self.folders.get(folder, ())) + (
            [name for name in self.folders if name] if not folder else []
        )

    def delete(self, paths: Sequence[str]) -> None:
        self.requests += 1 + len(paths) // 1000  # as object stores delete: in bulk
        for path in paths:
            folder, _, name = path.rpartition("/")
            self.folders.get(folder, {}).pop(name, None)
            if not self.folders.get(folder, {1: b""}):
                del self.folders[folder]

    def sweep(self) -> None:
        pass


@pytest.mark.parametrize("depth", [1_000, 100_000])
def test_an_item_takes_as_many_requests_at_any_depth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    monkeypatch.chdir(tmp_path)
    store = CountingStore()
    monkeypatch.setattr(_file, "open_store", lambda *_, **__: store)
    queue: FileQueue[int] = FileQueue("counted")
    assert queue.pop() is None  # it has looked when there was nothing, and must not look at everything now
    queue.push_many(range(depth - 600))
    before = store.requests
    queue.push_many(range(600))
    for _ in range(600):
        queue.done(queue.pop())  # type: ignore[arg-type]
    requests = (store.requests - before) / 600
    print(f"\nFileQueue at depth {depth}: {requests:.2f} requests per item, listings and deletions included")
    assert requests <= 6.1


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


def test_a_damaged_item_is_named(tmp_path: Path) -> None:
    queue: FileQueue[str] = FileQueue(tmp_path / "q")
    queue.push("x" * 100)
    (file,) = (tmp_path / "q").glob("*-*/*")
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    with pytest.raises(DamagedError, match="checksum"):
        queue.pop()


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


def test_of_threads_that_finish_one_lease_one_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue: FileQueue[str] = FileQueue(tmp_path / "q", fsync=False)
    queue.push("x")
    lease = queue.pop()
    assert lease is not None
    found, told = threading.Barrier(4), threading.Barrier(4)
    done_record, delete = Chains._done, LocalStore.delete

    def together(chains: Chains, claim: Claim) -> Record:
        found.wait(30)  # all have found the lease good
        return done_record(chains, claim)

    def finish(_: int) -> bool:
        try:
            queue.done(lease)
        except LeaseExpiredError:
            told.wait(30)
            return False
        return True

    def delete_late(store: LocalStore, paths: Sequence[str]) -> None:
        told.wait(30)  # the others have been told
        delete(store, paths)

    monkeypatch.setattr(Chains, "_done", together)
    monkeypatch.setattr(LocalStore, "delete", delete_late)
    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(finish, range(4))) == [False, False, False, True]


def test_a_url_names_a_folder(tmp_path: Path) -> None:
    for url in (f"file:{tmp_path}/q", f"file://{tmp_path}/q?fsync=false&max_attempts=3"):
        open_queue(url).push(1)
    assert FileQueue[int](tmp_path / "q").size() == 2
