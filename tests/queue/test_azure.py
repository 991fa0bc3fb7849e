"""FileQueue on Azure's blob store: adlfs, and Azurite behind it."""

import itertools
import multiprocessing
import uuid
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
from azurite import azurite
from on_object_store import OnObjectStore
from pools import Pools
from queue_processes import take_all
from store_leftovers import process_wide  # noqa: F401

from fray.queue import FileQueue, open_queue
from fray.testing.queue import ManualClock, QueueContract, SharedQueueContract, check_queue_machine

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, Any]]:
    with azurite() as connection:
        yield {"connection_string": connection}


class _Azure(OnObjectStore):
    BACKEND = "abfs"

    @pytest.fixture
    def location(self, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return "abfs://bucket", options


class TestOnAzure(_Azure, QueueContract):
    pass


class TestPoolsOnAzure(_Azure, Pools):
    pass


class TestSharedOnAzure(_Azure, SharedQueueContract):
    pass


def test_every_history_agrees_with_the_model(options: dict[str, Any]) -> None:
    clock, numbers, run = ManualClock(), itertools.count(), uuid.uuid4().hex

    def make_queue(**more: Any) -> FileQueue[int]:
        path = f"abfs://bucket/{run}-{next(numbers)}"
        return FileQueue(path, clock=clock, max_clock_skew=0, **options, **more)

    check_queue_machine(make_queue, clock, examples=3, steps=15)


def test_processes_share_a_container_and_every_item_is_done_once(options: dict[str, Any]) -> None:
    url = f"abfs://bucket/{uuid.uuid4().hex}"
    queue = open_queue(url, **options)
    queue.push_many(range(24))
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        results = [pool.submit(take_all, url, options) for _ in range(2)]
        taken = [item for result in results for item in result.result()]
    assert sorted(taken) == [(number, 1) for number in range(24)]
    assert queue.size() == 0
