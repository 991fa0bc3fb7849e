"""The queues of a server: their store, the pops that wait for items, and their rates."""

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fray import QueueUnavailableError
from fray_queue._checks import check_name
from fray_queue._errors import QueueFullError
from fray_queue._http.protocol.limits import Limits
from fray_queue._http.server.rates import Rates
from fray_queue._http.server.slots import FORGET_AFTER, Slots
from fray_queue._http.server.store_folder import open_store
from fray_queue._http.server.writer import Writer, WriterEndedError
from fray_queue._sqlite import answers, looking
from fray_queue._sqlite.clocks import LeaseClock
from fray_queue._sqlite.library import named_errors
from fray_queue._sqlite.rows import QueueRow, Settings, Taken
from fray_queue._sqlite.store import QueueStore

R = TypeVar("R")
_KEEP_TIME_EVERY = 5  # samples; what a lease has left after a crash is right by so much
_FORGET_EVERY = 600


@dataclass(slots=True, eq=False)
class Traffic:
    """What goes through one queue, and who waits for it."""

    rates: Rates = field(default_factory=Rates)
    waiters: deque["asyncio.Future[None]"] = field(default_factory=deque)

    def wake(self, count: int = 1) -> None:
        """Let up to `count` waiting pops look again."""
        while count > 0 and self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

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
                self.slots = Slots(answers.load(store))
            self._writer = Writer(store)
        except BaseException:
            store.file.close()
            raise
        self._traffic: dict[str, Traffic] = {}
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
            traffic.wake(1 << 60)

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

    async def create(self, name: str, max_attempts: int | None, key: Key | None) -> None:
        """Have a queue of that name and those settings."""
        check_name(name)

        def operation(store: QueueStore) -> None:
            store.create(name, Settings(max_attempts), most=self.limits.queues)
            self._remember(store, key, {})

        await self._writer.run(operation, grows=True)

    async def delete(self, name: str, key: Key | None) -> None:
        """Remove a queue with all that is in it."""
        await self._change(name, lambda store, queue: store.delete(queue), key, lambda _: {})
        if (traffic := self._traffic.pop(name, None)) is not None:
            traffic.wake(1 << 60)

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

    async def pop(
        self, name: str, n: int, lease_timeout: float, wait: float, key: Key | None, gone: Callable[[], bool]
    ) -> list[Taken]:
        """Lease up to `n` items, waiting for the first; nothing for a client that is gone."""
        traffic = self.traffic(name)
        end = self._loop.time() + wait if wait else 0.0

        def operation(store: QueueStore) -> tuple[list[Taken], float | None]:
            queue = store.queue(name)
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

    async def done(self, name: str, lease_ids: Sequence[str], key: Key | None) -> dict[str, Any]:
        """Finish items by their leases; the reply has the leases that are not good."""
        reply = await self._change(
            name, lambda store, queue: store.done(queue, lease_ids), key, lambda refused: {"refused": refused}
        )
        self.traffic(name).rates.done += len(lease_ids) - len(reply["refused"])
        return reply

    async def release(
        self, name: str, lease_id: str, delay: float, error: str | None, key: Key | None
    ) -> dict[str, Any]:
        """Give an item back."""
        reply = await self._change(
            name,
            lambda store, queue: store.release(queue, lease_id, delay, unreadable=error),
            key,
            lambda _: {},
        )
        self.traffic(name).wake()
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

        return await self._change(name, operation, key, lambda count: {"count": count})

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
            answers.keep(store, key.slot, key.number, reply)

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
            self.traffic(name).rates.sample(size)
        if not self._store.file.in_memory:
            if self._samples % _KEEP_TIME_EVERY == 0:
                await self._writer.run(QueueStore.keep_time, durable=False)
            if self._samples % _FORGET_EVERY == 0:
                await self._writer.run(lambda store: answers.forget(store, FORGET_AFTER), durable=False)


def leases_reply(name: str, taken: Sequence[Taken]) -> dict[str, Any]:
    """Return what is kept of an answer that leased items: a repetition shows them as they are then."""
    return {"queue": name, "leases": [each.lease_id for each in taken]}


def _machine_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
