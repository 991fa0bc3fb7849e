"""Coroutines that are tasks: while they wait for other tasks, their CPU goes to those.

Ray lends a worker's CPU while the worker's main thread blocks in `ray.wait`, and for no other thread. The
main thread of a coroutine runs its event loop, so the loop does its own waiting there.
"""

import asyncio
import contextlib
import selectors
import threading
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any

import ray

_LOOK = 0.25  # seconds after which the loop looks for what no reference tells of, another thread's call say
_PAUSE = 0.005  # seconds that whoever waits for a reference which is there has to take note of it

_awaited: Counter[Any] = Counter()  # the references that coroutines wait for, by the event loop or by threads
_loops: list[asyncio.AbstractEventLoop] = []  # those that run; the last one has the main thread


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a task's coroutine to its end, as `asyncio.run` does."""
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(_Selector())) as runner:
        _loops.append(runner.get_loop())
        try:
            return runner.run(coroutine)
        finally:
            _loops.pop()


def any_run() -> bool:
    """Whether this worker runs a task's coroutine: only then has `awaiting` anybody to tell."""
    return bool(_loops)


@contextlib.contextmanager
def awaiting(refs: Iterable[Any]) -> Iterator[None]:
    """Tell the event loop of this worker, if there is one, that a thread beside it waits for references."""
    if not _loops or threading.current_thread() is threading.main_thread():
        yield
        return
    waited = [ref for ref in refs if isinstance(ref, ray.ObjectRef)]
    _awaited.update(waited)
    for loop in _loops[-1:]:
        with contextlib.suppress(RuntimeError):  # it has just ended
            loop.call_soon_threadsafe(_look_again)
    try:
        yield
    finally:
        forget(waited)


def note(ref: Any) -> None:
    """Tell the event loop that a future waits for a reference, until `forget`."""
    if _loops:
        _awaited[ref] += 1


def forget(refs: Iterable[Any]) -> None:
    """Take back what `note` told; harmless where it told nothing."""
    for ref in refs:
        _awaited[ref] -= 1
        if _awaited[ref] <= 0:
            del _awaited[ref]


def _look_again() -> None:
    """Nothing: to be called is to leave the selector, and to find what is awaited now."""


class _Selector(selectors.DefaultSelector):
    """Waits in `ray.wait` while coroutines wait for tasks."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        refs = list(_awaited)
        if not refs or (timeout is not None and timeout <= 0):
            return super().select(timeout)
        if events := super().select(0):
            return events
        look = _LOOK if timeout is None else min(timeout, _LOOK)
        ready, _ = ray.wait(refs, num_returns=1, timeout=look, fetch_local=False)
        return super().select(_PAUSE if ready else 0)
