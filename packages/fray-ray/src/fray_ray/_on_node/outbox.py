"""What an attempt has to say, until the scheduler has confirmed that it has it."""

import threading
from collections import deque
from typing import Any

_MOST = 1 << 20  # bytes that are not confirmed; beyond them nothing more is taken
_PIECE = 90_000  # bytes in one answer, about: Ray sends more than 100 kB through its object store


class Outbox:
    """Events in their order; safe to use from several threads. A scheduler that is started again misses none.

    The position of an event is the number of those up to it. Schedulers are numbered, and the
    latest counts: a call of one that was killed may come when the next one has begun.
    """

    def __init__(self) -> None:
        self._events: deque[Any] = deque()
        self._before = 0  # events that were confirmed
        self._note: Any = None
        self._scheduler_number = 0
        self._held = 0
        self._bounded = True
        self._changed = threading.Condition()

    def take_up(self, scheduler_number: int) -> tuple[int, Any]:
        """Begin with another scheduler: return how many events were confirmed, and what was noted with it."""
        with self._changed:
            self._scheduler_number = max(self._scheduler_number, scheduler_number)
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

    def after(self, scheduler_number: int, position: int, note: Any, timeout: float) -> list[Any]:
        """Confirm the events up to a position; return some that follow, as soon as there is one.

        Args:
            scheduler_number: That of the one that asks: where a later one has begun, nothing is done.
            note: Kept with the position, for another scheduler.
        """
        with self._changed:
            if scheduler_number < self._scheduler_number:
                return []
            self._scheduler_number, self._note = scheduler_number, note
            while self._before < position:
                self._held -= _size(self._events.popleft())
                self._before += 1
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._events or scheduler_number != self._scheduler_number, timeout
            )
            return self._first() if scheduler_number == self._scheduler_number else []

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
