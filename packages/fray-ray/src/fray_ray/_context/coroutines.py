"""Coroutines that are tasks: while they wait for other tasks, their CPU goes to those.

The main thread of a coroutine runs its event loop, and Ray lends a worker's CPU while that thread blocks in
`ray.wait`. So the loop does its own waiting there.
"""

import asyncio
import contextlib
import selectors
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Iterator
from typing import Any

import ray

from fray_ray._context import lending

# seconds after which the loop looks for what no reference reports, another thread's call for example
_LOOK = 0.25
_PAUSE = 0.005  # seconds that a waiter for a reference which is there has to notice it


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a task's coroutine to its end, as `asyncio.run` does."""
    with _runner() as runner:
        return _run_on(runner, coroutine)


def iterate(items: AsyncGenerator[Any, None]) -> Iterator[Any]:
    """Yield the items of a task's async generator, in one event loop that runs while an item is made."""
    with _runner() as runner:
        try:
            while (item := _run_on(runner, _awaited(anext(items, _END)))) is not _END:
                yield item
        finally:
            _run_on(runner, _awaited(items.aclose()))


_END = object()


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


def _runner() -> asyncio.Runner:
    return asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(_Selector()))


def _run_on(runner: asyncio.Runner, coroutine: Coroutine[Any, Any, Any]) -> Any:
    loop = runner.get_loop()

    def wake() -> None:
        """Leave the selector, to find what is awaited now."""
        with contextlib.suppress(RuntimeError):  # it has just ended
            loop.call_soon_threadsafe(lambda: None)

    with lending.waking(wake):
        return runner.run(coroutine)


class _Selector(selectors.DefaultSelector):
    """Waits in `ray.wait` while coroutines wait for tasks."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        refs = lending.awaited()
        if not refs or (timeout is not None and timeout <= 0):
            return super().select(timeout)
        if events := super().select(0):
            return events
        look = _LOOK if timeout is None else min(timeout, _LOOK)
        ready, _ = ray.wait(refs, num_returns=1, timeout=look, fetch_local=False)
        return super().select(_PAUSE if ready else 0)
