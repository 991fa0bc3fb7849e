"""Generator tasks."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fray import get_job_context
from fray._contracts.context import JobContext
from fray._values.errors import TaskCancelledError
from fray.testing import tasks
from fray.testing.context_fixtures import ContextFixtures, needs
from fray.testing.gates import PATIENCE, until
from fray.testing.notes import Note, NoteServer


@needs("streams")
class StreamContract(ContextFixtures):
    """What flows out of a generator task."""

    def test_items_come_in_order_and_then_it_stops(self, context: JobContext) -> None:
        stream = context.run(tasks.numbers, 100)
        assert [context.get(next(stream)) for _ in range(100)] == list(range(100))
        with pytest.raises(StopIteration):
            next(stream)
        with pytest.raises(StopIteration):
            next(stream)

    def test_it_can_be_iterated(self, context: JobContext) -> None:
        assert [context.get(item) for item in context.run(tasks.numbers, 5)] == [0, 1, 2, 3, 4]
        assert list(context.run(tasks.numbers, 0)) == []

    def test_an_exception_comes_out_at_the_item_where_it_was_raised(self, context: JobContext) -> None:
        stream = context.run(tasks.numbers, 5, 2)
        assert [context.get(next(stream)) for _ in range(2)] == [0, 1]
        with pytest.raises(ValueError, match="item 2"):
            context.get(next(stream))
        with pytest.raises(StopIteration):
            next(stream)

    def test_an_item_is_there_before_the_next_is_made(self, context: JobContext, gate: Note) -> None:
        if self.can.inline:
            gate.open()  # inline, requesting an item makes it
        stream = context.run(tasks.waits_between, gate)
        assert context.get(next(stream)) == "first"
        gate.open()
        assert context.get(next(stream)) == "second"

    def test_references_as_arguments_arrive_as_values(self, context: JobContext) -> None:
        three = context.run(tasks.add, 2)
        assert [context.get(item) for item in context.run(tasks.numbers, three)] == [0, 1, 2]

    def test_a_failed_argument_comes_out_as_the_first_item(self, context: JobContext) -> None:
        stream = context.create_task(tasks.numbers, context.run(tasks.fail, "argument"))
        with pytest.raises(ValueError, match="argument"):
            context.get(next(stream))
        assert list(stream) == []

    def test_items_can_be_passed_to_tasks(self, context: JobContext) -> None:
        sums = [context.run(tasks.add, item, 10) for item in context.run(tasks.numbers, 4)]
        assert context.get(sums) == [10, 11, 12, 13]

    def test_a_generator_runs_tasks_of_its_own(self, narrow: JobContext) -> None:
        assert [narrow.get(item) for item in narrow.run(tasks.squares_by_tasks, 5)] == [0, 1, 4, 9, 16]

    def test_a_lambda_that_yields_is_a_stream(self, context: JobContext) -> None:
        def pair() -> object:
            yield 1
            yield 2

        assert [context.get(item) for item in context.run(pair)] == [1, 2]  # type: ignore[attr-defined]

    def test_an_async_generator_is_a_stream(self, context: JobContext) -> None:
        async def double(numbers: object) -> AsyncIterator[int]:
            for item in numbers:  # type: ignore[attr-defined]
                await asyncio.sleep(0)
                yield 2 * await get_job_context().aget(item)
            raise ValueError("no more")

        stream: Any = context.run(double, [context.put(1), context.put(2)])
        assert [context.get(next(stream)) for _ in range(2)] == [2, 4]
        with pytest.raises(ValueError, match="no more"):
            context.get(next(stream))
        with pytest.raises(StopIteration):
            next(stream)

    def test_wait_returns_when_an_item_the_end_or_an_error_is_there(
        self, context: JobContext, gate: Note
    ) -> None:
        streams = [
            context.run(tasks.numbers, 1),
            context.run(tasks.numbers, 0),
            context.run(tasks.numbers, 1, 0),
        ]
        for stream in streams:
            assert context.wait([stream], timeout=PATIENCE) == ([stream], [])
        if not self.can.inline:
            slow = context.run(tasks.waits_between, gate)
            next(slow)
            assert context.wait([slow], timeout=0.05) == ([], [slow])
            gate.open()
            assert context.wait([slow], timeout=PATIENCE) == ([slow], [])

    def test_the_producer_runs_a_bounded_number_of_items_ahead(
        self, context: JobContext, notes: NoteServer
    ) -> None:
        diary = notes.note("diary")
        stream = context.run(tasks.endless, diary)
        taken = [context.get(next(stream)) for _ in range(5)]
        assert taken == [0, 1, 2, 3, 4]
        # Time for a producer that does not stop to show itself: work of other tasks, not seconds.
        context.get([context.run(tasks.add, index) for index in range(200)])
        assert len(diary.read()) <= 5 + self.can.run_ahead
        context.cancel(stream)

    @needs("nested_tasks")
    def test_a_producer_that_waits_for_its_consumer_holds_no_worker(
        self, narrow: JobContext, notes: NoteServer
    ) -> None:
        if not self.can.parked_streams:
            self._expect_a_held_worker(narrow, notes.note("diary"))
            return
        streams = [narrow.run(tasks.endless, notes.note(f"diary{index}")) for index in range(3)]
        assert narrow.get(narrow.run(tasks.add, 1), timeout=PATIENCE) == 2
        for stream in streams:
            assert [narrow.get(item) for item in itertools.islice(stream, 40)] == list(range(40))
            narrow.cancel(stream)

    def _expect_a_held_worker(self, narrow: JobContext, diary: Note) -> None:
        """Where it is declared that a producer holds its worker: others run once it has ended."""
        self.moot("parked_streams")
        stream = narrow.run(tasks.endless, diary)
        narrow.get(next(stream))
        other = narrow.run(tasks.add, 1)
        with pytest.raises(TimeoutError):
            narrow.get(other, timeout=2)
        narrow.cancel(stream)
        assert narrow.get(other, timeout=PATIENCE) == 2

    def test_a_cancelled_stream_ends_with_the_cancellation_and_closes_its_generator(
        self, context: JobContext, gate: Note
    ) -> None:
        stream = context.run(tasks.until_closed, gate)
        assert context.get(next(stream)) == 1
        assert context.cancel(stream) is True
        with pytest.raises(TaskCancelledError):
            context.get(list(stream))
        until(gate.is_open, "the generator is closed")
