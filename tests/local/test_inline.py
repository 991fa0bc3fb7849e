"""What runs on which thread in a `SyncContext`, and what is left where that thread is taken away."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from fray import TaskCancelledError, create_context, get_job_context
from fray.testing.gates import until
from fray.testing.interrupting import interrupted
from fray.testing.tasks import Counter, add

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


def interrupt(_: int) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_in_one_of_the_tasks_that_became_ready_ends_the_others() -> None:
    future: Any = Future()
    with create_context("sync") as context:
        value = context.run(add, future, 1)
        context.run(interrupt, value)
        others = [context.run(add, value, 1), context.run(add, context.run(add, value, 1), 1)]
        with pytest.raises(KeyboardInterrupt):
            future.set_result(1)
        for other in others:
            with pytest.raises(TaskCancelledError, match="KeyboardInterrupt"):
                context.get(other, timeout=PATIENCE)
        assert context.get(context.run(add, value, 1)) == 3


class Interrupted:
    def wait(self, begun: threading.Event, go: threading.Event) -> None:
        begun.set()
        go.wait(60)
        raise KeyboardInterrupt

    def items(self) -> Iterator[int]:
        yield from (1, 2, 3)

    def answer(self) -> int:
        return 42


def test_ctrl_c_in_an_actor_ends_the_calls_of_other_threads_that_wait_for_their_turn() -> None:
    begun, go = threading.Event(), threading.Event()
    made: list[Any] = []
    with create_context("sync") as context:
        actor = context.create_actor(Interrupted)
        stream = actor.items()
        assert context.get(next(stream)) == 1

        def call() -> None:
            begun.wait(60)
            made.append(actor.answer())
            next(stream)  # is there already; the next one is not
            made.append(next(stream))

        def waits() -> bool:
            frame = sys._current_frames().get(caller.ident or 0)
            return frame is not None and frame.f_code.co_name == "block"

        def release() -> None:
            until(waits, "the call and the stream are queued")
            go.set()

        caller, releaser = (threading.Thread(target=target, daemon=True) for target in (call, release))
        caller.start()
        releaser.start()
        with pytest.raises(KeyboardInterrupt):
            actor.wait(begun, go)
        releaser.join(60)
        caller.join(PATIENCE)
        assert len(made) == 2
        for ref in made:
            with pytest.raises(TaskCancelledError, match="KeyboardInterrupt"):
                context.get(ref, timeout=PATIENCE)
        assert context.get(actor.answer()) == 42


def test_the_first_call_of_a_thread_may_be_interrupted_by_another() -> None:
    """As by a finalizer, at any line."""
    values: list[int] = []

    def call() -> None:
        with create_context("sync") as context:
            values.append(context.get(context.create_actor(Counter, 1).increment()))

    def at(line: int) -> int:
        lines: list[int] = []
        run = lambda: lines.append(interrupted(call, call, line, "_runners.inline"))  # noqa: E731
        thread = threading.Thread(target=run)
        thread.start()
        thread.join(60)
        assert values == [2, 2]
        values.clear()
        return lines[0]

    for line in range(1, at(1)):
        at(line)
