"""The engine's one lock, and what keeps a thread from waiting for itself.

A finalizer or a signal handler may run between any two lines, so also inside a locked section of its own
thread. `LOCK` is therefore re-entrant, and what it guards are a few assignments that bear such a visit:
nothing under it calls out, waits, or tests a value and then relies on it over a call. What such a visitor
must not do is wait: the thread that it interrupted would never release the lock.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any

LOCK = threading.RLock()


_thread = threading.local()


def guarded() -> AbstractContextManager[bool]:
    """Mark a section of a backend that holds a lock of its own: a visitor must not wait in it."""
    # A lock of this thread alone, because its `with` is written in C: one in Python may be interrupted by the
    # exception of a signal handler before it has removed the mark.
    guard: threading.RLock
    try:
        guard = _thread.guard
    except AttributeError:  # the first use of this thread; a visitor that comes in here may have made one
        guard = _thread.__dict__.setdefault("guard", threading.RLock())
    return guard


class OneAtATime:
    """Runs one function at a time, and never waits: a visitor's is refused, as is another thread's."""

    __slots__ = ("_running",)

    def __init__(self) -> None:
        self._running: dict[None, object] = {}

    def run(self, act: Callable[[], object]) -> bool:
        """Call a function, and return True; at once False, uncalled, where one is running."""
        running, me = self._running, object()
        try:
            # One call takes the place and notes who has it: an exception that comes next loses neither.
            if running.setdefault(None, me) is not me:
                return False
            act()
        finally:
            # Signal handlers and other threads come at calls only, and here is none.
            if None in running and running[None] is me:
                del running[None]
        return True

    def drain(self, calls: deque[Any], act: Callable[[], object]) -> None:
        """Run what takes calls from a queue until that is empty, or until another thread does.

        Where Ctrl-C ends it, what is left is ended, too: the threads that queued it do not come back for it.
        """
        try:
            while calls and self.run(act):
                pass
        except BaseException as error:
            while calls and self.run(partial(_strand, calls, error)):
                pass
            raise


def _strand(calls: deque[Any], cause: BaseException) -> None:
    with suppress(IndexError):  # that was the last, also where another thread has cleared the queue
        while True:
            calls.popleft().strand(cause)


def may_block() -> bool:
    """Return whether this thread may wait: it does not hold a lock that the others need."""
    return not (guarded()._is_owned() or LOCK._is_owned())  # type: ignore[attr-defined]


def check_may_block() -> None:
    """Raise RuntimeError where a wait could never end.

    Raises:
        RuntimeError: This is a finalizer or a signal handler that interrupted the engine's own bookkeeping.
    """
    if not may_block():
        raise RuntimeError(
            "get() or wait() was called from a finalizer or a signal handler that interrupted the context "
            "itself: the wait could never end; call run() there, and wait elsewhere"
        )


def _in_child() -> None:
    LOCK._at_fork_reinit()  # type: ignore[attr-defined]  # another thread may have held it
    _thread.guard = threading.RLock()


os.register_at_fork(after_in_child=_in_child)
