"""MemoryQueue keeps the contract, and wakes its waiters without polling."""

import pickle
import threading
import time
from typing import Any

import pytest

from fray import WrongProcessError
from fray.queue import Queue, open_queue
from fray.testing.queue import MakeQueue, ManualClock, QueueContract, check_queue_machine
from fray_queue import MemoryQueue


class TestMemoryQueue(QueueContract):
    BACKEND = "memory"

    @pytest.fixture
    def make_queue(self, clock: ManualClock) -> MakeQueue:
        return lambda **options: MemoryQueue(clock=clock, **options)


def test_every_history_agrees_with_the_model() -> None:
    clock = ManualClock()
    check_queue_machine(lambda **options: MemoryQueue(clock=clock, **options), clock, examples=300, steps=60)


def test_it_says_clearly_that_it_cannot_be_passed_to_another_process() -> None:
    with pytest.raises(WrongProcessError, match="FileQueue or HttpQueue"):
        pickle.dumps(MemoryQueue[int]())


def test_a_waiting_pop_gets_the_item_of_a_lease_that_runs_out() -> None:
    queue: MemoryQueue[str] = MemoryQueue()
    queue.push("x")
    queue.pop(0.2)
    start = time.monotonic()
    lease = queue.pop(wait=30)
    assert lease is not None
    assert lease.attempt == 2
    assert 0.15 < time.monotonic() - start < 5


def test_each_of_many_waiting_pops_gets_its_item() -> None:
    queue: MemoryQueue[int] = MemoryQueue()
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(queue.pop(wait=30))) for _ in range(20)]
    for thread in threads:
        thread.start()
    queue.push_many(range(20))
    for thread in threads:
        thread.join(10)
    assert sorted(lease.item for lease in found) == list(range(20))


def test_a_million_finished_items_leave_nothing_behind() -> None:
    queue: MemoryQueue[int] = MemoryQueue()
    for number in range(20_000):
        queue.push(number)
        queue.done(queue.pop(3600))  # type: ignore[arg-type]
    machine = queue._machine
    assert len(machine._timers) < 200
    assert not machine._live
    assert not machine._line


def test_a_url_names_a_queue_of_this_process() -> None:
    open_queue("memory://of-this-test").push("x")
    same: Queue[Any] = open_queue("memory://of-this-test")
    assert same.size() == 1
    assert open_queue("memory:").size() == 0
    with pytest.raises(ValueError, match="max_attempts"):
        open_queue("memory://of-this-test?max_attempts=3")


def test_pushes_that_nobody_took_yet_are_in_line_in_order() -> None:
    queue: MemoryQueue[int] = MemoryQueue(max_attempts=1)
    for number in range(2500):
        queue.push(number)
    assert (queue.size(), queue.pending(), queue.peek()) == (2500, 2500, 0)
    first = queue.pop()
    queue.push_many(range(2500, 4000))
    assert first is not None
    queue.done(first)
    assert [lease.item for lease in queue.pop_many(4000)] == list(range(1, 4000))
    queue.push(4000)
    assert queue.purge() == 4000
    assert (queue.size(), queue.pop()) == (0, None)
