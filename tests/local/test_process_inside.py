"""What tasks do with their context: its references, futures and lists are those that the owner would have."""

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from fray import JobContext, WorkerDiedError, create_context, get_job_context
from fray.job import ObjectRef
from fray.testing.gates import Gate

positive: Callable[..., int] = abs  # which says that it takes numbers, and the next one a path
touch: Callable[..., None] = Path.touch


@pytest.fixture
def context() -> Iterator[JobContext]:
    with create_context("process", max_workers=2) as context:
        yield context


def said(word: str, count: int) -> Iterator[str]:
    for index in range(count):
        yield f"{word}{index}"


def read_stream(word: str, count: int) -> list[ObjectRef[str]]:
    """Return the items of a stream, unread."""
    return list(get_job_context().run(said, word, count))


def test_items_that_tasks_of_two_contexts_read_are_not_mixed_up(context: JobContext) -> None:
    with create_context("process", max_workers=1) as other:
        ours, theirs = context.run(read_stream, "a", 3), other.run(read_stream, "b", 3)
        context.wait([ours])
        other.wait([theirs])
        assert context.get(context.get(ours)) == ["a0", "a1", "a2"]
        assert other.get(other.get(theirs)) == ["b0", "b1", "b2"]


def wait_for_a_future() -> list[ObjectRef[int]]:
    """Return a reference of a task whose argument nobody settles."""
    context, future = get_job_context(), Future[int]()
    ref = context.run(positive, future)
    context.get(context.run(abs, -1))  # the owner did before what was said before
    return [ref]


def wait_for_a_future_and_die() -> None:
    wait_for_a_future()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.timeout(60)
def test_what_waits_for_a_future_of_a_worker_that_was_replaced_fails() -> None:
    with create_context("process", max_workers=1, max_tasks_per_worker=1) as context:
        [ref] = context.get(context.run(wait_for_a_future))
        with pytest.raises(WorkerDiedError, match=r"whose future this waited for .*exit code 0"):
            context.get(ref)


@pytest.mark.timeout(60)
def test_what_waits_for_a_future_of_a_worker_that_was_killed_does_not_hold_up_the_end() -> None:
    with create_context("process", max_workers=1) as context, pytest.raises(WorkerDiedError):
        context.get(context.run(wait_for_a_future_and_die))


@pytest.mark.timeout(60)
def test_a_future_of_the_executor_is_cancelled_with_its_task(tmp_path: Path) -> None:
    def cancel_two() -> list[bool]:
        context = get_job_context()
        executor, late = context.as_executor(), Future[Path]()
        one, other = executor.submit(touch, late), executor.submit(touch, late)
        cancelled = [one.cancel(), one.cancelled()]
        executor.shutdown(cancel_futures=True)
        late.set_result(tmp_path / "touched")
        context.get(context.run(abs, -1))  # the tasks would have run before
        return [*cancelled, other.cancelled(), (tmp_path / "touched").exists()]

    with create_context("process", max_workers=1) as context:
        assert context.get(context.run(cancel_two)) == [True, True, True, False]


def give_up_and_compute(ran: Gate) -> bool:
    """Wait in vain for a future, then run another task and compute; return whether that ran meanwhile."""
    context, future = get_job_context(), Future[int]()
    waiting = context.run(positive, future)

    async def wait_in_vain() -> None:
        for _ in range(3):
            with contextlib.suppress(TimeoutError):
                await context.aget(waiting, timeout=0.02)

    asyncio.run(wait_in_vain())
    other = context.run(ran.open)
    end = time.monotonic() + 1
    while time.monotonic() < end:
        pass
    ran_meanwhile = ran.is_open()
    future.set_result(-1)
    assert context.get([waiting, other], timeout=30) == [1, None]
    return ran_meanwhile


def test_a_task_that_gave_up_waiting_has_its_worker_slot_again(tmp_path: Path) -> None:
    with create_context("process", max_workers=1) as context:
        ran = Gate(tmp_path / "ran")
        assert context.get(context.run(give_up_and_compute, ran), timeout=60) is False


def test_wait_counts_what_stands_in_its_list_twice_as_the_owner_does(context: JobContext) -> None:
    def wait_for_two() -> list[int]:
        context = get_job_context()
        first, second = Future[int](), Future[int]()
        one, other = context.run(positive, first), context.run(positive, second)

        def settle() -> None:
            second.set_result(-2)
            context.wait([other])
            first.set_result(-1)

        threading.Timer(0.1, settle).start()  # so that the others are waited for when one is ready
        ready, pending = context.wait([one, one, other], num_returns=2)
        return [*context.get(ready), len(pending)]

    assert context.get(context.run(wait_for_two), timeout=60) == [1, 1, 1]
