"""A server's queues on an engine that others run: Redis or PostgreSQL.

Each call is made in one of a few threads. The engine does a request once, also when it comes again through
another server: it is known by the client's own name and number for it.
"""

import contextlib
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from typing import TypeVar

from fray import LeaseExpiredError, UnsupportedError
from fray.backend import PushOptions, queue_page
from fray.queue import Lease, Reply
from fray_queue._engines.idempotency import IdempotencyKey
from fray_queue._engines.letters import read_letters
from fray_queue._engines.store import Counts, Engine, EngineStore, Letter
from fray_queue._errors import LimitError, QueueNotFoundError
from fray_queue._http.protocol.limits import Limits
from fray_queue._http.server.engine_calls import EngineCalls, digest
from fray_queue._http.server.stats import Counted
from fray_queue._http.server.store import Failure, Key, OpenStore, Told, What, no_answers
from fray_queue._http.server.traffic import Traffic
from fray_queue._items import EncodedReply, Settings, Taken

R = TypeVar("R")
_UNSUPPORTED = ("store_bytes", "queue_items", "queue_bytes", "total_items", "total_bytes")


class EngineServerStore:
    """The `ServerStore` on an engine, which other servers and programs may use as well.

    Args:
        traffic: Returns the traffic of a queue.
    """

    def __init__(self, engine: Engine, *, limits: Limits, traffic: Callable[[str], Traffic]) -> None:
        self._engine, self._limits, self._traffic = engine, limits, traffic
        self._calls = EngineCalls(engine, traffic)
        self._ask, self._change = self._calls.ask, self._calls.change

    def check(self) -> None:
        """Raise while the engine is away."""
        self._calls.check()

    def answers(self) -> Sequence[tuple[str, int, Told]]:
        """Return nothing: the engine keeps its answers."""
        return []

    def watching(
        self, name: str, what: What, item_ids: Sequence[str] = ()
    ) -> contextlib.AbstractContextManager[None]:
        """Have the engine report what happens to a queue, which is open."""
        return self._calls.watching(name, what, item_ids)

    # --- queues ---

    async def create(self, name: str, settings: Settings, key: Key | None) -> None:
        """Have a queue of that name; it takes bounds that it had not."""

        def call() -> None:
            known = self._calls.known(name)
            store = self._engine.store(name) if known is None else known.store
            if known is None and not store.exists() and len(self._engine.counts()) >= self._limits.queues:
                raise LimitError(
                    f"the engine has {self._limits.queues} queues, and this server makes no more: "
                    "raise --queues, or delete a queue"
                )
            self._calls.keep(name, store, store.open(settings))

        await self._calls.run(call)

    async def delete(self, name: str, key: Key | None) -> None:
        """Remove a queue with all that is in it."""

        def call() -> None:
            opened = self._calls.opened(name)
            opened.store.delete()
            self._calls.forget(name, opened)

        await self._calls.run(call)

    # --- items ---

    async def push(self, name: str, records: Sequence[tuple[str, bytes]], key: Key | None) -> Told:
        """Store plain payloads; the ids are the engine's."""
        told = await self.submit(name, [payload for _, payload in records], PushOptions(), key)
        return {"stored": len(records), **told}

    async def submit(
        self, name: str, payloads: Sequence[bytes], options: PushOptions, key: Key | None
    ) -> Told:
        """Store payloads under options."""
        if not payloads:
            await self._ask(name, lambda _: None)
            return {"ids": []}
        return {
            "ids": await self._change(
                name, key, lambda store, engine_key: store.push(engine_key, payloads, options)
            )
        }

    async def has_room(self, name: str, count: int) -> tuple[bool, float | None]:
        """Return whether so many items fit."""

        def call(store: EngineStore) -> tuple[bool, float | None]:
            most = store.open(Settings()).max_size  # another may have set it meanwhile
            counts = store.counts()
            return most is None or counts.pending + counts.held + count <= most, None

        return await self._ask(name, call)

    async def pop(
        self, name: str, n: int, lease_timeout: float, key: Key | None, *, answers: bool, woken: bool
    ) -> tuple[list[Taken], float | None]:
        """Lease items in line."""
        token = _token_of(key)

        def call(store: EngineStore, engine_key: IdempotencyKey) -> tuple[list[Lease[bytes]], float | None]:
            leases, change = store.pop(engine_key, n, lease_timeout, token=token, woken=woken)
            return self._as_allowed(store, name, leases, answers), change

        leases, change = await self._change(name, key, call)
        if leases and woken:
            self._traffic(name).wake()
        return [_taken(lease) for lease in leases], change

    def _as_allowed(
        self, store: EngineStore, name: str, leases: list[Lease[bytes]], answers: bool
    ) -> list[Lease[bytes]]:
        """Give back what the client cannot answer, or is more than one answer of the server holds."""
        if not answers and any(lease.reply for lease in leases):
            store.give_back([lease.lease_id for lease in leases])
            raise UnsupportedError(no_answers(name))
        size = 0
        for index, lease in enumerate(leases):
            if size >= self._limits.item_bytes:
                store.give_back([each.lease_id for each in leases[index:]])
                return leases[:index]
            size += len(lease.item)
        return leases

    async def held(self, name: str, lease_ids: Sequence[str], key: Key | None) -> list[Taken]:
        """Return what a pop of this key leased and still holds: the same request is sent again."""
        if not lease_ids or key is None:
            return []
        token = _token_of(key)

        def call(store: EngineStore, engine_key: IdempotencyKey) -> list[Lease[bytes]]:
            leases, _ = store.pop(engine_key, len(lease_ids), 60.0, token=token, woken=False)
            new = [lease.lease_id for lease in leases if lease.lease_id not in lease_ids]
            if new:  # the engine knows that request no more
                store.give_back(new)
            return [lease for lease in leases if lease.lease_id in lease_ids]

        return [_taken(lease) for lease in await self._change(name, key, call)]

    async def done(
        self, name: str, lease_ids: Sequence[str], answers: Sequence[EncodedReply | None], key: Key | None
    ) -> Told:
        """Finish items by their leases."""
        if not lease_ids:
            await self._ask(name, lambda _: None)
            return {"refused": []}
        refused = await self._change(
            name, key, lambda store, engine_key: store.done(engine_key, lease_ids, answers)
        )
        return {"refused": refused}

    async def release(
        self, name: str, lease_id: str, delay: float, failure: Failure, key: Key | None
    ) -> Told:
        """Give an item back."""
        held = await self._change(
            name,
            key,
            lambda store, engine_key: store.release(
                engine_key,
                lease_id,
                delay,
                error=failure.error,
                failure=failure.pickled,
                unreadable=failure.unreadable,
            ),
        )
        if not held:
            raise LeaseExpiredError(lease_id)
        return {}

    async def extend(self, name: str, lease_id: str, lease_timeout: float, key: Key | None) -> Told:
        """Hold an item longer."""
        (until,) = await self._ask(name, lambda store: store.extend([lease_id], lease_timeout))
        if until is None:
            raise LeaseExpiredError(lease_id)
        return {"expires_at": until}

    async def extend_many(
        self, name: str, lease_ids: Sequence[str], lease_timeout: float, key: Key | None
    ) -> Told:
        """Hold items longer."""
        ends = await self._ask(
            name, lambda store: store.extend(lease_ids, lease_timeout) if lease_ids else []
        )
        return {"expires_at": ends}

    async def give_back(self, name: str, lease_ids: Sequence[str], key: Key | None) -> Told:
        """Give back items that were not worked on."""
        await self._ask(name, lambda store: store.give_back(lease_ids) if lease_ids else None)
        return {"refused": []}

    async def fetch(
        self, name: str, item_ids: Sequence[str], key: Key | None
    ) -> tuple[list[Reply], float | None]:
        """Return what became of items, as much as one answer of the server holds."""
        found, change = await self._change(
            name, key, lambda store, engine_key: store.fetch(engine_key, item_ids)
        )
        size = 0
        for index, reply in enumerate(found):
            if size >= self._limits.item_bytes:
                return found[:index], change
            size += len(reply.payload or b"")
        return found, change

    # --- looking, and what an operator does ---

    async def peek(self, name: str) -> Taken | None:
        """Return the item that a pop would lease."""
        first = await self._ask(name, lambda store: store.peek())
        return None if first is None else Taken(first[0], "", 0.0, 0.0, 0, first[1])

    async def dead(
        self, name: str, after: int, most: int | None, *, payloads: bool = False
    ) -> tuple[list[Taken], bool]:
        """Return dead letters behind a place in line."""
        most_bytes = self._limits.item_bytes if payloads else None
        letters, following = await self._ask(name, lambda store: read_letters(store, after, most, most_bytes))
        return [_dead(letter) for letter in letters], following is not None

    async def requeue(self, name: str, item_ids: Sequence[str] | None, key: Key | None) -> Told:
        """Bring dead letters back."""
        return {
            "count": await self._change(
                name, key, lambda store, engine_key: store.operate(engine_key, "requeue", item_ids)
            )
        }

    async def purge(self, name: str, key: Key | None) -> Told:
        """Remove items."""
        count = await self._change(name, key, lambda store, engine_key: store.operate(engine_key, "purge"))
        self._traffic(name).wake_askers(None)
        return {"count": count}

    async def purge_dead(self, name: str, item_ids: Sequence[str] | None, key: Key | None) -> Told:
        """Remove dead letters."""
        count = await self._change(
            name, key, lambda store, engine_key: store.operate(engine_key, "purge_dead", item_ids)
        )
        return {"count": count}

    # --- counts ---

    async def stats(self, name: str) -> Told:
        """Return counts and settings of a queue."""
        return await self._calls.run(lambda: self._stats(name))

    def _stats(self, name: str) -> Told:
        counts = self._calls.on_queue(name, lambda store: store.counts())
        opened = self._calls.opened(name)
        if opened.stored is None:
            opened.stored = opened.store.stored()
        durable, stored = opened.stored
        return {
            "name": name,
            **asdict(opened.settings),
            "dead_dropped": counts.dropped,
            "size": counts.pending + counts.held,
            "pending": counts.pending,
            "in_flight": counts.held,
            "dead": counts.dead,
            "bytes": None,  # no engine counts them
            "durable": durable,
            "stored": stored,
            "steady_clock": False,
            "oldest_seconds": self._calls.on_queue(name, lambda store: store.oldest_seconds()) or 0.0,
        }

    def _all(self, names: Collection[str]) -> list[Told]:
        found = []
        for name in names:
            with contextlib.suppress(QueueNotFoundError):  # since they were listed
                found.append(self._stats(name))
        return found

    async def all_stats(self) -> list[Told]:
        """Return the stats of each queue."""
        return await self._calls.run(lambda: self._all(sorted(self._engine.counts())))

    async def page_of_stats(self, query: queue_page.Query) -> Told:
        """Return the stats of the queues of one page."""

        def call() -> Told:
            counted = [_counted(name, counts) for name, counts in self._engine.counts().items()]
            shown, page, counts = queue_page.wanted_queues(counted, query)
            return {"queues": self._all([each.name for each in shown]), "page": page, "counts": counts}

        return await self._calls.run(call)

    async def sizes(self, used: Collection[str]) -> list[tuple[str, int]]:
        """Return how many items these queues have: of no others."""

        def call() -> list[tuple[str, int]]:
            found = []
            for name in used:
                with contextlib.suppress(QueueNotFoundError):
                    counts = self._calls.on_queue(name, lambda store: store.counts())
                    found.append((name, counts.pending + counts.held))
            return found

        await self._calls.run(self._engine.check)
        return await self._calls.run(call)

    async def every_second(self, seconds: int) -> None:
        """Do nothing: `sizes` checked that the engine answers."""

    async def close(self) -> None:
        """End the threads, and release the connections."""
        await self._calls.close()


def on_engine(engine: Engine, *, limits: Limits) -> OpenStore:
    """Return what opens the store on an engine.

    Raises:
        UnsupportedError: The limits have some that an engine does not keep.
    """
    given = [name for name in _UNSUPPORTED if getattr(limits, name) is not None]
    if limits.free_disk != Limits.free_disk:
        given.append("free_disk")
    if given:
        raise UnsupportedError(
            f"a server in front of an engine has no limit {given[0]}: the engine's own settings bound its "
            "memory and its disk, and max_size bounds a queue"
        )
    return lambda traffic: EngineServerStore(engine, limits=limits, traffic=traffic)


def _token_of(key: Key | None) -> str:
    """Return what ends the ids of a pop's leases: a repetition of the pop is known by it."""
    return secrets.token_hex(8) if key is None else digest(f"{key.slot}/{key.number}")


def _taken(lease: Lease[bytes]) -> Taken:
    taken = Taken(lease.item_id, lease.lease_id, lease.timestamp, lease.expires_at, lease.attempt, lease.item)
    taken.reply, taken.pushed_at = lease.reply, lease.pushed_at
    return taken


def _dead(letter: Letter) -> Taken:
    taken = Taken(letter.item_id, "", 0.0, 0.0, letter.attempt, letter.payload)
    taken.seq, taken.history, taken.size = letter.place, letter.history, letter.size
    taken.expired = letter.expired
    return taken


def _counted(name: str, counts: Counts) -> Counted:
    return Counted(name, counts.pending, counts.held, counts.dead)
