"""A client of one queue of an HttpQueueServer."""

import json
import math
import os
import time
import weakref
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import quote, urlsplit

from fray import FrayError, LeaseExpiredError, QueueFullError, UnsupportedError
from fray.backend import (
    PLAIN,
    Answer,
    PushOptions,
    QueueCapabilities,
    check_error,
    check_seconds,
    dead_letter,
    describe,
    pack_answers,
    pack_failure,
    read_item,
    take_readable,
)
from fray.queue import Attempt, DeadLetter, Lease, QueueBase, Reply
from fray_queue._checks import check_count, check_lease, check_name
from fray_queue._codec import encode_many
from fray_queue._errors import (
    DamagedError,
    LimitError,
    NoRoomError,
    QueueNotFoundError,
    UnknownRouteError,
)
from fray_queue._http.client.batches import BATCH, Ids, batches
from fray_queue._http.client.connections import Connections
from fray_queue._http.protocol.limits import ITEM_BYTES, PROTOCOL, item_too_large
from fray_queue._http.protocol.tokens import token_for
from fray_queue._http.protocol.wire import pack, unpack
from fray_queue._leases import extended, with_end

T = TypeVar("T")

TOKEN_VARIABLE = "FRAY_QUEUE_TOKEN"  # noqa: S105 - its name
_SHARE_OF_LEASE = 0.25  # of the time of the first items of a batch, which may pass while others are fetched
_LONGEST_POLL = 20.0  # a longer wait is several requests, so that nothing between takes it for dead


def token_from_environment(token: str | None) -> str | None:
    """Return a token that a header can carry: the one given, or that of `FRAY_QUEUE_TOKEN`."""
    token = token if token is not None else os.environ.get(TOKEN_VARIABLE)
    if token is not None and not (token and token.isascii() and token.isprintable() and " " not in token):
        raise ValueError("a token is printable ASCII without spaces, and not empty")
    return token


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
        can = self.at_most.but(durable=bool(stats["durable"]))
        if stats.get("protocol", 1) >= PROTOCOL:
            return can
        return can.but(priorities=False, delays=False, ttl=False, keys=False, replies=False, max_size=False)


class HttpQueue(QueueBase[T]):
    """A queue on a server; safe among threads, and pickled it is the same queue elsewhere.

    Args:
        url: The server's address, `http://host:port`.
        name: The queue's name on it.
        token: What the server wants to see; default is `FRAY_QUEUE_TOKEN`, and then the token that a server
            of this user on this machine made.
        max_attempts: Makes the queue with this limit of attempts, or confirms it.
        max_size: Likewise, with a bound of items, dead letters apart; a push waits for room.
        max_dead: Likewise, with a bound of dead letters (100,000 unless said); the first in line go.
        create: Makes the queue where it is missing.
        timeout: Seconds that requests are repeated for while the server is away, and a push waits for room.
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
                check_count(bound, count)
        self._url, self._name = url.rstrip("/"), check_name(name)
        self._token = token_from_environment(token) or token_for(self._url)
        self._options = {"timeout": timeout, "ca_file": ca_file}
        self._path = f"/queues/{quote(name)}"
        self._connections = Connections(self._url, self._token, timeout=timeout, ca_file=ca_file)
        weakref.finalize(self, self._connections.close)
        self._ids = Ids()
        self._timeout = timeout
        given = {bound: count for bound, count in bounds.items() if count is not None}
        self._settings = given if create or given else None

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

    @property
    def max_attempts(self) -> int | None:
        """Leases that may end without `done`; None for any number."""
        return cast("int | None", self.stats()["max_attempts"])

    def _store_items(self, items: Iterable[T], options: PushOptions) -> list[str]:
        payloads = encode_many(items)
        parts = list(batches(payloads, BATCH))
        if len(parts) != 1 or len(payloads[0]) > ITEM_BYTES:
            return self._send_items(self._within_limits(payloads), options)
        try:
            return self._send_items(parts, options)
        except LimitError:  # the server takes less at once than others; it stored nothing
            if len(smaller := self._within_limits(payloads)) == 1:
                raise
        return self._send_items(smaller, options)

    def _within_limits(self, payloads: list[bytes]) -> list[list[bytes]]:
        """Part payloads as the server takes them; when one is too large, no other is sent either."""
        if not payloads:
            return []
        limits = self.stats()
        for payload in payloads:
            if len(payload) > limits["item_bytes"]:
                raise LimitError(item_too_large(limits["item_bytes"], len(payload)))
        return list(batches(payloads, min(BATCH, limits["batch"])))

    def _send_items(self, parts: list[list[bytes]], options: PushOptions = PLAIN) -> list[str]:
        ids: list[str] = []
        end = time.monotonic() + (self._timeout if options.wait is None else options.wait)
        for batch in parts:
            ids += self._send_with_room(batch, options, len(ids), end)
        return ids

    def _send_with_room(self, batch: list[bytes], options: PushOptions, first: int, end: float) -> list[str]:
        """Send one request, again while the queue has no room; `first` is its first item's place."""
        while True:
            try:
                if options.is_plain:
                    return self._send_plain(batch)
                return self._submit(batch, options, first)
            except NoRoomError as error:
                left = end - time.monotonic()
                if not error.ever or left <= 0:
                    raise QueueFullError(str(error)) from None
                count = error.count
            wait = min(left, _LONGEST_POLL)
            self._send("room", _dump({"count": count, "wait": wait}), "application/json", wait)

    def _send_plain(self, batch: list[bytes]) -> list[str]:
        new = [next(self._ids) for _ in batch]
        self._send("push", pack([{"id": item_id} for item_id in new], batch), "application/octet-stream")
        return new

    def _submit(self, batch: list[bytes], options: PushOptions, first: int) -> list[str]:
        metas: list[dict[str, Any]] = [{} for _ in batch]
        metas[0]["options"] = {
            "priority": options.priority,
            "delay": options.delay,
            "ttl": options.ttl,
            "reply_ttl": options.reply_ttl,
        }
        if options.keys is not None:
            for meta, key in zip(metas, options.keys[first:], strict=False):
                meta["key"] = key
        ids: list[str] = json.loads(self._new("submit", pack(metas, batch)))["ids"]
        return ids

    def pop_many(self, n: int, lease_timeout: float = 60.0, *, wait: float = 0.0) -> list[Lease[T]]:
        """Lease up to `n` items, all of which are returned; see `Queue.pop_many`."""
        check_count("n", n)
        check_seconds("lease_timeout", lease_timeout)
        end = time.monotonic() + check_seconds("wait", wait, zero=True)
        return take_readable(
            lambda: self._take(n, lease_timeout, end), set_aside=self._set_aside, give_back=self.release
        )

    def _take(self, n: int, lease_timeout: float, end: float) -> list[Lease[bytes]]:
        """Lease items in as many requests as it takes; what one of them leased is returned in any case."""
        enough = math.inf
        leases: dict[
            str, Lease[bytes]
        ] = {}  # by item: one whose first lease ran out meanwhile is not given twice
        while len(leases) < n:
            left = 0.0 if leases else max(0.0, min(_LONGEST_POLL, end - time.monotonic()))
            body = {"n": min(BATCH, n - len(leases)), "lease_timeout": lease_timeout, "wait": left}
            try:
                more = self._records("pop", body, patience=left)
            except (FrayError, OSError):
                if leases:
                    break
                raise
            if not leases:
                enough = time.monotonic() + lease_timeout * _SHARE_OF_LEASE
            before = len(leases)
            leases |= {meta["item_id"]: _lease(meta, payload) for meta, payload in more}
            now = time.monotonic()
            if (leases and (now >= enough or len(leases) == before)) or (not more and now >= end):
                break
        return list(leases.values())

    def _set_aside(self, lease: Lease[bytes], error: str) -> None:
        self._json("release", {"item_id": lease.item_id, "lease_id": lease.lease_id, "error": error})

    def _finish(self, leases: Sequence[Lease[T]], answers: Sequence[Answer | None]) -> list[str]:
        refused: list[str] = []
        if not any(answers):
            for pairs in _pairs(leases):
                refused += self._json("done", {"leases": pairs})["refused"]
            return refused
        packed = pack_answers(leases, answers)
        payloads = [b"" if answer is None else answer[1] for answer in packed]
        first = 0
        for batch in batches(payloads, BATCH):
            metas = [
                _outcome_meta(leases[index], packed[index]) for index in range(first, first + len(batch))
            ]
            refused += json.loads(self._new("finish", pack(metas, batch)))["refused"]
            first += len(batch)
        return refused

    def release(self, lease: Lease[Any], *, delay: float = 0.0, error: BaseException | None = None) -> None:
        """Give an item back to its place in line; see `Queue.release`."""
        check_lease(lease)
        check_seconds("delay", delay, zero=True)
        check_error(error)
        body = {"item_id": lease.item_id, "lease_id": lease.lease_id, "delay": delay}
        if error is not None:
            body["reason"] = describe(error)
        if (failure := pack_failure(lease, error)) is not None:
            body["failure"] = b64encode(failure).decode()
        self._json("release", body)

    def fetch_replies(self, item_ids: Sequence[str], *, wait: float = 0.0) -> dict[str, Reply]:
        """Return what became of items; see `Queue.fetch_replies`."""
        ids = list(map(str, item_ids))[:BATCH]
        end = time.monotonic() + check_seconds("wait", wait, zero=True)
        while True:
            left = max(0.0, min(_LONGEST_POLL, end - time.monotonic()))
            body = _dump({"item_ids": ids, "wait": left})
            found = _unpack(self._new("replies", body, "application/json", left))
            if found or time.monotonic() >= end:
                return {
                    meta["item_id"]: Reply(meta["item_id"], meta["outcome"], payload)
                    for meta, payload in found
                }

    def dead_dropped(self) -> int:
        """Count the dead letters that were dropped because there were more than `max_dead`."""
        return int(self.stats()["dead_dropped"])

    def extend(self, lease: Lease[T], lease_timeout: float) -> Lease[T]:
        """Hold the item for `lease_timeout` seconds from now; see `Queue.extend`."""
        check_lease(lease)
        check_seconds("lease_timeout", lease_timeout)
        body = {"item_id": lease.item_id, "lease_id": lease.lease_id, "lease_timeout": lease_timeout}
        until = self._json("extend", body)["expires_at"]
        return with_end(lease, until)

    def extend_many(
        self, leases: Iterable[Lease[T]], lease_timeout: float
    ) -> list[Lease[T] | LeaseExpiredError]:
        """Extend leases, a thousand in a request; see `QueueBase.extend_many`."""
        leases = [check_lease(lease) for lease in leases]
        check_seconds("lease_timeout", lease_timeout)
        ends: list[float | None] = []
        for pairs in _pairs(leases):
            ends += self._json("extend_many", {"leases": pairs, "lease_timeout": lease_timeout})["expires_at"]
        return extended(leases, ends)

    def give_back(self, leases: Iterable[Lease[T]]) -> None:
        """Give back items that were not worked on; see `QueueBase.give_back`."""
        for pairs in _pairs([check_lease(lease) for lease in leases]):
            self._json("give_back", {"leases": pairs})

    def peek(self) -> T | None:
        """Return the item that a pop would take now; see `Queue.peek`."""
        records = self._read("peek")
        if not records:
            return None
        ((meta, payload),) = records
        return cast(T, read_item(payload, meta["item_id"]))

    def size(self) -> int:
        """Count what waits, is delayed or is leased."""
        return int(self.stats()["size"])

    def pending(self) -> int:
        """Count what a pop could take now."""
        return int(self.stats()["pending"])

    def stats(self) -> dict[str, Any]:
        """Return what the server tells of the queue."""
        self._prepare()
        stats: dict[str, Any] = json.loads(self._connections.ask("GET", self._path))
        return stats

    def dead_letters(self) -> list[DeadLetter[T]]:
        """List the items that were given up."""
        return [
            dead_letter(
                payload,
                meta["item_id"],
                meta["attempts"],
                tuple(Attempt(*attempt) for attempt in meta["history"]),
                "expired" if meta.get("expired") else "attempts",
            )
            for meta, payload in self._dead_records()
        ]

    def dead_facts(self) -> list[dict[str, Any]]:
        """Return what the server tells of the dead letters; what they hold is neither fetched nor loaded."""
        self._prepare()
        facts: list[dict[str, Any]] = json.loads(self._connections.ask("GET", f"{self._path}/dead"))["dead"]
        return facts

    def _dead_records(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        place, more = 0, True
        while more:
            more = False
            for meta, payload in self._read(f"dead/records?after={place}"):
                place, more = meta["place"], meta["more"]
                yield meta, payload

    def requeue_dead(self, item_ids: Sequence[str] | None = None) -> int:
        """Put dead letters back; see `Queue.requeue_dead`."""
        return int(self._json("requeue", {"item_ids": _listed(item_ids)})["count"])

    def purge(self) -> int:
        """Remove every item that is not a dead letter, leased ones too; return how many."""
        return int(self._json("purge", {})["count"])

    def purge_dead(self, item_ids: Sequence[str] | None = None) -> int:
        """Remove dead letters (all, or those of these ids); return how many."""
        return int(self._json("purge", {"dead": True, "item_ids": _listed(item_ids)})["count"])

    def exists(self) -> bool:
        """Return whether the server has the queue; makes none."""
        try:
            self._connections.ask("GET", self._path)
        except QueueNotFoundError:
            return False
        return True

    def delete(self) -> None:
        """Remove the queue with all that is in it."""
        self._connections.ask("DELETE", self._path)

    def close(self) -> None:
        """Hang up; the next call connects anew."""
        self._connections.close()

    def __enter__(self) -> "HttpQueue[T]":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        settings = {} if self._settings is None else {"create": True, **self._settings}  # not made yet
        return _reopen, (type(self), self._url, self._name, self._token, self._options | settings)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r}, {self._name!r})"

    # --- requests ---

    def _prepare(self) -> None:
        """Make the queue before its first use, where that was asked for."""
        if self._settings is not None:
            self._connections.ask("PUT", self._path, _dump(self._settings), media="application/json")
            self._settings = None

    def _send(self, verb: str, body: bytes, media: str, patience: float = 0.0) -> bytes:
        self._prepare()
        return self._connections.ask("POST", f"{self._path}/{verb}", body, media=media, patience=patience)

    def _new(
        self, verb: str, body: bytes, media: str = "application/octet-stream", patience: float = 0.0
    ) -> bytes:
        """Send what a server of the first release does not know.

        Raises:
            UnsupportedError: The server is of that release.
        """
        try:
            return self._send(verb, body, media, patience)
        except UnknownRouteError as error:
            raise UnsupportedError(
                f"the server at {self._url} is of a release without options of push and without answers; "
                "update fray-queue there"
            ) from error

    def _json(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._send(verb, _dump(body), "application/json"))
        return answer

    def _records(
        self, verb: str, body: dict[str, Any], patience: float
    ) -> list[tuple[dict[str, Any], bytes]]:
        return _unpack(self._send(verb, _dump(body), "application/json", patience))

    def _read(self, what: str) -> list[tuple[dict[str, Any], bytes]]:
        self._prepare()
        return _unpack(self._connections.ask("GET", f"{self._path}/{what}"))


def list_queues(
    url: str, token: str | None = None, *, timeout: float = 30.0, ca_file: str | Path | None = None
) -> list[dict[str, Any]]:
    """Return what a server tells of each of its queues."""
    connections = Connections(
        url.rstrip("/"), token_from_environment(token) or token_for(url), timeout=timeout, ca_file=ca_file
    )
    try:
        queues: list[dict[str, Any]] = json.loads(connections.ask("GET", "/queues"))["queues"]
        return queues
    finally:
        connections.close()


def _reopen(
    cls: type[HttpQueue[Any]], url: str, name: str, token: str | None, options: dict[str, Any]
) -> HttpQueue[Any]:
    return cls(url, name, token, **options)


def _dump(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()


def _outcome_meta(lease: Lease[Any], answer: tuple[str, bytes] | None) -> dict[str, Any]:
    meta = {"item_id": lease.item_id, "lease_id": lease.lease_id}
    return meta if answer is None else {**meta, "outcome": answer[0]}


def _unpack(body: bytes) -> list[tuple[dict[str, Any], bytes]]:
    try:
        return unpack(body)
    except ValueError as error:
        raise DamagedError(f"the server's answer is damaged: {error}") from error


def _lease(meta: dict[str, Any], payload: bytes) -> Lease[bytes]:
    return Lease(
        payload,
        meta["lease_id"],
        meta["timestamp"],
        meta["item_id"],
        meta["attempt"],
        meta["expires_at"],
        meta.get("reply", False),
    )


def _pairs(leases: Sequence[Lease[Any]]) -> Iterator[list[tuple[str, str]]]:
    """Yield leases as requests name them, as many as one takes."""
    for start in range(0, len(leases), BATCH):
        yield [(lease.item_id, lease.lease_id) for lease in leases[start : start + BATCH]]


def _listed(item_ids: Sequence[str] | None) -> list[str] | None:
    return None if item_ids is None else list(item_ids)
