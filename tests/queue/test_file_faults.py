"""What once stopped a FileQueue, or made it answer wrongly: poison, damage, clocks, lost answers."""

import errno
import functools
import itertools
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fray import FrayError, LeaseExpiredError, SpecError, UnsupportedError
from fray.queue import FileQueue, UnreadableItem, open_queue
from fray.testing.interrupting import struck
from fray.testing.queue import ManualClock
from fray_queue.testing import FsspecStore, FullBuckets, LocalStore, file_listing, file_queue, queue_command


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queue(tmp_path: Path, clock: ManualClock) -> Iterator[FileQueue[Any]]:
    with FileQueue[Any](tmp_path / "q", clock=clock, fsync=False) as queue:
        yield queue


def spoil(folder: Path, name: str) -> Path:
    """Damage a file of the queue."""
    (file,) = (folder / "q").glob(f"*-*/{name}")
    content = file.read_bytes()
    file.unlink()  # it may be a link to a record of another item
    file.write_bytes(content[:-3] + b"?" + content[-2:])
    return file


def broken(message: str) -> Any:
    raise ImportError(message)


class Unreadable:
    """An item of a class that the taker cannot load."""

    def __reduce__(self) -> Any:
        return broken, ("no module of that version",)


# --- items of older releases, items and files that cannot be read ---


@pytest.mark.parametrize("count", [1, 3])
def test_items_of_a_release_that_kept_no_push_times_are_taken_all_the_same(
    tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only object stores have batches.
    url = f"memory://{tmp_path.name}/q" if count > 1 else str(tmp_path / "q")
    with FileQueue[Any](url) as queue:
        with monkeypatch.context() as patch:
            patch.setattr(file_queue, "stamped", lambda payload, at: payload)
            queue.push_many(range(count))
        queue.push("new")
        *old, new = queue.pop_many(count + 1)
        assert [(lease.item, lease.pushed_at) for lease in old] == [(item, None) for item in range(count)]
        assert (new.item, new.seconds_in_queue) == ("new", pytest.approx(0.0, abs=60.0))


def test_an_item_that_cannot_be_unpickled_is_set_aside_and_then_dead(
    queue: FileQueue[Any], clock: ManualClock
) -> None:
    queue.push_many([Unreadable(), "next"])
    lease = queue.pop()
    assert lease is not None
    assert lease.item == "next"
    queue.done(lease)
    for _ in range(20):
        clock.advance(60)
        assert queue.pop() is None
        if clock() < 1_700_000_000.0 + 600:
            assert queue.dead_letters() == []
    (letter,) = queue.dead_letters()
    assert isinstance(letter.item, UnreadableItem)
    assert letter.item.payload == pickle.dumps(Unreadable(), pickle.HIGHEST_PROTOCOL)
    assert [attempt.outcome for attempt in letter.history] == ["unreadable"] * 5
    assert "no module of that version" in str(letter.error)
    assert queue.size() == 0


def test_pop_many_returns_the_readable_ones(queue: FileQueue[Any]) -> None:
    queue.push_many(["a", Unreadable(), "b"])
    assert [lease.item for lease in queue.pop_many(3)] == ["a", "b"]
    assert queue.pop() is None


def test_an_item_with_a_damaged_history_waits_for_repair_and_stops_nobody(
    tmp_path: Path, queue: FileQueue[Any], clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    queue.push_many("abc")
    held = queue.pop()
    assert held is not None
    spoil(tmp_path, "0000~1")
    other: FileQueue[str] = FileQueue(tmp_path / "q", clock=clock, fsync=False)
    assert (other.size(), other.pending(), other.peek()) == (2, 2, "b")
    assert [lease.item for lease in other.pop_many(5)] == ["b", "c"]
    assert other.dead_letters() == []
    assert other.purge() == 2
    assert "fray queue repair" in caplog.text
    (damage,) = other.repair()
    assert (damage.problem, damage.item_id, damage.restored) == ("damaged record", held.item_id, False)
    (damage,) = other.repair(restore=True)
    assert damage.restored
    lease = other.pop()
    assert lease is not None
    assert lease.item == "a"
    other.done(lease)
    assert other.repair() == []
    assert list((tmp_path / "q").glob("*-*/*")) == []


def test_a_damaged_item_is_a_dead_letter_with_its_bytes(tmp_path: Path, queue: FileQueue[Any]) -> None:
    queue.push_many(["x" * 100, "next"])
    damaged = spoil(tmp_path, "0000")
    assert [lease.item for lease in queue.pop_many(5)] == ["next"]
    (letter,) = queue.dead_letters()
    assert isinstance(letter.item, UnreadableItem)
    assert letter.item.payload == damaged.read_bytes()
    assert "checksum" in str(letter.error)
    assert [damage.problem for damage in queue.repair()] == ["damaged item"]
    assert queue.purge_dead() == 1
    assert queue.repair() == []


def test_strangers_files_are_reported_and_left_alone(tmp_path: Path, queue: FileQueue[Any]) -> None:
    queue.push("a")
    (bucket,) = (tmp_path / "q").glob("[0-9]*")
    strangers = [bucket / "notes.txt", bucket / "0000~99999999999", tmp_path / "q" / "thesis.tex"]
    for path in strangers:
        path.write_text("mine")
    (bucket / "0000~1").mkdir()
    assert queue.pop() is None
    queue.push("b")
    assert [lease.item for lease in queue.pop_many(5)] == ["b"]
    assert queue.purge() == 1
    assert sorted(damage.problem for damage in queue.repair()) == ["damaged record", *["foreign"] * 3]
    assert all(path.read_text() == "mine" for path in strangers)


def test_the_command_line_repairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"file:{tmp_path}/q"
    queue = open_queue(url)
    queue.push("a")
    assert queue.pop() is not None
    spoil(tmp_path, "0000~1")

    def repair(*options: str) -> int:
        with pytest.raises(SystemExit) as ended:
            queue_command.main(["repair", url, *options], standalone_mode=True)
        return int(ended.value.code or 0)

    assert repair() == 1
    assert "damaged record" in capsys.readouterr().out
    assert repair("--restore") == 0
    assert repair() == 0
    assert open_queue(url).pending() == 1


# --- pop_many ---


def after_two(failure: BaseException) -> Callable[..., None]:
    """Return what makes two links, each of which decides on a lease, and fails once."""
    link, calls = os.link, itertools.count()

    def failing(*arguments: Any, **options: Any) -> None:
        if next(calls) == 2:
            raise failure
        link(*arguments, **options)

    return failing


def test_a_pop_many_that_fails_half_way_returns_what_it_has(
    queue: FileQueue[Any], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.push_many("abc")
    monkeypatch.setattr(os, "link", after_two(OSError(errno.EIO, "Input/output error")))
    assert [lease.item for lease in queue.pop_many(3)] == ["a", "b"]
    clock.advance(10)
    assert [lease.item for lease in queue.pop_many(3)] == ["c"]


def test_a_pop_many_that_is_interrupted_gives_back_what_it_took(
    queue: FileQueue[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.push_many("abc")
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", after_two(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            queue.pop_many(3)
    assert queue.pending() == 3


@pytest.mark.parametrize("kind", ["single", "batch"])
def test_a_pop_that_is_interrupted_while_it_fetches_costs_no_attempt(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The lease is written, and nobody will get it."""
    path = tmp_path / "q" if kind == "single" else f"memory://{tmp_path.name}/q"
    with FileQueue[int](path, clock=clock, max_attempts=1) as queue:
        queue.push_many(range(3))
        store_class: Any = LocalStore if kind == "single" else FsspecStore
        real = store_class.read
        interrupts: list[str] = []

        def interrupted(store: Any, path: str) -> Any:
            if "-" in path.partition("/")[0] and "~" not in path and not interrupts:
                interrupts.append(path)
                raise KeyboardInterrupt
            return real(store, path)

        with monkeypatch.context() as patch:
            patch.setattr(store_class, "read", interrupted)
            with pytest.raises(KeyboardInterrupt):
                queue.pop_many(3)
        assert interrupts
        clock.advance(5)
        assert [(lease.item, lease.attempt) for lease in queue.pop_many(3)] == [(0, 1), (1, 1), (2, 1)]
        assert queue.dead_letters() == []


@pytest.mark.parametrize("kind", ["single", "batch"])
@pytest.mark.parametrize("in_hand", [0, 1])
def test_a_pop_that_fails_while_it_fetches_costs_no_attempt_and_holds_nothing_up(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, kind: str, in_hand: int
) -> None:
    """The lease is written, and the store refuses what the item holds."""
    path = tmp_path / "q" if kind == "single" else f"memory://{tmp_path.name}/q"
    with FileQueue[int](path, clock=clock, max_attempts=1) as queue:
        for number in range(in_hand):
            queue.push(number)
        refused_items = list(range(in_hand, in_hand + (1 if kind == "single" else 3)))
        queue.push_many(refused_items)
        queue.push(9)
        store_class: Any = LocalStore if kind == "single" else FsspecStore
        real, refused = store_class.read, f"/{in_hand:04x}" + ("" if kind == "single" else "x03")

        def refusing(store: Any, path: str) -> Any:
            if path.endswith(refused):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            return real(store, path)

        with monkeypatch.context() as patch:
            patch.setattr(store_class, "read", refusing)
            if in_hand:
                assert [lease.item for lease in queue.pop_many(1 + len(refused_items), 600.0)] == [0]
            else:
                with pytest.raises(PermissionError):
                    queue.pop_many(len(refused_items), 600.0)
            lease = queue.pop(600.0)
            assert lease is not None
            assert lease.item == 9
        clock.advance(6)
        leases = [lease for lease in [queue.pop(600.0)] if lease] + queue.pop_many(9, 600.0)
        assert [(lease.item, lease.attempt) for lease in leases] == [(item, 1) for item in refused_items]
        assert queue.dead_letters() == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in a generator that ends
@pytest.mark.parametrize("call", ["pop", "done", "release"])
def test_a_client_works_on_after_an_interrupt(tmp_path: Path, clock: ManualClock, call: str) -> None:
    """What it believes of the queue is as it was, or as it is, wherever the interrupt came."""
    for point in itertools.count(1):
        with FileQueue[int](tmp_path / f"{point}", clock=clock, fsync=False) as queue:
            queue.push_many(range(3))
            held = queue.pop()
            assert held is not None
            act = queue.pop if call == "pop" else functools.partial(getattr(queue, call), held)
            try:
                struck(act, point, file_listing.__name__)
                ended = True
            except KeyboardInterrupt:
                ended = False
            found = set()
            for _ in range(3):
                while (lease := queue.pop()) is not None:
                    found.add(lease.item)
                    queue.done(lease)
                clock.advance(100)
            assert found | {0} == {0, 1, 2}
            assert queue.size() == 0
        if ended:
            return


def test_a_settling_that_failed_can_be_repeated_at_once(
    queue: FileQueue[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.push_many("ab")
    first, second = queue.pop_many(2)

    def failing(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", failing)
        with pytest.raises(OSError, match="Input/output"):
            queue.done(first)
        with pytest.raises(OSError, match="Input/output"):
            queue.release(second)
    queue.done(first)
    queue.release(second)
    assert queue.size() == 1


class LosesAnswers:
    """A store that loses the answer to the creation of one record: it is made at once, or it comes late."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, record: str, *, late: bool) -> None:
        self.left: list[str] = [record]
        self._late: list[Callable[[], bool]] = []
        real = FsspecStore.create

        def create(store: FsspecStore, path: str, data: bytes) -> bool:
            while self._late:
                self._late.pop()()
            if not self.left or not path.endswith(self.left[0]):
                return real(store, path, data)
            self.left.clear()
            made = functools.partial(real, store, path, data)
            if late:
                self._late.append(made)
            else:
                made()
            raise ConnectionError("the answer is lost")

        monkeypatch.setattr(FsspecStore, "create", create)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("call", ["done", "release"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_settling_whose_answer_was_lost_can_be_repeated(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, count: int, call: str, late: bool
) -> None:
    with FileQueue[int](f"memory://{tmp_path.name}/q", clock=clock) as queue:
        queue.push_many(range(count))
        lease = queue.pop()
        assert lease is not None
        answers = LosesAnswers(monkeypatch, "~2", late=late)
        settle = getattr(queue, call)
        with pytest.raises(ConnectionError):
            settle(lease)
        assert not answers.left
        clock.advance(1)
        if not late:
            with pytest.raises(LeaseExpiredError):  # as a heartbeat meanwhile
                queue.extend(lease, 60)
        settle(lease)
        assert queue.size() == (count if call == "release" else count - 1)
        with pytest.raises(LeaseExpiredError):
            settle(lease)


@pytest.mark.parametrize("count", [1, 3])
def test_what_was_finished_is_not_released_by_the_call_that_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    with FileQueue[int](f"memory://{tmp_path.name}/q") as queue:
        queue.push_many(range(count))
        lease = queue.pop()
        assert lease is not None
        LosesAnswers(monkeypatch, "~2", late=False)
        with pytest.raises(ConnectionError):
            queue.done(lease)
        with pytest.raises(LeaseExpiredError):
            queue.release(lease)


def test_a_done_whose_bucket_could_not_be_announced_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FileQueue[int](f"memory://{tmp_path.name}/q") as queue:
        queue.push(1)
        lease = queue.pop()
        assert lease is not None
        with monkeypatch.context() as patch:
            patch.setattr(FullBuckets, "took", lambda *_: broken("no"))
            with pytest.raises(ImportError):
                queue.done(lease)
        queue.done(lease)
        assert queue.size() == 0


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_a_done_many_that_failed_in_part_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    url = f"memory://{tmp_path.name}/q" if scheme == "memory" else str(tmp_path / "q")
    store: Any = FsspecStore if scheme == "memory" else LocalStore
    with FileQueue[Any](url) as queue:
        for part in ("a", "b", "cd"):
            queue.push_many(part)
        leases = [lease for _ in range(3) for lease in queue.pop_many(2)][:4]
        real = store.create

        def create(store: Any, path: str, data: bytes) -> bool:
            if "0001~" in path:
                raise OSError(errno.EIO, "Input/output error")
            return bool(real(store, path, data))

        with monkeypatch.context() as patch:
            patch.setattr(store, "create", create)
            with pytest.raises(OSError, match="Input/output"):
                queue.done_many(leases)
        queue.done_many(leases)
        assert queue.size() == 0
        with pytest.raises(LeaseExpiredError) as caught:
            queue.done_many(leases)
        assert len({caught.value.lease_id, *caught.value.lease_ids}) == len(leases)


def test_an_item_whose_files_stay_is_finished_all_the_same(
    tmp_path: Path,
    queue: FileQueue[Any],
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue.push("x")
    lease = queue.pop()
    assert lease is not None
    real = os.unlink

    def failing(path: Any, *arguments: Any, **options: Any) -> None:
        if str(path).endswith("/0000"):
            raise OSError(errno.EIO, "Input/output error")
        real(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", failing)
        queue.done(lease)
    assert "the files of 1 finished items" in caplog.text
    clock.advance(100)
    assert FileQueue(tmp_path / "q", clock=clock).pop() is None
    assert list((tmp_path / "q").glob("[0-9]*")) == []


def test_a_disk_that_fails_does_not_say_that_an_item_is_gone(
    tmp_path: Path, queue: FileQueue[Any], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.push("x")
    lease = queue.pop()
    assert lease is not None
    real = os.stat

    def stale(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if str(path).endswith("/0000"):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", stale)
        with pytest.raises(OSError, match="Stale"):
            queue.done(lease)
    clock.advance(100)  # it is done: the record of that was written
    assert FileQueue(tmp_path / "q", clock=clock).pop() is None


def test_a_push_many_that_fails_half_way_stores_nothing(
    queue: FileQueue[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert queue.size() == 0
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", after_two(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
        with pytest.raises(OSError, match="No space"):
            queue.push_many("abcd")
    assert queue.pop_many(9) == []
    queue.push_many("abcd")
    assert [lease.item for lease in queue.pop_many(9)] == list("abcd")


def test_purge_removes_what_is_taken_while_it_runs(
    tmp_path: Path, queue: FileQueue[Any], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.push_many("abc")
    other: FileQueue[str] = FileQueue(tmp_path / "q", clock=clock, fsync=False)
    link = os.link
    taken: list[Any] = []

    def beside(*arguments: Any, **options: Any) -> None:
        if not taken:
            taken.append(None)
            taken[:] = other.pop_many(2)
            other.release(taken[0])
        link(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", beside)
        assert queue.purge() == 3
    assert (queue.size(), other.size(), other.pop()) == (0, 0, None)
    with pytest.raises(LeaseExpiredError):
        other.done(taken[1])
    assert list((tmp_path / "q").glob("[0-9]*")) == []


def test_no_item_is_returned_twice_when_fetching_outlasts_the_lease(
    queue: FileQueue[Any], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.push_many("abcd")
    link = os.link

    def slow(*arguments: Any, **options: Any) -> None:
        link(*arguments, **options)
        clock.advance(4)

    monkeypatch.setattr(os, "link", slow)
    leases = queue.pop_many(10, 10)
    assert [lease.item for lease in leases] == ["a", "b"]
    assert all(clock() < lease.expires_at for lease in leases)
    queue.done_many(leases)


@pytest.mark.parametrize("kind", ["single", "batch"])
def test_a_lease_that_is_shorter_than_a_request_ends_the_pop(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path, options = (
        (tmp_path / "q", {}) if kind == "single" else (f"memory://{tmp_path.name}/q", {"max_clock_skew": 0})
    )
    with FileQueue[int](path, clock=clock, **options) as queue:
        queue.push_many(range(3))
        store_class: Any = LocalStore if kind == "single" else FsspecStore
        real, records = store_class.create, itertools.count()

        def create(store: Any, path: str, data: bytes) -> bool:
            assert next(records) < 100, "it leases the items again and again"
            return bool(real(store, path, data))

        monkeypatch.setattr(store_class, "create", create)
        assert queue.pop_many(3, 1e-9) == []
        assert [lease.item for lease in queue.pop_many(3)] == [0, 1, 2]


# --- folders ---


def test_urls_with_two_slashes_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url in (f"file://localhost{tmp_path}/q", f"local://{tmp_path}/q", f"local:{tmp_path}/q"):
        FileQueue[int](url).push(1)
    FileQueue[int](f"local:/{tmp_path}/q").push(1)
    assert FileQueue[int](tmp_path / "q").size() == 4
    assert [path.name for path in tmp_path.iterdir()] == ["q"]


def test_a_pickled_queue_is_the_same_folder_where_another_is_worked_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    queue: FileQueue[str] = FileQueue("tasks")
    queue.push("x")
    monkeypatch.chdir(tmp_path)
    copy: FileQueue[str] = pickle.loads(pickle.dumps(queue))
    assert copy.size() == 1
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_a_folder_that_a_killed_client_left_empty_is_removed(
    tmp_path: Path, queue: FileQueue[Any], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.push("x")
    lease = queue.pop()
    assert lease is not None

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", killed)
        with pytest.raises(KeyboardInterrupt):
            queue.done(lease)
    assert len(list((tmp_path / "q").glob("[0-9]*"))) == 1
    assert FileQueue(tmp_path / "q", clock=clock).pop() is None
    assert list((tmp_path / "q").glob("[0-9]*")) == []


def test_a_folder_of_another_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"machine 'host'.*file:///host/q"):
        FileQueue("file://host/q")


def test_an_answer_to_link_that_is_lost_is_no_error(
    queue: FileQueue[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    link, lost = os.link, []

    def link_of_nfs(source: str, target: str) -> None:
        """Repeat a request whose answer was lost; the second finds what the first made."""
        link(source, target)
        lost.append(target)
        link(source, target)

    monkeypatch.setattr(os, "link", link_of_nfs)
    queue.push("a")
    lease = queue.pop()
    assert lease is not None
    queue.release(lease)
    lease = queue.pop()
    assert lease is not None
    queue.done(lease)
    assert len(lost) > 4
    assert queue.size() == 0


def test_a_push_whose_answer_is_lost_until_its_item_is_finished_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"memory://{tmp_path.name}/q"
    with FileQueue[str](url) as queue, FileQueue[str](url) as worker:
        queue.push("first")
        real = FsspecStore.create

        def create(store: FsspecStore, path: str, data: bytes) -> bool:
            """The repeated request finds the item, which is finished and removed before it is read."""
            made = real(store, path, data)
            if path.endswith("0001"):
                worker.done_many(worker.pop_many(2))
                worker.close()
                return False
            return made

        monkeypatch.setattr(FsspecStore, "create", create)
        queue.push("second")
        assert queue.size() == 0


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_hard_links_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(source: str, target: str) -> None:
        raise OSError(number, os.strerror(number), source, None, target)

    monkeypatch.setattr(os, "link", refused)
    with pytest.raises(UnsupportedError, match="makes no hard links"):
        FileQueue(tmp_path / "queue").push(1)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_removed_folder_is_an_error_and_no_new_queue(tmp_path: Path, queue: FileQueue[Any]) -> None:
    queue.push_many("ab")
    lease = queue.pop()
    assert lease is not None
    shutil.rmtree(tmp_path / "q")
    for call in (lambda: queue.push("c"), queue.size, queue.pending, queue.peek, queue.purge):
        with pytest.raises(FrayError, match="removed while it was open"):
            call()
    with pytest.raises(FileNotFoundError):
        FileQueue[str].pop_many(queue, 2)
    assert not (tmp_path / "q").exists()


CLOCK_AWRY = """
import sys, time
real = time.time
time.time = lambda: real() + float(sys.argv[2])
from fray.queue import FileQueue
FileQueue(sys.argv[1], **({"max_clock_skew": float(sys.argv[3])} if sys.argv[3:] else {})).push("x")
"""


@pytest.mark.parametrize("step", ["61", "-61"])
def test_a_process_whose_clock_differs_from_the_folders_is_refused(tmp_path: Path, step: str) -> None:
    def push(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-c", CLOCK_AWRY, str(tmp_path / "q"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    refused = push(step)
    assert refused.returncode
    assert "clock is 6" in refused.stderr
    assert "max_clock_skew" in refused.stderr
    assert push(step, "130").returncode == 0
    assert push("0").returncode == 0
