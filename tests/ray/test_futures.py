"""Futures of other libraries that are passed to tasks, and those of an executor, whatever their values do."""

import asyncio
import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from ray.util.state import list_actors, list_objects

from fray import JobContext, SerializationError, TaskError, WorkerDiedError, create_context
from fray.testing.gates import Gate, until
from fray.testing.interrupting import interrupted
from fray.testing.tasks import fail
from fray_ray._context.io_thread import on_io_thread
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


def numbers() -> Iterator[int]:
    yield from range(3)


def test_a_stream_is_dropped_while_a_result_is_unpickled(context: JobContext, tmp_path: Path) -> None:
    """As whatever the collector finds meanwhile: results arrive all the same."""
    started, gate = Gate(tmp_path / "started"), Gate(tmp_path / "gate")
    stream = context.run(numbers)
    slow = context.as_executor().submit(same, Slow(gate, started))
    started.wait()
    del stream
    arrived, _ = context.wait([context.run(abs, -1)], timeout=200)
    gate.open()
    assert arrived
    assert slow.result(200).pid == os.getpid()


class Costly:
    """Takes a while to be unpickled."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        time.sleep(0.03)


def costly() -> Costly:
    made = Costly()
    made.__dict__["size"] = 1  # without state nothing would be called
    return made


def test_threads_that_fetch_results_are_few_however_many_results_there_are(context: JobContext) -> None:
    """Ray unpickles one value at a time: more threads would only wait for each other."""
    seen: list[int] = []

    def look(_: "Future[Any]") -> None:
        seen.append(sum(thread.name == "fray-callbacks" for thread in threading.enumerate()))

    executor = context.as_executor()
    futures = [executor.submit(costly) for _ in range(150)]
    for future in futures:
        future.add_done_callback(look)
    for future in futures:
        future.result(200)
    assert max(seen) < 30, seen


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


MIB = 2**20


def large_here(cluster: LocalRayCluster) -> int:
    """How many large objects of the store this process keeps."""
    stored = list_objects(address=cluster.dashboard, limit=10_000, timeout=200, raise_on_missing_output=False)
    return len({each.object_id for each in stored if each.pid == os.getpid() and each.object_size >= MIB})


def test_values_that_were_awaited_leave_the_store(context: JobContext, ray_cluster: LocalRayCluster) -> None:
    before = large_here(ray_cluster)

    async def read() -> int:
        return sum([len(await context.aget(context.run(bytes, MIB))) for _ in range(20)])

    assert asyncio.run(read()) == 20 * MIB
    executor = context.as_executor()
    assert sum(len(executor.submit(bytes, MIB).result(200)) for _ in range(20)) == 20 * MIB
    until(lambda: large_here(ray_cluster) <= before, "the store has none of them")


def distance(number: Any) -> int:
    """For what is passed as a future, or as a reference, and arrives as a number."""
    return abs(int(number))


def futures_here() -> int:
    gc.collect()
    return sum(isinstance(one, Future) for one in gc.get_objects())


def test_waits_that_were_given_up_leave_nothing(context: JobContext) -> None:
    never: Future[int] = Future()
    ref = context.run(distance, never)

    async def give_up(times: int) -> None:
        for _ in range(times):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(context.aget(ref), 0.005)

    asyncio.run(give_up(2))
    before = futures_here()
    asyncio.run(give_up(50))
    left = futures_here() - before
    never.set_result(-7)
    assert left <= 2
    assert asyncio.run(context.aget(ref, timeout=200)) == 7


def test_all_who_wait_for_a_reference_get_its_value(context: JobContext) -> None:
    given: Future[int] = Future()
    ref = context.run(distance, given)

    async def read() -> list[Any]:
        waits = [asyncio.ensure_future(context.aget(ref)) for _ in range(20)]
        await asyncio.sleep(0)
        for wait in waits[::2]:
            wait.cancel()
        given.set_result(-7)
        return await asyncio.gather(*waits[1::2])

    assert asyncio.run(read()) == [7] * 10


@pytest.mark.parametrize("known", ["at once", "late"])
def test_a_future_that_is_passed_when_the_process_that_kept_others_has_died_arrives(
    context: JobContext, ray_cluster: LocalRayCluster, known: str
) -> None:
    from job_processes import gcs, paused  # here: workers import this file, and no helpers

    def keeping() -> set[int]:
        filters: Any = [("class_name", "=", "FrayPromises"), ("state", "=", "ALIVE")]
        actors = list_actors(address=ray_cluster.dashboard, filters=filters, detail=True, timeout=200)
        return {actor.pid for actor in actors if actor.pid}

    lost: Future[int] = Future()
    later: Future[int] = Future()
    try:
        others = keeping()  # of contexts that have just ended
        ref = context.run(distance, lost)
        kept = until(lambda: keeping() - others, "it runs")
        # Where the head says it late, Ray tells callers of a lost connection only.
        with paused(gcs()) if known == "late" else contextlib.nullcontext():
            for pid in kept:
                os.kill(pid, signal.SIGKILL)
            context.wait([ref], timeout=5.0)  # Ray asks the head for one second
        with pytest.raises(WorkerDiedError, match="future"):
            context.get(ref, timeout=200)
        ref = context.run(distance, later)
    finally:
        lost.set_result(-1)
        later.set_result(-2)
    assert context.get(ref, timeout=200) == 2


def test_a_call_may_come_while_a_future_is_made(context: JobContext) -> None:
    """As that of a signal handler or a finalizer; other futures become ready meanwhile."""
    submit: Callable[..., Future[int]] = context.as_executor().submit
    futures: list[Future[int]] = []

    def call() -> None:
        futures.extend(submit(abs, -1) for _ in range(2))
        assert context.get(context.run(abs, -2), timeout=200) == 2

    call()
    ours = "fray_ray"  # Ray itself takes locks that an interruption must not come into
    lines = interrupted(call, call, 0, ours)
    for line in range(1, lines + 1):
        interrupted(call, call, line, ours)
    assert {future.result(200) for future in futures} == {1}


def test_a_wait_on_the_thread_that_receives_results_raises(context: JobContext) -> None:
    """The collector may run a finalizer there; if it waited, nothing would arrive any more."""
    ref = context.run(abs, -1)
    waits: list[Callable[[], object]] = [lambda: context.get(ref), lambda: context.wait([ref])]
    for wait in waits:
        with pytest.raises(RuntimeError, match="on a thread of its own"):
            on_io_thread(wait)
    assert context.get(ref, timeout=200) == 1


class SlowError(Exception):
    """Is unpickled, in the process that made it, when a gate opens."""

    def __init__(self, gate: Gate, started: Gate) -> None:
        super().__init__(gate, started)
        self.slow = Slow(gate, started)


def raised(error: Exception) -> None:
    raise error


def test_tasks_end_while_an_exception_is_unpickled(context: JobContext, tmp_path: Path) -> None:
    started, gate = Gate(tmp_path / "started"), Gate(tmp_path / "gate")
    slow = context.as_executor().submit(raised, SlowError(gate, started))
    started.wait()
    assert context.wait([context.run(abs, -1)], timeout=200)[0]
    assert not slow.done()
    gate.open()
    assert slow.exception(200) is not None
