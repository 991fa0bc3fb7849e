"""A method of an actor that waits for very much that is pending, on each context."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fray import DeadlockError, JobContext, create_context, get_job_context
from fray.testing.deadline import deadline
from fray.testing.gates import Gate


@pytest.fixture(params=["sync", "threadpool?max_workers=2", "process?max_workers=2"])
def context(request: pytest.FixtureRequest) -> Iterator[JobContext]:
    with deadline(100), create_context(request.param) as context:
        yield context


class Source:
    """An async actor whose value is there once a gate is open."""

    async def value(self, gate: Gate) -> int:
        while not gate.is_open():
            await asyncio.sleep(0.01)
        return 1


def most(*numbers: int) -> int:
    return max(numbers)


class Waiter:
    def __init__(self, source: Any, gate: Gate) -> None:
        self.source, self.gate = source, gate

    def chain(self, length: int) -> int:
        context, value = get_job_context(), self.source.value(self.gate)
        for _ in range(length):
            value = context.run(most, value)
        return self._get(value)

    def pairs(self, layers: int) -> int:
        context, value = get_job_context(), self.source.value(self.gate)
        left = right = value
        for _ in range(layers):
            left, right = context.run(most, left, right), context.run(most, right, left)
        return self._get(left)

    def _get(self, ref: Any) -> int:
        threading.Timer(0.5, self.gate.open).start()  # by then this waits
        value: int = get_job_context().get(ref)
        return value


def test_for_a_long_chain_of_tasks(context: JobContext, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    waiter = context.create_actor(Waiter, context.create_actor(Source), gate)
    assert context.get(waiter.chain(10_000)) == 1


def test_for_tasks_that_are_reached_on_many_ways(context: JobContext, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    waiter = context.create_actor(Waiter, context.create_actor(Source), gate)
    assert context.get(waiter.pairs(40)) == 1


class Entangled:
    """An actor whose method waits for a later call of its own, behind what others have to do before."""

    def __init__(self, source: Any, gate: Gate) -> None:
        self.source, self.gate = source, gate

    def wait_for_own(self, me: Any, layers: int) -> None:
        context = get_job_context()
        left = right = self.source.value(self.gate)
        for _ in range(layers):
            left, right = context.run(most, left, right), context.run(most, right, left)
        context.get(context.run(most, left, me.number(), right))

    def number(self) -> int:
        return 2


def test_a_wait_that_can_never_end_is_refused_soon(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    with deadline(60), create_context("sync") as context:
        actor = context.create_actor(Entangled, context.create_actor(Source), gate)
        call = actor.wait_for_own(actor, 40)
        gate.open()
        with pytest.raises(DeadlockError, match="call the method directly on self"):
            context.get(call)
