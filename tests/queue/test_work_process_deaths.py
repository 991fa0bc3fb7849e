"""A worker process that ends fails the items that it has begun, once, and no other."""

import errno
import importlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from at_work import at_work
from queue_processes import wait_until

from fray import TaskError, WorkerDiedError
from fray_queue import MemoryQueue


def test_a_worker_that_dies_when_it_is_idle_fails_nothing() -> None:
    queue: MemoryQueue[str] = MemoryQueue(max_attempts=1)
    with at_work(queue, lambda item: os.getpid(), processes=True) as summary:
        first = queue.push("a", reply=True).result(30)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: has_ended(first))
        assert queue.push("b", reply=True).result(30) != first
    assert (summary.done, summary.failed, summary.attempts) == (2, 0, 2)


def has_ended(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def is_exchanging() -> bool:
    """Whether the pool's thread sends an item to its worker, or waits for what that says."""
    (ident,) = [thread.ident for thread in threading.enumerate() if thread.name == "fray-work-0"]
    return sys._current_frames()[ident or 0].f_code.co_name in ("_send_all", "_exactly")


def noting(note: Path) -> Callable[[str], int]:
    """A function that notes its items, and returns the process that it ran in."""

    def fn(item: str) -> int:
        with note.open("a") as file:
            file.write(item)
        return os.getpid()

    return fn


@pytest.mark.parametrize("size", [1, 10_000_000])  # the latter is more than waits in a socket
def test_a_worker_that_dies_before_it_has_taken_its_item_fails_nothing(tmp_path: Path, size: int) -> None:
    queue: MemoryQueue[str] = MemoryQueue(max_attempts=1)
    note = tmp_path / "note"
    with at_work(queue, noting(note), processes=True) as summary:
        first = queue.push("a", reply=True).result(30)
        os.kill(first, signal.SIGSTOP)  # it takes nothing any more
        ticket = queue.push("b" * size, reply=True)
        wait_until(is_exchanging)
        os.kill(first, signal.SIGKILL)
        assert ticket.result(30) != first
    assert (summary.done, summary.failed, summary.attempts) == (2, 0, 2)
    assert note.stat().st_size == 1 + size


@pytest.mark.parametrize("leave", ["fork", "program"])
def test_a_worker_that_dies_fails_its_item_though_it_left_a_process_behind(
    leave: str, tmp_path: Path
) -> None:
    queue: MemoryQueue[str] = MemoryQueue(max_attempts=1)
    note = tmp_path / "note"

    def fn(item: str) -> None:
        if leave == "program":
            left = subprocess.Popen(["sleep", "600"], close_fds=False).pid
        elif not (left := os.fork()):
            time.sleep(600)
            os._exit(0)
        note.write_text(str(left))
        os.kill(os.getpid(), signal.SIGKILL)

    with at_work(queue, fn, processes=True):
        ticket = queue.push("x", reply=True)
        with pytest.raises(WorkerDiedError):
            ticket.result(30)
        wait_until(lambda: has_ended(int(note.read_text())))


class OfOneProcess:
    """An item that no other process can load."""

    def __init__(self) -> None:
        self.pid = os.getpid()

    def __setstate__(self, state: dict[str, int]) -> None:
        if state["pid"] != os.getpid():
            raise RuntimeError("another process made it")
        self.__dict__.update(state)


@pytest.mark.parametrize("batch", [1, 3])
def test_an_item_that_a_worker_cannot_load_fails_alone(batch: int) -> None:
    def length(items: Any) -> Any:
        return len(items) if batch == 1 else [len(item) for item in items]

    queue: MemoryQueue[Any] = MemoryQueue(max_attempts=1)
    tickets = queue.push_many(["a", OfOneProcess(), "ccc"], reply=True)
    with at_work(queue, length, processes=True, concurrency=1, batch=batch) as summary:
        assert tickets[0].result(30) == 1
        assert tickets[2].result(30) == 3
        with pytest.raises((RuntimeError, ModuleNotFoundError)):  # nor can it find this module, as a rule
            tickets[1].result(30)
    assert (summary.done, summary.failed) == (2, 1)


def test_an_item_that_kills_its_worker_is_begun_once_and_fails_once(tmp_path: Path) -> None:
    queue: MemoryQueue[str] = MemoryQueue(max_attempts=1)
    note = tmp_path / "note"

    def fn(item: str) -> str:
        with note.open("a") as file:
            file.write(item)
        if item == "x":
            os.kill(os.getpid(), signal.SIGKILL)
        return item

    with at_work(queue, fn, processes=True) as summary:
        assert queue.push("a", reply=True).result(30) == "a"
        with pytest.raises(WorkerDiedError, match="SIGKILL"):
            queue.push("x", reply=True).result(30)
        assert queue.push("b", reply=True).result(30) == "b"
    assert note.read_text() == "axb"
    assert (summary.done, summary.failed) == (2, 1)


IN_WORKERS = """
import os, threading
here = os.environ["FRAY_TEST_POOL"]
loading, go = threading.Event(), threading.Event()
def late():
    loading.set()
    go.wait(60)
def deadly(note):
    if str(os.getpid()) != here:
        with open(note, "a") as file:
            file.write("x")
        os._exit(3)
    return Deadly(note)
class Deadly:
    def __init__(self, note):
        self.note = note
    def __reduce__(self):
        return deadly, (self.note,)
def only_in_workers(kind, note):
    if str(os.getpid()) == here:
        raise ImportError("only workers have this class")
    return kind(note)
class Foreign:
    def __init__(self, note):
        self.note = note
    def __reduce__(self):
        return only_in_workers, (Foreign, self.note)
class ForeignError(Exception):
    def __reduce__(self):
        return only_in_workers, (ForeignError, *self.args)
def answer_in_a_foreign_class(item):
    if item == "raise":
        raise ForeignError(item)
    return Foreign(item) if item == "return" else item
class Late:
    def __reduce__(self):
        return late, ()
def answer(item):
    return Late() if item == "late" else item
"""


@pytest.fixture
def in_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module that worker processes can import, too."""
    (tmp_path / "in_workers.py").write_text(IN_WORKERS)
    monkeypatch.setenv("FRAY_TEST_POOL", str(os.getpid()))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("in_workers")
    del sys.modules["in_workers"]


def test_an_item_whose_loading_kills_its_worker_is_loaded_once(tmp_path: Path, in_workers: Any) -> None:
    queue: MemoryQueue[Any] = MemoryQueue(max_attempts=1)
    with at_work(queue, in_workers.answer, processes=True) as summary:
        with pytest.raises(WorkerDiedError, match="exit code 3"):
            queue.push(in_workers.Deadly(str(tmp_path / "note")), reply=True).result(30)
        assert queue.push("b", reply=True).result(30) == "b"
    assert (tmp_path / "note").read_text() == "x"
    assert (summary.done, summary.failed) == (1, 1)


def test_what_the_pool_cannot_load_of_a_worker_fails_its_item_alone(in_workers: Any) -> None:
    """It may be of a class that only workers can import."""
    queue: MemoryQueue[str] = MemoryQueue(max_attempts=1)
    with at_work(queue, in_workers.answer_in_a_foreign_class, processes=True) as summary:
        for item, error in (("return", ImportError), ("raise", TaskError)):
            with pytest.raises(error, match="only workers"):
                queue.push(item, reply=True).result(30)
        queue.push("return")  # nobody waits for it: it need not be loaded
        assert queue.push("b", reply=True).result(30) == "b"
    assert (summary.done, summary.failed) == (2, 2)


def test_a_worker_whose_answer_came_as_its_time_was_over_fails_no_other(in_workers: Any) -> None:
    queue: MemoryQueue[str] = MemoryQueue(max_attempts=1)
    with at_work(queue, in_workers.answer, processes=True, time_limit=2.0) as summary:
        queue.push("late", reply=True)  # only what somebody waits for is loaded
        assert in_workers.loading.wait(30)  # the pool has the answer
        wait_until(lambda: summary.timed_out)
        in_workers.go.set()
        assert queue.push("next", reply=True).result(30) == "next"
    assert (summary.done, summary.timed_out, summary.failed) == (1, 1, 0)


def test_an_item_that_went_back_before_its_worker_had_it_is_not_begun(tmp_path: Path) -> None:
    """Its worker is killed, and no other gets what may be another pool's by now."""
    queue: MemoryQueue[str] = MemoryQueue(max_attempts=1)
    note = tmp_path / "note"
    with at_work(queue, noting(note), processes=True, time_limit=2.0) as summary:
        first = queue.push("a", reply=True).result(30)
        os.kill(first, signal.SIGSTOP)
        queue.push("x")
        wait_until(lambda: summary.timed_out)
        assert queue.push("b", reply=True).result(30) != first
    assert note.read_text() == "ab"
    assert (summary.done, summary.timed_out, summary.failed) == (2, 1, 0)


def test_a_worker_that_cannot_be_started_fails_no_item(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where the limit of processes is reached for a while."""
    queue: MemoryQueue[str] = MemoryQueue(max_attempts=1)
    started, refusals = subprocess.Popen, [BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))] * 3

    def start(*arguments: Any, **options: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return started(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", start)
    with at_work(queue, str.upper, processes=True) as summary:
        assert queue.push("a", reply=True).result(30) == "A"
    assert (summary.done, summary.failed) == (1, 0)
    assert sum("no worker process can be started" in record.message for record in caplog.records) == 3


SHORT_OF_MEMORY = """
import resource, sys, threading
from fray_queue import MemoryQueue, work

def fn(size):
    return b"x" * size

def most_used():  # MiB of memory that the pool has ever had at a time
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) >> 10 for line in file if line.startswith("VmHWM"))

if __name__ == "__main__":
    queue, stop = MemoryQueue(max_attempts=1), threading.Event()
    options = {"processes": True, "stop": stop}
    pool = threading.Thread(target=work, args=(queue, fn), kwargs=options, daemon=True)
    pool.start()
    queue.push(1, reply=True).result(30)  # the worker has started, and has no limit
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    before = most_used()
    resource.setrlimit(resource.RLIMIT_AS, (used + (40 << 20), resource.RLIM_INFINITY))
    large = queue.push(90 << 20, reply=True)
    try:
        large.result(30)
    except MemoryError:
        print("no memory", most_used() - before)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print([len(queue.push(size, reply=True).result(30)) for size in (2, 3)])
    stop.set()
    pool.join()
"""


def test_a_result_that_the_pool_has_no_memory_for_fails_its_item_alone(tmp_path: Path) -> None:
    """It takes nothing of the memory that there is: the pool's other threads need that."""
    (tmp_path / "program.py").write_text(SHORT_OF_MEMORY)
    ended = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    found = re.fullmatch(r"no memory (\d+)\n\[2, 3\]\n", ended.stdout)
    assert found, ended.stderr
    assert int(found[1]) < 20
