"""What runs on which thread in a `SyncContext`, and what is left where that thread is taken away."""

import asyncio
from typing import Any

import pytest

from fray import create_context, get_job_context

PATIENCE = 20  # seconds after which a call that never ends fails its test


class Board:
    """An async actor that answers once it is released."""

    def __init__(self) -> None:
        self.released = asyncio.Event()

    async def later(self, error: Exception | None = None) -> int:
        await self.released.wait()
        if error is not None:
            raise error
        return 1

    async def release(self) -> None:
        self.released.set()

    async def other(self) -> int:
        return 2


def uses_a_loop_and_the_actor(first: int, board: Any) -> tuple[int, int]:
    asyncio.run(asyncio.sleep(0))
    return first, get_job_context().get(board.other(), timeout=PATIENCE)


class Plain:
    def first(self, value: int, board: Any) -> tuple[int, int]:
        return uses_a_loop_and_the_actor(value, board)

    def second(self, board: Any) -> tuple[int, int]:
        return uses_a_loop_and_the_actor(3, board)


def test_what_waits_for_an_async_actor_does_not_run_on_its_loop() -> None:
    with create_context("sync") as context:
        board, plain = context.create_actor(Board), context.create_actor(Plain)
        task = context.run(uses_a_loop_and_the_actor, board.later(), board)
        method = plain.first(board.later(), board)
        context.get(board.release(), timeout=PATIENCE)
        assert context.get([task, method], timeout=2 * PATIENCE) == [(1, 2), (1, 2)]


def test_what_waits_behind_a_call_whose_argument_fails_does_not_run_on_the_loop_either() -> None:
    with create_context("sync") as context:
        board, plain = context.create_actor(Board), context.create_actor(Plain)
        first = plain.first(board.later(OSError("no value")), board)
        second = plain.second(board)
        context.get(board.release(), timeout=PATIENCE)
        with pytest.raises(OSError, match="no value"):
            context.get(first, timeout=PATIENCE)
        assert context.get(second, timeout=2 * PATIENCE) == (3, 2)
