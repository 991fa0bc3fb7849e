"""Workers killed at random while they work: right results, nothing lost, nothing left behind."""

import contextlib
import gc
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from torture_tasks import AGAIN, LARGE, Adder, add, by_tasks, count_up, enlarge, measure, square

from fray import ActorDiedError, ActorOptions, JobContext, WorkerDiedError, create_context
from fray.testing.gates import until

TASKS = 20_000 * int(os.environ.get("TORTURE", "1"))
BATCH = 500  # submitted together, then read
RESULTS = 40  # that come in, at the least, between two kills: or no worker would live to do anything


class Killer:
    """Kills some worker, an actor's among them, now and then until the block is left."""

    def __init__(self) -> None:
        self.killed = 0
        self._chance = random.Random(7)
        self._results = threading.Semaphore(0)
        self._stopped = False
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Killer":
        self._thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._stopped = True
        self._results.release(RESULTS)
        self._thread.join()

    def result(self) -> None:
        """Take note that a result has come in."""
        self._results.release()

    def _run(self) -> None:
        while True:
            for _ in range(RESULTS):
                self._results.acquire()
            if self._stopped:
                return
            time.sleep(self._chance.uniform(0, 0.01))  # so that it hits them at any point
            victims = [worker for server in _children() for worker in server.children()]
            if victims:
                with contextlib.suppress(psutil.NoSuchProcess):
                    self._chance.choice(victims).kill()
                    self.killed += 1


def _children() -> list[psutil.Process]:
    return psutil.Process().children()


def _held() -> set[str]:
    """What this process holds that could leak: children, threads, descriptors with what is behind them."""
    gc.collect()
    found = {f"child {child.pid}" for child in _children()}
    found |= {f"thread {thread.name}" for thread in threading.enumerate()}
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found.add(f"{fd.name} -> {fd.readlink()}")
    return found


class Load:
    """One batch of mixed work, and what has to come out of it."""

    def __init__(self, context: JobContext, adder: Any, chance: random.Random) -> None:
        self._context, self._adder, self._chance = context, adder, chance
        self._expected: list[tuple[Any, int]] = []
        self._streams: list[tuple[Any, int]] = []
        self._calls: list[tuple[Any, int]] = []
        self.broken = 0  # streams and calls that a death ended, as it may

    def submit(self, count: int) -> None:
        kinds = ["task", "chain", "nested", "large", "stream", "call"]
        for kind in self._chance.choices(kinds, [70, 10, 4, 2, 2, 12], k=count):
            getattr(self, f"_{kind}")(self._chance.randrange(1000))

    def check(self, result: Callable[[], None]) -> None:
        """Read everything; call `result` with each."""
        for ref, value in self._expected:
            assert self._context.get(ref, timeout=60) == value
            result()
        for stream, number in self._streams:
            self._check_stream(stream, number)
            result()
        for call, value in self._calls:
            result()
            try:
                assert self._context.get(call, timeout=60) == value
            except ActorDiedError:
                self.broken += 1

    def _task(self, number: int) -> None:
        ref = self._context.create_task(square, number, options=AGAIN)
        self._expected.append((ref, number * number))

    def _chain(self, number: int) -> None:
        ref, value = self._expected[-1] if self._expected else (number, number)
        self._expected.append((self._context.create_task(add, ref, number, options=AGAIN), value + number))

    def _nested(self, number: int) -> None:
        ref = self._context.create_task(by_tasks, number, options=AGAIN)
        self._expected.append((ref, sum(square(number + step) for step in range(3))))

    def _large(self, number: int) -> None:
        made = self._context.create_task(enlarge, number, options=AGAIN)
        ref = self._context.create_task(measure, made, options=AGAIN)
        self._expected.append((ref, number % 256 + LARGE))

    def _stream(self, number: int) -> None:
        self._streams.append((self._context.run(count_up, number), number))

    def _call(self, number: int) -> None:
        self._calls.append((self._adder.add(number, 1), number + 1))

    def _check_stream(self, stream: Any, number: int) -> None:
        seen = []
        try:
            for item in stream:
                seen.append(self._context.get(item, timeout=60))  # noqa: PERF401 - what came before counts
        except WorkerDiedError:
            self.broken += 1
            assert seen == list(range(number, number + len(seen)))
        else:
            assert seen == list(range(number, number + 20))


@pytest.mark.timeout(600 * int(os.environ.get("TORTURE", "1")))
def test_whatever_is_killed_results_are_right_and_nothing_is_left() -> None:
    with create_context("process", max_workers=2) as context:
        context.get(context.run(square, 1))  # what is made once per process is there before the count
    before = _held()
    chance = random.Random(8)
    broken = 0
    with create_context("process", max_workers=4) as context, Killer() as killer:
        adder = context.create_actor(Adder, options=ActorOptions(max_restarts=10_000))
        batches = 0
        while batches < TASKS // BATCH or killer.killed <= TASKS // 1000:  # a busy machine kills seldom
            load = Load(context, adder, chance)
            load.submit(BATCH)
            load.check(killer.result)
            broken += load.broken
            batches += 1
    assert broken < batches * BATCH // 10
    until(lambda: _held() <= before, "everything is given back")
