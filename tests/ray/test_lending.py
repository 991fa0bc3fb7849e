"""A task's CPU goes to others while the task waits for them, whichever of its threads does."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fray import JobContext, create_context, get_job_context
from fray.testing.gates import Gate, until
from fray.testing.tasks import hold
from fray_ray.testing import LocalRayCluster


@pytest.fixture
def narrow(ray_cluster: LocalRayCluster) -> Iterator[JobContext]:
    """One node has 3 CPUs, no other has as many: no task runs beside one that keeps its own."""
    with create_context(f"ray?address={ray_cluster.address}&num_cpus=3") as context:
        yield context


def by_futures(count: int) -> int:
    executor = get_job_context().as_executor()
    futures = [executor.submit(pow, 2, number) for number in range(count)]
    return sum(future.result() for future in futures)


def by_a_pool(count: int) -> int:
    here = get_job_context()
    with ThreadPoolExecutor(count) as pool:
        return sum(pool.map(lambda number: here.get(here.run(pow, 2, number)), range(count)))


def by_wait_in_a_thread(count: int) -> int:
    here, found = get_job_context(), []

    def wait() -> None:
        refs = [here.run(pow, 2, number) for number in range(count)]
        found.extend(here.wait(refs, num_returns=count)[0])

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    return int(sum(here.get(found)))


def by_a_loop_of_its_own(count: int) -> int:
    here = get_job_context()

    async def main() -> int:
        return sum(await here.aget([here.run(pow, 2, number) for number in range(count)]))

    return asyncio.run(main())


def by_a_get_of_some_that_are_there(count: int) -> int:
    here = get_job_context()

    def get() -> int:
        there = here.run(pow, 2, 0)
        here.get(there)
        return sum(here.get([there, *(here.run(pow, 2, number) for number in range(1, count))]))

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(get).result()


def by_a_loop_of_some_that_are_there(count: int) -> int:
    return asyncio.run(asyncio.to_thread(by_a_get_of_some_that_are_there, count))


def by_threads_beside_a_loop(count: int) -> int:
    executor = get_job_context().as_executor()

    async def main() -> int:
        futures = [executor.submit(pow, 2, number) for number in range(count)]
        return sum([await asyncio.to_thread(future.result) for future in futures])

    return asyncio.run(main())


@pytest.mark.parametrize(
    "fn",
    [
        by_futures,
        by_a_pool,
        by_wait_in_a_thread,
        by_a_get_of_some_that_are_there,
        by_a_loop_of_its_own,
        by_a_loop_of_some_that_are_there,
        by_threads_beside_a_loop,
    ],
)
def test_a_main_thread_that_waits_for_who_waits_lends_the_cpu(narrow: JobContext, fn: Any) -> None:
    assert narrow.get(narrow.run(fn, 3), timeout=200) == 7


def test_a_main_thread_with_work_of_its_own_goes_on_while_another_thread_waits(
    ray_cluster: LocalRayCluster, tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "gate")

    def work_beside_a_wait() -> bool:
        here, looks = get_job_context(), iter(range(100))
        thread = threading.Thread(target=lambda: here.get(here.run(gate.wait)))
        thread.start()
        until(lambda: next(looks) == 99, "some work is done")
        gate.open()  # what the other thread's task waits for
        thread.join()
        return not thread.is_alive()

    with create_context(f"ray?address={ray_cluster.address}") as context:
        assert context.get(context.run(work_beside_a_wait), timeout=200)


async def work_beside(gate: Gate) -> float:
    """Return how long an event loop takes for quick work, the least of three, while it awaits a task."""
    here, started = get_job_context(), Gate(gate.path.with_name("started"))
    held = asyncio.ensure_future(here.aget(here.run(hold, gate, started)))
    while not started.is_open():
        await asyncio.sleep(0.05)
    spent = []
    for _ in range(3):
        start = time.monotonic()
        for _ in range(20):
            await asyncio.to_thread(time.sleep, 0.001)
            await asyncio.sleep(0.001)
        spent.append(time.monotonic() - start)
    gate.open()
    await held
    return min(spent)


def work_beside_in_a_loop_of_its_own(gate: Gate) -> float:
    return asyncio.run(work_beside(gate))


@pytest.mark.parametrize("fn", [work_beside, work_beside_in_a_loop_of_its_own])
def test_a_loop_that_lends_the_cpu_notices_at_once_what_arrives(
    narrow: JobContext, tmp_path: Path, fn: Any
) -> None:
    assert (
        narrow.get(narrow.run(fn, Gate(tmp_path / "gate")), timeout=200) < 2
    )  # of 5 with a look 4 times a second
