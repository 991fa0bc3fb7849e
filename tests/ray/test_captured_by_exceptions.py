"""References and handles that an exception holds, where it is caught."""

import gc
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
import ray as typed_ray

from fray import JobContext, create_context, get_job_context
from fray_ray.testing import LocalRayCluster

ray: Any = typed_ray  # Ray's own annotations know nothing of other libraries' types
SOON = 120.0  # seconds that a `get` may take on a machine that is busy


@pytest.fixture
def context(ray_cluster: LocalRayCluster) -> Iterator[JobContext]:
    with create_context(f"ray?address={ray_cluster.address}") as context:
        yield context


class Adder:
    """An actor, in a process of its own."""

    def add(self, number: int) -> int:
        return number + 1


class PartialResult(Exception):
    """Has the reference of what was done."""

    def __init__(self, ref: Any) -> None:
        super().__init__("some of it")
        self.ref = ref


def fails(*_: Any) -> None:
    raise PartialResult(get_job_context().run(pow, 2, 6))


def fails_by_cause() -> None:
    try:
        fails()
    except PartialResult as cause:
        raise ValueError("all of it") from cause


@pytest.mark.parametrize("task", [fails, fails_by_cause])
def test_the_reference_in_an_exception_is_read_where_it_is_caught(
    context: JobContext, task: Callable[..., Any]
) -> None:
    error = failure(context, context.run(task))
    while not isinstance(error, PartialResult):
        assert error.__cause__ is not None
        error = error.__cause__
    assert context.get(error.ref, timeout=SOON) == 64


def failure(context: JobContext, ref: Any) -> BaseException:
    with pytest.raises((PartialResult, ValueError)) as caught:
        context.get(ref, timeout=SOON)
    return caught.value


def test_the_handle_in_an_exception_is_called_where_it_is_caught(context: JobContext) -> None:
    def fails_with_actor() -> None:
        raise PartialResult(get_job_context().create_actor(Adder))

    error: Any = failure(context, context.run(fails_with_actor))
    assert context.get(error.ref.add(2), timeout=SOON) == 3


def test_the_reference_in_an_exception_passes_a_task_and_an_actor(context: JobContext) -> None:
    class Failing:
        def fail(self) -> None:
            fails()

    actor = context.create_actor(Failing)
    error: Any = failure(context, context.run(pow, actor.fail(), 2))
    assert context.get(error.ref, timeout=SOON) == 64


def test_the_reference_in_the_exception_of_a_future_is_read_where_it_is_caught(context: JobContext) -> None:
    future: Future[Any] = Future()
    result = context.run(str, future)
    future.set_exception(PartialResult(context.run(pow, 2, 7)))
    del future
    gc.collect()
    error: Any = failure(context, result)
    assert context.get(error.ref, timeout=SOON) == 128


def test_an_exception_that_is_raised_again_and_again_grows_by_its_traceback(context: JobContext) -> None:
    class Failing:
        def __init__(self) -> None:
            self.error = ValueError("always this one")

        def call(self) -> None:
            raise self.error

    actor = context.create_actor(Failing, name="failing")  # which plain Ray code calls, too
    handle = ray.get_actor("failing", namespace=context.namespace)  # type: ignore[attr-defined]

    def size() -> int:
        with pytest.raises(ValueError, match="always this one") as raised:
            ray.get(handle.call.remote(), timeout=SOON)
        error: Any = raised.value
        return len(pickle.dumps(error.cause))

    sizes = [size() for _ in range(31)]
    assert sizes[30] - sizes[20] < 1.5 * (sizes[20] - sizes[10])  # Python adds a line for each raise
    context.kill(actor)
