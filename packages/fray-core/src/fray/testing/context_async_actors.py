"""Actors with async methods: one event loop for their life."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from fray._contracts.context import JobContext
from fray._discovery.current import create_context
from fray.testing.context_fixtures import ContextFixtures, needs
from fray.testing.gates import PATIENCE


class Board:
    """An actor whose calls meet on its loop."""

    def __init__(self) -> None:
        self.ticks = 0
        self.lock = asyncio.Lock()
        self.events: dict[str, asyncio.Event] = {}
        self.background: asyncio.Task[None] | None = None

    async def start_ticking(self) -> int:
        self.background = asyncio.create_task(self._tick())
        return id(asyncio.get_running_loop())

    async def _tick(self) -> None:
        while True:
            self.ticks += 1
            await asyncio.sleep(0.001)

    async def ticks_beyond(self, count: int) -> bool:
        while self.ticks <= count:
            await asyncio.sleep(0.001)
        return True

    async def loop_id(self) -> int:
        return id(asyncio.get_running_loop())

    async def wait_for(self, name: str) -> str:
        await self.events.setdefault(name, asyncio.Event()).wait()
        return name

    async def announce(self, name: str) -> None:
        self.events.setdefault(name, asyncio.Event()).set()

    async def under_lock(self, value: int) -> int:
        async with self.lock:
            await asyncio.sleep(0)
            return value

    async def count_to(self, count: int, fail_at: int | None = None) -> AsyncIterator[int]:
        for index in range(count):
            if index == fail_at:
                raise ValueError(f"item {index}")
            await asyncio.sleep(0)
            yield index

    async def fail(self) -> None:
        raise ValueError("from a coroutine")

    def plain(self) -> str:
        return "plain"

    async def start_lingering(self) -> None:
        self.background = asyncio.create_task(self._linger())

    async def _linger(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.2)


@needs("actors")
class AsyncActorContract(ContextFixtures):
    """An async actor keeps one event loop: its calls, locks and background tasks live on it together."""

    def test_background_tasks_and_the_loop_live_from_call_to_call(self, context: JobContext) -> None:
        if not self.can.async_actors:
            self.moot("async_actors")
            return
        board = context.create_actor(Board)
        loop = context.get(board.start_ticking(), timeout=PATIENCE)
        assert context.get(board.ticks_beyond(20), timeout=PATIENCE)
        assert context.get(board.loop_id(), timeout=PATIENCE) == loop

    def test_calls_of_an_async_actor_run_concurrently(self, context: JobContext) -> None:
        if not self.can.async_actors:
            self.moot("async_actors")
            return
        board = context.create_actor(Board)
        waiting = [board.wait_for("it") for _ in range(20)]
        context.get(board.announce("it"), timeout=PATIENCE)
        assert context.get(waiting, timeout=PATIENCE) == ["it"] * 20

    def test_a_lock_of_asyncio_holds_between_calls(self, context: JobContext) -> None:
        if not self.can.async_actors:
            self.moot("async_actors")
            return
        board = context.create_actor(Board)
        calls = [board.under_lock(index) for index in range(20)]
        assert context.get(calls, timeout=PATIENCE) == list(range(20))
        assert context.get(board.plain(), timeout=PATIENCE) == "plain"

    def test_an_async_generator_streams(self, context: JobContext) -> None:
        if not self.can.async_actors:
            self.moot("async_actors")
            return
        board = context.create_actor(Board)
        assert [context.get(item) for item in board.count_to(100)] == list(range(100))
        items = board.count_to(5, 2)
        assert [context.get(next(items)) for _ in range(2)] == [0, 1]
        with pytest.raises(ValueError, match="item 2"):
            context.get(next(items))

    def test_an_exception_of_a_coroutine_is_its_callers(self, context: JobContext) -> None:
        board = context.create_actor(Board)
        with pytest.raises(ValueError, match="from a coroutine"):
            context.get(board.fail(), timeout=PATIENCE)
        assert context.get(board.plain(), timeout=PATIENCE) == "plain"

    def test_a_background_task_that_takes_a_while_to_end_ends(self, spec: str) -> None:
        if not self.can.async_actors:
            self.moot("async_actors")
            return
        with create_context(spec) as context:
            context.get(context.create_actor(Board).start_lingering(), timeout=PATIENCE)
