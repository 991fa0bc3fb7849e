"""Answers to items: what an asker holds, and what it gets."""

import pickle
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

from fray._serialization.values import unpack_exception
from fray._values.errors import GetTimeoutError, NoReplyError

R = TypeVar("R")

ReplyOutcome = Literal["value", "error", "dead", "expired", "gone"]
"""`dead`: given up after its last attempt. `expired`: nobody took it within its `ttl`. `gone`: neither the
item nor an answer is there."""

_LONGEST_WAIT = 600.0  # seconds of one question to the queue; a ticket without a timeout asks again


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of an item whose producer requested an answer.

    Args:
        payload: The result or the exception that was passed to `done`; pickled if `packed`.
    """

    item_id: str
    outcome: ReplyOutcome
    payload: Any = None
    packed: bool = True

    def get(self) -> Any:
        """Return the result, or raise what failed the item. Unpickles: trust the workers of the queue.

        Raises:
            NoReplyError: The item was given up or removed, and nobody will answer.
        """
        if self.outcome == "value":
            if not self.packed:
                return self.payload
            return pickle.loads(self.payload) if self.payload else None  # a `done` without a result
        if self.outcome == "error":
            raise unpack_exception(self.payload) if self.packed else self.payload
        raise NoReplyError(self.item_id, self.outcome)


class Answering(Protocol):
    """What a ticket needs of its queue."""

    def fetch_replies(self, item_ids: Sequence[str], *, wait: float = 0.0) -> Mapping[str, Reply]: ...

    async def wait_for_reply(self, item_id: str) -> Reply: ...


class Ticket(str, Generic[R]):
    """The id of an item whose producer waits for an answer; it fetches that answer.

    It may be used wherever an item's id is expected. A pickled copy works wherever the queue can be reached.
    """

    __slots__ = ("_reply", "queue")

    queue: Answering

    def __new__(cls, item_id: str, queue: Answering) -> "Ticket[R]":
        ticket = super().__new__(cls, item_id)
        ticket.queue, ticket._reply = queue, None
        return ticket

    _reply: Reply | None

    @property
    def item_id(self) -> str:
        """The item's id, as plain text."""
        return str.__str__(self)

    def result(self, timeout: float | None = None) -> R:
        """Wait for the answer; return what `done(lease, result=…)` gave, or raise what failed the item.

        Raises:
            GetTimeoutError: There is none after `timeout` seconds; the item stays where it is.
            NoReplyError: The item was given up, expired or removed, or its answer was dropped.
        """
        if self._reply is None:
            self._reply = self._fetch(timeout)
        value: R = self._reply.get()
        return value

    def done(self) -> bool:
        """Return whether `result` would return, or raise, at once."""
        if self._reply is None:
            self._reply = self.queue.fetch_replies([self.item_id]).get(self.item_id)
        return self._reply is not None

    def _fetch(self, timeout: float | None) -> Reply:
        item_id = self.item_id
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _LONGEST_WAIT if end is None else max(0.0, end - time.monotonic())
            found = self.queue.fetch_replies([item_id], wait=min(left, _LONGEST_WAIT))
            if item_id in found:
                return found[item_id]
            if end is not None and time.monotonic() >= end:
                raise GetTimeoutError(
                    f"item {item_id!r} has no answer after {timeout:g} s; it stays in its queue, "
                    "and the ticket is still good"
                )

    def __await__(self) -> Generator[Any, None, R]:
        if self._reply is None:
            self._reply = yield from self.queue.wait_for_reply(self.item_id).__await__()
        value: R = self._reply.get()
        return value

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.item_id, self.queue)

    def __repr__(self) -> str:
        return f"Ticket({self.item_id!r}, {self.queue!r})"
