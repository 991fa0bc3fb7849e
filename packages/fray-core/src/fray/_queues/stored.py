"""A whole queue over a store of rows: the rules are the lease machine's, a backend brings the store.

An item is one row. It waits while its `until` has passed and it is not dead; a lease, or the delay of a
release, moves `until` into the future. A lease that ran out keeps its id on the row until the item is
taken again, so its holder may still settle it.
"""

import math
import secrets
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from fray._queues import lease_machine
from fray._queues.answers import Answer, check_error, check_lease
from fray._queues.base import QueueBase
from fray._queues.lease_machine import FRESH, LeaseState
from fray._queues.reading import dead_letter, describe, read_item, take_readable
from fray._serialization.values import dumps
from fray._values.checks import check_count, check_seconds
from fray._values.delays import poll_until
from fray._values.errors import LeaseExpiredError, UnsupportedError
from fray._values.leases import Attempt, DeadLetter, Lease, with_end
from fray._values.push_options import PushOptions

T = TypeVar("T")
_LONGEST_PAUSE = 0.25  # seconds between two looks of a waiting pop


@dataclass(frozen=True, slots=True)
class StoredItem:
    """One item as a store keeps it; a store reads only `item_id`, `dead`, `until`, `attempt`.

    Args:
        attempt: Leases so far, the present one included.
        until: Seconds since the epoch before which nobody may take it; its lease or its delay ends then.
        history: The leases that ended without `done`, as the lease machine keeps them.
        pushed_at: Seconds since the epoch; None if a store has not kept it.
    """

    item_id: str
    payload: bytes
    attempt: int = 0
    lease_id: str = ""
    leased_at: float = 0.0
    until: float = 0.0
    dead: bool = False
    history: tuple[Attempt, ...] = ()
    pushed_at: float | None = None

    def __setstate__(self, state: Sequence[Any]) -> None:
        values = dict(zip(self.__slots__, state, strict=False))  # of an older release there are fewer
        for name in self.__slots__:
            object.__setattr__(self, name, values.get(name))

    @property
    def state(self) -> LeaseState:
        """The part that changes."""
        return LeaseState(self.attempt, self.lease_id, self.leased_at, self.until, self.dead, self.history)

    def having(self, state: LeaseState) -> "StoredItem":
        """Return the item in another state."""
        return StoredItem(self.item_id, self.payload, *state[:6], self.pushed_at)


class ItemStore(ABC):
    """The rows of one queue, inside one transaction; transactions must be serialized."""

    @abstractmethod
    def save(self, items: Sequence[StoredItem]) -> None:
        """Put new items at the end of the line, in this order; a known `item_id` keeps its place."""

    @abstractmethod
    def find(self, item_id: str) -> StoredItem | None:
        """Return an item, dead or not."""

    @abstractmethod
    def delete(self, item_id: str) -> None:
        """Delete an item."""

    @abstractmethod
    def waiting(self, by: float, limit: int) -> list[StoredItem]:
        """List the first `limit` items in line that are not dead and whose `until` is at most `by`."""

    @abstractmethod
    def lapsed(self, by: float, attempts: int) -> list[StoredItem]:
        """List, in any order, those not dead with `until` at most `by` and `attempt` at least `attempts`.

        There are few at any time, and every operation asks: find them without looking at the others.
        """

    @abstractmethod
    def dead(self) -> list[StoredItem]:
        """List the dead items in line."""

    @abstractmethod
    def count(self, by: float) -> int:
        """Count the items that are not dead and whose `until` is at most `by`."""


class StoredQueue(QueueBase[T]):
    """A queue that processes share through a store; items are pickled, so the store sees bytes.

    Hooks:
        _transaction(): A context manager around one transaction, which yields its `ItemStore`. Every
            operation calls it on the user's thread, and the thread that extends a lease does so, too. Its
            exceptions propagate there.

    Args:
        max_attempts: Leases that may end without `done` before an item goes to the dead letters.
        clock: Seconds since the epoch, on which all processes that share the queue agree; tests pass their
            own.
    """

    def __init__(
        self,
        *,
        max_attempts: int | None = None,
        max_size: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if max_size is not None:
            raise UnsupportedError(
                f"{type(self).__name__}: max_size is not supported by this backend; bound the producers"
            )
        if max_attempts is not None:
            check_count("max_attempts", max_attempts, 1)
        self._max_attempts, self._clock = max_attempts, clock

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[ItemStore]:
        """Open the store for one operation: what the block saved is kept at its end, or, where it raised,
        not at all. Called from any thread and, where the queue travels, in any process."""

    @property
    def max_attempts(self) -> int | None:
        """Leases that may end without `done`; None for any number."""
        return self._max_attempts

    def _store_items(self, items: Iterable[T], options: PushOptions) -> list[str]:
        payloads = [dumps(item, "the item given to push") for item in items]
        now = self._clock()
        stored = [StoredItem(uuid.uuid4().hex, payload, pushed_at=now) for payload in payloads]
        if stored:
            with self._transaction() as store:
                store.save(stored)
        return [item.item_id for item in stored]

    def pop_many(self, n: int, lease_timeout: float = 60.0, *, wait: float = 0.0) -> list[Lease[T]]:
        """Lease up to `n` items; see `Queue.pop_many`. A waiting pop looks again, ever less often."""
        check_count("n", n, 1)
        check_seconds("lease_timeout", lease_timeout)
        check_seconds("wait", wait, zero=True)

        def look() -> list[Lease[T]] | None:
            take = partial(self._take, n, lease_timeout)
            return take_readable(take, set_aside=self._set_aside, give_back=self.give_back) or None

        return poll_until(look, wait, longest=_LONGEST_PAUSE) or []

    def _finish(self, leases: Sequence[Lease[T]], answers: Sequence[Answer | None]) -> list[str]:
        lost: list[str] = []
        with self._swept() as (store, _):
            for lease in leases:
                try:
                    store.delete(_held(store, lease).item_id)
                except LeaseExpiredError as error:
                    lost.append(error.lease_id)
        return lost

    def release(self, lease: Lease[Any], *, delay: float = 0.0, error: BaseException | None = None) -> None:
        """Give an item back to its place in line; see `Queue.release`."""
        check_seconds("delay", delay, zero=True)
        check_error(error)
        text = None if error is None else describe(error)
        with self._swept() as (store, now):
            item = _held(store, check_lease(lease))
            state = lease_machine.release(item.state, lease.lease_id, delay, now, self._max_attempts, text)
            store.save([item.having(state)])

    def give_back(self, leases: Iterable[Lease[Any]]) -> None:
        """Give back items that were not worked on; see `QueueBase.give_back`."""
        leases = [check_lease(lease) for lease in leases]
        with self._swept() as (store, _):
            for lease in leases:
                with suppress(LeaseExpiredError):
                    item = _held(store, lease)
                    store.save([item.having(lease_machine.give_back(item.state, lease.lease_id))])

    def extend(self, lease: Lease[T], lease_timeout: float) -> Lease[T]:
        """Hold the item for `lease_timeout` seconds from now; see `Queue.extend`."""
        check_seconds("lease_timeout", lease_timeout)
        with self._swept() as (store, now):
            item = _held(store, check_lease(lease))
            state = lease_machine.extend(item.state, lease.lease_id, lease_timeout, now)
            store.save([item.having(state)])
        return with_end(lease, state.until)

    def peek(self) -> T | None:
        """Return the item that a pop would take now; see `Queue.peek`."""
        with self._swept() as (store, now):
            waiting = store.waiting(now, 1)
        return read_item(waiting[0].payload, waiting[0].item_id) if waiting else None

    def size(self) -> int:
        """Count what waits, is delayed or is leased."""
        with self._swept() as (store, _):
            return store.count(math.inf)

    def pending(self) -> int:
        """Count what a pop could take now."""
        with self._swept() as (store, now):
            return store.count(now)

    def dead_letters(self) -> list[DeadLetter[T]]:
        """List the items that were given up."""
        with self._swept() as (store, _):
            dead = store.dead()
        return [dead_letter(item.payload, item.item_id, item.attempt, item.history) for item in dead]

    def requeue_dead(self, item_ids: Sequence[str] | None = None) -> int:
        """Put dead letters back with a fresh count; see `Queue.requeue_dead`."""
        with self._swept() as (store, _):
            dead = store.dead()
            wanted = None if item_ids is None else set(item_ids)
            back = [item for item in dead if wanted is None or item.item_id in wanted]
            store.save([item.having(FRESH) for item in back])
        return len(back)

    def _take(self, n: int, lease_timeout: float) -> list[Lease[bytes]]:
        with self._swept() as (store, now):
            taken = []
            for item in store.waiting(now, n):
                lease_id = secrets.token_hex(8)
                state = lease_machine.lease(item.state, lease_id, lease_timeout, now, self._max_attempts)
                taken.append(item.having(state))
            store.save(taken)
        return [_lease(item) for item in taken]

    def _set_aside(self, lease: Lease[bytes], error: str) -> None:
        with self._swept() as (store, now):
            item = _held(store, lease)
            state = lease_machine.set_aside(item.state, lease.lease_id, error, now, self._max_attempts)
            store.save([item.having(state)])

    @contextmanager
    def _swept(self) -> Iterator[tuple[ItemStore, float]]:
        """Open the store, mark items dead whose last lease ran out, and return the time."""
        with self._transaction() as store:
            now = self._clock()
            if self._max_attempts is not None:
                lapsed = store.lapsed(now, self._max_attempts)
                store.save(
                    [
                        item.having(lease_machine.expire(item.state, now, self._max_attempts))
                        for item in lapsed
                    ]
                )
            yield store, now


def _held(store: ItemStore, lease: Lease[Any]) -> StoredItem:
    item = store.find(lease.item_id)
    if item is None:
        raise LeaseExpiredError(lease.lease_id)
    lease_machine.check_held(item.state, lease.lease_id)
    return item


def _lease(item: StoredItem) -> Lease[bytes]:
    return Lease(
        item.payload,
        item.lease_id,
        item.leased_at,
        item.item_id,
        item.attempt,
        item.until,
        pushed_at=item.pushed_at,
    )
