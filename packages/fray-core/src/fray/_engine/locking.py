"""The engine's one lock, and what keeps a thread from waiting for itself.

A finalizer or a signal handler may run between any two lines, so also inside a locked section of its own
thread. `LOCK` is therefore re-entrant, and what it guards are a few assignments that bear such a visit:
nothing under it calls out, waits, or tests a value and then relies on it over a call. What such a visitor
must not do is wait: the thread that it interrupted would never release the lock.
"""

import os
import threading
from types import TracebackType

LOCK = threading.RLock()


class _Thread(threading.local):
    guarded = 0


_thread = _Thread()


class guarded:  # noqa: N801 - a context manager, named as it reads
    """Mark a section of a backend that holds a lock of its own: a visitor must not wait in it."""

    __slots__ = ()

    def __enter__(self) -> None:
        _thread.guarded += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _thread.guarded -= 1


def may_block() -> bool:
    """Return whether this thread may wait: it does not hold a lock that the others need."""
    return not _thread.guarded and not LOCK._is_owned()  # type: ignore[attr-defined]


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
    _thread.guarded = 0


os.register_at_fork(after_in_child=_in_child)
