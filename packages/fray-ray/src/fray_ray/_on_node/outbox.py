"""What an attempt has to say, until its driver has confirmed that it has it."""

import threading
from collections import deque
from typing import Any

_MOST = 1 << 20  # bytes that are not confirmed; beyond them nothing more is taken
_PIECE = 90_000  # bytes in one answer, about: Ray sends more than 100 kB through its object store


class Outbox:
    """Events in their order; safe to use from several threads. A driver that is started again misses none.

    The position of an event is the number of those up to it. Drivers are numbered, and the
    latest counts: a call of one that was killed may come when the next one has begun.
    """

    def __init__(self) -> None:
        self._events: deque[Any] = deque()
        self._before = 0  # events that were confirmed
        self._note: Any = None
        self._driver = 0
        self._held = 0
        self._bounded = True
        self._changed = threading.Condition()

    def take_up(self, driver: int) -> tuple[int, Any]:
        """Begin with another driver: return how many events were confirmed, and what was noted with it."""
        with self._changed:
            self._driver = max(self._driver, driver)
            self._changed.notify_all()
            return self._before, self._note

    def add(self, event: Any) -> None:
        """Add an event; where too much is not confirmed, wait until it is."""
        with self._changed:
            while self._bounded and self._held >= _MOST:
                self._changed.wait()
            self._events.append(event)
            self._held += _size(event)
            self._changed.notify_all()

    def after(self, driver: int, position: int, note: Any, timeout: float) -> list[Any]:
        """Confirm the events up to a position; return some that follow, as soon as there is one.

        Args:
            driver: Who asks: where a later one has begun, nothing is done.
            note: Kept with the position, for another driver.
        """
        with self._changed:
            if driver < self._driver:
                return []
            self._driver, self._note = driver, note
            while self._before < position:
                self._held -= _size(self._events.popleft())
                self._before += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._events or driver != self._driver, timeout)
            return self._first() if driver == self._driver else []

    def _first(self) -> list[Any]:
        found, size = [], 0
        for event in self._events:
            found.append(event)
            size += _size(event)
            if size >= _PIECE - (1 << 16):
                break
        return found

    def overflow(self) -> None:
        """Take everything from now on: nobody confirms any more."""
        with self._changed:
            self._bounded = False
            self._changed.notify_all()


def _size(event: Any) -> int:
    return len(event) if isinstance(event, bytes) else 0
