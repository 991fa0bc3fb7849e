"""Queues that decide at one place: the last lease that an item may have is over the moment it runs out."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fray import LeaseExpiredError
from fray.queue import Lease
from fray.testing.queue import ManualClock
from fray_queue import HttpQueueServer, MemoryQueue, SqliteQueue


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite", "http"])
def queue(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Any]:
    if request.param == "memory":
        yield MemoryQueue(max_attempts=1, clock=clock)
    elif request.param == "sqlite":
        yield SqliteQueue(tmp_path / "q.db", max_attempts=1, clock=clock)
    else:
        with HttpQueueServer(clock=clock) as server, server.new_queue("q", max_attempts=1) as opened:
            yield opened


@pytest.mark.parametrize("call", ["done", "release", "extend"])
def test_nothing_is_settled_by_it(queue: Any, clock: ManualClock, call: str) -> None:
    queue.push("x")
    lease: Lease[str] = queue.pop(10)
    clock.advance(11)  # and nobody looks
    with pytest.raises(LeaseExpiredError):
        getattr(queue, call)(lease, *([10] if call == "extend" else []))
    assert [letter.item for letter in queue.dead_letters()] == ["x"]
    assert queue.size() == 0
