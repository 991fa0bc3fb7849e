"""What happens when a worker dies, and what a task and an actor reserve."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from uuid import uuid4

import pytest

from fray._contracts.context import JobContext
from fray._discovery.current import create_context
from fray._values.errors import ActorDiedError, WorkerDiedError
from fray._values.options import ActorOptions, TaskOptions
from fray.testing.context_fixtures import ContextFixtures
from fray.testing.gates import PATIENCE, until
from fray.testing.notes import Note, NoteServer


def die_at_first(diary: Note, deaths: int = 1) -> int:
    """Write down that it ran, and end its process the first times."""
    runs = len(diary.add())
    if runs <= deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    return runs


def overlap(diary: Note) -> int:
    """Return how many of these ran at the same time as this one began."""
    entries = diary.add("+")
    time.sleep(0.05)
    diary.add("-")
    return entries.count("+") - entries.count("-")


class Mortal:
    """An actor that can end its own process."""

    def __init__(self) -> None:
        self.calls = 0

    def call(self) -> int:
        self.calls += 1
        return self.calls

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


_SECOND = """
import sys
from fray import create_context
with create_context(sys.argv[1]) as context:
    print(context.get(context.get_actor("shared").call(), timeout=60))
"""


class DeathContract(ContextFixtures):
    """A worker that dies fails its task alone; a task runs once unless it says otherwise."""

    def test_a_worker_that_dies_fails_its_task_alone(self, context: JobContext, notes: NoteServer) -> None:
        if not self.can.isolation:
            self.moot("isolation")
            return
        with pytest.raises(WorkerDiedError):
            context.get(context.run(die_at_first, notes.note("diary")), timeout=PATIENCE)
        assert context.get(context.run(len, "abc"), timeout=PATIENCE) == 3

    def test_a_task_whose_worker_died_ran_once(self, context: JobContext, notes: NoteServer) -> None:
        if not (self.can.isolation and self.can.at_most_once):
            self.moot("isolation")
            return
        diary = notes.note("diary")
        with pytest.raises(WorkerDiedError):
            context.get(context.run(die_at_first, diary, 100), timeout=PATIENCE)
        assert diary.read() == "x"

    def test_max_retries_runs_it_again_as_often_as_said(self, context: JobContext, notes: NoteServer) -> None:
        if not (self.can.isolation and self.can.retries):
            self.moot("retries")
            return
        options = TaskOptions(max_retries=2)
        ref = context.create_task(die_at_first, notes.note("two"), 2, options=options)
        assert context.get(ref, timeout=PATIENCE) == 3
        ref = context.create_task(die_at_first, notes.note("three"), 3, options=options)
        with pytest.raises(WorkerDiedError):
            context.get(ref, timeout=PATIENCE)

    def test_max_restarts_brings_an_actor_back_without_its_state(self, context: JobContext) -> None:
        if not (self.can.isolation and self.can.max_restarts):
            self.moot("max_restarts")
            return
        actor = context.create_actor(Mortal, options=ActorOptions(max_restarts=1))
        assert [context.get(actor.call(), timeout=PATIENCE) for _ in range(2)] == [1, 2]
        with pytest.raises(ActorDiedError):
            context.get(actor.die(), timeout=PATIENCE)

        def first_call() -> int | None:
            try:
                return int(context.get(actor.call(), timeout=PATIENCE))
            except ActorDiedError:  # it is not back yet
                return None

        assert until(first_call, "the actor is back") == 1
        with pytest.raises(ActorDiedError):
            context.get(actor.die(), timeout=PATIENCE)
        with pytest.raises(ActorDiedError):
            context.get(actor.call(), timeout=PATIENCE)

    def test_what_a_task_reserves_no_other_gets(self, narrow: JobContext, notes: NoteServer) -> None:
        if not (self.can.enforced_resources and self.can.max_workers):
            self.moot("enforced_resources")
            return
        whole = TaskOptions(resources={"CPU": 1})
        refs = [narrow.create_task(overlap, notes.note("diary"), options=whole) for _ in range(5)]
        assert narrow.get(refs, timeout=PATIENCE) == [1] * 5

    def test_a_second_program_finds_a_shared_actor(self, spec: str) -> None:
        if not self.can.shared_actors:
            self.moot("shared_actors")
            return
        named = f"{spec}{'&' if '?' in spec else '?'}namespace=contract-{uuid4().hex}"
        with create_context(named) as context:
            actor = context.create_actor(Mortal, name="shared", lifetime="detached")
            assert context.get(actor.call(), timeout=PATIENCE) == 1
            command = [sys.executable, "-c", _SECOND, named]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90)
            context.kill(actor)
        assert done.stdout.split() == ["2"], done.stderr

    def test_a_stream_that_runs_inline_goes_only_as_far_as_asked(
        self, context: JobContext, notes: NoteServer
    ) -> None:
        if not self.can.inline:
            self.moot("inline")
            return
        diary = notes.note("diary")
        stream = context.run(_noted, diary)
        assert not diary.read()
        for count in range(1, 4):
            assert context.get(next(stream)) == count
            assert len(diary.read()) == count

    def test_a_detached_actor_keeps_a_context_that_works(self, spec: str) -> None:
        if not self.can.detached_actors:
            self.moot("detached_actors")
            return
        name = f"detached-{uuid4().hex}"
        with create_context(spec) as first:
            actor = first.create_actor(Submitting, name=name, lifetime="detached")
            assert first.get(actor.add_by_task(1), timeout=PATIENCE) == 2
        with create_context(spec) as second:
            found = second.get_actor(name)
            try:
                assert second.get(found.add_by_task(2), timeout=PATIENCE) == 3
            finally:
                second.kill(found)


def _noted(diary: Note) -> Iterator[int]:
    for count in range(1, 100):
        diary.add()
        yield count


class Submitting:
    """An actor that runs tasks of its own."""

    def add_by_task(self, number: int) -> int:
        from fray._discovery.current import get_job_context
        from fray.testing.tasks import add

        context = get_job_context()
        return context.get(context.run(add, number))
