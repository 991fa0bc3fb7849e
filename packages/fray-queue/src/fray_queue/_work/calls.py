"""Calls of a pool's function: their arguments, and the outcome of each item."""

import asyncio
import contextlib
import inspect
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from fray.backend import describe
from fray.queue import Lease


@dataclass(slots=True, eq=False)
class WorkItem:
    """One item in the pool's hands."""

    lease: Lease[Any]
    arrived: float  # time.monotonic()
    calls: int = 0  # under this lease, all of which failed
    error: Exception | None = None  # of the last of them
    lost: bool = False  # its lease is; nothing that begins now can count
    let_go: bool = False  # its outcome counts no more, should it still be worked on
    settled: bool = False  # the queue knows, or does not answer any more


class ItemResult(NamedTuple):
    """The outcome of one item of a call."""

    value: Any
    error: Exception | None


@dataclass(slots=True, eq=False)
class Call:
    """One call of the function, for one item or several."""

    entries: list[WorkItem]
    started: float | None = None  # time.monotonic()
    ended: float = 0.0
    outcomes: Sequence[ItemResult] = ()  # one for each entry, unless it is `fatal`
    fatal: BaseException | None = None  # the function ends the program
    cancelled: bool = False  # from outside: it did not fail
    overdue: bool = False
    interrupted: bool = False
    reported: float = 0.0  # when it was last reported overdue

    def begin(self) -> None:
        """Note that the function is called now."""
        self.started = time.monotonic()

    @property
    def items(self) -> list[Any]:
        """What the function works on."""
        return [entry.lease.item for entry in self.entries]


class Function:
    """The function of a pool, and how its results are read.

    Args:
        batched: Whether it is called with a list.
    """

    def __init__(self, fn: Callable[..., Any], *, batched: bool) -> None:
        self.fn, self.batched = fn, batched

    def call(self, items: list[Any], wait_for: Callable[[Awaitable[Any]], Any]) -> list[ItemResult]:
        """Call it in this thread; `wait_for` runs what an async function returned."""
        own = os.getpid()
        try:
            result = self._begin(items)
            result = wait_for(result) if inspect.isawaitable(result) else result
            return self._read(own, result, len(items))
        except BaseException as error:  # noqa: BLE001 - whatever it raises is the failure of these items
            return _failed(own, error, len(items))

    async def acall(self, items: list[Any]) -> list[ItemResult]:
        """Call it in this event loop."""
        own = os.getpid()
        try:
            result = self._begin(items)
            result = await result if inspect.isawaitable(result) else result
            return self._read(own, result, len(items))
        except asyncio.CancelledError:
            raise  # the runner cancels calls
        except BaseException as error:  # noqa: BLE001 - whatever it raises is the failure of these items
            return _failed(own, error, len(items))

    def _begin(self, items: list[Any]) -> Any:
        result = self.fn(items if self.batched else items[0])
        if inspect.isgenerator(result) or inspect.isasyncgen(result):
            raise TypeError(f"{self.fn!r} is a generator function: nothing of it runs when it is called")
        return result

    def _read(self, own: int, result: Any, count: int) -> list[ItemResult]:
        if os.getpid() != own:
            _end_fork(None)
        if not self.batched:
            return [ItemResult(result, None)]
        if result is None:
            return [ItemResult(None, None)] * count
        if not isinstance(result, list | tuple):
            raise TypeError(
                f"{self.fn!r} returned {type(result).__name__} for a batch; "
                "it returns None or a list with a result for each item"
            )
        results = [_outcome(each) for each in result]  # the length of a class of its own may be another
        if len(results) != count:
            raise ValueError(f"{self.fn!r} returned {len(results)} results for a batch of {count} items")
        return results


def _failed(own: int, error: BaseException, count: int) -> list[ItemResult]:
    if os.getpid() != own:
        _end_fork(error)
    return [ItemResult(None, failure(error))] * count


def _end_fork(error: BaseException | None) -> NoReturn:
    """End this process, which the function forked: it is no worker of the pool.

    It ends as a program does that returns, raises SystemExit, or raises another exception.
    """
    code = 0 if error is None else 1
    try:
        if isinstance(error, SystemExit):
            if error.code is None or isinstance(error.code, int):
                code = (error.code or 0) & 0xFF
            else:
                sys.stderr.write(f"{error.code}\n")
        elif error is not None:
            traceback.print_exception(error)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _outcome(result: Any) -> ItemResult:
    return ItemResult(None, result) if isinstance(result, Exception) else ItemResult(result, None)


def failure(error: BaseException) -> Exception:
    """Return what an item fails with; SystemExit and KeyboardInterrupt end the program, and are raised.

    Other exceptions that derive from BaseException, such as a panic of a Rust library, concern one item.
    """
    if isinstance(error, Exception):
        return error
    if isinstance(error, (SystemExit, KeyboardInterrupt)):
        raise error
    if isinstance(error, asyncio.CancelledError):
        return RuntimeError("the function was cancelled by itself")
    found = RuntimeError(f"the function raised {describe(error)}")
    found.__cause__ = error
    return found


def is_awaited(lease: Any) -> bool:
    """Whether a caller waits for what becomes of a lease's item."""
    return bool(getattr(lease, "reply", False))


@contextlib.contextmanager
def waiting_in_thread() -> Iterator[Callable[[Awaitable[Any]], Any]]:
    """Give what runs awaitables to their end in this thread, in one event loop that is made when needed."""
    with contextlib.ExitStack() as stack:
        runners: list[asyncio.Runner] = []

        def wait_for(result: Awaitable[Any]) -> Any:
            if not runners:
                runners.append(stack.enter_context(asyncio.Runner()))
            return runners[0].run(_awaited(result))

        yield wait_for


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result
