"""What travels, and what is refused."""

import enum
import functools
import pickle
import threading
from typing import Any

import pytest

from fray import get_job_context
from fray._contracts.context import JobContext
from fray._values.errors import SerializationError
from fray.testing import tasks
from fray.testing.context_fixtures import ContextFixtures, needs
from fray.testing.notes import NoteServer
from fray.testing.tasks import Counter


class SharingContract(ContextFixtures):
    """Contexts, references and handles are values."""

    def test_a_reference_pickles(self, context: JobContext) -> None:
        ref = context.run(tasks.add, 1)
        assert context.get(pickle.loads(pickle.dumps(ref))) == 2

    @needs("actors")
    def test_a_handle_pickles(self, context: JobContext) -> None:
        counter = context.create_actor(Counter)
        assert context.get(pickle.loads(pickle.dumps(counter)).increment()) == 1
        assert context.get(counter.value()) == 1

    def test_a_context_pickles(self, context: JobContext) -> None:
        ref = context.put(5)
        assert pickle.loads(pickle.dumps(context)).get(ref) == 5

    def test_a_context_and_a_reference_can_be_passed_to_a_task(self, context: JobContext) -> None:
        ref = context.put("value")
        assert context.get(context.run(tasks.get_with, context, [ref])) == "value"

    @needs("actors")
    def test_a_handle_can_be_passed_to_an_actor(self, context: JobContext) -> None:
        class Forwarder:
            def __init__(self, target: object) -> None:
                self.target = target

            def forward(self) -> object:
                current = get_job_context()
                return current.get(self.target.increment())  # type: ignore[attr-defined]

        counter = context.create_actor(Counter)
        assert context.get(context.create_actor(Forwarder, counter).forward()) == 1

    def test_a_class_that_no_worker_can_import_is_the_same_class_everywhere(
        self, context: JobContext
    ) -> None:
        class Color(enum.Enum):  # like a class of `__main__`
            RED = 1

        def look(color: Color) -> tuple[bool, Color]:
            return color is Color.RED, Color.RED

        arrived, returned = context.get(context.run(look, Color.RED))
        assert arrived
        assert returned is Color.RED
        assert context.get(context.put(Color.RED)) is Color.RED
        assert context.get(context.run(look, context.run(lambda: Color.RED)))[0]

    def test_a_cached_function_that_no_worker_can_import_runs(self, context: JobContext) -> None:
        @functools.cache
        def power(number: int) -> int:
            return 2 * power(number - 1) if number else 1

        assert context.get(context.run(power, 10)) == 1024
        assert context.get([context.run(lambda: power(5)), context.run(lambda: power(6))]) == [32, 64]

    @needs("named_actors")
    def test_the_current_context_inside_a_task_is_the_one_that_runs_it(self, context: JobContext) -> None:
        counter = context.create_actor(Counter, name="here")
        context.get(context.run(tasks.increment_by_name, "here"))
        assert context.get(counter.value()) == 1

    @needs("named_actors")
    def test_the_current_context_inside_an_actor_is_the_one_that_runs_it(self, context: JobContext) -> None:
        class Finder:
            def find(self, name: str) -> int:
                current = get_job_context()
                return int(current.get(current.get_actor(name).increment()))

        keep = context.create_actor(Counter, 1, name="there")
        assert context.get(context.create_actor(Finder).find("there")) == 2
        assert context.get(keep.value()) == 2


class SerializationContract(ContextFixtures):
    """What cannot travel is named; where nothing is pickled, everything arrives."""

    def test_an_argument_that_cannot_be_pickled_is_named(
        self, context: JobContext, notes: NoteServer
    ) -> None:
        lock = threading.Lock()
        if not self.can.serializes:
            self.moot("serializes")
            assert context.get(context.run(lambda value: value, lock)) is lock
            return
        with pytest.raises(SerializationError, match=r"argument 2 \('value'\) of touch\(\)") as caught:
            context.run(tasks.touch, notes.note("ran"), lock)
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, TypeError)
        assert "lock" in str(caught.value)
        assert not notes.note("ran").read()

    def test_a_keyword_that_cannot_be_pickled_is_named(self, context: JobContext, notes: NoteServer) -> None:
        if self.can.serializes:
            with pytest.raises(SerializationError, match=r"argument 'value' of touch\(\)"):
                context.run(tasks.touch, notes.note("ran"), value=threading.Lock())
        else:
            self.moot("serializes")

    def test_a_function_that_holds_what_cannot_be_pickled_is_named(self, context: JobContext) -> None:
        lock = threading.Lock()

        def guarded() -> bool:
            return lock.locked()

        if not self.can.serializes:
            self.moot("serializes")
            assert context.get(context.run(guarded)) is False
            return
        with pytest.raises(SerializationError, match="guarded"):
            context.run(guarded)

    def test_a_result_that_cannot_be_pickled_is_named(self, context: JobContext) -> None:
        ref = context.run(threading.Lock)
        if not self.can.serializes:
            self.moot("serializes")
            assert context.get(ref).locked() is False
            return
        with pytest.raises(SerializationError, match=r"result of .*lock"):
            context.get(ref)

    def test_a_result_that_is_a_generator_is_no_other_result(self, context: JobContext) -> None:
        ref: Any = context.run(lambda: (number for number in range(3)))  # no generator function: no stream
        if not self.can.serializes:
            self.moot("serializes")
            assert list(context.get(ref)) == [0, 1, 2]
            return
        with pytest.raises(SerializationError, match=r"result of .*lambda.*generator"):
            context.get(ref)

    def test_what_is_put_and_cannot_be_pickled_is_refused(self, context: JobContext) -> None:
        if self.can.serializes:
            with pytest.raises(SerializationError, match=r"put\(\)"):
                context.put(threading.Lock())
        else:
            self.moot("serializes")

    @needs("actors")
    def test_a_constructor_argument_that_cannot_be_pickled_is_named(self, context: JobContext) -> None:
        if self.can.serializes:
            with pytest.raises(SerializationError, match=r"argument 1 \('start'\) of Counter\(\)"):
                context.create_actor(Counter, threading.Lock())
        else:
            self.moot("serializes")

    def test_a_task_cannot_change_what_its_caller_holds(self, context: JobContext) -> None:
        def grow(numbers: list[int]) -> int:
            numbers.append(0)
            return len(numbers)

        mine = [1, 2, 3]
        shared = context.put(mine)
        assert context.get(context.run(grow, mine)) == 4
        assert context.get(context.run(grow, shared)) == (4 if self.can.serializes else 5)
        assert len(mine) == (3 if self.can.serializes else 5)
        assert len(context.get(shared)) == (3 if self.can.serializes else 5)
