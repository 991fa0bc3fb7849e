"""What a pool meets in its process: forks, signals, event loops that end, no memory, no descriptors."""

import asyncio
import concurrent.futures
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from at_work import at_work
from queue_processes import wait_until

from fray import LeaseExpiredError
from fray.queue import Lease
from fray_queue import MemoryQueue, WorkSummary, awork, work

FORKING = """
import os, sys, threading, time
from fray_queue import MemoryQueue, work

def fn(item):
    number, ending = item
    if ending and not (child := os.fork()):
        if ending == "raise":
            raise ValueError("in the child")
        if ending == "exit":
            sys.exit(3)
        return "of the child"
    return number, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if ending else None

if __name__ == "__main__":
    queue, stop = MemoryQueue(max_attempts=1), threading.Event()
    options = {"processes": sys.argv[1] == "processes", "stop": stop, "grace": 1.0}
    pool = threading.Thread(target=work, args=(queue, fn), kwargs=options, daemon=True)
    pool.start()
    items = enumerate(["return", "raise", "exit", None])
    print([queue.push(item, reply=True).result(20) for item in items])
    stop.set()
    pool.join()
"""


def run(tmp_path: Path, program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, "program.py", *arguments]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize("where", ["threads", "processes"])
def test_a_process_that_a_function_forks_ends_where_the_function_does(tmp_path: Path, where: str) -> None:
    """It is no worker: what it returns is no answer, and it waits for no item."""
    ended = run(tmp_path, FORKING, where)
    assert ended.stdout == "[(0, 0), (1, 1), (2, 3), (3, None)]\n", ended.stderr
    assert "ValueError: in the child" in ended.stderr


SIGNALLED = """
import os, signal, subprocess, sys, threading
from fray.backend import descendants
from fray_queue import MemoryQueue, WorkSummary, work

def fn(item):
    child = subprocess.Popen(["sleep", "600"])
    if not (forked := os.fork()):
        signal.pause()
    open("begun", "w").close()
    while not os.path.exists("go"):
        signal.sigtimedwait([], 0.05)
    child.terminate()
    os.kill(forked, signal.SIGTERM)
    return child.wait(), os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1])

def signal_all():
    while not os.path.exists("begun"):
        signal.sigtimedwait([], 0.05)
    (worker,) = [pid for pid in descendants(os.getpid()) if os.getsid(pid) == pid]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        os.kill(worker, number)
    os.kill(os.getpid(), signal.SIGTERM)
    open("go", "w").close()

if __name__ == "__main__":
    queue, summary = MemoryQueue(max_attempts=1), WorkSummary()
    ticket = queue.push("a", reply=True)
    threading.Thread(target=signal_all, daemon=True).start()
    work(queue, fn, processes=True, summary=summary)
    print(ticket.result(0), summary.done, summary.failed)
"""


def test_a_signal_to_all_processes_of_a_service_leaves_workers_their_grace(tmp_path: Path) -> None:
    """What a function starts or forks has the default actions."""
    ended = run(tmp_path, SIGNALLED)
    assert ended.stdout == f"({-signal.SIGTERM}, {-signal.SIGTERM}) 1 0\n", ended.stderr


def test_a_handler_of_sigterm_that_could_not_be_put_back_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that a library in C has set, of which Python knows nothing."""
    real, found = signal.getsignal, []
    before = real(signal.SIGTERM)
    queue: MemoryQueue[str] = MemoryQueue()
    queue.push("a")
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    work(queue, lambda item: found.append(real(signal.SIGTERM)), stop_when_empty=True)
    assert found == [before]


SHORT_OF_MEMORY = """
import resource, sys, threading
from fray_queue import MemoryQueue, work

def limit(free):
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + free, resource.RLIM_INFINITY))

def fn(item):
    where, size = item
    if where == "worker":
        limit(150 << 20)
    elif where == "after":
        limit(1 << 40)
    return b"x" * size

if __name__ == "__main__":
    where = sys.argv[1]
    queue, stop = MemoryQueue(max_attempts=1), threading.Event()
    options = {"processes": True, "stop": stop}
    pool = threading.Thread(target=work, args=(queue, fn), kwargs=options, daemon=True)
    pool.start()
    queue.push(("before", 1), reply=True).result(30)
    if where == "pool":
        limit(130 << 20)
    try:
        queue.push((where, (90 if where == "pool" else 60) << 20), reply=True).result(30)
    except MemoryError:
        print("no memory")
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(queue.push(("after", 3), reply=True).result(30))
    stop.set()
    pool.join()
"""


@pytest.mark.parametrize("where", ["pool", "worker"])
def test_a_result_whose_copy_finds_no_memory_fails_its_item_alone(tmp_path: Path, where: str) -> None:
    ended = run(tmp_path, SHORT_OF_MEMORY, where)
    assert ended.stdout == "no memory\nb'xxx'\n", ended.stderr


SHORT_OF_DESCRIPTORS = """
import os, resource, threading, time
from fray.backend import descendants
from fray_queue import MemoryQueue, WorkSummary, work

def fn(item):
    if item:
        open("begun", "w").close()
        time.sleep(item)

if __name__ == "__main__":
    queue, summary, stop = MemoryQueue(max_attempts=1), WorkSummary(), threading.Event()
    options = {"processes": True, "time_limit": 3.0, "summary": summary, "stop": stop}
    pool = threading.Thread(target=work, args=(queue, fn), kwargs=options, daemon=True)
    pool.start()
    queue.push(0, reply=True).result(30)
    (worker,) = [pid for pid in descendants(os.getpid()) if os.getsid(pid) == pid]
    queue.push(1000)
    while not os.path.exists("begun"):
        time.sleep(0.05)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    deadline = time.monotonic() + 30
    while not summary.timed_out and time.monotonic() < deadline:
        time.sleep(0.05)
    for each in held:
        os.close(each)
    queue.push(0, reply=True).result(30)
    lives = worker in descendants(os.getpid())
    stop.set()
    pool.join()
    print(lives, summary.timed_out, summary.done)
"""


def test_a_worker_is_killed_where_no_descriptor_is_left(tmp_path: Path) -> None:
    ended = run(tmp_path, SHORT_OF_DESCRIPTORS)
    assert ended.stdout == "False 1 2\n", ended.stderr
    assert "may run on: OSError: [Errno 24]" in ended.stderr


async def forever(item: Any) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("is_main", [True, False])
def test_a_pool_whose_event_loop_ends_gives_its_items_back(is_main: bool) -> None:
    """`asyncio.run` cancels all tasks when its main one has ended, those of the pool too."""
    queue: MemoryQueue[int] = MemoryQueue()
    queue.push_many(range(6))
    summary = WorkSummary()

    async def main() -> None:
        pool = asyncio.create_task(awork(queue, forever, concurrency=3, summary=summary))
        while summary.running < 3:
            await asyncio.sleep(0.01)
        if is_main:
            pool.cancel()
            await asyncio.wait([pool])

    asyncio.run(main())
    assert (queue.pending(), summary.released, summary.failed, summary.lost) == (6, 3, 0, 0)


class Hanging(MemoryQueue[int]):
    """A queue whose first request to finish items is under way until the test ends, and finishes none."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go = threading.Event(), threading.Event()

    def done_many(self, leases: Any, *, results: Any = None) -> None:
        if not self.asked.is_set():
            self.asked.set()
            self.go.wait(60)
            return
        super().done_many(leases, results=results)


def test_items_whose_settling_ended_with_the_event_loop_are_settled_again() -> None:
    queue, summary = Hanging(), WorkSummary()
    queue.push(1)

    async def main() -> None:
        pool = asyncio.create_task(awork(queue, asyncio.sleep, summary=summary))
        await asyncio.to_thread(queue.asked.wait, 60)
        assert not pool.done()

    try:
        asyncio.run(main())
        assert (summary.done, summary.lost, queue.size()) == (1, 0, 0)
    finally:
        queue.go.set()


def test_a_pool_in_an_event_loop_that_is_closed_extends_no_lease() -> None:
    queue: MemoryQueue[int] = MemoryQueue()
    queue.push(1)
    summary = WorkSummary()

    async def main() -> None:
        asyncio.get_running_loop().create_task(awork(queue, forever, lease_timeout=1.0, summary=summary))
        while not summary.running:
            await asyncio.sleep(0.01)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    del loop
    gc.collect()
    assert queue.pop(wait=30) is not None
    assert (summary.in_hand, summary.lost) == (0, 1)


class Cancelling(MemoryQueue[int]):
    """A queue whose calls raise CancelledError once, as a future of a client library may."""

    def __init__(self, failing: str) -> None:
        super().__init__()
        self.failing = failing

    def _fail(self, call: str) -> None:
        if self.failing == call:
            self.failing = ""
            raise concurrent.futures.CancelledError

    def pop_many(self, n: int, lease_timeout: float = 60.0, *, wait: float = 0.0) -> list[Lease[int]]:
        self._fail("pop_many")
        return super().pop_many(n, lease_timeout, wait=wait)

    def done_many(self, leases: Any, *, results: Any = None) -> None:
        self._fail("done_many")
        super().done_many(leases, results=results)


@pytest.mark.parametrize("call", ["pop_many", "done_many"])
def test_a_queue_that_cancels_a_call_of_its_own_is_asked_again(call: str) -> None:
    queue = Cancelling(call)
    queue.push_many(range(3))
    summary = work(queue, lambda item: None, stop_when_empty=True)
    assert (summary.done, summary.lost, summary.queue_failures) == (3, 0, 1)


def test_a_pool_of_which_one_task_is_cancelled_ends_with_an_error() -> None:
    queue: MemoryQueue[int] = MemoryQueue()

    async def main() -> None:
        pool = asyncio.create_task(awork(queue, forever))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {asyncio.current_task(), pool}:
            task.cancel()
        await pool

    with pytest.raises(RuntimeError, match="a task of the pool was cancelled"):
        asyncio.run(main())


@contextmanager
def broken_log() -> Iterator[None]:
    class Broken(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            raise ZeroDivisionError("broken filter")

    broken, logger = Broken(), logging.getLogger("fray.queue")
    logger.addFilter(broken)
    try:
        yield
    finally:
        logger.removeFilter(broken)


async def refused(item: str) -> None:
    raise ValueError(item)


@pytest.mark.parametrize("retries", [0, 1])
def test_what_fails_in_the_pool_itself_ends_it(retries: int) -> None:
    """A filter of the program's log, say. Its items are in the queue; no pool has them in hand for ever."""
    queue: MemoryQueue[str] = MemoryQueue()
    queue.push("a")
    with broken_log():
        with pytest.raises(ZeroDivisionError, match="broken filter"):
            work(queue, refused, retries=retries, retry_delay=0.0)
        assert queue.pending() == 1
        with pytest.raises(ZeroDivisionError, match="broken filter"):
            asyncio.run(awork(queue, refused, retries=retries, retry_delay=0.0))
        assert queue.pending() == 1


class Panic(BaseException):
    """As a panic of a library in Rust."""


class Panicking(MemoryQueue[str]):
    """A queue whose first extension fails."""

    extensions = 0

    def extend_many(self, leases: Any, lease_timeout: float = 60.0) -> Any:
        self.extensions += 1
        if self.extensions == 1:
            raise Panic("broken")
        return super().extend_many(leases, lease_timeout)


@pytest.mark.parametrize("is_log_broken", [True, False])
def test_leases_are_extended_after_an_extension_that_failed_badly(is_log_broken: bool) -> None:
    queue = Panicking()
    queue.push("a")

    def fn(item: str) -> None:
        wait_until(lambda: queue.extensions >= 3)

    with broken_log() if is_log_broken else nullcontext():
        summary = work(queue, fn, lease_timeout=3.0, stop_when_empty=True)
    assert (summary.done, summary.lost) == (1, 0)


def test_what_fails_while_a_pool_ends_leaves_no_worker_and_no_item(tmp_path: Path) -> None:
    """The time limit passes in the grace period, and the log that it is reported in is broken."""
    queue: MemoryQueue[int] = MemoryQueue()
    queue.push(600)
    note, stop = tmp_path / "worker", threading.Event()

    def fn(item: int) -> None:
        note.write_text(f"{os.getpid()} ")
        time.sleep(item)

    def stop_when_begun() -> None:
        wait_until(lambda: note.exists() and note.read_text().endswith(" "))
        stop.set()

    stopping = threading.Thread(target=stop_when_begun)
    stopping.start()
    with broken_log(), pytest.raises(ZeroDivisionError, match="broken filter"):
        work(queue, fn, processes=True, time_limit=3.0, stop=stop)
    stopping.join()
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)
    assert queue.pending() == 1


def test_two_pools_do_not_count_in_one_summary() -> None:
    queue: MemoryQueue[str] = MemoryQueue()
    queue.push("a")
    with at_work(queue, str.upper) as summary:
        wait_until(lambda: summary.done == 1)
        with pytest.raises(ValueError, match="another pool counts in this summary"):
            work(queue, str.upper, summary=summary)
    queue.push("b")
    work(queue, str.upper, summary=summary, stop_when_empty=True)  # one after the other
    assert (summary.done, summary.in_hand) == (2, 0)


def test_a_list_that_has_another_length_than_it_says_fails_its_batch() -> None:
    class Results(list[Any]):
        def __len__(self) -> int:
            return 3

    queue: MemoryQueue[int] = MemoryQueue(max_attempts=1)
    queue.push_many(range(3))
    summary = work(queue, lambda items: Results([1]), batch=3, stop_when_empty=True)
    assert (summary.failed, summary.lost) == (3, 0)


def test_an_async_function_cannot_say_whether_to_stop() -> None:
    async def stop() -> bool:
        return False

    queue: MemoryQueue[str] = MemoryQueue()
    with pytest.raises(ValueError, match="cannot be the async function"):
        work(queue, str.upper, stop=stop)  # type: ignore[arg-type]


class LosesLeases(MemoryQueue[Any]):
    """A queue in which no lease lasts until its first extension: another has finished the item by then."""

    def extend_many(self, leases: Any, lease_timeout: float) -> Any:
        self.done_many(leases)
        return [LeaseExpiredError(lease.lease_id) for lease in leases]


@pytest.mark.parametrize("when", ["while it is worked on", "while it rests"])
def test_what_failed_is_not_tried_again_under_a_lost_lease(
    when: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Another pool has the item, or will; two would work on it."""
    seen: list[int] = []

    def fn(item: int) -> None:
        seen.append(item)
        if when == "while it is worked on":
            wait_until(lambda: "its lease was lost" in caplog.text)
        raise ValueError(item)

    queue = LosesLeases()
    queue.push(1)
    with at_work(queue, fn, retries=1, retry_delay=4.0, lease_timeout=0.3) as summary:
        wait_until(lambda: summary.settled)
    assert (summary.lost, summary.in_hand, seen) == (1, 0, [1])
