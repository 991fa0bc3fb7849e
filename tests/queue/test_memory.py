"""MemoryQueue keeps the contract, and wakes its waiters without polling."""

import asyncio
import itertools
import multiprocessing
import pickle
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from pools import Pools

from fray import WrongProcessError
from fray.queue import Lease, Queue, open_queue
from fray.testing.interrupting import struck
from fray.testing.queue import MakeQueue, ManualClock, QueueContract, check_queue_machine
from fray_queue import MemoryQueue


class _Memory:
    BACKEND = "memory"

    @pytest.fixture
    def make_queue(self, clock: ManualClock) -> MakeQueue:
        return lambda **options: MemoryQueue(clock=clock, **options)


class TestMemoryQueue(_Memory, QueueContract):
    pass


class TestPoolsInMemory(_Memory, Pools):
    pass


def test_every_history_agrees_with_the_model() -> None:
    clock = ManualClock()
    check_queue_machine(lambda **options: MemoryQueue(clock=clock, **options), clock, examples=120, steps=60)


def test_it_says_clearly_that_it_cannot_be_passed_to_another_process() -> None:
    with pytest.raises(WrongProcessError, match="SqliteQueue, FileQueue or HttpQueue"):
        pickle.dumps(MemoryQueue[int]())


def test_a_waiting_pop_gets_the_item_of_a_lease_that_runs_out() -> None:
    queue: MemoryQueue[str] = MemoryQueue()
    queue.push("x")
    start = time.monotonic()
    queue.pop(0.2)
    lease = queue.pop(wait=30)
    assert lease is not None
    assert lease.attempt == 2
    assert 0.19 < time.monotonic() - start < 20


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


# --- interrupts ---

MODULES = MemoryQueue.__module__.rpartition(".")[0]


def released_twice(queue: MemoryQueue[str], held: Lease[str]) -> None:
    queue.release(held)
    again = queue.pop(10)
    assert again is not None
    queue.release(again)


def expired_twice(queue: MemoryQueue[str], clock: ManualClock) -> None:
    for _ in range(2):
        clock.advance(20)
        queue.pop(10)
    queue.peek()


OPERATIONS: dict[str, Callable[[MemoryQueue[str], ManualClock, Lease[str]], Any]] = {
    "push": lambda queue, clock, held: queue.push("new", key="new", delay=1.0),
    "pop": lambda queue, clock, held: queue.pop(10),
    "pop_many": lambda queue, clock, held: queue.pop_many(2, 10),
    "release": lambda queue, clock, held: released_twice(queue, held),
    "give_back": lambda queue, clock, held: queue.give_back([held]),
    "extend": lambda queue, clock, held: queue.extend(held, 5),
    "expiry": lambda queue, clock, held: expired_twice(queue, clock),
    "done": lambda queue, clock, held: queue.done(held),
    "requeue_dead": lambda queue, clock, held: queue.requeue_dead(),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_interrupt_loses_no_item(name: str) -> None:
    """Ctrl-C in a notebook comes between any two steps of a call."""
    for point in itertools.count(1):
        clock = ManualClock()
        queue: MemoryQueue[str] = MemoryQueue(max_attempts=2, clock=clock)
        queue.push("dead")
        for _ in range(2):
            queue.release(queue.pop(10))  # type: ignore[arg-type]
        queue.push("keyed", key="k")
        queue.push("plain")
        held = queue.pop(10)
        assert held is not None
        try:
            struck(lambda: OPERATIONS[name](queue, clock, held), point, MODULES)  # noqa: B023
            ended = True
        except KeyboardInterrupt:
            ended = False
        found = []
        for _ in range(3):
            clock.advance(100)
            queue.requeue_dead()
            while (lease := queue.pop(10)) is not None:
                found.append(lease.item)
                queue.done(lease)
        assert set(found) - {"new"} | ({"keyed"} if name == "done" else set()) == {"dead", "keyed", "plain"}
        assert len(found) == len(set(found))
        assert (queue.size(), queue.pending(), queue.dead_letters()) == (0, 0, [])
        if ended:
            assert point > 5
            return


def test_a_million_finished_items_leave_nothing_behind() -> None:
    queue: MemoryQueue[int] = MemoryQueue()
    for number in range(20_000):
        queue.push(number)
        queue.done(queue.pop(3600))  # type: ignore[arg-type]
    line = queue._line
    assert len(line._timers) < 200
    assert not line._live
    assert not line._line


class Payload:
    """An item whose end a weak reference shows."""


def push_payloads(queue: MemoryQueue[Payload], alive: "weakref.WeakSet[Payload]", **options: Any) -> None:
    for _ in range(1000):
        payload = Payload()
        alive.add(payload)
        queue.push(payload, **options)


def test_items_that_expire_while_nobody_pops_leave_nothing_behind() -> None:
    clock, alive = ManualClock(), weakref.WeakSet[Payload]()
    queue: MemoryQueue[Payload] = MemoryQueue(clock=clock, max_dead=10)
    for _ in range(3):
        push_payloads(queue, alive, ttl=1.0)
        clock.advance(2.0)
    assert (queue.size(), len(queue.dead_letters())) == (0, 10)
    assert len(alive) < 200


def test_items_that_expire_behind_others_leave_nothing_behind() -> None:
    clock, alive = ManualClock(), weakref.WeakSet[Payload]()
    queue: MemoryQueue[Any] = MemoryQueue(clock=clock, max_dead=10)
    queue.push_many(range(2000), priority=1)
    for _ in range(3):
        push_payloads(queue, alive, ttl=1.0)
        clock.advance(2.0)
    for _ in range(1999):  # the backlog becomes short, and is never empty
        queue.done(queue.pop())  # type: ignore[arg-type]
    assert queue.size() == 1
    assert len(alive) < 200


@pytest.mark.parametrize("options", [{"priority": 1}, {"ttl": 60.0}, {"delay": 60.0}])
def test_purged_items_leave_nothing_behind(options: dict[str, Any]) -> None:
    alive = weakref.WeakSet[Payload]()
    queue: MemoryQueue[Payload] = MemoryQueue(clock=ManualClock())
    push_payloads(queue, alive, **options)
    assert queue.purge() == 1000
    assert len(alive) == 0


@pytest.mark.parametrize("finish", ["purge_dead", "requeue_dead"])
def test_dead_letters_that_are_purged_or_requeued_leave_nothing_behind(finish: str) -> None:
    clock, alive = ManualClock(), weakref.WeakSet[Payload]()
    queue: MemoryQueue[Payload] = MemoryQueue(clock=clock)
    push_payloads(queue, alive, ttl=1.0)
    clock.advance(2.0)
    assert getattr(queue, finish)() == 1000
    queue.purge()
    assert len(alive) < 200


def test_a_url_names_a_queue_of_this_process() -> None:
    open_queue("memory://of-this-test").push("x")
    same: Queue[Any] = open_queue("memory://of-this-test")
    assert same.size() == 1
    assert open_queue("memory:").size() == 0
    with pytest.raises(ValueError, match="max_attempts"):
        open_queue("memory://of-this-test?max_attempts=3")


def test_a_url_without_options_takes_the_queue_as_it_is() -> None:
    queue = open_queue("memory://as-it-is?max_attempts=3&max_size=5&max_dead=7")
    assert open_queue("memory://as-it-is") is queue
    assert open_queue("memory://as-it-is?max_dead=7") is queue
    with pytest.raises(ValueError, match="max_size=5, not 6"):
        open_queue("memory://as-it-is?max_size=6")


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


def test_a_fork_leaves_its_queues_behind() -> None:
    queue: MemoryQueue[str] = MemoryQueue()
    queue.push("x")
    open_queue("memory://before-the-fork").push("y")
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()

    def child() -> None:
        for name, call in _CALLS.items():
            try:
                call(queue)
            except WrongProcessError:
                there.send(name)
        fresh = open_queue("memory://before-the-fork")
        fresh.push("z")
        there.send(fresh.size())

    with queue._lock:  # as another thread may have it at that moment
        process = context.Process(target=child)
        process.start()
    process.join(30)
    assert process.exitcode == 0
    assert [here.recv() for _ in _CALLS] == list(_CALLS)
    assert here.recv() == 1
    for end in (here, there):
        end.close()
    lease = queue.pop()
    assert lease is not None
    queue.done(lease)
    assert (lease.item, queue.size()) == ("x", 0)


_LEASE = Lease("x", "id.1", 0.0, "id", 1, 0.0)
_CALLS: dict[str, Callable[[MemoryQueue[str]], object]] = {
    "push": lambda queue: queue.push("lost"),
    "push_many": lambda queue: queue.push_many(["lost"]),
    "pop": lambda queue: queue.pop(),
    "pop_many": lambda queue: queue.pop_many(2, wait=1.0),
    "done": lambda queue: queue.done(_LEASE),
    "release": lambda queue: queue.release(_LEASE),
    "extend": lambda queue: queue.extend(_LEASE, 1.0),
    "peek": lambda queue: queue.peek(),
    "size": lambda queue: queue.size(),
    "pending": lambda queue: queue.pending(),
    "dead_letters": lambda queue: queue.dead_letters(),
    "requeue_dead": lambda queue: queue.requeue_dead(),
    "purge": lambda queue: queue.purge(),
    "purge_dead": lambda queue: queue.purge_dead(),
}


def test_a_push_between_a_look_and_the_sleep_after_it_is_not_missed() -> None:
    asked = itertools.count()

    def clock() -> float:
        if next(asked) == 0:
            queue.push("x")  # the pop has looked already, and is about to sleep
        return 1000.0

    queue: MemoryQueue[str] = MemoryQueue(clock=clock)
    began = time.monotonic()
    assert [lease.item for lease in queue.pop_many(1, wait=30.0)] == ["x"]
    assert time.monotonic() - began < 20


def test_a_short_wait_ends_in_time_beside_a_long_one_in_the_same_loop() -> None:
    waiting = threading.Event()

    class Queue(MemoryQueue[str]):
        def pop_many(self, *args: Any, wait: float = 0.0, **options: Any) -> list[Lease[str]]:
            if wait:
                waiting.set()
            return super().pop_many(*args, wait=wait, **options)

    async def program() -> None:
        queue = Queue()
        long = asyncio.create_task(queue.aio.pop(wait=60.0))
        assert await asyncio.to_thread(waiting.wait, 20.0)
        assert await asyncio.wait_for(queue.aio.pop(wait=0.1), 20.0) is None
        long.cancel()
        with pytest.raises(asyncio.CancelledError):
            await long

    asyncio.run(program())
