"""What listeners receive of tasks and actors is the same on every backend, and listening changes nothing."""

import threading
from typing import Any

import pytest

from fray._contracts.context import JobContext
from fray._discovery.current import get_job_context
from fray._values.errors import ActorDiedError, SerializationError
from fray.testing import tasks
from fray.testing.context_fixtures import ContextFixtures, needs
from fray.testing.listening import ListeningFixtures, Told

SECRET = "hunter2-9f1c"


def add_inside(number: int) -> int:
    context = get_job_context()
    return context.get(context.run(tasks.add, number))


async def add_later(number: int) -> int:
    return number + 1


def fail_with(secret: str, *, hint: str) -> str:
    raise ValueError(secret + hint)


class EventsContract(ListeningFixtures, ContextFixtures):
    """Each thing is reported once, by the process where it happens, before its result can be read."""

    def test_a_task_is_reported_from_submission_to_end(self, told: Told, context: JobContext) -> None:
        assert context.get(context.run(tasks.add, 2, b=3)) == 5
        submitted, started, ended = told.of("task")
        assert [event.kind for event in (submitted, started, ended)] == [
            "task_submitted",
            "task_started",
            "task_ended",
        ]
        assert {event.name for event in told.all()} == {"add"}
        assert len({event.id for event in told.all()}) == 1
        assert submitted.parent_id is started.parent_id is None
        assert started.seconds is not None
        assert started.seconds >= 0
        assert (ended.outcome, ended.error) == ("ok", None)
        assert ended.seconds is not None
        assert ended.seconds >= 0

    def test_a_failure_is_reported_and_stays_what_it_is(self, told: Told, context: JobContext) -> None:
        with pytest.raises(ValueError, match="broken"):
            context.get(context.run(tasks.fail, "broken"))
        assert [(event.outcome, event.error) for event in told.of("task")][-1] == ("error", "ValueError")

    @needs("nested_tasks")
    def test_a_task_of_a_task_is_reported_as_its_child(self, told: Told, context: JobContext) -> None:
        assert context.get(context.run(add_inside, 4)) == 5
        (outer,) = {event.id for event in told.of("task", "add_inside")}
        children = told.of("task", "add")
        assert len(children) == 3
        assert {event.parent_id for event in children} == {outer}

    @needs("streams")
    def test_a_stream_is_one_task_that_ends_with_its_last_item(self, told: Told, context: JobContext) -> None:
        stream = context.run(tasks.numbers, 3)
        assert [context.get(item) for item in stream] == [0, 1, 2]
        assert [str(event.kind) for event in told.of("task", "numbers")] == [
            "task_submitted",
            "task_started",
            "task_ended",
        ]
        failing = context.run(tasks.numbers, 3, fail_at=1)
        assert context.get(next(failing)) == 0
        with pytest.raises(ValueError, match="item 1"):
            context.get(next(failing))
        assert told.of("task", "numbers")[-1].error == "ValueError"

    def test_an_asynchronous_function_ends_when_it_has_run(self, told: Told, context: JobContext) -> None:
        assert context.get(context.run(add_later, 1)) == 2
        assert [(event.kind, event.outcome) for event in told.of("task", "add_later")][-1] == (
            "task_ended",
            "ok",
        )

    @needs("actors", "streams")
    def test_an_actor_and_its_calls_are_reported(self, told: Told, context: JobContext) -> None:
        counter = context.create_actor(tasks.Counter, 5, name="told-of")
        assert context.get(counter.increment()) == 6
        assert [context.get(item) for item in counter.countdown()] == [6, 5, 4, 3, 2, 1]
        assert context.get(counter.run_task(1)) == 2
        made = told.of("actor", "told-of")
        assert [str(event.kind) for event in made] == ["actor_submitted", "actor_started", "actor_ready"]
        assert made[-1].outcome == "ok"
        calls = told.of("call")
        assert [event.name for event in calls if event.kind == "call_ended"] == [
            "told-of.increment",
            "told-of.countdown",
            "told-of.run_task",
        ]
        assert {event.parent_id for event in calls} == {made[0].id}
        assert {event.parent_id for event in told.of("task", "add")} == {calls[-1].id}
        context.kill(counter)

    @needs("actors")
    def test_a_constructor_that_raises_is_reported(self, told: Told, context: JobContext) -> None:
        counter = context.create_actor(tasks.Counter, -1)
        with pytest.raises(ActorDiedError, match="cannot start at -1"):
            context.get(counter.value())
        ready = told.of("actor")[-1]
        assert (ready.kind, ready.outcome, ready.error) == ("actor_ready", "error", "ValueError")

    def test_events_carry_no_argument_and_no_message(self, told: Told, context: JobContext) -> None:
        with pytest.raises(ValueError, match=SECRET):
            context.get(context.run(fail_with, SECRET, hint=SECRET))
        assert context.get(context.run(str, SECRET)) == SECRET
        assert "fail_with" in told.text()
        assert SECRET not in told.text()

    def test_an_argument_that_cannot_be_pickled_is_named_as_ever(
        self, told: Told, context: JobContext
    ) -> None:
        if self.can.serializes:
            lock: Any = threading.Lock()
            with pytest.raises(SerializationError, match=r"argument 2 \('b'\) of add\(\)"):
                context.run(tasks.add, 1, lock)

    def test_a_listener_that_fails_changes_nothing(self, failing_listener: None, context: JobContext) -> None:
        assert context.get(context.run(add_inside if self.can.nested_tasks else tasks.add, 4)) == 5
        assert list(context.map(tasks.add, range(5))) == [1, 2, 3, 4, 5]
        if self.can.actors:
            counter = context.create_actor(tasks.Counter)
            assert context.get([counter.increment(), counter.increment()]) == [1, 2]
