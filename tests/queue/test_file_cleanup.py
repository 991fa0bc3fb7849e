"""The removal of finished items on an object store goes on after an outage, and in a forked child."""

import os
import threading
import uuid
import warnings
from collections.abc import Iterator, Sequence

import pytest

from fray import QueueUnavailableError
from fray_queue import FileQueue
from fray_queue.testing import FsspecStore


@pytest.fixture
def queue() -> Iterator[FileQueue[int]]:
    with FileQueue[int](f"memory://queues/{uuid.uuid4().hex}", cleanup_delay=0.05) as queue:
        yield queue


def finish(queue: FileQueue[int], count: int) -> None:
    queue.push_many(range(count))
    queue.done_many(queue.pop_many(count))


def files(queue: FileQueue[int]) -> list[str]:
    return [name for name in queue._store.names("") if name != "fray-queue.json"]


class Outage:
    """A store that removes nothing until it is back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.away = True
        self.refused, self.removed = threading.Event(), threading.Event()
        delete = FsspecStore.delete

        def answer(store: FsspecStore, paths: Sequence[str]) -> None:
            if self.away and any("/" in path for path in paths):  # not what opening a queue removes
                self.refused.set()
                raise QueueUnavailableError("away")
            delete(store, paths)
            if not self.away and any("~" in path for path in paths):
                self.removed.set()

        monkeypatch.setattr(FsspecStore, "delete", answer)


def test_what_an_outage_kept_is_removed_after_it(
    queue: FileQueue[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    outage = Outage(monkeypatch)
    finish(queue, 3)
    assert outage.refused.wait(30)
    outage.away = False
    assert outage.removed.wait(30)
    finish(queue, 150)
    queue.close()
    assert files(queue) == []


def test_close_ends_while_the_store_is_away_and_the_next_one_removes(
    queue: FileQueue[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    outage = Outage(monkeypatch)
    finish(queue, 3)
    queue.close()
    assert "1 finished items or batches stay" in caplog.text
    assert files(queue) != []
    outage.away = False
    queue.close()
    assert files(queue) == []


def test_a_forked_child_removes_what_it_finished() -> None:
    url = f"memory://queues/{uuid.uuid4().hex}"
    with FileQueue[int](url, cleanup_delay=600.0) as queue:  # the parent's thread waits when it forks
        finish(queue, 1)
        assert left_by_a_child(queue) == 3


def left_by_a_child(queue: FileQueue[int]) -> int:
    """How many files are left when a forked child has finished some items and removed their files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of fork in a process with threads
        child = os.fork()
    if child == 0:
        finish(queue, 5)
        queue.close()
        os._exit(sum(len(queue._store.names(bucket)) for bucket in files(queue)))
    # Payload, lease and `done` of what the parent finished are the parent's to remove.
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
