"""Blocking iterators for coroutines: a step at a time, in a thread of its own."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any, Generic, Self, TypeVar

from fray._contracts.current_context import current_context_var
from fray._values.brief_threads import BriefThreads

T = TypeVar("T")
_END = object()


class AsyncSteps(AsyncIterator[T], Generic[T]):
    """Iterates over a blocking iterator in a thread of its own; a cancelled awaiter loses no item."""

    def __init__(self, values: Iterator[T]) -> None:
        self._values = values
        self._thread = BriefThreads(1, "fray-steps")
        self._begun = False
        self._step: asyncio.Future[Any] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if self._step is None:
            # Its own thread: the loop's few would be used up by iterators that wait for one another.
            self._begun = True
            context = copy_context()
            work: Future[Any] = self._thread.submit(lambda: context.run(next, self._values, _END))
            self._step = asyncio.wrap_future(work)
        try:
            with lent():
                value = await asyncio.shield(self._step)
        except asyncio.CancelledError:  # the awaiter's: the next one gets the item
            raise
        except BaseException:
            self._step = None
            raise
        self._step = None
        if value is _END:
            await self.aclose()
            raise StopAsyncIteration
        result: T = value
        return result

    async def aclose(self) -> None:
        """End the iteration; what a `map` has not started is cancelled."""
        begun, self._begun = self._begun, False
        close = getattr(self._values, "close", None)
        if begun and close is not None:
            self._thread.submit(close)  # after the step that runs


class _Lending(threading.local):
    depth = 0
    manager: Any = None


_lending = _Lending()


@contextlib.contextmanager
def lent() -> Iterator[None]:
    """Let another task have this thread's place while coroutines wait on it: one place, however many do."""
    if not _lending.depth:
        lend = getattr(current_context_var.get(None), "_lending", contextlib.nullcontext)
        _lending.manager = lend()
        _lending.manager.__enter__()
    _lending.depth += 1
    try:
        yield
    finally:
        _lending.depth -= 1
        if not _lending.depth:
            _lending.manager.__exit__(None, None, None)
