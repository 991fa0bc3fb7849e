"""A client of one queue of an HttpQueueServer."""

import os
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import quote, urlsplit

from fray import LeaseExpiredError
from fray.backend import Answer, AsyncQueue, PushOptions, QueueCapabilities, check_count, check_seconds
from fray.queue import DeadLetter, Lease, QueueBase, Reply
from fray_queue._checks import check_name
from fray_queue._errors import QueueNotFoundError
from fray_queue._http.client.address import ServerAddress
from fray_queue._http.client.aio import AsyncHttpQueue, Loops
from fray_queue._http.client.batches import Ids
from fray_queue._http.client.calls import Calls
from fray_queue._http.client.connections import Connections, Request
from fray_queue._http.client.network import BlockingNetwork, run_blocking
from fray_queue._http.client.reading import read_fields
from fray_queue._http.client.server import ServerClient
from fray_queue._http.protocol.limits import PROTOCOL

T = TypeVar("T")

TOKEN_VARIABLE = "FRAY_QUEUE_TOKEN"  # noqa: S105 - its name


def token_from_environment(token: str | None) -> str | None:
    """Return a token that a header can carry: the one given, or that of `FRAY_QUEUE_TOKEN`."""
    token = token if token is not None else os.environ.get(TOKEN_VARIABLE)
    if token is not None and not (token and token.isascii() and token.isprintable() and " " not in token):
        raise ValueError("a token is printable ASCII without spaces, and not empty")
    return token


@dataclass
class _Target:
    """What the calls of one queue share."""

    path: str
    timeout: float
    settings: dict[str, Any] | None  # with which the queue is to be made before its first use
    ids: Ids = field(default_factory=Ids)


class _Declared:
    """What a queue on a server can do at most; of an instance, as its server is configured."""

    at_most = QueueCapabilities(
        durable=True,
        shared_between_processes=True,
        shared_between_machines=True,
        waiting=True,
        steady_clock=True,
        give_back=True,
        priorities=True,
        delays=True,
        ttl=True,
        keys=True,
        replies=True,
        max_size=True,
    )

    def __get__(self, queue: "HttpQueue[Any] | None", owner: type) -> QueueCapabilities:
        if queue is None:
            return self.at_most
        stats = queue.stats()
        steady = bool(stats.get("steady_clock", True))  # not where an engine keeps the leases
        can = self.at_most.but(durable=bool(stats["durable"]), steady_clock=steady)
        if stats.get("protocol", 1) >= PROTOCOL:
            return can
        return can.but(priorities=False, delays=False, ttl=False, keys=False, replies=False, max_size=False)


class HttpQueue(QueueBase[T]):
    """A queue on a server. It is thread-safe, and a pickled copy is the same queue elsewhere.

    Args:
        url: The server's address, `http://host:port`.
        name: The queue's name on it.
        token: The token for the server. By default that of `FRAY_QUEUE_TOKEN`, else the one that a server of
            this user made on this machine.
        max_attempts: The limit of attempts: a new queue gets it, an existing queue must have it.
        max_size: Likewise, the most items, not counting dead letters; a push waits for room.
        max_dead: Likewise, the most dead letters (100,000 by default); the first in line are dropped.
        create: Whether to make the queue if it is missing.
        timeout: Seconds for which requests are repeated while the server is away, and for which a push waits
            for room.
        ca_file: Certificates to trust besides the system's, for `https`.
    """

    capabilities = _Declared()

    def __init__(
        self,
        url: str,
        name: str,
        token: str | None = None,
        *,
        max_attempts: int | None = None,
        max_size: int | None = None,
        max_dead: int | None = None,
        create: bool = False,
        timeout: float = 30.0,
        ca_file: str | Path | None = None,
    ) -> None:
        check_seconds("timeout", timeout)
        bounds = {"max_attempts": max_attempts, "max_size": max_size, "max_dead": max_dead}
        for bound, count in bounds.items():
            if count is not None:
                check_count(bound, count, 1)
        self._url, self._name = url.rstrip("/"), check_name(name)
        self._options = {"timeout": timeout, "ca_file": ca_file}
        given = {bound: count for bound, count in bounds.items() if count is not None}
        self._target = _Target(f"/queues/{quote(name)}", timeout, given if create or given else None)
        self._address = address = ServerAddress(self._url, token_from_environment(token), ca_file=ca_file)
        self._connections = Connections(address, BlockingNetwork(), timeout=timeout)
        self._calls = Calls(self._target, self._connections)
        self._loops = Loops(self._target, address)
        weakref.finalize(self, _close, self._connections, self._loops)

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        token: str | None = None,
        max_attempts: int | None = None,
        max_size: int | None = None,
        max_dead: int | None = None,
        create: bool = False,
        timeout: float = 30.0,
        ca_file: str | None = None,
    ) -> "HttpQueue[Any]":
        """Open `http://host:port/name`."""
        parts = urlsplit(url)
        return cls(
            f"{parts.scheme}://{parts.netloc}",
            parts.path.strip("/"),
            token,
            max_attempts=max_attempts,
            max_size=max_size,
            max_dead=max_dead,
            create=create,
            timeout=timeout,
            ca_file=ca_file,
        )

    @staticmethod
    def server(url: str, token: str | None = None, *, ca_file: str | None = None) -> ServerClient:
        """Return a client of a server itself, for `fray ui`, which repeats no request."""
        url = url.rstrip("/")
        return ServerClient(ServerAddress(url, token_from_environment(token), ca_file=ca_file))

    @property
    def max_attempts(self) -> int | None:
        """Leases that may end without `done`; None for any number."""
        return cast("int | None", self.stats()["max_attempts"])

    def _store_items(self, items: Iterable[T], options: PushOptions) -> list[str]:
        return run_blocking(self._calls.store(items, options))

    def pop_many(self, n: int, lease_timeout: float = 60.0, *, wait: float = 0.0) -> list[Lease[T]]:
        """Lease up to `n` items, all of which are returned; see `Queue.pop_many`."""
        return run_blocking(self._calls.pop_many(n, lease_timeout, wait=wait))

    def _finish(self, leases: Sequence[Lease[T]], answers: Sequence[Answer | None]) -> list[str]:
        return run_blocking(self._calls.finish(leases, answers))

    def release(self, lease: Lease[Any], *, delay: float = 0.0, error: BaseException | None = None) -> None:
        """Give an item back to its place in line; see `Queue.release`."""
        run_blocking(self._calls.release(lease, delay=delay, error=error))

    def fetch_replies(self, item_ids: Sequence[str], *, wait: float = 0.0) -> dict[str, Reply]:
        """Return what became of items; see `Queue.fetch_replies`."""
        return run_blocking(self._calls.fetch_replies(item_ids, wait=wait))

    async def wait_for_reply(self, item_id: str) -> Reply:
        """Wait for one answer; what `await ticket` does."""
        return await cast("AsyncHttpQueue[T]", self.aio).wait_for_reply(item_id)

    def dead_dropped(self) -> int:
        """Count the dead letters that were dropped because there were more than `max_dead`."""
        return int(self.stats()["dead_dropped"])

    def extend(self, lease: Lease[T], lease_timeout: float) -> Lease[T]:
        """Hold the item for `lease_timeout` seconds from now; see `Queue.extend`."""
        return run_blocking(self._calls.extend(lease, lease_timeout))

    def extend_many(
        self, leases: Iterable[Lease[T]], lease_timeout: float
    ) -> list[Lease[T] | LeaseExpiredError]:
        """Extend leases, a thousand in a request; see `QueueBase.extend_many`."""
        return run_blocking(self._calls.extend_many(leases, lease_timeout))

    def give_back(self, leases: Iterable[Lease[T]]) -> None:
        """Give back items that were not worked on; see `QueueBase.give_back`."""
        run_blocking(self._calls.give_back(leases))

    def peek(self) -> T | None:
        """Return the item that a pop would take now; see `Queue.peek`."""
        return cast("T | None", run_blocking(self._calls.peek()))

    def size(self) -> int:
        """Count what waits, is delayed or is leased."""
        return run_blocking(self._calls.size())

    def pending(self) -> int:
        """Count what a pop could take now."""
        return run_blocking(self._calls.pending())

    def oldest_seconds(self) -> float | None:
        """Return the age of the oldest item that waits, is delayed or is leased; None where there is none."""
        stats = self.stats()
        return cast("float | None", stats.get("oldest_seconds")) if stats["size"] else None

    def stats(self) -> dict[str, Any]:
        """Return what the server reports of the queue."""
        return run_blocking(self._calls.stats())

    def dead_letters(self) -> list[DeadLetter[T]]:
        """List the items that were given up."""
        return run_blocking(self._calls.dead_letters())

    def dead_facts(self) -> list[dict[str, Any]]:
        """Return what the server reports of the dead letters; their items are neither fetched nor loaded."""
        return run_blocking(self._calls.dead_facts())

    def requeue_dead(self, item_ids: Sequence[str] | None = None) -> int:
        """Put dead letters back; see `Queue.requeue_dead`."""
        return run_blocking(self._calls.requeue_dead(item_ids))

    def purge(self) -> int:
        """Remove every item that is not a dead letter, leased ones too; return how many."""
        return run_blocking(self._calls.purge())

    def purge_dead(self, item_ids: Sequence[str] | None = None) -> int:
        """Remove dead letters (all, or those of these ids); return how many."""
        return run_blocking(self._calls.purge_dead(item_ids))

    def exists(self) -> bool:
        """Return whether the server has the queue; makes none."""
        try:
            run_blocking(self._calls.look())
        except QueueNotFoundError:
            return False
        return True

    def delete(self) -> None:
        """Remove the queue with all that is in it."""
        run_blocking(self._calls.delete())

    def close(self) -> None:
        """Close all connections, also those that event loops left open; the next call connects again."""
        self._connections.close()
        self._loops.close()

    def _asynchronous(self) -> AsyncQueue[T]:
        return AsyncHttpQueue(self, self._loops)

    def __enter__(self) -> "HttpQueue[T]":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        settings = self._target.settings
        more = {} if settings is None else {"create": True, **settings}  # not made yet
        return _reopen, (type(self), self._url, self._name, self._address.token, self._options | more)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r}, {self._name!r})"


def list_queues(
    url: str, token: str | None = None, *, timeout: float = 30.0, ca_file: str | Path | None = None
) -> list[dict[str, Any]]:
    """Return what a server reports of each of its queues."""
    address = ServerAddress(url.rstrip("/"), token_from_environment(token), ca_file=ca_file)
    connections = Connections(address, BlockingNetwork(), timeout=timeout)
    try:
        answer = run_blocking(connections.ask(Request("GET", "/queues")))
        queues: list[dict[str, Any]] = read_fields(answer, "queues")["queues"]
        return queues
    finally:
        connections.close()


def _close(connections: Connections, loops: Loops) -> None:
    connections.close()
    loops.close()


def _reopen(
    cls: type[HttpQueue[Any]], url: str, name: str, token: str | None, options: dict[str, Any]
) -> HttpQueue[Any]:
    return cls(url, name, token, **options)
