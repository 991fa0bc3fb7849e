"""Queues: the values, the contract that every backend keeps, and what backends share."""

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, Protocol, TypeVar, cast, runtime_checkable

from fray._discovery.plugins import QUEUES, load
from fray._discovery.specs import bind_options, parse_query
from fray._telemetry import listeners as _listeners
from fray._values.checks import check_seconds as check_seconds
from fray._values.errors import LeaseExpiredError, QueueUnavailableError, SpecError

T = TypeVar("T")

# Options that a URL must not carry: URLs end in logs, shell histories and process lists.
_SECRETS = frozenset({"token", "secret", "password"})
_BEATS_PER_LEASE = 3  # a heartbeat that is late, or lost once, still arrives in time


@dataclass(frozen=True, init=False)
class Lease(Generic[T]):
    """One worker's hold on one item. Times are seconds since the epoch."""

    item: T
    lease_id: str
    timestamp: float  # when the item was taken
    item_id: str
    attempt: int  # 1 the first time that the item is taken
    expires_at: float

    def __init__(
        self, item: T, lease_id: str, timestamp: float, item_id: str, attempt: int, expires_at: float
    ) -> None:
        # A generated frozen __init__ costs three times this, and a tenth of a memory queue's whole cycle.
        fields = self.__dict__
        fields["item"] = item
        fields["lease_id"] = lease_id
        fields["timestamp"] = timestamp
        fields["item_id"] = item_id
        fields["attempt"] = attempt
        fields["expires_at"] = expires_at


@dataclass(frozen=True, slots=True)
class Attempt:
    """One lease of an item that ended without `done`."""

    number: int
    outcome: Literal["released", "expired"]
    started_at: float
    ended_at: float


@dataclass(frozen=True, slots=True)
class DeadLetter(Generic[T]):
    """An item that was given up after `max_attempts`, with what happened to it since it was last queued."""

    item: T
    item_id: str
    attempts: int
    history: tuple[Attempt, ...]


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


class QueueBase(ABC, Generic[T]):
    """Derive the single-item calls and `lease` from the calls that take many; tell listeners of leases."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # A class is left as it is until there may be a listener: a lease in memory costs a microsecond,
        # and one more call would be a tenth of that.
        _listeners.once_watched(partial(_observe_leases, cls))

    @abstractmethod
    def push_many(self, items: Iterable[T]) -> list[str]: ...

    @abstractmethod
    def pop_many(self, n: int, lease_timeout: float = 60.0, *, wait: float = 0.0) -> list[Lease[T]]: ...

    @abstractmethod
    def done_many(self, leases: Iterable[Lease[T]]) -> None: ...

    @abstractmethod
    def release(self, lease: Lease[T], *, delay: float = 0.0) -> None: ...

    @abstractmethod
    def extend(self, lease: Lease[T], lease_timeout: float) -> Lease[T]: ...

    def push(self, item: T) -> str:
        """Store an item; see `Queue.push`."""
        return self.push_many([item])[0]

    def pop(self, lease_timeout: float = 60.0, *, wait: float = 0.0) -> Lease[T] | None:
        """Lease the oldest item that waits; see `Queue.pop`."""
        leases = self.pop_many(1, lease_timeout, wait=wait)
        return leases[0] if leases else None

    def done(self, lease: Lease[T]) -> None:
        """Finish an item; see `Queue.done`."""
        self.done_many([lease])

    @contextlib.contextmanager
    def lease(self, lease_timeout: float = 60.0, *, wait: float = 0.0) -> Iterator[Lease[T] | None]:
        """Lease an item for a `with` block; see `Queue.lease`.

        The lease is None when there was nothing to take. A lease that was lost meanwhile (this process was
        stopped for longer than `lease_timeout`, say) shows as the LeaseExpiredError of `done` at the end.
        """
        lease = self.pop(lease_timeout, wait=wait)
        if lease is None:
            yield None
            return
        with kept_alive(cast(Queue[T], self), lease, lease_timeout):
            try:
                yield lease
            except BaseException:
                # What went wrong in the block is the news; a lease that is lost as well is not.
                with contextlib.suppress(LeaseExpiredError, QueueUnavailableError):
                    self.release(lease)
                raise
        self.done(lease)


def _observe_leases(queue_class: type) -> None:
    from fray._telemetry.job_instrumentation import observe_leases  # for listeners only

    observe_leases(queue_class)


@contextlib.contextmanager
def kept_alive(queue: Queue[T], lease: Lease[T], lease_timeout: float) -> Iterator[None]:
    """Extend a lease again and again, from a thread, while the block runs."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(min(lease_timeout / _BEATS_PER_LEASE, threading.TIMEOUT_MAX)):
            try:
                queue.extend(lease, lease_timeout)
            except LeaseExpiredError:
                return  # `done` will say so
            except QueueUnavailableError:
                continue  # the lease may still be good when the server is back

    thread = threading.Thread(target=beat, name=f"fray-heartbeat-{lease.item_id}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def open_queue(url: str, **options: Any) -> Queue[Any]:
    """Open the queue that a URL names: `memory:`, `file:/dir`, `gs://…`, `s3://…`, `http://host:port/name`.

    Args:
        options: As the backend's `from_url` takes them; they win over the URL's `?key=value&key=value`.

    Raises:
        PluginNotFoundError: No installed wheel provides the scheme.
        SpecError: The URL has no scheme, or an option is unknown, malformed or a secret.
    """
    if not isinstance(url, str):
        raise SpecError(f"a queue's URL is text such as 'file:/shared/tasks', got {url!r}")
    scheme, colon, _ = url.partition(":")
    if not colon or not scheme or "/" in scheme:
        raise SpecError(
            f"{url!r} has no scheme; a folder is file:/path, a server's queue http://host:port/name"
        )
    address, mark, query = url.partition("?")
    texts = parse_query(query, url) if mark else {}
    for key in _SECRETS & texts.keys():
        raise SpecError(
            f"{address!r}: pass {key!r} as a keyword or by the environment, never in a URL, which is logged"
        )
    factory = load(QUEUES, scheme)
    bound = bind_options(factory.from_url, f"queue {scheme!r}", texts, options)
    bound.pop("url", None)
    queue: Queue[Any] = factory.from_url(address, **bound)
    return queue
