"""Async generators as tasks, where an event loop runs already."""

import asyncio
import contextvars
import gc
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from typing import Any

import pytest

from fray import JobContext, create_context

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


@pytest.mark.timeout(40)
@pytest.mark.parametrize("streams", [False, True], ids=["coroutine", "generator"])
def test_ctrl_c_stops_an_inline_one_inside_a_running_loop(*, streams: bool) -> None:
    waits, ended, seen = threading.Event(), threading.Event(), []

    async def hold() -> None:
        waits.set()
        try:
            await asyncio.sleep(60)
        finally:
            seen.append("stopped")

    async def hold_in_a_generator() -> AsyncIterator[int]:
        await hold()
        yield 1

    async def main() -> None:
        context = create_context("sync")
        if streams:
            context.get(next(iter(context.run(hold_in_a_generator))))  # type: ignore[call-overload]
        else:
            context.get(context.run(hold))

    def interrupt() -> None:
        assert waits.wait(20)
        while not ended.is_set():  # Python sees one that comes as a wait begins with the next one only
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            ended.wait(5)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    loop = asyncio.new_event_loop()  # as in a notebook: `asyncio.run` would have its own way with Ctrl-C
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(main())
    finally:
        ended.set()
    interrupter.join()
    assert seen == ["stopped"]
    loop.close()


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


def test_a_wait_that_was_given_up_stays_nowhere() -> None:
    gate = threading.Event()

    def futures() -> list[Any]:
        gc.collect()
        return [made for made in gc.get_objects() if isinstance(made, Future)]

    async def look(context: JobContext) -> None:
        ref, others = context.run(gate.wait, 60), futures()
        for _ in range(20):
            with pytest.raises(TimeoutError):
                await context.aget(ref, timeout=0.001)
        async with asyncio.timeout(30):  # the last ones go with the next turns of the loop
            while any(all(made is not other for other in others) for made in futures()):
                await asyncio.sleep(0.01)
        gate.set()
        assert await context.aget(ref)

    with create_context("threadpool") as context:
        asyncio.run(look(context))


def test_a_map_goes_on_after_a_wait_that_was_cancelled_and_ends_with_a_failure() -> None:
    gate = threading.Event()

    def work(number: int) -> int:
        gate.wait(60)
        if number == 3:
            raise ValueError("no three")
        return number

    async def read(context: JobContext) -> None:
        values = context.amap(work, range(5))
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(values), 0.01)
        gate.set()
        assert [await anext(values) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match="no three"):
            await anext(values)
        with pytest.raises(StopAsyncIteration):
            await anext(values)

    with create_context("threadpool") as context:
        asyncio.run(read(context))
