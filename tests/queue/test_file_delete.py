"""`FileQueue.delete` removes a queue, in a folder or an object store, and nothing else."""

import uuid
from pathlib import Path

import fsspec  # type: ignore[import-untyped]
import pytest

from fray_queue import FileQueue, QueueRemovedError

MARKER = "fray-queue.json"


class Place:
    """A folder, or a prefix of an object store, in which queues and other things may be."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._fs, self._root = fsspec.url_to_fs(url)

    def write(self, *names: str, data: bytes = b"mine") -> None:
        for name in names:
            path = f"{self._root}/{name}"
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._fs.pipe_file(path, data)

    def remove(self, name: str) -> None:
        self._fs.rm_file(f"{self._root}/{name}")

    def files(self) -> set[str]:
        return {path.removeprefix(self._root).strip("/") for path in self._fs.find(self._root)}


@pytest.fixture(params=["folder", "object store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(
        f"memory://{uuid.uuid4().hex}/q" if request.param == "object store" else f"file:{tmp_path}/q"
    )


@pytest.mark.parametrize("foreign", ["thesis.tex", ".bashrc", "data/part-0", ".git/config"])
def test_what_is_no_queue_is_refused_and_left_alone(place: Place, foreign: str) -> None:
    bucket = "0123456789ab-0123456789ab/0000"  # a name that a queue's folders have
    place.write(foreign, bucket)
    with pytest.raises(ValueError, match=f"is not a queue.*{foreign.partition('/')[0]}.*nothing was removed"):
        FileQueue(place.url).delete()
    assert place.files() == {foreign, bucket}


def test_what_lies_beside_a_queue_stays(place: Place) -> None:
    with FileQueue[int](place.url) as queue:
        queue.push_many(range(300))
        queue.done_many(queue.pop_many(1))
        place.write("notes.txt", ".hidden", "data/part-0")
        queue.delete()
    assert place.files() == {"notes.txt", ".hidden", "data/part-0"}
    assert not FileQueue(place.url).exists()


def test_a_queue_alone_is_removed_with_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "q"
    with FileQueue[int](folder) as queue:
        queue.push_many(range(3))
        queue.pop()
        queue.delete()
    assert not folder.exists()


def test_a_removal_that_was_interrupted_is_finished_by_the_next(place: Place) -> None:
    with FileQueue[int](place.url) as queue:
        queue.push_many(range(300))
        queue.done_many(queue.pop_many(1))
    place.remove(MARKER)
    assert place.files()
    FileQueue(place.url).delete()
    assert not place.files()


def test_a_queue_that_is_not_there_is_no_error(place: Place) -> None:
    FileQueue(place.url).delete()
    assert not place.files()
    with FileQueue[int](place.url) as queue:
        queue.push(1)
        queue.delete()
        queue.delete()


def test_a_client_that_has_a_removed_queue_open_gets_an_error(place: Place) -> None:
    with FileQueue[int](place.url) as queue, FileQueue[int](place.url) as other:
        queue.push(1)
        assert other.pending() == 1
        queue.delete()
        for call in (other.pop, other.size, lambda: queue.push(2)):
            with pytest.raises(QueueRemovedError):
                call()
    assert not place.files()


def test_a_queue_of_a_newer_version_is_refused_and_left_alone(place: Place) -> None:
    place.write(MARKER, data=b'{"format": "fray-queue", "version": 3}\n')
    with pytest.raises(ValueError, match=r"not a queue of this version.*nothing was removed"):
        FileQueue(place.url).delete()
    assert place.files() == {MARKER}


def test_a_queue_whose_making_the_power_ended_is_removed(tmp_path: Path) -> None:
    (tmp_path / MARKER).write_bytes(b"")
    FileQueue(tmp_path).delete()
    assert not tmp_path.exists()
