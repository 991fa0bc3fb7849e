"""Every call of a queue on a server, as a coroutine: the request, and how the answer is read."""

import json
import math
import time
from base64 import b64encode
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any, Protocol, TypeVar, cast

from fray import FrayError, LeaseExpiredError, QueueFullError, UnsupportedError
from fray.backend import (
    PLAIN,
    Answer,
    PushOptions,
    check_count,
    check_error,
    check_lease,
    check_seconds,
    dead_letter,
    describe,
    pack_answers,
    pack_failure,
    read_item,
    read_lease,
    with_end,
)
from fray.queue import Attempt, DeadLetter, Lease, Reply
from fray_queue._codec import encode_many
from fray_queue._errors import LimitError, NoRoomError, UnknownRouteError
from fray_queue._http.client.batches import BATCH, Ids, batches
from fray_queue._http.client.connections import Connections, Request
from fray_queue._http.client.reading import read_fields, read_records
from fray_queue._http.protocol.limits import ITEM_BYTES, item_too_large
from fray_queue._http.protocol.wire import pack
from fray_queue._leases import extended

T = TypeVar("T")

_SHARE_OF_LEASE = 0.25  # of the time of the first items of a batch, which may pass while others are fetched
_POLL_IN_TURN = 1.0  # seconds to wait for one part of many answers, before the other parts are looked at
_PAUSE = 0.1  # seconds until a server that ends is asked again
_LONGEST_POLL = 20.0  # a longer wait is several requests, so that nothing between takes it for dead
_JSON, _RECORDS = "application/json", "application/octet-stream"


class Target(Protocol):
    """What the calls of one queue share, over whichever connections they go."""

    path: str
    ids: Ids
    timeout: float
    settings: dict[str, Any] | None  # with which the queue is to be made before its first use


class Calls:
    """The calls of one queue, over connections to its server."""

    def __init__(self, target: Target, connections: Connections) -> None:
        self._target, self._connections = target, connections
        self._most_asked = BATCH  # items whose answers one request asks for

    # --- storing ---

    async def store(self, items: Iterable[Any], options: PushOptions) -> list[str]:
        """Store items in order, all or none; return their ids."""
        return await self._in_parts(encode_many(items), lambda parts: self._send_items(parts, options))

    async def _in_parts(
        self, payloads: list[bytes], send: Callable[[list[list[bytes]]], Awaitable[list[str]]]
    ) -> list[str]:
        """Send payloads, in parts that the server takes; when one is too large, no other is sent either."""
        parts = list(batches(payloads, BATCH))
        if len(parts) != 1 or len(payloads[0]) > ITEM_BYTES:
            return await send(await self._within_limits(payloads))
        try:
            return await send(parts)
        except LimitError:  # the server takes less at once than others; it stored nothing
            if len(smaller := await self._within_limits(payloads)) == 1:
                raise
        return await send(smaller)

    async def _within_limits(self, payloads: list[bytes]) -> list[list[bytes]]:
        """Part payloads as the server takes them.

        Raises:
            LimitError: One is too large.
        """
        if not payloads:
            return []
        limits = await self.stats()
        for payload in payloads:
            if len(payload) > limits["item_bytes"]:
                raise LimitError(item_too_large(limits["item_bytes"], len(payload)))
        return list(batches(payloads, min(BATCH, limits["batch"])))

    async def _send_items(self, parts: list[list[bytes]], options: PushOptions = PLAIN) -> list[str]:
        ids: list[str] = []
        wait = self._target.timeout if options.wait is None else options.wait
        end = time.monotonic() + wait
        try:
            for batch in parts:
                ids += await self._send_with_room(batch, options, len(ids), end)
        except NoRoomError as error:
            raise QueueFullError(str(error), waited=wait if error.ever else 0.0) from None
        return ids

    async def _send_with_room(
        self, batch: list[bytes], options: PushOptions, first: int, end: float
    ) -> list[str]:
        """Send one request, again while the queue has no room; `first` is its first item's place."""
        while True:
            try:
                if options.is_plain:
                    return await self._send_plain(batch)
                return await self._submit(batch, options, first)
            except NoRoomError as error:
                if not error.ever or time.monotonic() >= end:
                    raise
                count = error.count
            await self._await_room(count, end)

    async def _await_room(self, count: int, end: float) -> None:
        """Wait until so many items fit, or the time is over."""
        network = self._connections.network
        while (left := end - time.monotonic()) > 0:
            async with network.turn("room", left) as longest:
                asked = time.monotonic()
                wait = max(0.0, min(end - asked, longest, _LONGEST_POLL))
                answer = await self._send("room", _dump({"count": count, "wait": wait}), _JSON, wait)
            early = time.monotonic() - asked < wait
            if read_fields(answer).get("free", early):  # a server of the first release does not say it
                return
            if early:  # the server is about to end
                await network.sleep(_PAUSE)

    async def _send_plain(self, batch: list[bytes]) -> list[str]:
        new = [next(self._target.ids) for _ in batch]
        answer = await self._send("push", pack([{"id": item_id} for item_id in new], batch), _RECORDS)
        # A server in front of an engine gives ids of its own.
        return read_fields(answer, "stored").get("ids") or new

    async def _submit(self, batch: list[bytes], options: PushOptions, first: int) -> list[str]:
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
        ids: list[str] = read_fields(await self._new("submit", pack(metas, batch)), "ids")["ids"]
        return ids

    # --- taking ---

    async def pop_many(self, n: int, lease_timeout: float = 60.0, *, wait: float = 0.0) -> list[Lease[Any]]:
        """Lease up to `n` items, until there is one that can be unpickled here; see `Queue.pop_many`."""
        check_count("n", n, 1)
        check_seconds("lease_timeout", lease_timeout)
        end = time.monotonic() + check_seconds("wait", wait, zero=True)
        held: dict[str, Lease[bytes]] = {}  # by item: one whose first lease ran out is not given twice
        try:
            while True:
                await self._take(held, n, lease_timeout, end)
                if not held:
                    return []
                if found := [lease async for lease in self._readable(held)]:
                    return found
        except BaseException:  # an interrupt or a cancellation: nobody will get what is in hand
            await self._connections.network.last_words(self._return(list(held.values())))
            raise

    async def _take(self, held: dict[str, Lease[bytes]], n: int, lease_timeout: float, end: float) -> None:
        """Lease items in as many requests as it takes; what one of them leased is kept in any case."""
        enough = math.inf
        while len(held) < n:
            left = 0.0 if held else max(0.0, min(_LONGEST_POLL, end - time.monotonic()))
            body = {"n": min(BATCH, n - len(held)), "lease_timeout": lease_timeout, "wait": left}
            try:
                more = read_records(await self._send("pop", _dump(body), _JSON, left, withdraw="withdraw"))
            except (FrayError, OSError):
                if held:
                    return
                raise
            if not held:
                enough = time.monotonic() + lease_timeout * _SHARE_OF_LEASE
            before = len(held)
            held |= {meta["item_id"]: _lease(meta, payload) for meta, payload in more}
            now = time.monotonic()
            if (held and (now >= enough or len(held) == before)) or (not more and now >= end):
                return

    async def _readable(self, held: dict[str, Lease[bytes]]) -> AsyncIterator[Lease[Any]]:
        """Yield what can be unpickled; the others are set aside, and held no more."""
        for lease in list(held.values()):
            read = read_lease(lease)
            if isinstance(read, str):
                del held[lease.item_id]
                with suppress(FrayError, OSError):  # else its lease runs out by itself
                    body = {"item_id": lease.item_id, "lease_id": lease.lease_id, "error": read}
                    await self._json("release", body)
            else:
                yield read

    async def _return(self, leases: list[Lease[Any]]) -> None:
        with suppress(FrayError, OSError):  # else they run out
            await self.give_back(leases)

    # --- settling ---

    async def finish(self, leases: Sequence[Lease[Any]], answers: Sequence[Answer | None]) -> list[str]:
        """Finish items, with answers where they are wanted; return the lease ids that are not held."""
        refused: list[str] = []
        if not any(answers):
            for pairs in _pairs(leases):
                refused += (await self._json("done", {"leases": pairs}, "refused"))["refused"]
            return refused
        packed = pack_answers(leases, answers)
        metas = [_outcome_meta(lease, answer) for lease, answer in zip(leases, packed, strict=True)]

        async def send(parts: list[list[bytes]]) -> list[str]:
            starts = accumulate(map(len, parts), initial=0)
            # The largest first: where something on the way does not take it, nothing is finished yet.
            by_size = sorted(zip(parts, starts, strict=False), key=lambda each: -sum(map(len, each[0])))
            for part, start in by_size:
                body = pack(metas[start : start + len(part)], part)
                refused.extend(read_fields(await self._new("finish", body), "refused")["refused"])
            return refused

        return await self._in_parts([b"" if answer is None else answer[1] for answer in packed], send)

    async def release(
        self, lease: Lease[Any], *, delay: float = 0.0, error: BaseException | None = None
    ) -> None:
        """Give an item back to its place in line; see `Queue.release`."""
        check_lease(lease)
        check_seconds("delay", delay, zero=True)
        check_error(error)
        body = {"item_id": lease.item_id, "lease_id": lease.lease_id, "delay": delay}
        if error is not None:
            body["reason"] = describe(error)
        if (failure := pack_failure(lease, error)) is not None:
            body["failure"] = b64encode(failure).decode()
        await self._json("release", body)

    async def extend(self, lease: Lease[T], lease_timeout: float) -> Lease[T]:
        """Hold the item for `lease_timeout` seconds from now; see `Queue.extend`."""
        check_lease(lease)
        check_seconds("lease_timeout", lease_timeout)
        body = {"item_id": lease.item_id, "lease_id": lease.lease_id, "lease_timeout": lease_timeout}
        until = (await self._json("extend", body, "expires_at"))["expires_at"]
        return with_end(lease, until)

    async def extend_many(
        self, leases: Iterable[Lease[T]], lease_timeout: float
    ) -> list[Lease[T] | LeaseExpiredError]:
        """Extend leases, a thousand in a request; see `QueueBase.extend_many`."""
        leases = [check_lease(lease) for lease in leases]
        check_seconds("lease_timeout", lease_timeout)
        ends: list[float | None] = []
        for pairs in _pairs(leases):
            body = {"leases": pairs, "lease_timeout": lease_timeout}
            ends += (await self._json("extend_many", body, "expires_at"))["expires_at"]
        return extended(leases, ends)

    async def give_back(self, leases: Iterable[Lease[Any]]) -> None:
        """Give back items that were not worked on; see `QueueBase.give_back`."""
        for pairs in _pairs([check_lease(lease) for lease in leases]):
            await self._json("give_back", {"leases": pairs})

    async def fetch_replies(self, item_ids: Sequence[str], *, wait: float = 0.0) -> dict[str, Reply]:
        """Return what became of items; see `Queue.fetch_replies`."""
        ids = list(map(str, item_ids))
        end = time.monotonic() + check_seconds("wait", wait, zero=True)
        try:
            return await self._fetch_in_parts(ids, self._most_asked, end)
        except LimitError:
            known, self._most_asked = self._most_asked, (await self.stats())["batch"]
            if self._most_asked >= known:
                raise
        return await self._fetch_in_parts(ids, self._most_asked, end)

    async def _fetch_in_parts(self, ids: list[str], most: int, end: float) -> dict[str, Reply]:
        """Ask for a part of the items in each request, and wait at the last, which is another each time."""
        parts = deque(ids[start : start + most] for start in range(0, len(ids) or 1, most))
        longest = _LONGEST_POLL if len(parts) == 1 else _POLL_IN_TURN
        while True:
            found: dict[str, Reply] = {}
            for number, part in enumerate(parts, 1):
                waits = number == len(parts) and not found
                left = max(0.0, min(longest, end - time.monotonic())) if waits else 0.0
                body = _dump({"item_ids": part, "wait": left})
                for meta, payload in read_records(await self._new("replies", body, _JSON, left)):
                    found[meta["item_id"]] = Reply(meta["item_id"], meta["outcome"], payload)
            if found or time.monotonic() >= end:
                return found
            parts.rotate()

    # --- looking ---

    async def peek(self) -> Any:
        """Return the item that a pop would take now; see `Queue.peek`."""
        records = await self._read("peek")
        if not records:
            return None
        ((meta, payload),) = records
        return read_item(payload, meta["item_id"])

    async def size(self) -> int:
        """Count what waits, is delayed or is leased."""
        return int((await self.stats())["size"])

    async def pending(self) -> int:
        """Count what a pop could take now."""
        return int((await self.stats())["pending"])

    async def stats(self) -> dict[str, Any]:
        """Return what the server reports of the queue."""
        await self._prepare()
        return read_fields(await self._ask("GET"), "size")

    async def dead_letters(self) -> list[DeadLetter[Any]]:
        """List the items that were given up."""
        return [
            dead_letter(
                payload,
                meta["item_id"],
                meta["attempts"],
                tuple(Attempt(*attempt) for attempt in meta["history"]),
                "expired" if meta.get("expired") else "attempts",
            )
            async for meta, payload in self._dead_records()
        ]

    async def dead_facts(self) -> list[dict[str, Any]]:
        """Return what the server reports of the dead letters; their items are neither fetched nor loaded."""
        await self._prepare()
        return cast("list[dict[str, Any]]", read_fields(await self._ask("GET", "/dead"), "dead")["dead"])

    async def _dead_records(self) -> AsyncIterator[tuple[dict[str, Any], bytes]]:
        place, more = 0, True
        while more:
            more = False
            for meta, payload in await self._read(f"dead/records?after={place}"):
                place, more = meta["place"], meta["more"]
                yield meta, payload

    async def requeue_dead(self, item_ids: Sequence[str] | None = None) -> int:
        """Put dead letters back; see `Queue.requeue_dead`."""
        return int((await self._json("requeue", {"item_ids": _listed(item_ids)}, "count"))["count"])

    async def purge(self) -> int:
        """Remove every item that is not a dead letter, leased ones too; return how many."""
        return int((await self._json("purge", {}, "count"))["count"])

    async def purge_dead(self, item_ids: Sequence[str] | None = None) -> int:
        """Remove dead letters (all, or those of these ids); return how many."""
        body = {"dead": True, "item_ids": _listed(item_ids)}
        return int((await self._json("purge", body, "count"))["count"])

    async def look(self) -> None:
        """Check that the queue exists, and make none."""
        read_fields(await self._ask("GET"), "size")

    async def delete(self) -> None:
        """Remove the queue with all that is in it."""
        read_fields(await self._ask("DELETE"))

    # --- requests ---

    async def _ask(
        self, method: str, verb: str = "", body: bytes = b"", media: str = "", **more: Any
    ) -> bytes:
        return await self._connections.ask(Request(method, self._target.path + verb, body, media, **more))

    async def _prepare(self) -> None:
        """Make the queue before its first use, where that was requested."""
        if self._target.settings is not None:
            read_fields(await self._ask("PUT", "", _dump(self._target.settings), _JSON))
            self._target.settings = None

    async def _send(
        self, verb: str, body: bytes, media: str, patience: float = 0.0, *, withdraw: str = ""
    ) -> bytes:
        await self._prepare()
        if withdraw:
            withdraw = f"{self._target.path}/{withdraw}"
        return await self._ask("POST", f"/{verb}", body, media, patience=patience, withdraw=withdraw)

    async def _new(self, verb: str, body: bytes, media: str = _RECORDS, patience: float = 0.0) -> bytes:
        """Send what a server of the first release does not know.

        Raises:
            UnsupportedError: The server is of that release.
        """
        try:
            return await self._send(verb, body, media, patience)
        except UnknownRouteError as error:
            raise UnsupportedError(
                f"the server at {self._connections.address.url} is of a release without options of push and "
                "without answers; update fray-queue there"
            ) from error

    async def _json(self, verb: str, body: dict[str, Any], *fields: str) -> dict[str, Any]:
        return read_fields(await self._send(verb, _dump(body), _JSON), *fields)

    async def _read(self, what: str) -> list[tuple[dict[str, Any], bytes]]:
        await self._prepare()
        return read_records(await self._ask("GET", f"/{what}"))


def _dump(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()


def _outcome_meta(lease: Lease[Any], answer: tuple[str, bytes] | None) -> dict[str, Any]:
    meta = {"item_id": lease.item_id, "lease_id": lease.lease_id}
    return meta if answer is None else {**meta, "outcome": answer[0]}


def _lease(meta: dict[str, Any], payload: bytes) -> Lease[bytes]:
    return Lease(
        payload,
        meta["lease_id"],
        meta["timestamp"],
        meta["item_id"],
        meta["attempt"],
        meta["expires_at"],
        meta.get("reply", False),
        meta.get("pushed_at"),
    )


def _pairs(leases: Sequence[Lease[Any]]) -> Iterator[list[tuple[str, str]]]:
    """Yield leases as requests name them, as many as one takes."""
    for start in range(0, len(leases), BATCH):
        yield [(lease.item_id, lease.lease_id) for lease in leases[start : start + BATCH]]


def _listed(item_ids: Sequence[str] | None) -> list[str] | None:
    return None if item_ids is None else list(item_ids)
