"""Futures of other libraries that are passed to tasks, and those of an executor, whatever their values do."""

import asyncio
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fray import JobContext, SerializationError, TaskError, create_context
from fray.testing.gates import Gate
from fray.testing.tasks import fail
from fray_ray.testing import LocalRayCluster


@pytest.fixture
def context(ray_cluster: LocalRayCluster) -> Iterator[JobContext]:
    with create_context(f"ray?address={ray_cluster.address}") as context:
        yield context


def test_a_value_that_cannot_travel_fails_the_task_that_waits_for_it(context: JobContext) -> None:
    future: Future[Any] = Future()
    ref = context.run(repr, future)
    future.set_result(threading.Lock())
    with pytest.raises(SerializationError, match="the value of a future"):
        context.get(ref, timeout=200)


class Sealed:
    """Can be pickled, and not be unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return fail, ("sealed",)


def test_a_value_that_cannot_be_unpickled_fails_the_task_that_waits_for_it(context: JobContext) -> None:
    future: Future[Any] = Future()
    ref = context.run(repr, future)
    future.set_result(Sealed())
    with pytest.raises(TaskError, match="sealed"):
        context.get(ref, timeout=200)


class Slow:
    """Is unpickled, in the process that made it, when a gate opens."""

    def __init__(self, gate: Gate, started: Gate) -> None:
        self.gate, self.started, self.pid = gate, started, os.getpid()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if os.getpid() == self.pid:
            self.started.open()
            self.gate.wait()


class Asking:
    """Waits for a task when it is unpickled, in the process that made it."""

    def __init__(self, context: JobContext) -> None:
        self.context, self.pid = context, os.getpid()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if os.getpid() == self.pid:
            self.answer = self.context.get(self.context.run(abs, -3), timeout=200)


def same(value: Any) -> Any:
    return value


def test_a_result_may_wait_for_a_task_while_it_is_unpickled(context: JobContext) -> None:
    assert context.as_executor().submit(same, Asking(context)).result(200).answer == 3
    assert asyncio.run(context.aget(context.run(same, Asking(context)), timeout=200)).answer == 3


def test_tasks_end_while_a_result_is_unpickled(context: JobContext, tmp_path: Path) -> None:
    started, gate = Gate(tmp_path / "started"), Gate(tmp_path / "gate")
    slow = context.as_executor().submit(same, Slow(gate, started))
    started.wait()
    assert context.wait([context.run(abs, -1)], timeout=200)[0]
    assert not slow.done()
    gate.open()
    assert slow.result(200).pid == os.getpid()


def test_a_reference_that_is_the_value_arrives_as_its_own_value_or_failure(context: JobContext) -> None:
    good: Future[Any] = Future()
    bad: Future[Any] = Future()
    refs = [context.run(repr, good), context.run(repr, bad)]
    good.set_result(context.run(abs, -3))
    bad.set_result(context.run(fail, "in its task"))
    assert context.get(refs[0], timeout=200) == "3"
    with pytest.raises(ValueError, match="in its task"):
        context.get(refs[1], timeout=200)


def test_threads_that_pass_their_first_futures_at_the_same_time_get_both(context: JobContext) -> None:
    context.get(context.run(abs, -1))
    futures: list[Future[int]] = [Future() for _ in range(8)]
    all_there = threading.Barrier(len(futures))

    def passed(future: "Future[int]") -> Any:
        all_there.wait()
        return context.run(repr, future)

    with ThreadPoolExecutor(len(futures)) as pool:
        refs = list(pool.map(passed, futures))
    for number, future in enumerate(futures):
        future.set_result(number)
    assert context.get(refs, timeout=200) == list("01234567")
