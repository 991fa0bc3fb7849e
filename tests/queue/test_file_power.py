"""A FileQueue on a local disk after a power failure: what was not on disk is lost, and no item with it."""

import os
from pathlib import Path

import pytest

from fray.testing.queue import ManualClock
from fray_queue import FileQueue


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def opened(folder: Path, clock: ManualClock, *, max_attempts: int | None = None) -> FileQueue[str]:
    return FileQueue(folder / "q", clock=clock, max_attempts=max_attempts)


def lose(folder: Path, name: str, content: bytes) -> None:
    """Leave a file as a power failure does: its name is on disk, what was written to it is not."""
    (file,) = (folder / "q").rglob(name)
    file.unlink()  # it may be a link to a record of another item
    file.write_bytes(content)


@pytest.fixture(params=[b"", b"\0" * 40], ids=["empty", "zeros"])
def blank(request: pytest.FixtureRequest) -> bytes:
    content: bytes = request.param
    return content


def test_an_item_whose_lease_was_lost_is_taken_again(
    tmp_path: Path, clock: ManualClock, blank: bytes
) -> None:
    before = opened(tmp_path, clock)
    before.push_many("ab")
    assert before.pop(600) is not None
    lose(tmp_path, "0000~1", blank)
    queue = opened(tmp_path, clock)
    assert (queue.size(), queue.pending(), queue.peek()) == (2, 2, "a")
    leases = queue.pop_many(2)
    assert [(lease.item, lease.attempt) for lease in leases] == [("a", 2), ("b", 1)]
    queue.done_many(leases)
    assert list((tmp_path / "q").glob("*-*/*")) == []


def test_an_extension_that_was_lost_leaves_the_lease_its_end(
    tmp_path: Path, clock: ManualClock, blank: bytes
) -> None:
    before = opened(tmp_path, clock)
    before.push("a")
    lease = before.pop(60)
    assert lease is not None
    before.extend(lease, 600)
    lose(tmp_path, "0000~1+", blank)
    queue = opened(tmp_path, clock)
    assert queue.pop() is None
    clock.advance(61)
    again = queue.pop()
    assert again is not None
    queue.done(again)
    assert queue.size() == 0
    assert list((tmp_path / "q").glob("*-*/*")) == []


@pytest.mark.parametrize("settled", ["released", "taken over"])
def test_what_is_lost_costs_no_attempt_twice(
    tmp_path: Path, clock: ManualClock, blank: bytes, settled: str
) -> None:
    before = opened(tmp_path, clock, max_attempts=3)
    before.push("a")
    lease = before.pop(60)
    assert lease is not None
    clock.advance(61)
    if settled == "released":
        before.release(lease)
    else:
        assert before.pop(60) is not None
    lose(tmp_path, "0000~2", blank)
    queue = opened(tmp_path, clock, max_attempts=3)
    for attempt in (2, 3):
        again = queue.pop()
        assert again is not None
        assert again.attempt == attempt
        queue.release(again)
    assert (queue.pop(), queue.size()) == (None, 0)
    assert [letter.attempts for letter in queue.dead_letters()] == [3]


def test_a_burial_that_was_lost_is_done_again(tmp_path: Path, clock: ManualClock, blank: bytes) -> None:
    before = opened(tmp_path, clock, max_attempts=1)
    before.push("a")
    lease = before.pop()
    assert lease is not None
    before.release(lease)
    lose(tmp_path, "0000~2", blank)
    queue = opened(tmp_path, clock, max_attempts=1)
    assert (queue.pop(), queue.size()) == (None, 0)
    assert [letter.item for letter in queue.dead_letters()] == ["a"]
    queue.requeue_dead()
    lose(tmp_path, "0000~4", blank)
    queue = opened(tmp_path, clock, max_attempts=1)
    assert [letter.item for letter in queue.dead_letters()] == ["a"]
    assert queue.purge_dead() == 1
    assert list((tmp_path / "q").glob("*-*/*")) == []


def test_what_is_lost_can_be_purged(tmp_path: Path, clock: ManualClock, blank: bytes) -> None:
    before = opened(tmp_path, clock)
    before.push("a")
    assert before.pop() is not None
    lose(tmp_path, "0000~1", blank)
    assert opened(tmp_path, clock).purge() == 1
    assert list((tmp_path / "q").glob("*-*/*")) == []


def test_a_queue_whose_marker_was_lost_is_opened(tmp_path: Path, clock: ManualClock, blank: bytes) -> None:
    opened(tmp_path, clock).push("a")
    marker = (tmp_path / "q" / "fray-queue.json").read_bytes()
    lose(tmp_path, "fray-queue.json", blank)
    lease = opened(tmp_path, clock).pop()
    assert lease is not None
    assert lease.item == "a"
    assert (tmp_path / "q" / "fray-queue.json").read_bytes() == marker


def test_a_first_push_has_the_queue_itself_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[int] = set()
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    root = tmp_path / "new" / "folders" / "q"
    FileQueue[str](root).push("x")
    parents = {tmp_path, tmp_path / "new", tmp_path / "new" / "folders"}
    assert {path.stat().st_ino for path in {root, root / "fray-queue.json", *parents}} <= synced
