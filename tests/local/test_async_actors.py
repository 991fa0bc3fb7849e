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
            assert context.get(producer.answer(), timeout=10) == 42
            assert closed.wait(10)
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
                context.get(call, timeout=10)
