"""What queues hand out: leases, what became of them, and the items that were given up."""

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

T = TypeVar("T")

Ending = Literal["released", "expired", "unreadable"]
"""How a lease ended that did not end with `done`."""

GivenUp = Literal["attempts", "expired"]
"""Why an item is a dead letter."""


@dataclass(frozen=True, init=False)
class Lease(Generic[T]):
    """One worker's hold on one item. Times are seconds since the epoch.

    Args:
        reply: Whether a producer waits for an answer (`done(lease, result=…)`) or may still do so, because a
            later push with the same key can request one.
        pushed_at: When the item was pushed; None if the store does not know, as for items that an older
            release stored.
    """

    item: T
    lease_id: str
    timestamp: float  # when the item was taken
    item_id: str
    attempt: int  # 1 the first time that the item is taken
    expires_at: float
    reply: bool = False
    pushed_at: float | None = None

    def __init__(
        self,
        item: T,
        lease_id: str,
        timestamp: float,
        item_id: str,
        attempt: int,
        expires_at: float,
        reply: bool = False,
        pushed_at: float | None = None,
    ) -> None:
        # A generated frozen __init__ costs three times this, and a tenth of a memory queue's whole cycle.
        fields = self.__dict__
        fields["item"] = item
        fields["lease_id"] = lease_id
        fields["timestamp"] = timestamp
        fields["item_id"] = item_id
        fields["attempt"] = attempt
        fields["expires_at"] = expires_at
        if reply:  # else the class's
            fields["reply"] = True
        if pushed_at is not None:
            fields["pushed_at"] = pushed_at

    @property
    def seconds_in_queue(self) -> float | None:
        """Seconds from its push to this lease, delays and earlier leases included; None where unknown."""
        return None if self.pushed_at is None else max(0.0, self.timestamp - self.pushed_at)


def with_end(lease: Lease[T], until: float) -> Lease[T]:
    """Return a lease that ends at another time."""
    return Lease(
        lease.item,
        lease.lease_id,
        lease.timestamp,
        lease.item_id,
        lease.attempt,
        until,
        lease.reply,
        lease.pushed_at,
    )


@dataclass(frozen=True, slots=True)
class Attempt:
    """One lease of an item that ended without `done`.

    Args:
        error: Why the taker could not unpickle the item, or the error that it gave to `release`.
    """

    number: int
    outcome: Ending
    started_at: float
    ended_at: float
    error: str | None = None


@dataclass(frozen=True, slots=True)
class UnreadableItem:
    """Stands in a dead letter for an item that this process cannot unpickle."""

    payload: bytes
    error: str


@dataclass(frozen=True, slots=True)
class DeadLetter(Generic[T]):
    """An item that was given up, with what happened to it since it was last queued.

    Args:
        item: The item or, if it cannot be unpickled here, an `UnreadableItem` with the bytes as they were
            pushed.
        reason: `expired` if its `ttl` passed before a worker took it, else `attempts`.
    """

    item: T
    item_id: str
    attempts: int
    history: tuple[Attempt, ...]
    reason: GivenUp = "attempts"

    @property
    def error(self) -> str | None:
        """The error of the last attempt that has one."""
        return next((each.error for each in reversed(self.history) if each.error), None)
