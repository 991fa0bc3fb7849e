"""Async generators as tasks, where an event loop runs already."""

import asyncio
import contextvars
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fray import create_context

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


@pytest.mark.parametrize("spec", ["sync", "sync?check_serialization=true", "threadpool", "process"])
def test_an_async_generator_streams_inside_a_running_loop(spec: str) -> None:
    async def count(to: int) -> AsyncIterator[int]:
        for number in range(to):
            await asyncio.sleep(0)
            yield number
        raise ValueError("the end")

    async def main() -> None:
        with create_context(spec) as context:
            stream: Any = context.run(count, 3)
            assert [context.get(next(stream)) for _ in range(3)] == [0, 1, 2]
            with pytest.raises(ValueError, match="the end"):
                context.get(next(stream))
            assert list(stream) == []

    asyncio.run(main())


def test_an_inline_async_generator_is_closed_inside_a_running_loop() -> None:
    seen = []

    async def hold() -> AsyncIterator[str]:
        try:
            while True:
                yield VARIABLE.get()
        finally:
            await asyncio.sleep(0)
            seen.append("closed")

    async def main() -> None:
        VARIABLE.set("mine")
        with create_context("sync") as context:
            stream: Any = context.run(hold)
            assert context.get(next(stream)) == "mine"
            assert context.cancel(stream)
            assert seen == ["closed"]

    asyncio.run(main())


@pytest.mark.parametrize("spec", ["sync", "threadpool", "process"])
def test_one_that_is_left_open_at_the_end_of_the_program_says_nothing(spec: str) -> None:
    program = """
import sys
from fray import create_context
async def count():
    try:
        for number in range(1000):
            yield number
    finally:
        print("closed")
context = create_context(sys.argv[1])
stream = context.run(count)
assert context.get(next(stream)) == 0
"""
    command = [sys.executable, "-c", program, spec]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "closed\n", "")
