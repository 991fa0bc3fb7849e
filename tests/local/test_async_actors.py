"""Async actors whose methods or background tasks hold up, or end, the loop."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from fray import ActorDiedError, create_context


@pytest.mark.parametrize("method", ["numbers", "plain_numbers"])
@pytest.mark.parametrize("spec", ["sync", "threadpool"])
def test_a_stream_that_never_waits_ends_when_it_is_cancelled(spec: str, method: str) -> None:
    producing, cancelled, closed = threading.Event(), threading.Event(), threading.Event()

    class Producer:
        async def numbers(self) -> AsyncIterator[int]:
            for number in self.plain_numbers():
                yield number

        def plain_numbers(self) -> Iterator[int]:
            try:
                producing.set()
                cancelled.wait(60)
                while not closed.is_set():
                    yield 1
            finally:
                closed.set()

        async def answer(self) -> int:
            return 42

    with create_context(spec) as context:
        producer = context.create_actor(Producer)
        stream = getattr(producer, method)()
        assert producing.wait(60)
        assert context.cancel(stream)
        cancelled.set()
        try:
            assert context.get(producer.answer(), timeout=60) == 42
            assert closed.wait(60)
        finally:
            closed.set()


@pytest.mark.parametrize("spec", ["sync", "threadpool"])
def test_an_actor_dies_whose_background_task_exits(spec: str) -> None:
    class Leaver:
        async def leave(self) -> None:
            self.task = asyncio.create_task(self._leave())

        async def _leave(self) -> None:
            raise SystemExit(3)

        async def wait(self) -> None:
            await asyncio.Event().wait()

    with create_context(spec) as context:
        leaver = context.create_actor(Leaver)
        waiting = leaver.wait()
        context.get(leaver.leave(), timeout=60)
        for call in waiting, leaver.wait():
            with pytest.raises(ActorDiedError):
                context.get(call, timeout=60)


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("spec", ["sync", "threadpool"])
def test_the_loop_is_closed_where_background_tasks_exit_when_they_are_cancelled(spec: str) -> None:
    ended: list[str] = []

    class Stubborn:
        async def start(self) -> None:
            self.tasks = [asyncio.create_task(self._exit()) for _ in range(2)]
            self.tasks.append(asyncio.create_task(self._end_slowly()))
            await asyncio.sleep(0)  # they run

        async def _exit(self) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise SystemExit(3) from None

        async def _end_slowly(self) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                for _ in range(10):
                    await asyncio.sleep(0)
                ended.append("slowly")

    with create_context(spec) as context:
        context.get(context.create_actor(Stubborn).start(), timeout=60)
    assert ended == ["slowly"]  # the fixture looks for the descriptors of the loop


@pytest.mark.parametrize("spec", ["sync", "threadpool", "process"])
def test_stop_iteration_of_a_plain_method_is_its_callers(spec: str) -> None:
    class Iterating:
        def __init__(self, items: Iterator[int]) -> None:
            self.first = next(items)

        def step(self) -> int:
            return next(iter(()))

        async def answer(self) -> int:
            return 42

    with create_context(spec) as context:
        iterating = context.create_actor(Iterating, iter([1]))
        with pytest.raises(StopIteration):
            context.get(iterating.step(), timeout=60)
        empty = context.create_actor(Iterating, iter(()))
        with pytest.raises(ActorDiedError, match="StopIteration"):
            context.get(empty.answer(), timeout=60)
        assert context.get(iterating.answer(), timeout=60) == 42
