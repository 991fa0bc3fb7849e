"""Async actors whose program cancels what it finds in their loop, or ends the loop."""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from fray import ActorDiedError, ActorOptions, JobContext, TaskCancelledError, create_context
from fray.testing.deadline import deadline
from fray.testing.gates import Gate

SPECS = ["sync", "threadpool?max_workers=2", "process?max_workers=2"]


@pytest.fixture(params=SPECS)
def context(request: pytest.FixtureRequest) -> Iterator[JobContext]:
    with create_context(request.param) as context:
        yield context


class Waiter:
    """An async actor whose methods wait, and are cancelled from inside."""

    async def forever(self) -> None:
        await asyncio.Event().wait()

    async def of_a_cancelled_task(self) -> None:
        inner = asyncio.ensure_future(asyncio.Event().wait())
        inner.cancel()
        await inner

    async def cancel_all(self, count: int) -> int:
        """Cancel every other task of the loop, once there are so many."""
        while len(others := asyncio.all_tasks() - {asyncio.current_task()}) < count:
            await asyncio.sleep(0.001)
        for task in others:
            task.cancel()
        return len(others)

    async def answer(self) -> int:
        return 42

    async def stop_the_loop(self) -> None:
        asyncio.get_running_loop().stop()
        await asyncio.Event().wait()

    async def leave_by_a_task(self) -> None:
        async def leave() -> None:
            sys.exit(3)

        await asyncio.gather(asyncio.ensure_future(leave()), asyncio.Event().wait())


class TestAsyncActors:
    def test_one_that_cancels_all_tasks_of_its_loop_lives_on(self, context: JobContext) -> None:
        actor = context.create_actor(Waiter)
        waiting = actor.forever()
        assert context.get(actor.answer(), timeout=60) == 42
        assert context.get(actor.cancel_all(1), timeout=60) == 1
        with pytest.raises(TaskCancelledError):
            context.get(waiting, timeout=60)
        assert context.get(actor.answer(), timeout=60) == 42

    def test_a_call_that_is_cancelled_before_its_turn_is_answered(self, context: JobContext) -> None:
        actor = context.create_actor(Waiter, options=ActorOptions(max_concurrency=2))
        first = actor.forever()
        cancelling = actor.cancel_all(4)
        waiting = [actor.forever() for _ in range(3)]
        assert context.get(cancelling, timeout=60) == 4
        for call in [first, *waiting]:
            with pytest.raises(TaskCancelledError):
                context.get(call, timeout=60)
        assert context.get(actor.answer(), timeout=60) == 42

    def test_a_method_that_awaits_a_cancelled_task_reads_cancelled(self, context: JobContext) -> None:
        actor = context.create_actor(Waiter)
        with pytest.raises(TaskCancelledError):
            context.get(actor.of_a_cancelled_task(), timeout=60)
        assert context.get(actor.answer(), timeout=60) == 42

    @pytest.mark.parametrize("end", ["stop_the_loop", "leave_by_a_task"])
    def test_one_that_ends_its_loop_is_dead(self, context: JobContext, end: str) -> None:
        actor = context.create_actor(Waiter)
        waiting = actor.forever()
        for call in (getattr(actor, end), lambda: waiting, actor.answer):
            with pytest.raises(ActorDiedError):
                context.get(call(), timeout=60)


class Leaver:
    """An async actor that leaves something running in the background."""

    async def leave(self, what: str, started: Gate, gate: Gate) -> None:
        work = asyncio.to_thread(_hold, started, gate) if what == "a thread" else _generate(started)
        self.work = asyncio.create_task(work)
        while not started.is_open():
            await asyncio.sleep(0.01)


def _hold(started: Gate, gate: Gate) -> None:
    started.open()
    gate.wait()


async def _generate(started: Gate) -> None:
    async def endless() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await asyncio.Event().wait()

    _kept.append(endless())
    await anext(_kept[0])
    started.open()


_kept: list[Any] = []


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("what", ["a thread", "an async generator that does not close"])
def test_what_an_actor_leaves_running_holds_up_the_end_for_a_while_only(
    spec: str, what: str, tmp_path: Path
) -> None:
    started, gate = Gate(tmp_path / "started"), Gate(tmp_path / "gate")
    try:
        with deadline(40), create_context(spec) as context:
            context.get(context.create_actor(Leaver).leave(what, started, gate))
    finally:
        gate.open()
        _kept.clear()


@pytest.mark.parametrize("spec", ["sync", "threadpool?max_workers=2"])
def test_a_thread_that_an_actor_left_and_that_ends_soon_is_waited_for(spec: str, tmp_path: Path) -> None:
    started, gate = Gate(tmp_path / "started"), Gate(tmp_path / "gate")
    with deadline(40), create_context(spec) as context:
        context.get(context.create_actor(Leaver).leave("a thread", started, gate))
        threading.Timer(0.5, gate.open).start()
    assert gate.is_open()
