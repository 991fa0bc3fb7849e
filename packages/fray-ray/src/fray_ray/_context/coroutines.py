"""Event loops of tasks: while their coroutines wait for other tasks, the CPU goes to those.

The main thread of a worker runs the event loop of a coroutine that is a task, or that of a function which
makes one, and Ray lends a worker's CPU while that thread blocks in `ray.wait`. So the loop does its own
waiting there.
"""

import asyncio
import contextlib
import selectors
import time
import warnings
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Iterator
from typing import Any

import ray

from fray_ray._context import lending

# Nothing but a reference ends a wait in Ray. So the loop looks for what else may have come, another thread's
# call for example: after a twentieth of the time for which it has waited, within these seconds.
_SHORTEST, _LONGEST, _PART = 0.005, 0.1, 0.05
_PAUSE = 0.005  # seconds that a waiter for a reference which is there has to notice it


def prepare() -> None:
    """Be ready to lend the CPU of what this worker runs, and whose event loops it may make itself."""
    if not lending.prepare():
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of policies, from Python 3.14 on
        _lend_in_loops_of_functions()


def _lend_in_loops_of_functions() -> None:
    """Have `asyncio.run` in a function make a `_Loop`, and no loop of uvloop, which Ray prefers."""
    before = asyncio.get_event_loop_policy()
    if type(before).__module__.partition(".")[0] not in ("asyncio", "uvloop"):
        return  # it is the user's

    class Policy(asyncio.DefaultEventLoopPolicy):
        def new_event_loop(self) -> asyncio.AbstractEventLoop:
            return _Loop() if lending.is_main() else before.new_event_loop()

    asyncio.set_event_loop_policy(Policy())


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a task's coroutine to its end, as `asyncio.run` does."""
    with _runner() as runner:
        return runner.run(coroutine)


def iterate(items: AsyncGenerator[Any, None]) -> Iterator[Any]:
    """Yield the items of a task's async generator, in one event loop that runs while an item is made."""
    with _runner() as runner:
        try:
            while (item := runner.run(_awaited(anext(items, _END)))) is not _END:
                yield item
        finally:
            runner.run(_awaited(items.aclose()))


_END = object()


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


def _runner() -> asyncio.Runner:
    return asyncio.Runner(loop_factory=_Loop)


class _Selector(selectors.DefaultSelector):
    """Waits in `ray.wait` while coroutines wait for tasks."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if (timeout is not None and timeout <= 0) or not lending.is_main():
            return super().select(timeout)
        start = time.monotonic()
        while refs := lending.awaited():
            if events := super().select(0):
                return events
            waited = time.monotonic() - start
            look = min(_LONGEST, max(_SHORTEST, waited * _PART))
            if timeout is not None:
                look = min(look, timeout - waited)
                if look <= 0:
                    return []
            if ray.wait(refs, num_returns=1, timeout=look, fetch_local=False)[0]:
                return super().select(_PAUSE)
        return super().select(None if timeout is None else max(0, timeout - (time.monotonic() - start)))


class _Loop(asyncio.SelectorEventLoop):
    """The event loop of a task, which lends the CPU while it runs on the main thread."""

    def __init__(self) -> None:
        super().__init__(_Selector())

    def run_forever(self) -> None:
        with lending.waking(self._wake) if lending.is_main() else contextlib.nullcontext():
            super().run_forever()

    def _wake(self) -> None:
        """Leave the selector, to find what is awaited now."""
        with contextlib.suppress(RuntimeError):  # it has just ended
            self.call_soon_threadsafe(lambda: None)
