"""An actor in a process of its own has what it asks for, as long as it lives."""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fray import ActorDiedError, DeadlockError, TaskOptions, UnsupportedError, create_context
from fray.job import ActorOptions, JobContext
from fray.testing.gates import Gate, until
from fray.testing.tasks import add

pytestmark = pytest.mark.timeout(120)
LICENCE = {"licence": 1}
TASK = TaskOptions(resources={**LICENCE, "CPU": 0})
PATIENCE = 60.0


class Member:
    def gpus(self) -> str:
        return os.environ["CUDA_VISIBLE_DEVICES"]

    def pid(self) -> int:
        return os.getpid()


@pytest.fixture
def context() -> Iterator[JobContext]:
    with create_context("process", max_workers=2, resources=LICENCE) as context:
        yield context


def holder(context: JobContext, **options: Any) -> Any:
    """An actor that has the licence."""
    actor = context.create_actor(Member, options=ActorOptions(resources=LICENCE, **options))
    context.get(actor.pid(), timeout=PATIENCE)
    return actor


def waits(context: JobContext, ref: Any) -> bool:
    """Whether a call has not run, though others that came after it have."""
    context.get(context.run(abs, -1), timeout=PATIENCE)
    return context.wait([ref], timeout=0.1) == ([], [ref])


class TestGpus:
    @pytest.fixture
    def context(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobContext]:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
        with create_context("process", max_workers=2) as context:
            yield context

    def test_each_actor_finds_its_own_and_a_task_what_is_left(self, context: JobContext) -> None:
        one = ActorOptions(resources={"GPU": 1})
        first = context.create_actor(Member, options=one)
        own = context.get(first.gpus(), timeout=PATIENCE)
        task = context.create_task(
            os.getenv, "CUDA_VISIBLE_DEVICES", options=TaskOptions(resources={"GPU": 1})
        )
        other = context.get(task, timeout=PATIENCE)
        second = context.create_actor(Member, options=one)
        assert {own, other} == {"0", "1"}
        assert context.get(second.gpus(), timeout=PATIENCE) == other

    def test_they_stay_with_an_actor_that_is_made_again(self, context: JobContext) -> None:
        options = ActorOptions(resources={"GPU": 1}, max_restarts=1)
        first, second = (context.create_actor(Member, options=options) for _ in range(2))
        before = context.get([first.gpus(), second.gpus()], timeout=PATIENCE)
        os.kill(context.get(first.pid()), signal.SIGKILL)
        until(lambda: _answers(context, first), "it is made again")
        assert context.get([first.gpus(), second.gpus()], timeout=PATIENCE) == before

    def test_a_detached_actor_finds_its_own(self, context: JobContext) -> None:
        options = ActorOptions(name="detached", lifetime="detached", resources={"GPU": 1})  # type: ignore[arg-type]
        actor = context.create_actor(Member, options=options)
        assert context.get(actor.gpus(), timeout=PATIENCE) in {"0", "1"}
        context.kill(actor)

    def test_a_fraction_is_refused(self, context: JobContext) -> None:
        with pytest.raises(UnsupportedError, match=r"an actor asks for GPU=0\.5"):
            context.create_actor(Member, options=ActorOptions(resources={"GPU": 0.5}))


def _answers(context: JobContext, actor: Any) -> bool:
    try:
        return bool(context.get(actor.pid()))
    except ActorDiedError:
        return False


def test_a_task_waits_until_the_actor_has_ended(context: JobContext) -> None:
    actor = holder(context)
    task = context.create_task(add, 1, options=TASK)
    assert waits(context, task)
    context.kill(actor)
    assert context.get(task, timeout=PATIENCE) == 2


def test_an_actor_waits_until_the_task_has_ended(context: JobContext, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    task = context.create_task(gate.wait, options=TASK)
    call = context.create_actor(Member, options=ActorOptions(resources=LICENCE)).pid()
    assert waits(context, call)
    gate.open()
    assert context.get(call, timeout=PATIENCE) != os.getpid()
    context.get(task)


def test_an_actor_that_a_task_makes_reserves_as_well(context: JobContext) -> None:
    def make() -> Any:
        from fray import get_job_context

        return holder(get_job_context())

    actor = context.get(context.run(make), timeout=PATIENCE)
    task = context.create_task(add, 1, options=TASK)
    assert waits(context, task)
    context.kill(actor)
    assert context.get(task, timeout=PATIENCE) == 2


def test_a_handle_that_is_dropped_makes_room_for_the_next(context: JobContext) -> None:
    pids = set()
    for _ in range(3):
        actor = context.create_actor(Member, options=ActorOptions(resources=LICENCE))
        pids.add(context.get(actor.pid(), timeout=PATIENCE))
        del actor
    assert len(pids) == 3


def test_an_actor_that_is_killed_while_it_waits_takes_nothing(context: JobContext) -> None:
    first = holder(context)
    second, third = (context.create_actor(Member, options=ActorOptions(resources=LICENCE)) for _ in range(2))
    context.kill(second)
    context.kill(first)
    assert context.get(third.pid(), timeout=PATIENCE)
    context.kill(third)
    assert context.get(context.create_task(add, 1, options=TASK), timeout=PATIENCE) == 2


@pytest.mark.parametrize("when", ["as it waits", "as it lives"])
def test_an_actor_that_is_called_while_it_waits_reserves_once(tmp_path: Path, when: str) -> None:
    both = TaskOptions(resources={"licence": 2})
    gate = Gate(tmp_path / "gate")
    with create_context("process", max_workers=2, resources={"licence": 2}) as context:
        task = context.create_task(gate.wait, options=both)
        actor = context.create_actor(Member, options=ActorOptions(resources=LICENCE))
        calls = [actor.pid(), actor.pid()]
        assert waits(context, calls[0])
        if when == "as it waits":
            context.kill(actor)
        gate.open()
        if when == "as it lives":
            assert len(set(context.get(calls, timeout=PATIENCE))) == 1
            context.kill(actor)
        context.get(task)
        assert context.get(context.create_task(add, 1, options=both), timeout=PATIENCE) == 2


def test_more_actors_than_cpus_run(context: JobContext) -> None:
    actors = [context.create_actor(Member, num_cpus=1) for _ in range(4)]
    assert len(set(context.get([actor.pid() for actor in actors], timeout=PATIENCE))) == 4
    assert context.get(context.run(abs, -2), timeout=PATIENCE) == 2


def test_what_waits_for_an_actor_says_so(context: JobContext, caplog: pytest.LogCaptureFixture) -> None:
    actor = holder(context, name="first")
    task = context.create_task(add, 1, options=TASK)
    with caplog.at_level(logging.WARNING, "fray.process"):
        until(lambda: caplog.messages, "it says so")
    (message,) = caplog.messages
    assert "add() needs licence=1, which living actors hold: Member('first') (licence=1)" in message
    context.kill(actor)
    assert context.get(task, timeout=PATIENCE) == 2


def test_what_would_wait_for_the_contexts_own_end_fails() -> None:
    with create_context("process", max_workers=2, resources=LICENCE) as context:
        actor = holder(context)
        task = context.create_task(add, 1, options=TASK)
        call = context.create_actor(Member, options=ActorOptions(resources=LICENCE)).pid()
    with pytest.raises(DeadlockError, match=r"the context ends, and add\(\) needs licence=1"):
        context.get(task)
    with pytest.raises(ActorDiedError, match=r"the context ends, and Member needs licence=1"):
        context.get(call)
    assert actor is not None


def test_a_task_that_still_runs_may_make_room_while_the_context_ends(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")

    def use_and_end() -> None:
        from fray import get_job_context

        actor = holder(get_job_context())
        (tmp_path / "held").touch()
        gate.wait()
        get_job_context().kill(actor)

    with create_context("process", max_workers=2, resources=LICENCE) as context:
        context.run(use_and_end)
        until((tmp_path / "held").exists, "the actor has it")
        task = context.create_task(add, 1, options=TASK)
        threading.Timer(3.0, gate.open).start()  # beyond the first looks at what waits
    assert context.get(task) == 2
