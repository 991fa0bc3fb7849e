"""The calls of an actor."""

import threading
from concurrent.futures import Future

import pytest

from fray._contracts.context import JobContext
from fray._values.errors import UnsupportedError
from fray._values.options import ActorOptions
from fray.testing import tasks
from fray.testing.context_fixtures import ContextFixtures, needs
from fray.testing.gates import PATIENCE, until
from fray.testing.notes import Note
from fray.testing.tasks import Counter


@needs("actors")
class ActorCallContract(ContextFixtures):
    """The calls of an actor: order, overlap, failures, callers."""

    def test_a_method_takes_options_of_ray(self, context: JobContext) -> None:
        counter = context.create_actor(Counter)
        method = counter.increment.options(enable_task_events=False)
        assert context.get([method.remote(5), method(), counter.value()]) == [5, 6, 6]

    def test_a_call_has_one_reference(self, context: JobContext) -> None:
        counter = context.create_actor(Counter)
        with pytest.raises(UnsupportedError, match=r"options\(num_returns=2\): a call has one reference"):
            counter.value.options(num_returns=2)

    def test_calls_of_one_caller_run_in_order(self, context: JobContext) -> None:
        counter = context.create_actor(Counter)
        refs = [counter.increment() for _ in range(200)]
        assert context.get(refs) == list(range(1, 201))

    def test_a_call_waits_for_the_one_before_it_though_that_waits_for_its_argument(
        self, context: JobContext
    ) -> None:
        counter = context.create_actor(Counter)
        future: Future[int] = Future()
        calls = [counter.increment(future), counter.increment(1), counter.value()]
        threading.Timer(0, future.set_result, [10]).start()
        assert context.get(calls) == [10, 11, 11]

    def test_another_caller_does_not_wait_for_them(self, context: JobContext) -> None:
        counter = context.create_actor(Counter)
        future: Future[int] = Future()
        waiting = counter.increment(future)
        # From inside a task: another caller.
        assert context.get(context.run(tasks.increment_many, counter, 3), timeout=PATIENCE) == 3
        future.set_result(10)
        assert context.get(waiting) == 13

    def test_a_failed_argument_fails_its_call_only(self, context: JobContext) -> None:
        counter = context.create_actor(Counter)
        failed = counter.increment(context.run(tasks.fail, "argument"))
        assert context.get(counter.increment()) == 1
        with pytest.raises(ValueError, match="argument"):
            context.get(failed)

    def test_one_call_runs_at_a_time(self, context: JobContext) -> None:
        counter = context.create_actor(Counter)
        overlaps = [counter.overlap(0.005) for _ in range(10)]
        assert context.get(overlaps) == [1] * 10

    def test_more_run_at_a_time_where_asked(self, context: JobContext, gate: Note) -> None:
        counter = context.create_actor(Counter, options=ActorOptions(max_concurrency=2))
        if not self.can.concurrent_actors:
            self.moot("concurrent_actors")
            gate.open()
        held = counter.hold(gate)
        context.get(counter.open(gate), timeout=PATIENCE)  # runs beside the call that waits for it
        assert context.get(held) == "held"

    def test_an_exception_leaves_the_actor_alive(self, context: JobContext) -> None:
        counter = context.create_actor(Counter)
        failed = counter.increment(-1)
        with pytest.raises(ValueError, match="cannot count by -1"):
            context.get(failed)
        assert context.get(counter.increment()) == 1

    def test_tasks_share_one_actor_by_handle(self, context: JobContext) -> None:
        counter = context.create_actor(Counter)
        context.get([context.run(tasks.increment_many, counter, 10) for _ in range(5)])
        assert context.get(counter.value()) == 50

    def test_tasks_find_one_actor_by_name(self, context: JobContext) -> None:
        counter = context.create_actor(Counter, name="tally")
        context.get([context.run(tasks.increment_by_name, "tally") for _ in range(10)])
        assert context.get(counter.value()) == 10

    def test_an_actor_runs_tasks(self, narrow: JobContext) -> None:
        assert narrow.get(narrow.create_actor(Counter).run_task(1)) == 2

    def test_results_of_calls_are_arguments_of_tasks_and_the_reverse(self, context: JobContext) -> None:
        counter = context.create_actor(Counter)
        doubled = context.create_task(tasks.add, counter.increment(3), 3)
        assert context.get(counter.increment(doubled)) == 9

    def test_a_generator_method_is_a_stream(self, context: JobContext) -> None:
        counter = context.create_actor(Counter, 40)
        stream = counter.countdown()
        assert context.get(next(stream)) == 40
        assert context.get(counter.value()) == 40  # answered while the stream is open
        assert [context.get(item) for item in stream] == list(range(39, 0, -1))

    def test_a_dropped_stream_of_a_method_closes_its_generator(self, context: JobContext, gate: Note) -> None:
        counter = context.create_actor(Counter)
        for item in counter.until_closed(gate):
            assert context.get(item) == 1
            break
        until(gate.is_open, "the generator is closed")
        assert context.get(counter.value(), timeout=PATIENCE) == 0

    def test_queued_calls_of_a_killed_actor_raise(self, context: JobContext, gate: Note) -> None:
        from fray._values.errors import ActorDiedError

        if self.can.inline:
            gate.open()
        counter = context.create_actor(Counter)
        context.get(counter.value())
        held, queued = counter.hold(gate), counter.value()
        context.kill(counter)
        for call in [held, queued] if not self.can.inline else []:
            with pytest.raises(ActorDiedError):
                context.get(call, timeout=PATIENCE)
        gate.open()
