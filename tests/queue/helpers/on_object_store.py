"""Queues in a bucket, for the contracts: each test has folders of its own, and closes its queues."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from fray.queue import FileQueue
from fray.testing.queue import MakeQueue, ManualClock


class OnObjectStore:
    """A subclass says where the bucket is."""

    @pytest.fixture
    def location(self) -> tuple[str, dict[str, Any]]:
        """The bucket's URL, and the options that its client needs."""
        raise NotImplementedError

    @pytest.fixture
    def make_queue(self, clock: ManualClock, location: tuple[str, dict[str, Any]]) -> Iterator[MakeQueue]:
        made: list[FileQueue[Any]] = []
        url, options = location

        def make_queue(**more: Any) -> FileQueue[Any]:
            path = f"{url}/{uuid.uuid4().hex}"
            made.append(FileQueue(path, clock=clock, max_clock_skew=0, **options, **more))
            return made[-1]

        yield make_queue
        for queue in made:
            queue.close()
