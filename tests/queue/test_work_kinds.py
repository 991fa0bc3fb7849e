"""A pool keeps the same promises on every kind of queue."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from queue_processes import wait_until

from fray_queue import FileQueue, HttpQueueServer, MemoryQueue, SqliteQueue, awork, work

KINDS = ("memory", "sqlite", "file", "http", "http with a store")


@pytest.fixture(params=KINDS)
def limited(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A queue that gives an item up after its second attempt."""
    kind = request.param
    if kind == "memory":
        yield MemoryQueue(max_attempts=2)
    elif kind == "sqlite":
        with SqliteQueue[Any](tmp_path / "q.db", max_attempts=2) as queue:
            yield queue
    elif kind == "file":
        with FileQueue[Any](tmp_path / "q", max_attempts=2) as files:
            yield files
    else:
        store = tmp_path / "store" if kind == "http with a store" else None
        with HttpQueueServer(store=store) as server, server.new_queue("q", max_attempts=2) as client:
            yield client


def test_every_item_is_worked_on_once(limited: Any) -> None:
    limited.push_many(range(300))
    seen: list[int] = []
    summary = work(limited, seen.append, concurrency=4, stop_when_empty=True)
    assert sorted(seen) == list(range(300))
    assert (summary.done, summary.attempts, summary.in_hand, limited.size()) == (300, 300, 0, 0)


def test_coroutines_work_on_every_item_once(limited: Any) -> None:
    limited.push_many(range(300))
    seen: list[int] = []

    async def fn(item: int) -> None:
        await asyncio.sleep(0)
        seen.append(item)

    assert asyncio.run(awork(limited, fn, concurrency=50, stop_when_empty=True)).done == 300
    assert (sorted(seen), limited.size()) == (list(range(300)), 0)


def test_an_item_of_a_batch_fails_alone_and_is_given_up(limited: Any) -> None:
    limited.push_many(range(20))

    def fn(items: list[int]) -> list[Any]:
        return [ValueError(item) if item == 7 else item for item in items]

    summary = work(limited, fn, batch=8, linger=0.05, retry_delay=0.01, stop_when_empty=True)
    assert (summary.done, summary.failed) == (19, 2)
    assert [letter.item for letter in limited.dead_letters()] == [7]


def test_a_pool_that_is_stopped_leaves_every_item_to_others(limited: Any) -> None:
    limited.push_many(range(100))
    stop = threading.Event()
    begun: list[int] = []

    def fn(item: int) -> None:
        begun.append(item)
        if len(begun) == 30:
            stop.set()
            time.sleep(0.5)  # the pool looks at it twenty times a second

    summary = work(limited, fn, stop=stop)
    assert summary.done == len(begun) < 100
    assert limited.size() == limited.pending() == 100 - len(begun)
    assert not limited.dead_letters()


def test_a_pool_that_waits_takes_what_comes(limited: Any) -> None:
    stop = threading.Event()
    seen: list[str] = []
    pool = threading.Thread(target=work, args=(limited, seen.append), kwargs={"stop": stop, "concurrency": 2})
    pool.start()
    try:
        for number in range(5):
            limited.push(f"item {number}")
            wait_until(lambda: len(seen) == number + 1)  # noqa: B023 - asked before the loop goes on
    finally:
        stop.set()
        pool.join(30)
    assert limited.size() == 0
