"""The requests of a FileQueue: what a crash between two of them leaves, and how many an item takes."""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fray.testing.queue import (
    ManualClock,
)
from fray_queue import FileQueue
from fray_queue.testing import LocalStore, file_queue


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


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
        if self.left < 0 or (self.left == 0 and not self.after):  # it is dead, and makes no other request
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
        monkeypatch.setattr(file_queue, "open_store", lambda path, *_, **__: CrashingStore(path, fsync=False))
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
        super().__init__("counting", fsync=False)
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
    monkeypatch.setattr(file_queue, "open_store", lambda *_, **__: store)
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
