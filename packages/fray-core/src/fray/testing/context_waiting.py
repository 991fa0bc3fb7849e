"""`wait` and `map`."""

import itertools
from concurrent.futures import Future

import pytest

from fray._contracts.context import JobContext
from fray.testing import tasks
from fray.testing.context_fixtures import ContextFixtures
from fray.testing.gates import PATIENCE
from fray.testing.notes import Note


class WaitContract(ContextFixtures):
    """What `wait` returns."""

    def test_both_lists_keep_the_order_of_the_input(self, context: JobContext) -> None:
        refs = [context.run(tasks.add, index) for index in range(10)]
        context.get(refs)
        ready, pending = context.wait(refs, num_returns=4)
        assert ready == refs[:4]
        assert pending == refs[4:]

    def test_it_returns_the_ready_ones_whichever_they_are(self, context: JobContext) -> None:
        future: Future[int] = Future()
        blocked = [context.create_task(tasks.add, future) for _ in range(2)]
        done = context.run(tasks.add, 1)
        ready, pending = context.wait([blocked[0], done, blocked[1]], num_returns=1)
        assert ready == [done]
        assert pending == blocked
        future.set_result(1)
        assert context.wait(blocked, num_returns=2) == (blocked, [])

    def test_num_returns_is_clipped_to_the_length(self, context: JobContext) -> None:
        refs = [context.run(tasks.add, 1)]
        assert context.wait(refs, num_returns=5) == (refs, [])

    def test_of_nothing_it_returns_nothing(self, context: JobContext) -> None:
        assert context.wait([]) == ([], [])

    def test_on_timeout_it_returns_what_is_ready(self, context: JobContext) -> None:
        future: Future[int] = Future()
        blocked = context.create_task(tasks.add, future)
        done = context.put(1)
        assert context.wait([blocked, done], num_returns=2, timeout=0.05) == ([done], [blocked])
        assert context.wait([blocked], timeout=0) == ([], [blocked])
        future.set_result(1)
        assert context.get(blocked) == 2

    def test_a_failure_is_ready(self, context: JobContext) -> None:
        failed = context.run(tasks.fail, "x")
        assert context.wait([failed], timeout=PATIENCE) == ([failed], [])

    def test_it_wakes_when_one_of_many_is_done(self, context: JobContext) -> None:
        refs = [context.run(tasks.add, index) for index in range(200)]
        seen = []
        while refs:
            ready, refs = context.wait(refs, num_returns=1)
            seen += context.get(ready)
        assert sorted(seen) == list(range(1, 201))

    @pytest.mark.parametrize("num_returns", [0, -1])
    def test_a_num_returns_below_one_is_refused(self, context: JobContext, num_returns: int) -> None:
        with pytest.raises(ValueError, match="num_returns"):
            context.wait([context.put(1)], num_returns=num_returns)


class MapContract(ContextFixtures):
    """`map`: order, bounds, failures."""

    def test_it_yields_in_the_order_of_its_input(self, context: JobContext) -> None:
        assert list(context.map(tasks.add, range(50), range(50))) == [2 * index for index in range(50)]

    def test_unordered_it_yields_the_same_values(self, context: JobContext) -> None:
        assert sorted(context.map(tasks.add, range(50), ordered=False)) == list(range(1, 51))

    def test_it_takes_an_endless_input(self, context: JobContext) -> None:
        values = context.map(tasks.add, itertools.count())
        assert list(itertools.islice(values, 30)) == list(range(1, 31))

    def test_the_first_failure_comes_out_at_its_turn(self, context: JobContext) -> None:
        values = context.map(int, ["1", "2", "x", "4"])
        assert [next(values), next(values)] == [1, 2]
        with pytest.raises(ValueError, match="'x'"):
            next(values)
        assert list(values) == []

    def test_a_failure_cancels_what_has_not_started(self, narrow: JobContext, gate: Note) -> None:
        def late(index: int) -> int:
            if index == 0:
                raise ValueError("first")
            if index > 1000:
                gate.open()
            return index

        with pytest.raises(ValueError, match="first"):
            list(narrow.map(late, range(100_000)))
        assert not gate.is_open()

    def test_without_an_iterable_it_is_refused(self, context: JobContext) -> None:
        with pytest.raises(ValueError, match="iterable"):
            context.map(tasks.add)
