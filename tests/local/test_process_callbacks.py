"""What a context calls back, or unpickles, may use the context, and may fail, without harm to it."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fray import JobContext, create_context, get_job_context


@pytest.fixture
def context() -> Iterator[JobContext]:
    with create_context("process", max_workers=2) as context:
        yield context


class Broken:
    """Arrives nowhere: unpickling it ends as if a file had."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _end_of_file, ()


def _end_of_file() -> None:
    raise EOFError("nothing can be made of it")


def chained(context: JobContext) -> int:
    """Let the callback of a future run a task and wait for it."""
    results: list[int] = []
    done = threading.Event()

    def go_on(future: Any) -> None:
        results.append(context.get(context.run(abs, -10 * future.result()), timeout=20))
        done.set()

    context.as_executor().submit(abs, -1).add_done_callback(go_on)
    assert done.wait(30)
    return results[0]


def chained_here() -> int:
    return chained(get_job_context())


def meet_a_broken_value() -> tuple[str, int]:
    context = get_job_context()
    future = context.as_executor().submit(Broken)
    try:
        found = repr(future.result(timeout=20))
    except EOFError as error:
        found = str(error)
    return found, context.get(context.run(abs, -1), timeout=20)


def test_a_callback_uses_the_context(context: JobContext) -> None:
    assert chained(context) == 10
    assert context.get(context.run(abs, -2), timeout=30) == 2


def test_so_does_one_in_a_worker(context: JobContext) -> None:
    assert context.get(context.run(chained_here), timeout=60) == 10


def test_a_value_that_cannot_be_unpickled_in_a_worker_is_the_futures_error(context: JobContext) -> None:
    assert context.get(context.run(meet_a_broken_value), timeout=60) == ("nothing can be made of it", 1)
