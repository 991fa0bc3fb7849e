"""The contract of a queue."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar, overload, runtime_checkable

from fray._contracts.replies import Reply, Ticket
from fray._values.leases import DeadLetter, Lease
from fray._values.push_options import REPLY_TTL

T = TypeVar("T")


@runtime_checkable
class Queue(Protocol[T]):
    """A queue whose items are leased: higher priorities first; within a priority, first in, first out.

    For implementers: a queue is thread-safe, and every operation costs the same at any depth. An item stays
    until `done`. An item never has two live leases. A lease that expired stays valid until another lease
    takes or finishes its item. After that, settling it raises `LeaseExpiredError` and changes nothing.
    `QueueBase` derives `push`, `pop`, `done` and `lease` from the rest, `StoredQueue` all of it from a store
    of rows.
    """

    @overload
    def push(
        self,
        item: T,
        *,
        priority: int = 0,
        delay: float = 0.0,
        ttl: float | None = None,
        key: str | None = None,
        reply: Literal[False] = False,
        reply_ttl: float = REPLY_TTL,
        wait: float | None = None,
    ) -> str:
        """Store an item; return its id once it is stored, or, with `reply`, its ticket.

        Args:
            priority: Items of higher priorities are taken first; within one, in the order of their pushes.
            delay: Seconds before which nobody gets the item. It keeps its place in line.
            ttl: Seconds after which it goes to the dead letters as expired, where nobody took it before.
            key: While an item of this key waits or is leased, another push of it stores nothing, whatever
                its other arguments, and returns the first item's id, or a ticket for its answer.
            reply: Whether the caller wants an answer: what the worker gives to `done(lease, result=…)`.
            reply_ttl: Seconds for which an answer that nobody fetches is kept.
            wait: Seconds to wait for room on a queue with a `max_size`; None for the queue's `timeout`, 0
                for not at all.

        Raises:
            QueueFullError: There was no room in time; nothing is stored. It says how long the push `waited`.
            UnsupportedError: This kind of queue does not have an option; its capabilities list those that it
                has.
        """

    @overload
    def push(
        self,
        item: T,
        *,
        priority: int = 0,
        delay: float = 0.0,
        ttl: float | None = None,
        key: str | None = None,
        reply: Literal[True],
        reply_ttl: float = REPLY_TTL,
        wait: float | None = None,
    ) -> Ticket[Any]: ...

    @overload
    def push_many(
        self,
        items: Iterable[T],
        *,
        priority: int = 0,
        delay: float = 0.0,
        ttl: float | None = None,
        keys: Sequence[str | None] | None = None,
        reply: Literal[False] = False,
        reply_ttl: float = REPLY_TTL,
        wait: float | None = None,
    ) -> list[str]:
        """Store items in order; return their ids, or tickets. The cheapest way to store many.

        The options of `push` hold for all of them; `keys` has a key, or None, for each.
        """

    @overload
    def push_many(
        self,
        items: Iterable[T],
        *,
        priority: int = 0,
        delay: float = 0.0,
        ttl: float | None = None,
        keys: Sequence[str | None] | None = None,
        reply: Literal[True],
        reply_ttl: float = REPLY_TTL,
        wait: float | None = None,
    ) -> list[Ticket[Any]]: ...

    def pop(self, lease_timeout: float = 60.0, *, wait: float = 0.0) -> Lease[T] | None:
        """Lease the first item in line; None when none came within `wait`.

        Args:
            lease_timeout: Seconds the caller may hold the item before others get it.
            wait: Seconds to block for an item when none is waiting.
        """

    def pop_many(self, n: int, lease_timeout: float = 60.0, *, wait: float = 0.0) -> list[Lease[T]]:
        """Lease up to `n` items, in line; blocks only while there is none at all."""

    def peek(self) -> T | None:
        """Return the item that a pop would take now, and leave it."""

    def done(self, lease: Lease[T], *, result: Any = None, error: BaseException | None = None) -> None:
        """Finish an item: it is gone from the queue.

        Args:
            result: The answer for the producer that pushed it with `reply`, and for no other: see
                `Lease.reply`.
            error: In its stead, the exception that failed the item: the producer's ticket raises it.

        Raises:
            LeaseExpiredError: Another lease took or finished the item, or this one was settled before.
        """

    def done_many(self, leases: Iterable[Lease[T]], *, results: Iterable[Any] | None = None) -> None:
        """Finish every item whose lease is good; then raise for those whose lease is not.

        Args:
            results: An answer for each lease, in the same order.
        """

    def release(self, lease: Lease[T], *, delay: float = 0.0, error: BaseException | None = None) -> None:
        """Give an item back, to its old place in line; nobody gets it within `delay` seconds.

        Args:
            error: What failed this attempt, for the item's history. Where it was the last that the item may
                have, the producer's ticket raises it.
        """

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

    def map(
        self,
        items: Iterable[T],
        *,
        in_flight: int = 100,
        timeout: float | None = None,
        priority: int = 0,
        delay: float = 0.0,
        ttl: float | None = None,
        reply_ttl: float = REPLY_TTL,
    ) -> Iterator[Any]:
        """Push items and yield their answers in the same order; one that failed raises in its turn.

        Args:
            in_flight: How many items may be pushed whose answers were not yielded yet.
            timeout: Seconds to wait for each next answer.
        """

    def fetch_replies(self, item_ids: Sequence[str], *, wait: float = 0.0) -> Mapping[str, Reply]:
        """Return what became of items, for those where it is known; `wait` seconds for the first such.

        A ticket calls this. What was fetched is kept for a minute more, in case the answer was lost.
        """

    def lease(
        self, lease_timeout: float = 60.0, *, wait: float = 0.0
    ) -> contextlib.AbstractContextManager[Lease[T] | None]:
        """Lease an item for a `with` block: kept alive in it, done after it, released when it raises."""
