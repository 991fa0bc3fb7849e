"""References, errors, nesting."""

import gc
import pickle
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from fray._contracts.context import JobContext
from fray._discovery.current import get_job_context
from fray._values.errors import TaskError
from fray.testing import tasks
from fray.testing.context_fixtures import ContextFixtures, needs
from fray.testing.gates import PATIENCE
from fray.testing.notes import Note, NoteServer


class ReferenceContract(ContextFixtures):
    """What references arrive as."""

    def test_a_value_that_was_put_comes_back(self, context: JobContext) -> None:
        value = {"data": [1, 2, 3]}
        assert context.get(context.put(value)) == value

    def test_a_task_returns_what_its_function_returns(self, context: JobContext) -> None:
        assert context.get(context.run(tasks.add, 2, b=3)) == 5

    def test_a_name_is_the_tasks_unless_the_function_takes_it(self, context: JobContext) -> None:
        assert context.get(context.run(tasks.add, 2, b=3, name="stage")) == 5
        assert context.get(context.run(tasks.named, 1, name="mine")) == (1, "mine")
        assert context.get(context.run(tasks.named_by_any, 1, name="mine")) == (1, {"name": "mine"})
        if self.can.streams:
            assert [context.get(item) for item in context.run(tasks.numbers, 2, name="stage")] == [0, 1]

    def test_arguments_can_be_given_folded(self, context: JobContext) -> None:
        assert context.get(context.create_task(tasks.add, args=(2,), kwargs={"b": 3})) == 5
        assert context.get(context.create_task(tasks.add, args=[context.put(2)])) == 3
        assert context.get(context.create_task(tasks.takes_args, args="its own")) == "its own"
        with pytest.raises(ValueError, match=r"create_task\(add\): .* not both"):
            context.create_task(tasks.add, 1, kwargs={"b": 3})

    def test_closures_and_lambdas_run(self, context: JobContext) -> None:
        base = 40
        assert context.get(context.run(lambda x: x + base, 2)) == 42

    def test_a_reference_as_an_argument_arrives_as_its_value(self, context: JobContext) -> None:
        three = context.put(3)
        seven = context.run(tasks.add, three, 4)
        assert context.get(context.create_task(tasks.add, seven, b=three)) == 10

    def test_a_reference_inside_a_container_stays_a_reference(self, context: JobContext) -> None:
        assert context.get(context.run(tasks.is_reference, [context.put(1)])) is True

    def test_a_function_may_hold_references(self, context: JobContext) -> None:
        def holding(ref: object) -> Callable[[], object]:
            return lambda: get_job_context().get(ref, timeout=PATIENCE)

        refs = [context.run(holding(context.put(number))) for number in range(3)]
        refs += [context.run(partial(tasks.get_with, context, [context.run(tasks.add, 2, 1)]))]
        gc.collect()
        assert context.get(refs) == [0, 1, 2, 3]

    def test_a_future_as_an_argument_arrives_as_its_value(self, context: JobContext) -> None:
        future: Future[int] = Future()
        future.set_result(5)
        assert context.get(context.create_task(tasks.add, future, 1)) == 6

    def test_get_of_a_list_keeps_its_order(self, context: JobContext) -> None:
        refs = [context.run(tasks.add, index) for index in range(20)]
        assert context.get(refs) == list(range(1, 21))
        assert context.get([]) == []

    def test_get_of_something_that_is_not_a_reference_returns_it(self, context: JobContext) -> None:
        thing = object()
        assert context.get(thing) is thing
        assert context.get([1, context.put(2), "three"]) == [1, 2, "three"]

    def test_an_async_function_runs_to_its_result(self, context: JobContext) -> None:
        async def answer() -> int:
            return 42

        assert context.get(context.create_task(answer)) == 42

    def test_dependents_hold_no_worker_while_they_wait(self, narrow: JobContext) -> None:
        future: Future[int] = Future()
        dependents = [narrow.create_task(tasks.add, future, index) for index in range(20)]
        # The only worker is free: this would never end if a dependent sat on it.
        assert narrow.get(narrow.run(tasks.add, 1), timeout=PATIENCE) == 2
        threading.Timer(0, future.set_result, [100]).start()
        assert narrow.get(dependents) == list(range(100, 120))

    def test_a_dependent_starts_when_what_it_depends_on_ends(self, context: JobContext, gate: Note) -> None:
        if self.can.inline:
            gate.open()
        first = context.create_task(tasks.hold, gate, value=1)
        second = context.create_task(tasks.add, first)
        gate.open()
        assert context.get(second) == 2

    def test_a_long_chain_works_on_one_worker(self, narrow: JobContext) -> None:
        ref = narrow.put(0)
        for _ in range(self.CHAIN):
            ref = narrow.run(tasks.add, ref)
        assert narrow.get(ref) == self.CHAIN

    def test_something_that_is_not_callable_is_refused_at_once(self, context: JobContext) -> None:
        with pytest.raises(ValueError, match="function"):
            context.create_task("not a function")  # type: ignore[call-overload]


class ErrorContract(ContextFixtures):
    """How failures arrive."""

    def test_an_exception_arrives_as_its_own_type(self, context: JobContext) -> None:
        with pytest.raises(ValueError, match="broken") as caught:
            context.get(context.run(tasks.fail, "broken"))
        assert str(caught.value) == "broken"

    def test_an_exception_brings_the_traceback_of_the_task(self, context: JobContext) -> None:
        with pytest.raises(ValueError, match="broken") as caught:
            context.get(context.run(tasks.fail, "broken"))
        text = "".join(traceback.format_exception(caught.value))
        assert "in fail" in text
        assert "raise ValueError(message)" in text

        def fail_here() -> None:  # which no worker can import
            raise ValueError("broken here")

        with pytest.raises(ValueError, match="broken here") as caught:
            context.get(context.run(fail_here))
        text = "".join(traceback.format_exception(caught.value))
        assert f'context_tasks.py", line {fail_here.__code__.co_firstlineno + 1}, in fail_here' in text

    def test_an_exception_with_a_constructor_of_its_own_arrives_whole(self, context: JobContext) -> None:
        with pytest.raises(ValueError, match="7: no luck") as caught:
            context.get(context.run(tasks.fail_with_code, 7))
        assert str(caught.value) == "7: no luck"
        assert isinstance(caught.value, tasks.CodedError)
        assert caught.value.code == 7

    def test_the_cause_of_an_exception_arrives_too(self, context: JobContext) -> None:
        with pytest.raises(ValueError, match="outer") as caught:
            context.get(context.run(tasks.fail_from, "inner"))
        assert isinstance(caught.value.__cause__, KeyError)

    def test_an_exception_that_cannot_travel_arrives_with_its_name_message_and_traceback(
        self, context: JobContext
    ) -> None:
        with pytest.raises((TaskError, tasks.StuckError)) as caught:
            context.get(context.run(tasks.fail_stuck))
        if isinstance(caught.value, TaskError):
            assert caught.value.type_name.endswith("StuckError")
            assert caught.value.message == "stuck"
            assert "in fail_stuck" in caught.value.traceback
        else:
            assert not self.can.serializes

    def test_an_exception_may_hold_a_reference(self, context: JobContext) -> None:
        class HoldingError(Exception):
            ref: object

        def refuse() -> None:
            error = HoldingError("half of it")
            error.ref = get_job_context().put("half")
            raise error

        with pytest.raises(Exception, match="half of it") as caught:
            context.get(context.run(refuse))
        error: Any = caught.value
        if self.EXCEPTIONS_HOLD_REFERENCES:
            assert context.get(error.ref, timeout=PATIENCE) == "half"
        else:
            assert isinstance(error, TaskError)

    def test_a_failed_dependency_fails_its_dependents_with_the_same_exception(
        self, context: JobContext, notes: NoteServer
    ) -> None:
        failed = context.run(tasks.fail_with_code, 3)
        middle = context.create_task(tasks.touch, notes.note("ran"), failed)
        last = context.create_task(tasks.add, middle)
        with pytest.raises(tasks.CodedError, match="3: no luck"):
            context.get(last)
        assert not notes.note("ran").read()

    def test_get_of_a_list_raises_as_soon_as_one_has_failed(self, context: JobContext) -> None:
        future: Future[int] = Future()
        blocked = context.create_task(tasks.add, future)
        with pytest.raises(ValueError, match="early"):
            context.get([blocked, context.run(tasks.fail, "early")])
        future.set_result(1)
        assert context.get(blocked) == 2

    def test_a_failure_leaves_the_context_usable(self, narrow: JobContext) -> None:
        for _ in range(3):
            with pytest.raises(ValueError, match="again"):
                narrow.get(narrow.run(tasks.fail, "again"))
        assert narrow.get(narrow.run(tasks.add, 1)) == 2

    @needs("nested_tasks")
    def test_the_text_of_a_failure_does_not_double_with_each_task_that_it_passes(
        self, context: JobContext
    ) -> None:
        lengths = []
        for depth in (3, 6):
            with pytest.raises(ValueError, match="deepest") as caught:
                context.get(context.run(tasks.fail_below, depth))
            lengths.append(len("".join(traceback.format_exception(caught.value))))
        assert lengths[1] < 4 * lengths[0]

    def test_one_failure_can_be_asked_for_many_times(self, context: JobContext) -> None:
        ref = context.run(tasks.fail, "same")
        lengths = set()
        for _ in range(3):
            with pytest.raises(ValueError, match="same") as caught:
                context.get(ref)
            lengths.add(len(traceback.extract_tb(caught.value.__traceback__)))
        assert len(lengths) == 1, (
            "each get must raise with the task's own traceback, not with all the gets before"
        )


class NestingContract(ContextFixtures):
    """Tasks that run tasks."""

    @needs("nested_tasks")
    def test_nesting_deep_on_one_worker_ends(self, narrow: JobContext) -> None:
        assert narrow.get(narrow.run(tasks.nest, self.DEPTH)) == self.DEPTH

    @needs("nested_tasks")
    def test_a_task_runs_many_tasks_and_waits_for_them(self, narrow: JobContext) -> None:
        assert narrow.get([narrow.run(tasks.sum_of_tasks, 10) for _ in range(5)]) == [45] * 5

    def test_a_task_waits_for_threads_of_its_own_that_wait_for_tasks(self, narrow: JobContext) -> None:
        if not self.can.nested_threads:
            self.moot("nested_threads")
            return
        assert narrow.get(narrow.run(tasks.sum_by_threads, 3), timeout=PATIENCE) == 3

    def test_a_reference_made_inside_a_task_is_good_outside(self, context: JobContext) -> None:
        def make() -> list[object]:
            from fray import get_job_context

            return [get_job_context().run(tasks.add, 1)]

        assert context.get(context.get(context.run(make))[0]) == 2

    def test_a_pickled_function_is_its_own(self, context: JobContext) -> None:
        assert context.get(context.run(pickle.loads(pickle.dumps(tasks.add)), 1)) == 2
