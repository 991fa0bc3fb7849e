"""The options that every context takes: one set for all, hints where a backend has no use for one."""

import os
from typing import Any

import pytest

from fray._discovery.current import create_context
from fray._values.errors import ActorNotFoundError, WorkerDiedError
from fray._values.options import TaskOptions
from fray.testing import tasks
from fray.testing.context_death import die_at_first
from fray.testing.context_fixtures import ContextFixtures
from fray.testing.gates import PATIENCE
from fray.testing.notes import Note, NoteServer


def fail_and_note(diary: Note) -> None:
    """Write down that it ran, and fail by an exception of its own."""
    diary.add()
    raise ValueError("of the task")


class OptionsContract(ContextFixtures):
    """`max_workers`, `num_cpus`, `memory`, `max_retries` and `namespace` are taken by every context."""

    @property
    def retries(self) -> int:
        """How often a task may be asked to run again."""
        return int(self.can.retries or not self.can.isolation)

    def test_retries_that_cannot_be_are_refused(self, spec: str) -> None:
        if self.retries:
            self.moot("retries")
            return
        with create_context(spec, max_retries=1) as context, self.refuses("max_retries"):
            context.run(tasks.add, 1)

    def test_every_portable_option_is_taken(self, spec: str) -> None:
        said: dict[str, Any] = {"max_workers": 2, "num_cpus": 1, "memory": "64m", "max_retries": self.retries}
        with create_context(spec, **said, namespace=f"options-{os.getpid()}") as context:
            assert context.get(context.run(tasks.add, 1), timeout=PATIENCE) == 2
        with create_context(spec, **dict.fromkeys(said), namespace=None) as context:
            assert context.get(context.run(tasks.add, 1), timeout=PATIENCE) == 2

    @pytest.mark.parametrize("wrong", [{"max_workers": 0}, {"max_retries": -2}], ids=str)
    def test_a_wrong_value_is_refused(self, spec: str, wrong: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=next(iter(wrong))):
            create_context(spec, **wrong)

    def test_max_retries_is_of_every_task_that_does_not_say(self, spec: str, notes: NoteServer) -> None:
        if not (self.can.isolation and self.can.retries):
            self.moot("retries")
            return
        with create_context(spec, max_retries=2) as context:
            assert context.get(context.run(die_at_first, notes.note("diary"), 2), timeout=PATIENCE) == 3

    def test_max_retries_of_a_task_wins_over_its_contexts(self, spec: str, notes: NoteServer) -> None:
        if not (self.can.isolation and self.can.retries):
            self.moot("retries")
            return
        with create_context(spec, max_retries=2) as context:
            ref = context.create_task(
                die_at_first, notes.note("unsaid"), 2, options=TaskOptions(name="unsaid")
            )
            assert context.get(ref, timeout=PATIENCE) == 3
            never = TaskOptions(max_retries=0)
            ref = context.create_task(die_at_first, notes.note("never"), options=never)
            with pytest.raises(WorkerDiedError):
                context.get(ref, timeout=PATIENCE)
        assert notes.note("never").read() == "x"

    def test_a_tasks_own_exception_is_no_reason_to_run_it_again(self, spec: str, notes: NoteServer) -> None:
        retries = 2 * self.retries
        with (
            create_context(spec, max_retries=retries) as context,
            pytest.raises(ValueError, match="of the task"),
        ):
            context.get(context.run(fail_and_note, notes.note("diary")), timeout=PATIENCE)
        assert notes.note("diary").read() == "x"

    def test_a_namespace_has_its_own_detached_actors(self, spec: str) -> None:
        if not self.can.detached_actors:
            self.moot("detached_actors")
            return
        namespace, name = f"options-{os.getpid()}", "counter"
        with create_context(spec, namespace=namespace) as first:
            counter = first.create_actor(tasks.Counter, 3, name=name, lifetime="detached")
            try:
                with create_context(spec, namespace=namespace) as same:
                    assert same.get(same.get_actor(name).increment(), timeout=PATIENCE) == 4
                elsewhere = create_context(spec, namespace=f"{namespace}-other")
                with elsewhere, pytest.raises(ActorNotFoundError):
                    elsewhere.get_actor(name)
            finally:
                first.kill(counter)
