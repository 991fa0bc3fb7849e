"""A server's queues in SQLite: in memory, or in a folder of its own."""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fray import UnsupportedError
from fray.backend import BriefThreads, PushOptions, memory_bytes, queue_page
from fray.queue import Reply
from fray_queue._errors import QueueFullError
from fray_queue._http.protocol.limits import Limits
from fray_queue._http.server import sqlite_stats
from fray_queue._http.server.idempotency import FORGET_AFTER
from fray_queue._http.server.store import (
    Failure,
    Key,
    OpenStore,
    Told,
    What,
    leases_told,
    no_answers,
)
from fray_queue._http.server.store_folder import open_store
from fray_queue._http.server.traffic import Traffic
from fray_queue._http.server.writer import Writer, WriterEndedError
from fray_queue._items import EncodedReply, Settings, Taken
from fray_queue._sqlite import answers as kept_answers
from fray_queue._sqlite import looking, replies
from fray_queue._sqlite.clocks import LeaseClock
from fray_queue._sqlite.library import named_errors
from fray_queue._sqlite.rows import ASKED, QueueRow
from fray_queue._sqlite.store import QueueStore

R = TypeVar("R")
_KEEP_TIME_EVERY = 5  # seconds; what a lease has left after a crash is right by so much
_FORGET_EVERY = 600
# What SQLite has in memory for an item beside its payload, by `apsw.memory_used`, of 100,000 small items:
# 45 to 60 bytes before its first lease, 140 to 155 while it is leased, 156 to 171 with a failed attempt.
_ROW_BYTES = 170


class SqliteStore:
    """The `ServerStore` in SQLite; nobody else writes to it.

    Args:
        folder: Where the queues are kept; None keeps them in memory.
        traffic: Returns the traffic of a queue.
    """

    def __init__(
        self,
        folder: str | Path | None,
        *,
        limits: Limits,
        clock: LeaseClock,
        traffic: Callable[[str], Traffic],
    ) -> None:
        self._limits, self._traffic = limits, traffic
        self._loop = asyncio.get_running_loop()
        store = open_store(folder, clock, limits)
        self._store = store
        self._most_bytes = limits.total_bytes
        self._row_bytes = 0  # beside a payload: a limit that is given is one of payloads
        if self._most_bytes is None and store.file.in_memory:
            self._most_bytes, self._row_bytes = memory_bytes() // 4, _ROW_BYTES
        try:
            with named_errors(store.file.path):
                self._answers = kept_answers.load(store)
            self._writer = Writer(store)
        except BaseException:
            store.file.close()
            raise
        store.on_reply = self._note_reply

    def check(self) -> None:
        """Raise a WriterEndedError when the store can be used no more."""
        if self._writer.ended:
            raise WriterEndedError

    def answers(self) -> Sequence[tuple[str, int, Told]]:
        """Return what was kept before this server was started."""
        found, self._answers = self._answers, []
        return found

    @contextlib.contextmanager
    def watching(self, name: str, what: What, item_ids: Sequence[str] = ()) -> Iterator[None]:
        """Watch nothing: all that changes is done by this server."""
        yield

    def _note_reply(self, name: str, item_id: str | None) -> None:
        """Wake the calls that wait for an answer; called by the writer, before it is committed."""
        if self._store.file.in_memory:
            self._traffic(name).wake_askers(item_id)
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(lambda: self._traffic(name).wake_askers(item_id))

    # --- queues ---

    async def create(self, name: str, settings: Settings, key: Key | None) -> None:
        """Have a queue of that name and those settings."""

        def operation(store: QueueStore) -> None:
            store.create(name, settings, most=self._limits.queues)
            self._remember(store, key, {})

        await self._writer.run(operation, grows=True)

    async def delete(self, name: str, key: Key | None) -> None:
        """Remove a queue with all that is in it."""
        await self._change(name, lambda store, queue: store.delete(queue), key, lambda _: {})

    # --- items ---

    async def push(self, name: str, records: Sequence[tuple[str, bytes]], key: Key | None) -> Told:
        """Store plain payloads, under the ids that they are given."""
        size = sum(len(payload) for _, payload in records)

        def operation(store: QueueStore, queue: QueueRow) -> int:
            self._check_space(store, queue, len(records), size)
            return len(store.push(queue, records))

        return await self._change(name, operation, key, lambda count: {"stored": count}, grows=True)

    async def submit(
        self, name: str, payloads: Sequence[bytes], options: PushOptions, key: Key | None
    ) -> Told:
        """Store payloads under options."""
        size = sum(map(len, payloads))

        def operation(store: QueueStore, queue: QueueRow) -> list[str]:
            self._check_space(store, queue, len(payloads), size)
            return store.push(queue, [(None, payload) for payload in payloads], options)

        return await self._change(name, operation, key, lambda ids: {"ids": ids}, grows=True)

    async def has_room(self, name: str, count: int) -> tuple[bool, float | None]:
        """Return whether so many items fit, and when that may change by itself."""

        def reading(store: QueueStore) -> tuple[bool, float | None]:
            queue = store.queue(name)
            store.sweep(queue, store.file.clock.now())
            free = queue.max_size is None or queue.live + count <= queue.max_size
            return free, looking.next_change(store, queue)

        return await self._look(reading)

    async def pop(
        self, name: str, n: int, lease_timeout: float, key: Key | None, *, answers: bool, woken: bool
    ) -> tuple[list[Taken], float | None]:
        """Lease items in line."""

        def operation(store: QueueStore) -> tuple[list[Taken], float | None]:
            queue = store.queue(name)
            if queue.special and not answers:
                _check_answers(queue)
            taken = store.pop(queue, n, lease_timeout, most_bytes=self._limits.item_bytes)
            if taken:
                self._remember(store, key, leases_told(name, taken))
                return taken, None
            return taken, looking.next_change(store, queue)

        return await self._writer.run(operation)

    async def held(self, name: str, lease_ids: Sequence[str], key: Key | None) -> list[Taken]:
        """Return the items of those leases that are good."""

        def reading(store: QueueStore) -> list[Taken]:
            queue = store.queue(name)
            found = (store.held(queue, lease_id) for lease_id in lease_ids)
            return [each for each in found if each is not None]

        return await self._look(reading)

    async def done(
        self, name: str, lease_ids: Sequence[str], answers: Sequence[EncodedReply | None], key: Key | None
    ) -> Told:
        """Finish items by their leases."""
        return await self._change(
            name,
            lambda store, queue: store.done(queue, lease_ids, answers),
            key,
            lambda refused: {"refused": refused},
        )

    async def release(
        self, name: str, lease_id: str, delay: float, failure: Failure, key: Key | None
    ) -> Told:
        """Give an item back."""
        return await self._change(
            name,
            lambda store, queue: store.release(
                queue,
                lease_id,
                delay,
                unreadable=failure.unreadable,
                error=failure.error,
                failure=failure.pickled,
            ),
            key,
            lambda _: {},
        )

    async def extend(self, name: str, lease_id: str, lease_timeout: float, key: Key | None) -> Told:
        """Hold an item longer."""
        return await self._change(
            name,
            lambda store, queue: store.extend(queue, lease_id, lease_timeout),
            key,
            lambda until: {"expires_at": until},
        )

    async def extend_many(
        self, name: str, lease_ids: Sequence[str], lease_timeout: float, key: Key | None
    ) -> Told:
        """Hold items longer."""
        return await self._change(
            name,
            lambda store, queue: store.extend_many(queue, lease_ids, lease_timeout),
            key,
            lambda ends: {"expires_at": ends},
        )

    async def give_back(self, name: str, lease_ids: Sequence[str], key: Key | None) -> Told:
        """Give back items that were not worked on."""
        return await self._change(
            name,
            lambda store, queue: store.give_back(queue, lease_ids),
            key,
            lambda refused: {"refused": refused},
        )

    async def fetch(
        self, name: str, item_ids: Sequence[str], key: Key | None
    ) -> tuple[list[Reply], float | None]:
        """Return what became of items."""

        def reading(store: QueueStore) -> tuple[list[Reply], float | None]:
            queue = store.queue(name)
            again = key is not None and kept_answers.has(store, *key)
            found = replies.fetch(store, queue, item_ids, most_bytes=self._limits.item_bytes, again=again)
            if found and key is not None and not again:
                kept_answers.keep(store, *key, {})
            return found, None if found else looking.next_change(store, queue)

        return await self._look(reading)

    # --- looking, and what an operator does ---

    async def peek(self, name: str) -> Taken | None:
        """Return the item that a pop would lease."""
        return await self._look(lambda store: looking.peek(store, store.queue(name)))

    async def dead(
        self, name: str, after: int, most: int | None, *, payloads: bool = False
    ) -> tuple[list[Taken], bool]:
        """Return dead letters behind a place in line."""

        def reading(store: QueueStore) -> tuple[list[Taken], bool]:
            queue = store.queue(name)
            store.sweep(queue, store.file.clock.now())
            most_bytes = self._limits.item_bytes if payloads else None
            return looking.dead(
                store, queue, after=after, most=-1 if most is None else most, most_bytes=most_bytes
            )

        return await self._look(reading)

    async def requeue(self, name: str, item_ids: Sequence[str] | None, key: Key | None) -> Told:
        """Bring dead letters back."""
        return await self._change(name, lambda store, queue: store.requeue(queue, item_ids), key, _count)

    async def purge(self, name: str, key: Key | None) -> Told:
        """Remove items."""
        return await self._change(name, lambda store, queue: store.purge(queue), key, _count)

    async def purge_dead(self, name: str, item_ids: Sequence[str] | None, key: Key | None) -> Told:
        """Remove dead letters."""
        return await self._change(name, lambda store, queue: store.purge_dead(queue, item_ids), key, _count)

    async def stats(self, name: str) -> Told:
        """Return counts and settings of a queue."""
        return await self._look(lambda store: sqlite_stats.stored_stats(store, store.queue(name)))

    async def all_stats(self) -> list[Told]:
        """Return the stats of each queue."""
        return await self._look(sqlite_stats.all_stats)

    async def page_of_stats(self, query: queue_page.Query) -> Told:
        """Return the stats of the queues of one page."""
        return await self._look(lambda store: sqlite_stats.page_of_stats(store, query))

    async def sizes(self, used: Collection[str]) -> list[tuple[str, int]]:
        """Return how many items each queue has: it costs the same for all."""
        return await self._look(QueueStore.sizes)

    # --- the store ---

    async def _look(self, reading: Callable[[QueueStore], R]) -> R:
        return await self._writer.run(reading, durable=False)

    async def _change(
        self,
        name: str,
        operation: Callable[[QueueStore, QueueRow], R],
        key: Key | None,
        answered: Callable[[R], Told],
        *,
        grows: bool = False,
    ) -> Told:
        def keyed(store: QueueStore) -> Told:
            told = answered(operation(store, store.queue(name)))
            self._remember(store, key, told)
            return told

        return await self._writer.run(keyed, grows=grows)

    def _remember(self, store: QueueStore, key: Key | None, told: Told) -> None:
        if key is not None and not store.file.in_memory:
            kept_answers.keep(store, key.slot, key.number, told)

    def _check_space(self, store: QueueStore, queue: QueueRow, count: int, size: int) -> None:
        try:
            self._check_limits(store, queue, count, size)
        except QueueFullError:  # answers that nobody fetched in time may be what takes the space
            replies.drop_everywhere(store, store.file.clock.now())
            self._check_limits(store, queue, count, size)

    def _check_limits(self, store: QueueStore, queue: QueueRow, count: int, size: int) -> None:
        limits = self._limits
        if limits.queue_items is not None and queue.live + queue.dead + count > limits.queue_items:
            raise QueueFullError(
                f"queue {queue.name!r} is full: it has {queue.live + queue.dead} items, dead letters "
                f"included, of queue_items={limits.queue_items}; take some, or purge its dead letters"
            )
        if limits.queue_bytes is not None and queue.bytes + size > limits.queue_bytes:
            raise QueueFullError(
                f"queue {queue.name!r} is full: it has {queue.bytes} of queue_bytes={limits.queue_bytes} "
                "bytes; take items, or purge its dead letters"
            )
        if limits.total_items is not None or self._most_bytes is not None:
            items, total = store.totals()
            if limits.total_items is not None and items + count > limits.total_items:
                raise QueueFullError(
                    f"the server is full: it has {items} of total_items={limits.total_items} items"
                )
            used, new = total + self._row_bytes * items, size + self._row_bytes * count
            if self._most_bytes is not None and used + new > self._most_bytes:
                raise QueueFullError(
                    f"the server is full: it has {used} of total_bytes={self._most_bytes} bytes"
                )
        store.file.check_space(size)

    async def every_second(self, seconds: int) -> None:
        """Keep the time that leases have left, and forget old answers."""
        if seconds % _KEEP_TIME_EVERY == 0 and not self._store.file.in_memory:
            await self._writer.run(QueueStore.keep_time, durable=False)
        if seconds % _FORGET_EVERY == 0:
            await self._writer.run(lambda store: kept_answers.forget(store, FORGET_AFTER), durable=False)

    async def close(self) -> None:
        """Write what is pending, and release the file."""
        await asyncio.wrap_future(BriefThreads(1, "fray-queue-closing").submit(self._writer.close))


def in_sqlite(folder: str | Path | None, *, limits: Limits, clock: LeaseClock) -> OpenStore:
    """Return what opens the store of a folder; None keeps the queues in memory."""
    return lambda traffic: SqliteStore(folder, limits=limits, clock=clock, traffic=traffic)


def _count(count: Any) -> Told:
    return {"count": count}


def _check_answers(queue: QueueRow) -> None:
    """Refuse items to a client that cannot answer, where a producer may wait for answers.

    Raises:
        UnsupportedError: The client is of the first release.
    """
    if queue.special & ASKED:
        raise UnsupportedError(no_answers(queue.name))
