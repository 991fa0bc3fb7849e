"""The two faces of the standard library: executors and coroutines; and `map` over many small items."""

import asyncio
import concurrent.futures
import itertools
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest

from fray._contracts.context import JobContext
from fray._discovery.current import get_job_context
from fray._values.errors import GetTimeoutError, SerializationError, TaskCancelledError
from fray.testing import tasks
from fray.testing.context_fixtures import ContextFixtures, needs
from fray.testing.gates import PATIENCE
from fray.testing.notes import Note


async def add_by_tasks(count: int) -> int:
    """Run tasks from inside a coroutine that is a task itself."""
    context = get_job_context()
    parts = await context.aget([context.run(tasks.add, index, 0) for index in range(count)])
    mapped = [value async for value in context.amap(tasks.add, range(count))]
    return int(sum(parts) + sum(mapped))


def cancel_by_a_future() -> bool:
    """Cancel a task by its future, and ask for its result, inside another task."""
    add: Callable[..., int] = tasks.add
    future = get_job_context().as_executor().submit(add, Future())
    if not future.cancel():
        return False
    try:
        future.result(60)
    except CancelledError as error:
        return isinstance(error, TaskCancelledError)
    return False


class ExecutorContract(ContextFixtures):
    """`as_executor`: what code for `concurrent.futures` needs."""

    def test_its_futures_are_real_ones(self, context: JobContext) -> None:
        with context.as_executor() as executor:
            future = executor.submit(tasks.add, 1, b=2)
            assert isinstance(future, Future)
            assert future.result() == 3
            failed = executor.submit(tasks.fail, "broken")
            assert isinstance(failed.exception(), ValueError)
            assert concurrent.futures.wait([future, failed]).done == {future, failed}
            assert list(executor.map(tasks.add, range(10))) == list(range(1, 11))

    def test_its_shutdown_waits_and_leaves_the_context_open(self, context: JobContext, gate: Note) -> None:
        if self.can.inline:
            gate.open()
        executor = context.as_executor()
        future = executor.submit(tasks.hold, gate)
        executor.shutdown(wait=False)
        with pytest.raises(RuntimeError, match="after shutdown"):
            executor.submit(tasks.add, 1)
        gate.open()
        executor.shutdown()
        assert future.done()
        assert context.get(context.run(tasks.add, 1)) == 2

    def test_a_future_is_cancelled_with_its_task(self, narrow: JobContext, gate: Note) -> None:
        if self.can.inline:
            self.moot("inline")
            return
        executor = narrow.as_executor()
        running = executor.submit(tasks.hold, gate)
        waiting: Future[int] = Future()
        add: Callable[..., int] = tasks.add  # which says that it takes numbers
        queued = executor.submit(add, waiting)
        assert queued.cancel()
        assert queued.cancelled()
        gate.open()
        waiting.set_result(1)
        executor.shutdown(cancel_futures=True)
        assert running.done()

    def test_a_cancelled_future_raises_that_its_task_was_cancelled(self, narrow: JobContext) -> None:
        if self.can.inline:
            self.moot("inline")
            return
        executor = narrow.as_executor()
        add: Callable[..., int] = tasks.add
        future = executor.submit(add, Future())
        assert future.cancel()
        assert concurrent.futures.wait([future], 60).done == {future}
        with pytest.raises(TaskCancelledError):
            future.result()
        with pytest.raises(TaskCancelledError):
            future.exception()

    @needs("nested_tasks")
    def test_a_cancelled_future_of_a_nested_task_raises_that(self, context: JobContext) -> None:
        if self.can.inline:
            self.moot("inline")
            return
        assert context.get(context.run(cancel_by_a_future), timeout=PATIENCE) is True

    @needs("streams")
    def test_the_future_of_a_stream_has_the_stream(self, context: JobContext) -> None:
        submit: Callable[..., Future[Any]] = context.as_executor().submit
        stream = submit(tasks.numbers, 3).result(60)
        assert [context.get(ref) for ref in stream] == [0, 1, 2]

    def test_an_event_loop_runs_functions_on_it(self, context: JobContext) -> None:
        async def run() -> int:
            loop = asyncio.get_running_loop()
            with context.as_executor() as executor:
                wrapped = asyncio.wrap_future(executor.submit(tasks.add, 1))
                return await wrapped + await loop.run_in_executor(executor, tasks.add, 2)

        assert asyncio.run(run()) == 5


class AsyncContract(ContextFixtures):
    """`aget`, `amap` and streams in coroutines."""

    def test_a_reference_is_awaited(self, context: JobContext) -> None:
        async def run() -> Any:
            refs = [context.run(tasks.add, index) for index in range(20)]
            return await context.aget(refs[3]), await context.aget(refs), await context.aget("plain")

        assert asyncio.run(run()) == (4, list(range(1, 21)), "plain")

    def test_a_failure_is_raised_where_it_is_awaited(self, context: JobContext) -> None:
        async def run() -> None:
            await context.aget([context.run(tasks.add, 1), context.run(tasks.fail, "broken")])

        with pytest.raises(ValueError, match="broken"):
            asyncio.run(run())

    def test_a_cancelled_task_raises_that_where_it_is_awaited(self, narrow: JobContext) -> None:
        if self.can.inline:
            self.moot("inline")
            return

        async def run() -> None:
            ref = narrow.create_task(tasks.add, Future())
            assert narrow.cancel(ref)
            await narrow.aget(ref)

        with pytest.raises(TaskCancelledError):
            asyncio.run(run())

    def test_others_go_on_while_one_waits_and_a_timeout_leaves_the_task_running(
        self, context: JobContext, gate: Note
    ) -> None:
        if self.can.inline:
            gate.open()

        async def run() -> Any:
            ref = context.create_task(tasks.hold, gate)
            if not self.can.inline:
                with pytest.raises(GetTimeoutError, match=r"0\.05 s"):
                    await context.aget(ref, timeout=0.05)
            waiter = asyncio.create_task(context.aget(ref))
            await asyncio.sleep(0)
            gate.open()
            return await waiter

        assert asyncio.run(run()) == "held"

    def test_a_timeout_error_of_the_task_is_its_own(self, context: JobContext) -> None:
        def late() -> None:
            raise TimeoutError("of the task")

        async def run() -> None:
            await context.aget(context.run(late), timeout=PATIENCE)

        with pytest.raises(TimeoutError, match="of the task") as caught:
            asyncio.run(run())
        assert not isinstance(caught.value, GetTimeoutError)

    def test_a_cancelled_awaiter_leaves_the_task_alone(self, context: JobContext, gate: Note) -> None:
        if self.can.inline:
            self.moot("inline")
            return

        async def run() -> Any:
            waiting: Future[int] = Future()
            ref = context.create_task(tasks.add, waiting)
            awaiter = asyncio.create_task(context.aget(ref))
            await asyncio.sleep(0)
            awaiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await awaiter
            waiting.set_result(1)
            return await context.aget(ref)

        assert asyncio.run(run()) == 2

    @needs("streams")
    def test_a_stream_is_iterated(self, context: JobContext) -> None:
        async def run() -> list[int]:
            stream: Any = context.run(tasks.numbers, 30)
            return [await context.aget(ref) async for ref in stream]

        assert asyncio.run(run()) == list(range(30))

    @needs("streams")
    def test_a_stream_that_is_awaited_is_itself(self, context: JobContext) -> None:
        async def run() -> list[int]:
            stream: Any = await context.aget(context.run(tasks.numbers, 3))
            return [await context.aget(ref) async for ref in stream]

        assert asyncio.run(run()) == [0, 1, 2]

    @needs("streams")
    def test_many_streams_are_read_at_once(self, context: JobContext) -> None:
        async def total(stream: Any) -> int:
            return sum([await context.aget(ref) async for ref in stream])

        async def run() -> list[int]:
            streams = [context.run(tasks.numbers, 5) for _ in range(12)]
            return await asyncio.gather(*map(total, streams))

        assert asyncio.run(run()) == [10] * 12

    @needs("streams")
    def test_a_cancelled_reader_loses_no_item(self, context: JobContext, gate: Note) -> None:
        if self.can.inline:
            self.moot("inline")
            return

        async def run() -> list[str]:
            stream: Any = context.run(tasks.waits_between, gate)
            reader: AsyncIterator[Any] = aiter(stream)
            first = await context.aget(await anext(reader))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(reader), 0.05)
            gate.open()
            return [first, *[await context.aget(ref) async for ref in reader]]

        assert asyncio.run(run()) == ["first", "second"]

    def test_map_is_iterated_in_and_out_of_order(self, context: JobContext) -> None:
        async def run(ordered: bool) -> list[int]:
            return [value async for value in context.amap(tasks.add, range(50), ordered=ordered)]

        assert asyncio.run(run(True)) == list(range(1, 51))
        assert sorted(asyncio.run(run(False))) == list(range(1, 51))

    def test_map_is_left_early(self, context: JobContext) -> None:
        async def run() -> list[int]:
            taken = []
            values = context.amap(tasks.add, itertools.count())
            async for value in values:
                taken.append(value)
                if len(taken) == 5:
                    break
            await values.aclose()  # type: ignore[attr-defined]
            return taken

        assert asyncio.run(run()) == [1, 2, 3, 4, 5]

    @needs("nested_tasks")
    def test_a_coroutine_that_waits_for_tasks_holds_no_worker(self, narrow: JobContext) -> None:
        assert narrow.get(narrow.create_task(add_by_tasks, 10), timeout=PATIENCE) == 100


class ManyItemsContract(ContextFixtures):
    """`map` where items are many: it puts them together, and nobody notices but the clock."""

    def test_thousands_of_small_items_come_in_order(self, context: JobContext) -> None:
        assert list(context.map(tasks.add, range(5000), itertools.repeat(2))) == list(range(2, 5002))

    def test_a_failure_among_them_comes_after_all_before_it(self, context: JobContext) -> None:
        def refuse(number: int) -> int:
            if number == 2500:
                raise tasks.CodedError(7, "no luck")
            return number

        values = context.map(refuse, range(100_000))
        assert list(itertools.islice(values, 2500)) == list(range(2500))
        with pytest.raises(tasks.CodedError, match="7: no luck"):
            next(values)

    @pytest.mark.parametrize("ordered", [True, False])
    def test_an_input_that_fails_does_so_after_all_that_it_gave(
        self, context: JobContext, ordered: bool
    ) -> None:
        def numbers() -> Any:
            yield from range(300)
            raise tasks.CodedError(7, "no more")

        values = context.map(tasks.add, numbers(), ordered=ordered)
        assert sorted(itertools.islice(values, 300)) == list(range(1, 301))
        with pytest.raises(tasks.CodedError, match="7: no more"):
            next(values)

    def test_an_item_that_cannot_be_pickled_is_named_after_all_before_it(self, context: JobContext) -> None:
        if not self.can.serializes:
            self.moot("serializes")
            return
        items: list[Any] = [*range(300), threading.Lock(), 301]
        values = context.map(tasks.add, items)
        assert list(itertools.islice(values, 300)) == list(range(1, 301))
        with pytest.raises(SerializationError, match=r"argument 1 \('a'\) of add\(\)"):
            next(values)

    def test_references_among_the_items_arrive_as_values(self, context: JobContext) -> None:
        refs = [context.put(index) for index in range(30)]
        assert list(context.map(tasks.add, refs)) == list(range(1, 31))
        mixed = [context.put(index) if index % 3 else index for index in range(300)]
        assert list(context.map(tasks.add, mixed)) == list(range(1, 301))

    def test_an_endless_input_is_read_a_bounded_number_ahead(self, context: JobContext) -> None:
        read = itertools.count()

        def numbers() -> Any:
            for _ in range(10_000_000):
                yield next(read)

        values = context.map(tasks.add, numbers())
        assert list(itertools.islice(values, 2000)) == list(range(1, 2001))
        assert next(read) < 200_000

    def test_slow_items_are_not_put_together(self, context: JobContext) -> None:
        def slow(number: int) -> int:
            time.sleep(0.02)
            return number

        taken = itertools.count()
        values = context.map(slow, (next(taken) for _ in range(10_000)))
        assert list(itertools.islice(values, 60)) == list(range(60))
        # One to a task, and no more tasks in flight than keep all workers busy.
        assert next(taken) <= 60 + 8 * max(16, os.cpu_count() or 1)

    def test_items_of_a_slow_input_do_not_wait_for_each_other(self, context: JobContext) -> None:
        taken = itertools.count()

        def numbers() -> Any:
            while True:
                time.sleep(0.006)
                yield next(taken)

        values = context.map(tasks.add, numbers())
        assert list(itertools.islice(values, 60)) == list(range(1, 61))
        assert next(taken) <= 60 + 8 * max(16, os.cpu_count() or 1)

    def test_coroutines_of_a_plain_function_are_run_and_fail_at_their_item(self, context: JobContext) -> None:
        async def double(number: int) -> int:
            if number == 250:
                raise tasks.CodedError(7, "no luck")
            return 2 * number

        values = context.map(lambda number: double(number) if number % 2 == 0 else number, range(400))
        assert list(itertools.islice(values, 250)) == [(2 - number % 2) * number for number in range(250)]
        with pytest.raises(tasks.CodedError, match="7: no luck"):
            next(values)
