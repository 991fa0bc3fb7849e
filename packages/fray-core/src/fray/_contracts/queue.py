"""The contract of a queue."""

import contextlib
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from fray._values.leases import DeadLetter, Lease

T = TypeVar("T")


@runtime_checkable
class Queue(Protocol[T]):
    """A first-in, first-out queue whose items are leased, not taken.

    For implementers: safe among threads; every operation costs the same at any depth. An item stays until
    `done`. Never are there two live leases on one item. A lease that ran out and was not taken again is
    still good; once another lease took or finished its item, settling it raises `LeaseExpiredError` and
    changes nothing. `QueueBase` derives `push`, `pop`, `done` and `lease` from the rest,
    `StoredQueue` all of it from a store of rows.
    """

    def push(self, item: T) -> str:
        """Store an item at the end of the line; return its id once it is stored."""

    def push_many(self, items: Iterable[T]) -> list[str]:
        """Store items in order; return their ids. The cheapest way to store many."""

    def pop(self, lease_timeout: float = 60.0, *, wait: float = 0.0) -> Lease[T] | None:
        """Lease the oldest item that waits; None when none came within `wait`.

        Args:
            lease_timeout: Seconds the caller may hold the item before others get it.
            wait: Seconds to block for an item when none is waiting.
        """

    def pop_many(self, n: int, lease_timeout: float = 60.0, *, wait: float = 0.0) -> list[Lease[T]]:
        """Lease up to `n` items, the oldest first; blocks only while there is none at all."""

    def peek(self) -> T | None:
        """Return the item that a pop would take now, and leave it."""

    def done(self, lease: Lease[T]) -> None:
        """Finish an item: it is gone from the queue.

        Raises:
            LeaseExpiredError: Another lease took or finished the item, or this one was settled before.
        """

    def done_many(self, leases: Iterable[Lease[T]]) -> None:
        """Finish every item whose lease is good; then raise for the first whose lease is not."""

    def release(self, lease: Lease[T], *, delay: float = 0.0) -> None:
        """Give an item back, to its old place in line; nobody gets it within `delay` seconds."""

    def extend(self, lease: Lease[T], lease_timeout: float) -> Lease[T]:
        """Hold the item for `lease_timeout` seconds from now; the new lease has the old `lease_id`."""

    def size(self) -> int:
        """Count the items that wait, are delayed or are leased; dead letters do not count."""

    def pending(self) -> int:
        """Count the items that a pop could take now."""

    def dead_letters(self) -> list[DeadLetter[T]]:
        """List the items that were given up after `max_attempts`."""

    def requeue_dead(self, item_ids: Sequence[str] | None = None) -> int:
        """Put dead letters (all, or those of these ids) back with a fresh count; return how many were."""

    def lease(
        self, lease_timeout: float = 60.0, *, wait: float = 0.0
    ) -> contextlib.AbstractContextManager[Lease[T] | None]:
        """Lease an item for a `with` block: kept alive in it, done after it, released when it raises."""
