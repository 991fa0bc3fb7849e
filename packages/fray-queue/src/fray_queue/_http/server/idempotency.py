"""Idempotency keys: a request that is repeated is answered as it was the first time."""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fray_queue._errors import LateRequestError

FORGET_AFTER = 3600.0
"""Seconds; clients give up long before."""
_FORGET_EVERY = 60.0


@dataclass(slots=True)
class KnownRequest:
    """The newest request of one client's connection, and what it was answered."""

    number: int
    at: float
    answer: "asyncio.Future[Any] | None"  # None after it failed: it may be made again
    withdrawn: bool = False  # nobody waits for the answer any more


class IdempotencyKeys:
    """The newest answer on each connection of each client.

    Args:
        stored: What a store kept of them: slot, number and reply.
    """

    def __init__(self, stored: Iterable[tuple[str, int, Any]] = ()) -> None:
        self._loop = asyncio.get_running_loop()
        self._newest: dict[str, KnownRequest] = {}
        self._swept = time.monotonic()
        for slot, number, reply in stored:
            self.remember(slot, number).set_result(reply)

    def recall(self, slot: str, number: int) -> "asyncio.Future[Any] | None":
        """Return the answer of a request that was made before; None for a new one, or one that failed.

        Raises:
            LateRequestError: The client made a later request of this slot.
        """
        known = self._newest.get(slot)
        if known is not None and known.number > number:
            raise LateRequestError("a later request of this connection was answered already")
        return known.answer if known is not None and known.number == number else None

    def remember(self, slot: str, number: int) -> "asyncio.Future[Any]":
        """Begin a request; its repetition waits for the same answer."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        now = time.monotonic()
        self._newest[slot] = KnownRequest(number, now, answer)
        if now - self._swept > _FORGET_EVERY:
            self._forget_old(now)
        return answer

    def withdraw(self, slot: str, number: int, nothing: Any) -> "asyncio.Future[Any]":
        """Return the answer to a request that nobody waits for any more.

        Args:
            nothing: What the request is answered if it comes only now.
        """
        answer = self.recall(slot, number)
        if answer is None:
            answer = self.remember(slot, number)
            answer.set_result(nothing)
        self._newest[slot].withdrawn = True
        return answer

    def is_withdrawn(self, slot: str, number: int) -> bool:
        """Return whether nobody waits for the answer to this request."""
        known = self._newest.get(slot)
        return known is not None and known.number == number and known.withdrawn

    def forget(self, slot: str, answer: "asyncio.Future[Any]") -> None:
        """Let a request that failed be made again, unless a later one took its place.

        Its number stays: a late copy of the one before it, whose record it replaced, would be done again.
        """
        known = self._newest.get(slot)
        if known is not None and known.answer is answer:
            known.answer = None

    def _forget_old(self, now: float) -> None:
        self._swept = now
        for slot in [slot for slot, known in self._newest.items() if known.at < now - FORGET_AFTER]:
            del self._newest[slot]
