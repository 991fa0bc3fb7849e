"""Pools: batches, time limits, processes, one heartbeat, what is fetched ahead, what ends them."""

import asyncio
import importlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from queue_processes import wait_until

from fray import SerializationError, WorkerDiedError
from fray.events import Event, EventKind, use_listener
from fray.queue import Lease
from fray.testing.queue import ManualClock
from fray_queue import FileQueue, HttpQueueServer, MemoryQueue, SqliteQueue, WorkSummary, awork, work


def test_a_batch_is_a_list_and_each_item_has_an_outcome_of_its_own() -> None:
    queue: MemoryQueue[int] = MemoryQueue(max_attempts=1)
    queue.push_many(range(10))
    sizes: list[int] = []

    def fn(items: list[int]) -> list[Any]:
        sizes.append(len(items))
        return [ValueError(item) if item % 5 == 0 else item for item in items]

    summary = work(queue, fn, batch=4, stop_when_empty=True)
    assert sizes == [4, 4, 2]
    assert (summary.done, summary.failed) == (8, 2)
    assert [letter.item for letter in queue.dead_letters()] == [0, 5]


@pytest.mark.parametrize("result", [[1], "text", {"a": 1}])
def test_a_batch_whose_results_fit_no_items_fails_whole(result: object) -> None:
    queue: MemoryQueue[int] = MemoryQueue(max_attempts=1)
    queue.push_many(range(3))
    assert work(queue, lambda items: result, batch=3, stop_when_empty=True).failed == 3


def test_a_batch_that_raises_fails_whole_and_only_what_failed_is_retried() -> None:
    queue: MemoryQueue[int] = MemoryQueue(max_attempts=1)
    queue.push_many(range(3))
    calls: list[list[int]] = []

    def fn(items: list[int]) -> list[Any]:
        calls.append(list(items))
        if len(calls) == 1:
            raise OSError("all of it")
        return [None if item else KeyError(item) for item in items]

    summary = work(queue, fn, batch=3, linger=0.5, retries=2, retry_delay=0.01, stop_when_empty=True)
    assert (summary.done, summary.failed) == (2, 1)
    assert calls[0] == [0, 1, 2]
    assert sorted(item for items in calls[1:] for item in items) == [0, 0, 1, 2]


def test_a_batch_lingers_to_be_full_and_no_longer() -> None:
    queue: MemoryQueue[int] = MemoryQueue()
    queue.push(0)
    batches: list[list[int]] = []
    stop = threading.Event()

    def fn(items: list[int]) -> None:
        batches.append(items)
        if sum(map(len, batches)) == 5:
            stop.set()

    def feed() -> None:
        for number in (1, 2, 3):
            wait_until(lambda: not queue.pending())  # the one before it is in hand
            queue.push(number)
        wait_until(lambda: batches)
        queue.push(4)

    feeder = threading.Thread(target=feed)
    feeder.start()
    started = time.monotonic()
    work(queue, fn, batch=4, linger=2.0, stop=stop)
    feeder.join()
    assert batches == [[0, 1, 2, 3], [4]]
    assert time.monotonic() - started >= 2.0  # the last one waited in vain


def test_a_function_beyond_its_time_limit_loses_its_item_and_keeps_its_slot(
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue: MemoryQueue[str] = MemoryQueue(max_attempts=1)
    queue.push("slow")
    late = threading.Event()
    stop = threading.Event()
    seen: list[str] = []
    summary = WorkSummary()

    def fn(item: str) -> None:
        seen.append(item)
        if item == "slow":
            late.wait(30)
        else:
            stop.set()

    pool = threading.Thread(
        target=work, args=(queue, fn), kwargs={"time_limit": 0.3, "stop": stop, "summary": summary}
    )
    pool.start()
    try:
        assert wait_until(queue.dead_letters)[0].item == "slow"
        assert wait_until(lambda: summary.timed_out) == 1
        assert summary.stuck == 1
        queue.push("next")
        wait_until(lambda: caplog.text.count("it occupies one of 1 slots") >= 2)  # it goes on being logged
        assert seen == ["slow"]
        assert queue.pending() == 1  # the one slot is occupied: nothing is taken that another could have
    finally:
        late.set()
        pool.join(30)
    assert seen == ["slow", "next"]
    assert (summary.done, summary.timed_out, summary.stuck, summary.lost) == (1, 1, 0, 0)


def test_what_was_fetched_ahead_goes_to_others_when_every_slot_is_stuck() -> None:
    queue: MemoryQueue[int] = MemoryQueue(max_attempts=2)
    queue.push_many(range(300))
    late, stop = threading.Event(), threading.Event()
    summary = WorkSummary()

    def fn(item: int) -> None:
        if item == 100:
            late.wait(30)

    options = {"time_limit": 0.2, "stop": stop, "summary": summary, "retry_delay": 30.0}
    pool = threading.Thread(target=work, args=(queue, fn), kwargs=options)
    pool.start()
    try:
        wait_until(lambda: queue.pending() == 199)
        assert {lease.attempt for lease in queue.pop_many(199)} == {1}
        assert not queue.dead_letters()
    finally:
        late.set()
        stop.set()
        pool.join(30)


def test_an_item_that_waits_to_be_tried_again_is_not_fetched_ahead() -> None:
    queue: MemoryQueue[str] = MemoryQueue(max_attempts=1)
    queue.push_many(["poison", "long"])
    calls: list[str] = []

    def fn(item: str) -> None:
        calls.append(item)
        if item == "poison":
            raise ValueError(item)
        time.sleep(3.5)  # longer than what is fetched ahead is kept behind it

    work(queue, fn, retries=1, retry_delay=0.5, stop_when_empty=True)
    assert calls == ["poison", "long", "poison"]
    assert [(letter.item, letter.attempts) for letter in queue.dead_letters()] == [("poison", 1)]


def test_a_process_beyond_its_time_limit_is_killed_with_what_it_started(tmp_path: Path) -> None:
    queue: MemoryQueue[str] = MemoryQueue(max_attempts=1)
    queue.push_many(["slow", "a", "b"])
    note = tmp_path / "pids"

    def fn(item: str) -> None:
        if item == "slow":
            child = subprocess.Popen(["sleep", "600"], start_new_session=True)
            note.write_text(f"{os.getpid()} {child.pid}")
            child.wait()

    summary = work(queue, fn, processes=True, time_limit=2.0, stop_when_empty=True)
    assert (summary.done, summary.timed_out, summary.lost) == (2, 1, 0)
    assert [letter.item for letter in queue.dead_letters()] == ["slow"]
    for pid in note.read_text().split():
        wait_until(lambda path=Path("/proc", pid): not path.exists())  # type: ignore[misc]


SLOW_TO_IMPORT = """
import os, time
while os.getpid() != {pid} and not os.path.exists({gate!r}):
    time.sleep(0.01)
def double(number):
    return 2 * number
"""


def test_the_start_of_a_worker_process_is_no_items_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    (tmp_path / "slow_to_import.py").write_text(SLOW_TO_IMPORT.format(pid=os.getpid(), gate=str(gate)))
    monkeypatch.syspath_prepend(str(tmp_path))
    double = importlib.import_module("slow_to_import").double
    queue: MemoryQueue[int] = MemoryQueue()
    queue.push(21)
    summary = WorkSummary()
    options = {"processes": True, "time_limit": 0.5, "stop_when_empty": True, "summary": summary}
    pool = threading.Thread(target=work, args=(queue, double), kwargs=options)
    pool.start()
    try:
        wait_until(lambda: summary.running)
        time.sleep(1.5)  # three times the limit
        assert (summary.running, summary.timed_out) == (1, 0)
    finally:
        gate.touch()
        pool.join(60)
    assert summary.done == 1


def test_a_worker_process_that_dies_fails_its_item_and_the_next_has_another(tmp_path: Path) -> None:
    queue: MemoryQueue[int] = MemoryQueue()
    queue.push_many(range(6))
    note = tmp_path / "died"

    def fn(item: int) -> int:
        if item == 2 and not note.exists():
            note.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()

    summary = work(queue, fn, processes=True, concurrency=2, stop_when_empty=True)
    assert (summary.done, summary.failed) == (6, 1)


def test_what_a_worker_process_raises_arrives_as_itself(caplog: pytest.LogCaptureFixture) -> None:
    queue: MemoryQueue[int] = MemoryQueue(max_attempts=1)
    queue.push_many([1, 2])

    def fn(item: int) -> None:
        if item == 2:
            os._exit(3)
        raise LookupError("not here")

    assert work(queue, fn, processes=True, stop_when_empty=True).failed == 2
    errors = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert [type(error) for error in errors] == [LookupError, WorkerDiedError]
    assert "exit code 3" in str(errors[1])


def test_what_worker_processes_return_and_raise_is_the_reply(tmp_path: Path) -> None:
    queue: SqliteQueue[int] = SqliteQueue(tmp_path / "q.db", max_attempts=1)
    tickets = queue.push_many([1, 2, 3], reply=True)

    def fn(item: int) -> int:
        if item == 2:
            raise LookupError("no twos")
        return 10 * item

    work(queue, fn, processes=True, stop_when_empty=True)
    assert (tickets[0].result(30), tickets[2].result(30)) == (10, 30)
    with pytest.raises(LookupError, match="no twos"):
        tickets[1].result(30)
    queue.close()


def test_a_function_that_cannot_be_pickled_is_refused_before_an_item_is_taken() -> None:
    queue: MemoryQueue[int] = MemoryQueue()
    queue.push(1)
    lock = threading.Lock()
    with pytest.raises(SerializationError, match="the function given to work"):
        work(queue, lambda item: lock, processes=True)
    assert queue.pending() == 1


def test_an_async_function_runs_in_worker_processes_too() -> None:
    queue: MemoryQueue[int] = MemoryQueue()
    queue.push_many(range(10))

    async def fn(item: int) -> None:
        await asyncio.sleep(0)

    assert work(queue, fn, processes=True, stop_when_empty=True).done == 10


@pytest.mark.parametrize("ending", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("processes", [False, True])
def test_a_function_that_ends_the_program_releases_what_the_pool_holds(
    ending: type[BaseException], processes: bool
) -> None:
    queue: MemoryQueue[int] = MemoryQueue(max_attempts=3)
    queue.push_many(range(500))

    def fn(item: int) -> None:
        if item == 200:
            raise ending

    with pytest.raises(ending):
        work(queue, fn, processes=processes)
    assert queue.pending() == queue.size() == 300
    attempts = [lease.attempt for lease in queue.pop_many(300)]
    assert attempts == [2] + [1] * 299  # what was not begun is as it was


class Counting(MemoryQueue[int]):
    """A queue that counts its calls."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.pops = self.dones = self.extensions = 0
        self.threads: set[str] = set()

    def pop_many(self, n: int, lease_timeout: float = 60.0, *, wait: float = 0.0) -> list[Lease[int]]:
        self.pops += 1
        return super().pop_many(n, lease_timeout, wait=wait)

    def done_many(self, leases: Iterable[Lease[int]], *, results: Iterable[Any] | None = None) -> None:
        self.dones += 1
        super().done_many(leases, results=results)

    def extend_many(self, leases: Iterable[Lease[int]], lease_timeout: float) -> list[Any]:
        self.extensions += 1
        self.threads.add(threading.current_thread().name)
        return super().extend_many(leases, lease_timeout)


def test_short_calls_are_fetched_and_settled_by_the_hundred() -> None:
    queue = Counting()
    queue.push_many(range(5000))
    assert work(queue, lambda item: None, concurrency=4, stop_when_empty=True).done == 5000
    assert queue.pops < 500
    assert queue.dones < 1000


def test_long_calls_are_not_fetched_ahead() -> None:
    queue = Counting()
    queue.push_many(range(6))
    held: list[int] = []

    def fn(item: int) -> None:
        time.sleep(0.4)
        held.append(6 - len(held) - queue.pending())

    work(queue, fn, stop_when_empty=True)
    assert held == [1] * 6


def test_one_heartbeat_keeps_every_lease() -> None:
    twice = threading.Event()
    beats: Counter[str] = Counter()

    class Kept(Counting):
        def extend_many(self, leases: Iterable[Lease[int]], lease_timeout: float) -> list[Any]:
            leases = list(leases)
            found = super().extend_many(leases, lease_timeout)
            beats.update(lease.lease_id for lease in leases)
            if len(beats) == 200 and min(beats.values()) >= 2:
                twice.set()
            return found

    queue = Kept(clock=ManualClock())  # a busy machine lets no lease run out
    queue.push_many(range(200))
    ready = threading.Barrier(200)

    def fn(item: int) -> None:
        ready.wait(60)
        assert twice.wait(60)

    summary = work(queue, fn, concurrency=200, lease_timeout=0.6, stop_when_empty=True)
    assert (summary.done, summary.attempts) == (200, 200)
    assert queue.threads == {"fray-heartbeat"}
    assert queue.extensions < 200  # and not one for each lease at each beat


@pytest.mark.parametrize("kind", ["threads", "asyncio", "function"])
def test_a_pool_ends_when_it_is_asked_to(kind: str) -> None:
    queue: MemoryQueue[int] = MemoryQueue()
    stop: Any = threading.Event()
    if kind == "asyncio":
        stop = asyncio.Event()
    threading.Timer(0.2, stop.set).start()
    assert work(queue, print, stop=stop.is_set if kind == "function" else stop).done == 0


def test_a_pool_that_gets_too_few_threads_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if thread.name == "fray-work-3":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        work(MemoryQueue[int](), str, concurrency=5)
    wait_until(lambda: not [each for each in threading.enumerate() if each.name.startswith("fray-work")])


def test_what_stops_nothing_is_refused() -> None:
    queue: MemoryQueue[int] = MemoryQueue()
    wrong: Any = 5
    with pytest.raises(ValueError, match="stop must be an event"):
        work(queue, print, stop=wrong)
    for options in ({"batch": 0}, {"linger": -1}, {"time_limit": 0}, {"prefetch": -1}, {"retries": 1.5}):
        with pytest.raises(ValueError, match=next(iter(options))):
            work(queue, print, **options)


def test_what_is_no_queue_or_no_function_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"not its URL; open_queue\('memory:'\) opens it"):
        work("memory:", print)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="work needs a function, got 3"):
        work(MemoryQueue(), 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="work needs a function, got None"):
        asyncio.run(awork(MemoryQueue(), None))  # type: ignore[arg-type]


def test_a_summary_can_be_read_meanwhile() -> None:
    queue: MemoryQueue[int] = MemoryQueue()
    queue.push_many(range(4))
    summary, go = WorkSummary(), threading.Event()

    pool = threading.Thread(
        target=work,
        args=(queue, lambda item: go.wait(30)),
        kwargs={"concurrency": 2, "stop_when_empty": True, "summary": summary},
    )
    pool.start()
    wait_until(lambda: summary.running == 2)
    assert (summary.in_hand, summary.done) == (2, 0)
    go.set()
    pool.join(30)
    assert (summary.done, summary.running, summary.in_hand, summary.settled) == (4, 0, 0, 4)
    assert summary.seconds_in_work > 0
    assert summary.ended_at is not None
    assert summary.per_second == pytest.approx(4 / (summary.ended_at - summary.started_at))


INTERRUPTED = """
import signal, sys, threading, time
from fray_queue import FileQueue, work
queue = FileQueue(sys.argv[1])
untold = False
def noticed(number, frame):
    global untold
    print("noticed", flush=True)
    untold = True
    signal.default_int_handler(number, frame)
wait = threading.Event.wait
def waiting(event, timeout=None):  # of `work` for its pool, once the interrupt was raised in it
    global untold
    if untold and threading.current_thread() is threading.main_thread():
        untold = False
        print("waits", flush=True)
    return wait(event, timeout)
threading.Event.wait = waiting
signal.signal(signal.SIGINT, noticed)
def fn(item):
    print("started", flush=True)
    time.sleep(600)
try:
    work(queue, fn, grace=float(sys.argv[2]))
except KeyboardInterrupt:
    print("interrupted", queue.pending(), flush=True)
"""


@pytest.mark.parametrize(("grace", "interrupts"), [("0.2", 1), ("600", 2)])
def test_ctrl_c_gives_back_what_is_under_way(tmp_path: Path, grace: str, interrupts: int) -> None:
    queue: FileQueue[int] = FileQueue(tmp_path / "q")
    queue.push_many(range(3))
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path / "q"), grace]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "started\n"
            for _ in range(interrupts):
                process.send_signal(signal.SIGINT)
                assert process.stdout.readline() == "noticed\n"  # two at once would be one
                assert process.stdout.readline() == "waits\n"  # for the grace
            assert process.stdout.readline() == "interrupted 3\n"
            assert process.wait(20) == 0
        finally:
            process.kill()


def test_an_interrupt_while_the_pool_is_started_leaves_no_pool_at_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue: MemoryQueue[int] = MemoryQueue()
    queue.push_many(range(3))
    start, started, stop = threading.Thread.start, list[threading.Thread](), threading.Event()

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == "fray-work":
            started.append(thread)
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            work(queue, lambda item: None, stop=stop)
        started[0].join(10)
        assert not started[0].is_alive()
        assert queue.pending() == 3
    finally:
        stop.set()


# --- awork ---


def test_coroutines_share_one_thread() -> None:
    queue: MemoryQueue[int] = MemoryQueue()
    queue.push_many(range(3000))
    at_once, most, threads, full = 0, 0, set(), asyncio.Event()

    async def fn(item: int) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        threads.add(threading.get_ident())
        if at_once == 1000:
            full.set()
        await asyncio.wait_for(full.wait(), 60.0)
        await asyncio.sleep(0)
        at_once -= 1

    summary = asyncio.run(awork(queue, fn, concurrency=1000, stop_when_empty=True))
    assert (summary.done, len(threads), queue.size()) == (3000, 1, 0)
    assert most == 1000


def test_a_coroutine_beyond_its_time_limit_is_cancelled() -> None:
    queue: MemoryQueue[int] = MemoryQueue(max_attempts=1)
    queue.push_many([1, 2])
    cancelled: list[int] = []

    async def fn(item: int) -> None:
        try:
            await asyncio.sleep(600 if item == 1 else 0)
        except asyncio.CancelledError:
            cancelled.append(item)
            raise

    summary = asyncio.run(awork(queue, fn, time_limit=0.2, stop_when_empty=True))
    assert cancelled == [1]
    assert (summary.done, summary.timed_out, summary.failed) == (1, 1, 0)
    assert [letter.item for letter in queue.dead_letters()] == [1]


@pytest.mark.parametrize("kind", ["memory", "sqlite", "http"])
def test_a_cancelled_pool_gives_everything_back(kind: str, tmp_path: Path) -> None:
    async def main(queue: Any) -> None:
        begun = asyncio.Semaphore(0)

        async def fn(item: int) -> None:
            begun.release()
            await asyncio.sleep(600)

        pool = asyncio.create_task(awork(queue, fn, concurrency=20))
        for _ in range(20):
            await begun.acquire()
        pool.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pool
        assert queue.pending() == queue.size() == 50

    with HttpQueueServer() as server:
        queue: Any
        if kind == "memory":
            queue = MemoryQueue()
        else:
            queue = SqliteQueue(tmp_path / "q.db") if kind == "sqlite" else server.new_queue("q")
        queue.push_many(range(50))
        asyncio.run(main(queue))
        if kind != "memory":
            queue.close()


def test_a_pool_that_is_cancelled_twice_gives_everything_back() -> None:
    queue: MemoryQueue[int] = MemoryQueue()
    queue.push_many(range(50))

    async def main() -> None:
        begun = asyncio.Event()

        async def fn(item: int) -> None:
            begun.set()
            await asyncio.sleep(600)

        pool = asyncio.create_task(awork(queue, fn, concurrency=20))
        await begun.wait()
        pool.cancel()
        await asyncio.sleep(0)  # it has begun to return its items
        pool.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pool
        async with asyncio.timeout(30):
            while queue.pending() < 50:
                await asyncio.sleep(0.01)

    asyncio.run(main())


def test_batches_of_coroutines() -> None:
    queue: MemoryQueue[int] = MemoryQueue()
    queue.push_many(range(100))
    sizes: list[int] = []

    async def fn(items: list[int]) -> list[int]:
        sizes.append(len(items))
        await asyncio.sleep(0)
        return items

    assert asyncio.run(awork(queue, fn, batch=32, concurrency=2, stop_when_empty=True)).done == 100
    assert sorted(sizes) == [4, 32, 32, 32]


def test_the_program_of_a_coroutine_that_exits_ends() -> None:
    queue: MemoryQueue[int] = MemoryQueue()
    queue.push_many(range(3))

    async def fn(item: int) -> None:
        raise SystemExit(4)

    with pytest.raises(SystemExit):
        asyncio.run(awork(queue, fn))
    assert queue.pending() == 3


def test_listeners_learn_how_a_pool_goes() -> None:
    class Received:
        def __init__(self) -> None:
            self.events: list[Event] = []

        def on_event(self, event: Event, /) -> None:
            self.events.append(event)

    clock = ManualClock()
    queue: MemoryQueue[int] = MemoryQueue(max_attempts=1, clock=clock)
    queue.push_many(range(10))
    clock.advance(2.5)

    def fn(item: int) -> None:
        if item == 3:
            raise ValueError("secret")

    received = Received()
    with use_listener(received):
        work(queue, fn, stop_when_empty=True)
    (report,) = [event for event in received.events if event.kind is EventKind.POOL_REPORTED]
    assert report.name == "MemoryQueue"
    counts = {name: report.details[name] for name in ("done", "failed", "attempts", "in_hand", "stuck")}
    assert counts == {"done": 9, "failed": 1, "attempts": 10, "in_hand": 0, "stuck": 0}
    assert report.details["queue_ms"] == 2500
    assert report.details["per_second"]
    assert "secret" not in str(report)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_the_age_of_the_oldest_item_is_that_of_who_was_pushed_first(kind: str, tmp_path: Path) -> None:
    clock = ManualClock()
    queue: MemoryQueue[str] | SqliteQueue[str]
    queue = MemoryQueue(clock=clock) if kind == "memory" else SqliteQueue(tmp_path / "q.db", clock=clock)
    assert queue.oldest_seconds() is None
    queue.push("a")
    clock.advance(3.0)
    queue.push("b")
    lease = queue.pop()
    assert lease is not None
    assert queue.oldest_seconds() == pytest.approx(3.0, abs=0.01)
    queue.done(lease)
    clock.advance(1.0)
    assert queue.oldest_seconds() == pytest.approx(1.0, abs=0.01)


def test_an_outage_is_reported_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    class Away(MemoryQueue[int]):
        failures = 3

        def pop_many(self, n: int, lease_timeout: float = 60.0, *, wait: float = 0.0) -> list[Lease[int]]:
            if self.failures:
                self.failures -= 1
                raise ConnectionError("away")
            return super().pop_many(n, lease_timeout, wait=wait)

    queue = Away()
    queue.push(1)
    with caplog.at_level(logging.INFO, logger="fray.queue"):
        summary = work(queue, lambda item: None, stop_when_empty=True)
    assert (summary.done, summary.queue_failures) == (1, 3)
    assert caplog.text.count("the queue failed, and the call is repeated: ConnectionError: away") == 3
    assert "the queue answers again" in caplog.text
