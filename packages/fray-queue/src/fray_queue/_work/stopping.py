"""What ends a pool from outside."""

import contextlib
import inspect
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable


@runtime_checkable
class Event(Protocol):
    """An event of threads, of asyncio or of processes."""

    def is_set(self) -> bool: ...


class Flag:
    """An event without a lock: a signal may come while the handler of another one is about to set it."""

    def __init__(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        """Return whether it was set."""
        return self._set

    def set(self) -> None:
        """Set it."""
        self._set = True


StopSignal = Event | Callable[[], bool]


def check_stop(stop: object) -> None:
    """Refuse a `stop` of another type."""
    if inspect.iscoroutinefunction(stop):
        raise ValueError(f"stop is called without waiting, so it cannot be the async function {stop!r}")
    if stop is not None and not isinstance(stop, Event) and not callable(stop):
        raise ValueError(f"stop must be an event, or a function that returns whether to stop, got {stop!r}")


def is_set(stop: StopSignal) -> bool:
    """Return whether to stop."""
    return stop.is_set() if isinstance(stop, Event) else bool(stop())


@contextlib.contextmanager
def stopped_by_sigterm(stopping: Flag) -> Iterator[None]:
    """Set a flag at SIGTERM, where this is the main thread.

    A handler that is not Python's stays: it could not be put back.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is None:
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
