"""A stream that nobody can read any more ends at once, without the garbage collector."""

import gc
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from fray import create_context

closed = threading.Event()


def numbers() -> Iterator[int]:
    try:
        while True:
            yield 1
    finally:
        closed.set()


async def async_numbers() -> AsyncIterator[int]:
    for number in numbers():
        yield number


@pytest.mark.parametrize("spec", ["sync", "threadpool"])
@pytest.mark.parametrize("function", [numbers, async_numbers])
def test_a_dropped_stream_closes_its_generator_at_once(spec: str, function: Callable[[], Any]) -> None:
    closed.clear()
    with create_context(spec) as context:
        stream = context.run(function)
        assert context.get(next(stream)) == 1
        gc.disable()
        try:
            del stream
            assert closed.wait(60)
        finally:
            gc.enable()
