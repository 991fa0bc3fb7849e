"""Answers that survive a lost connection: a request that is repeated is answered as it was the first time."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fray_queue._errors import LateRequestError
from fray_queue._http.server.rows import Statement

_FORGET_SLOTS_AFTER = 3600.0  # seconds; clients give up long before
_FORGET_EVERY = 60.0


@dataclass
class Slot:
    """The newest request of one client's connection, and what it was answered."""

    number: int
    at: float
    answer: "asyncio.Future[Any]"


class Slots:
    """The newest answer on each connection of each client.

    Args:
        write: Has a statement committed with what else happened; None where nothing is kept.
    """

    def __init__(self, clock: Callable[[], float], write: Callable[[Statement], None] | None) -> None:
        self._clock, self._write, self._loop = clock, write, asyncio.get_running_loop()
        self._slots: dict[str, Slot] = {}
        self._swept = time.monotonic()

    def restore(self, stored: Mapping[str, tuple[int, float, Any]]) -> None:
        """Forget all but what a store kept."""
        self._slots = {}
        for slot, (number, at, reply) in stored.items():
            answer: asyncio.Future[Any] = self._loop.create_future()
            answer.set_result(reply)
            self._slots[slot] = Slot(number, at, answer)

    def recall(self, slot: str, number: int) -> "asyncio.Future[Any] | None":
        """Return the answer of a request that was made before; None for a new one.

        Raises:
            LateRequestError: The client made a later request of this slot.
        """
        known = self._slots.get(slot)
        if known is None or known.number < number:
            return None
        if known.number > number:
            raise LateRequestError("a later request of this connection was answered already")
        return known.answer

    def remember(self, slot: str, number: int) -> "asyncio.Future[Any]":
        """Begin a request; its repetition waits for the same answer."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._slots[slot] = Slot(number, self._clock(), answer)
        if time.monotonic() - self._swept > _FORGET_EVERY:
            self._forget_old()
        return answer

    def keep(self, slot: str, number: int, reply: dict[str, Any]) -> None:
        """Keep an answer together with what it answers."""
        if self._write is not None:
            row = (slot, number, self._clock(), json.dumps(reply))
            self._write(("INSERT OR REPLACE INTO slots VALUES (?, ?, ?, ?)", row))

    def forget(self, slot: str, answer: "asyncio.Future[Any]") -> None:
        """Take back what `remember` noted, unless a later request took its place."""
        known = self._slots.get(slot)
        if known is not None and known.answer is answer:
            del self._slots[slot]

    def _forget_old(self) -> None:
        self._swept = time.monotonic()
        old = self._clock() - _FORGET_SLOTS_AFTER
        for slot in [slot for slot, known in self._slots.items() if known.at < old]:
            del self._slots[slot]
        if self._write is not None:
            self._write(("DELETE FROM slots WHERE at < ?", (old,)))
