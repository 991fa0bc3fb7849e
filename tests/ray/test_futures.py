"""Futures of other libraries that are passed to tasks, and those of an executor, whatever their values do."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from fray import JobContext, SerializationError, TaskError, create_context
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
