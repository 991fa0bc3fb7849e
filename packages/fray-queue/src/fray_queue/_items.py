"""What stores hand on: the settings of a queue, and an item with its state."""

from dataclasses import dataclass

from fray.queue import Attempt

EncodedReply = tuple[str, bytes]
"""The answer to an item: its outcome and its payload."""
MOST_ATTEMPTS = (1 << 31) - 2
"""A queue has no higher bound, of attempts or of items: every store counts up to it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a queue is made with; None for what was not given."""

    max_attempts: int | None = None
    max_size: int | None = None
    max_dead: int | None = None


@dataclass(slots=True)
class Taken:
    """One item with its state, as a queue or a server hands it on. Times are seconds since the epoch."""

    item_id: str
    lease_id: str
    leased_at: float
    until: float
    attempt: int
    payload: bytes
    seq: int = 0
    history: tuple[Attempt, ...] = ()
    size: int = 0  # of the payload, where that was not read
    reply: bool = False  # whether a producer waits for an answer, or may yet
    expired: bool = False  # of a dead one: its ttl passed
    pushed_at: float | None = None
