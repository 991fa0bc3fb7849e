"""Whatever stands in a file of a FileQueue's folder: the other items are delivered."""

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fray import FrayError
from fray.queue import FileQueue

DRAWN = settings(
    max_examples=100 * int(os.environ.get("TORTURE", "1")),
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
SPLICES = st.binary(max_size=20) | st.sampled_from(
    [b"", b"{", b"null", b"[]", b"\xff\xfe", b"9" * 500, b"-1", b"NaN", b'{"a":' * 200, b"\x00" * 64]
)
ITEMS = ["first", "second", "third"]


@pytest.mark.filterwarnings("ignore")  # that a file cannot be read
def test_files_of_any_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "queue"

    @DRAWN
    @given(st.sampled_from(range(6)), st.floats(0, 1), st.floats(0, 1), SPLICES)
    def damage(which: int, first: float, second: float, splice: bytes) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        with FileQueue(folder) as queue:
            queue.push_many(ITEMS)
            queue.release(queue.pop())  # the first item has a history
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        file = files[which % len(files)]
        data = file.read_bytes()
        start, end = sorted((int(first * len(data)), int(second * len(data))))
        file.write_bytes(data[:start] + splice + data[end:])
        delivered, refusal = [], None
        try:
            with FileQueue(folder) as queue:
                delivered = [lease.item for lease in queue.pop_many(9)]
                queue.dead_letters()
                queue.size()
                queue.repair(restore=True)
        except (FrayError, ValueError) as error:
            refusal = error
        if refusal is None:
            assert len(set(delivered) & set(ITEMS)) >= 2
        else:
            assert file.parent == folder, refusal  # the queue's own file, which says what the folder is

    damage()
