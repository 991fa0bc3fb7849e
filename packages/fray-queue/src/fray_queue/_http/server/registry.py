"""The queues of a server: their store, the pops that wait for items, and their rates."""

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fray import QueueUnavailableError, UnsupportedError
from fray.backend import PushOptions
from fray.queue import Reply
from fray_queue._checks import check_name
from fray_queue._errors import QueueFullError
from fray_queue._http.protocol.limits import Limits
from fray_queue._http.server.rates import Rates
from fray_queue._http.server.slots import FORGET_AFTER, Slots
from fray_queue._http.server.store_folder import open_store
from fray_queue._http.server.writer import Writer, WriterEndedError
from fray_queue._sqlite import answers as kept_answers
from fray_queue._sqlite import looking, replies
from fray_queue._sqlite.clocks import LeaseClock
from fray_queue._sqlite.library import named_errors
from fray_queue._sqlite.rows import ASKED, QueueRow, Settings, Taken
from fray_queue._sqlite.store import QueueStore

R = TypeVar("R")
_KEEP_TIME_EVERY = 5  # samples; what a lease has left after a crash is right by so much
_FORGET_EVERY = 600


class Sleepers:
    """Those who wait for one thing."""

    def __init__(self) -> None:
        self._futures: set[asyncio.Future[None]] = set()

    def __bool__(self) -> bool:
        return bool(self._futures)

    def wake(self) -> None:
        """Let all of them look again."""
        for future in self._futures:
            if not future.done():
                future.set_result(None)


@dataclass(slots=True, eq=False)
class Traffic:
    """What goes through one queue, and who waits for it."""

    rates: Rates = field(default_factory=Rates)
    waiters: deque["asyncio.Future[None]"] = field(default_factory=deque)
    pushers: Sleepers = field(default_factory=Sleepers)  # who waits for room
    askers: dict[str, Sleepers] = field(default_factory=dict)  # who waits for answers, by item

    def wake(self, count: int = 1) -> None:
        """Let up to `count` waiting pops look again."""
        while count > 0 and self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    def wake_all(self) -> None:
        """Let everybody look again."""
        self.wake(1 << 60)
        self.pushers.wake()
        for sleepers in list(self.askers.values()):
            sleepers.wake()

    async def sleep(self, seconds: float) -> None:
        """Return when woken, or after so many seconds."""
        waiter = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        try:
            async with asyncio.timeout(seconds):
                await waiter
        except TimeoutError:
            pass
        finally:
            with contextlib.suppress(ValueError):
                self.waiters.remove(waiter)


async def sleep_among(groups: Sequence[Sleepers], seconds: float) -> None:
    """Return when one of these is woken, or after so many seconds."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    for group in groups:
        group._futures.add(future)
    try:
        async with asyncio.timeout(seconds):
            await future
    except TimeoutError:
        pass
    finally:
        for group in groups:
            group._futures.discard(future)


class Key(NamedTuple):
    """A request's idempotency key: its connection's name, and its number on that."""

    slot: str
    number: int


class QueueRegistry:
    """The server's queues; every method is called in the loop's thread.

    Args:
        folder: Where the queues are kept; None keeps them in memory.
    """

    def __init__(self, folder: str | Path | None, *, limits: Limits, clock: LeaseClock) -> None:
        self.limits, self.clock = limits, clock
        self.closing = False
        self._loop = asyncio.get_running_loop()
        store = open_store(folder, clock, limits)
        self._store = store
        self._most_bytes = limits.total_bytes
        if self._most_bytes is None and store.file.in_memory:
            self._most_bytes = _machine_memory() // 4
        try:
            with named_errors(store.file.path):
                self.slots = Slots(kept_answers.load(store))
            self._writer = Writer(store)
        except BaseException:
            store.file.close()
            raise
        self._traffic: dict[str, Traffic] = {}
        store.on_reply = self._note_reply
        self._samples = 0

    @property
    def ended(self) -> bool:
        """Whether the store can be used no more."""
        return self._writer.ended

    async def close(self) -> None:
        """Write what is pending."""
        self.wake_all()
        await self._loop.run_in_executor(None, self._writer.close)

    def wake_all(self) -> None:
        """Let every waiting pop look again, and see that the server is closing."""
        for traffic in self._traffic.values():
            traffic.wake_all()

    def _note_reply(self, name: str, item_id: str | None) -> None:
        """Have those look who wait for an answer; called by who writes, before it is committed."""
        if self._store.file.in_memory:
            self._tell_askers(name, item_id)
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._tell_askers, name, item_id)

    def _tell_askers(self, name: str, item_id: str | None) -> None:
        askers = self.traffic(name).askers
        for each in list(askers) if item_id is None else [item_id]:
            if each in askers:
                askers[each].wake()

    def traffic(self, name: str) -> Traffic:
        """Return what goes through a queue."""
        traffic = self._traffic.get(name)
        if traffic is None:
            traffic = self._traffic[name] = Traffic()
        return traffic

    # --- queues ---

    async def look(self, reading: Callable[[QueueStore], R]) -> R:
        """Read from the store."""
        return await self._writer.run(reading, durable=False)

    async def create(self, name: str, settings: Settings, key: Key | None) -> None:
        """Have a queue of that name and those settings."""
        check_name(name)

        def operation(store: QueueStore) -> None:
            store.create(name, settings, most=self.limits.queues)
            self._remember(store, key, {})

        await self._writer.run(operation, grows=True)

    async def delete(self, name: str, key: Key | None) -> None:
        """Remove a queue with all that is in it."""
        await self._change(name, lambda store, queue: store.delete(queue), key, lambda _: {})
        if (traffic := self._traffic.pop(name, None)) is not None:
            traffic.wake_all()

    # --- items ---

    async def push(self, name: str, records: Sequence[tuple[str, bytes]], key: Key | None) -> dict[str, Any]:
        """Store records of id and payload."""
        size = sum(len(payload) for _, payload in records)

        def operation(store: QueueStore, queue: QueueRow) -> int:
            self._check_space(store, queue, len(records), size)
            return len(store.push(queue, records))

        reply = await self._change(name, operation, key, lambda count: {"stored": count}, grows=True)
        traffic = self.traffic(name)
        traffic.rates.pushed += len(records)
        traffic.wake(len(records))
        return reply

    async def submit(
        self, name: str, records: Sequence[tuple[None, bytes]], options: PushOptions, key: Key | None
    ) -> dict[str, Any]:
        """Store payloads under options; the reply has their ids, and those of items with their keys."""
        size = sum(len(payload) for _, payload in records)

        def operation(store: QueueStore, queue: QueueRow) -> list[str]:
            self._check_space(store, queue, len(records), size)
            return store.push(queue, records, options)

        reply = await self._change(name, operation, key, lambda ids: {"ids": ids}, grows=True)
        traffic = self.traffic(name)
        traffic.rates.pushed += len(records)
        traffic.wake(len(records))
        return reply

    async def await_room(self, name: str, count: int, wait: float, gone: Callable[[], bool]) -> None:
        """Return when a queue has room for so many items, or after `wait` seconds."""
        end = self._loop.time() + wait

        def has_room(store: QueueStore) -> tuple[bool, float | None]:
            queue = store.queue(name)
            store.sweep(queue, store.file.clock.now())
            free = queue.max_size is None or queue.live + count <= queue.max_size
            return free, looking.next_change(store, queue)

        while not gone():
            free, change = await self.look(has_room)
            left = end - self._loop.time()
            if free or left <= 0 or self.closing:
                return
            await sleep_among([self.traffic(name).pushers], _until(left, change))

    async def fetch(
        self, name: str, item_ids: Sequence[str], wait: float, gone: Callable[[], bool]
    ) -> list[Reply]:
        """Return what became of items, waiting for the first of which it is known."""
        end = self._loop.time() + wait

        def operation(store: QueueStore) -> tuple[list[Reply], float | None]:
            queue = store.queue(name)
            found = replies.fetch(store, queue, item_ids, most_bytes=self.limits.item_bytes)
            return found, looking.next_change(store, queue) if wait and not found else None

        askers = self.traffic(name).askers
        with _asking(askers, item_ids) as sleepers:
            while not gone():
                found, change = await self.look(operation)
                left = end - self._loop.time()
                if found or left <= 0 or self.closing:
                    return found
                await sleep_among(sleepers, _until(left, change))
        return []

    async def pop(
        self,
        name: str,
        n: int,
        lease_timeout: float,
        wait: float,
        key: Key | None,
        gone: Callable[[], bool],
        *,
        answers: bool = True,
    ) -> list[Taken]:
        """Lease up to `n` items, waiting for the first; nothing for a client that is gone.

        Args:
            answers: Whether the client can give answers.
        """
        traffic = self.traffic(name)
        end = self._loop.time() + wait if wait else 0.0

        def operation(store: QueueStore) -> tuple[list[Taken], float | None]:
            queue = store.queue(name)
            if queue.special and not answers:
                _check_answers(queue)
            taken = store.pop(queue, n, lease_timeout, most_bytes=self.limits.item_bytes)
            if taken:
                self._remember(store, key, leases_reply(name, taken))
                return taken, None
            return taken, looking.next_change(store, queue) if wait else None

        while True:
            if gone():
                traffic.wake()  # whoever woke this pop meant to wake one that takes
                return []
            taken, change = await self._writer.run(operation)
            if taken or not wait or (left := end - self._loop.time()) <= 0:
                traffic.rates.popped += len(taken)
                return taken
            if self.ended:
                raise WriterEndedError
            if self.closing:
                raise QueueUnavailableError("the server is stopping")
            await traffic.sleep(left if change is None else min(left, max(0.001, change)))

    async def done(
        self,
        name: str,
        lease_ids: Sequence[str],
        key: Key | None,
        given: Sequence[tuple[str, bytes] | None] = (),
    ) -> dict[str, Any]:
        """Finish items by their leases, with answers; the reply has the leases that are not good."""
        reply = await self._change(
            name,
            lambda store, queue: store.done(queue, lease_ids, given),
            key,
            lambda refused: {"refused": refused},
        )
        traffic = self.traffic(name)
        traffic.rates.done += len(lease_ids) - len(reply["refused"])
        if traffic.pushers:
            traffic.pushers.wake()
        return reply

    async def release(
        self,
        name: str,
        lease_id: str,
        delay: float,
        unreadable: str | None,
        key: Key | None,
        failed: tuple[str | None, bytes | None],
    ) -> dict[str, Any]:
        """Give an item back; `failed` says what failed the attempt, as text and for who asked."""
        error, failure = failed
        reply = await self._change(
            name,
            lambda store, queue: store.release(
                queue, lease_id, delay, unreadable=unreadable, error=error, failure=failure
            ),
            key,
            lambda _: {},
        )
        traffic = self.traffic(name)
        traffic.wake()
        traffic.pushers.wake()
        return reply

    async def extend(self, name: str, lease_id: str, lease_timeout: float, key: Key | None) -> dict[str, Any]:
        """Hold an item longer."""
        return await self._change(
            name,
            lambda store, queue: store.extend(queue, lease_id, lease_timeout),
            key,
            lambda until: {"expires_at": until},
        )

    async def extend_many(
        self, name: str, lease_ids: Sequence[str], lease_timeout: float, key: Key | None
    ) -> dict[str, Any]:
        """Hold items longer; the reply has each lease's new end, None for one that is not good."""
        return await self._change(
            name,
            lambda store, queue: store.extend_many(queue, lease_ids, lease_timeout),
            key,
            lambda ends: {"expires_at": ends},
        )

    async def give_back(self, name: str, lease_ids: Sequence[str], key: Key | None) -> dict[str, Any]:
        """Give back items that were not worked on; the reply has the leases that are not good."""
        reply = await self._change(
            name,
            lambda store, queue: store.give_back(queue, lease_ids),
            key,
            lambda refused: {"refused": refused},
        )
        self.traffic(name).wake(len(lease_ids))
        return reply

    async def requeue(self, name: str, item_ids: Sequence[str] | None, key: Key | None) -> dict[str, Any]:
        """Bring dead letters back."""
        reply = await self._change(
            name, lambda store, queue: store.requeue(queue, item_ids), key, lambda count: {"count": count}
        )
        self.traffic(name).wake(reply["count"])
        return reply

    async def purge(
        self, name: str, item_ids: Sequence[str] | None, key: Key | None, *, dead: bool
    ) -> dict[str, Any]:
        """Remove items, or dead letters."""

        def operation(store: QueueStore, queue: QueueRow) -> int:
            return store.purge_dead(queue, item_ids) if dead else store.purge(queue)

        reply = await self._change(name, operation, key, lambda count: {"count": count})
        self.traffic(name).pushers.wake()
        return reply

    # --- the store ---

    async def _change(
        self,
        name: str,
        operation: Callable[[QueueStore, QueueRow], R],
        key: Key | None,
        reply_of: Callable[[R], dict[str, Any]],
        *,
        grows: bool = False,
    ) -> dict[str, Any]:
        def keyed(store: QueueStore) -> dict[str, Any]:
            reply = reply_of(operation(store, store.queue(name)))
            self._remember(store, key, reply)
            return reply

        return await self._writer.run(keyed, grows=grows)

    def _remember(self, store: QueueStore, key: Key | None, reply: dict[str, Any]) -> None:
        if key is not None and not store.file.in_memory:
            kept_answers.keep(store, key.slot, key.number, reply)

    def _check_space(self, store: QueueStore, queue: QueueRow, count: int, size: int) -> None:
        limits = self.limits
        if limits.queue_items is not None and queue.live + queue.dead + count > limits.queue_items:
            raise QueueFullError(
                f"queue {queue.name!r} has {queue.live + queue.dead} items of {limits.queue_items}"
            )
        if limits.queue_bytes is not None and queue.bytes + size > limits.queue_bytes:
            raise QueueFullError(f"queue {queue.name!r} has {queue.bytes} bytes of {limits.queue_bytes}")
        if limits.total_items is not None or self._most_bytes is not None:
            items, total = store.totals()
            if limits.total_items is not None and items + count > limits.total_items:
                raise QueueFullError(f"the server has {items} items of {limits.total_items}")
            if self._most_bytes is not None and total + size > self._most_bytes:
                raise QueueFullError(f"the server has {total} bytes of {self._most_bytes}")
        store.file.check_space(size)

    async def sample(self) -> None:
        """Note each queue's rates; called once a second."""
        self._samples += 1
        for name, size in await self.look(QueueStore.sizes):
            self.traffic(name).rates.sample(self._samples, size)
        if not self._store.file.in_memory:
            if self._samples % _KEEP_TIME_EVERY == 0:
                await self._writer.run(QueueStore.keep_time, durable=False)
            if self._samples % _FORGET_EVERY == 0:
                await self._writer.run(lambda store: kept_answers.forget(store, FORGET_AFTER), durable=False)


@contextlib.contextmanager
def _asking(askers: dict[str, Sleepers], item_ids: Sequence[str]) -> Iterator[list[Sleepers]]:
    """Be woken by the answers to these items while the block runs."""
    mine = [askers.setdefault(item_id, Sleepers()) for item_id in item_ids]
    try:
        yield mine
    finally:
        for item_id in item_ids:
            if item_id in askers and not askers[item_id]:
                del askers[item_id]


def _until(left: float, change: float | None) -> float:
    return left if change is None else min(left, max(0.001, change))


def _check_answers(queue: QueueRow) -> None:
    """Refuse items to a client that cannot answer, where somebody may wait for answers.

    Raises:
        UnsupportedError: The client is of the first release.
    """
    if queue.special & ASKED:
        raise UnsupportedError(
            f"queue {queue.name!r} has items whose pushers wait for answers, and this client is of a release "
            "that can give none; update fray-queue where it runs"
        )


def leases_reply(name: str, taken: Sequence[Taken]) -> dict[str, Any]:
    """Return what is kept of an answer that leased items: a repetition shows them as they are then."""
    return {"queue": name, "leases": [each.lease_id for each in taken]}


def _machine_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
