"""The queues of a server: their store, the pops that wait for items, and their rates."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence

from fray import QueueUnavailableError
from fray.backend import PushOptions
from fray.queue import Reply
from fray_queue._checks import check_name
from fray_queue._errors import QueueNotFoundError
from fray_queue._http.protocol.limits import Limits
from fray_queue._http.server.idempotency import IdempotencyKeys
from fray_queue._http.server.store import Failure, Key, OpenStore, Told
from fray_queue._http.server.traffic import Traffic, sleep_among, woken_of
from fray_queue._items import EncodedReply, Settings, Taken

_SHORTEST_WAIT = 0.001


class QueueRegistry:
    """The server's queues; every method is called in the loop's thread."""

    def __init__(self, open_store: OpenStore, *, limits: Limits) -> None:
        self.limits = limits
        self.closing = False
        self._loop = asyncio.get_running_loop()
        self._traffic: dict[str, Traffic] = {}
        self.store = open_store(self.traffic)
        self.requests = IdempotencyKeys(self.store.answers())
        self._samples = 0

    async def close(self) -> None:
        """Write what is pending."""
        self.wake_all()
        await self.store.close()
        for traffic in self._traffic.values():
            traffic.end_alarm()

    def wake_all(self) -> None:
        """Let every waiting pop look again, and see that the server is closing."""
        for traffic in self._traffic.values():
            traffic.wake_all()

    def traffic(self, name: str) -> Traffic:
        """Return what goes through a queue."""
        traffic = self._traffic.get(name)
        if traffic is None:
            traffic = self._traffic[name] = Traffic()
        return traffic

    def look_again(self, name: str) -> None:
        """Let every call that waits for a queue look again."""
        if (traffic := self._traffic.get(name)) is not None:
            traffic.wake_all()

    def _drop(self, name: str) -> None:
        """Keep nothing of a queue that is not there; the calls under way look again, and notice."""
        if (traffic := self._traffic.pop(name, None)) is not None:
            traffic.end_alarm()
            traffic.wake_all()

    @contextlib.contextmanager
    def _dropping(self, name: str) -> Iterator[None]:
        """Keep nothing of a queue that the block does not find."""
        try:
            yield
        except QueueNotFoundError:
            self._drop(name)
            raise

    # --- queues ---

    async def create(self, name: str, settings: Settings, key: Key | None) -> None:
        """Have a queue of that name and those settings."""
        await self.store.create(check_name(name), settings, key)

    async def delete(self, name: str, key: Key | None) -> None:
        """Remove a queue with all that is in it."""
        await self.store.delete(name, key)
        self._drop(name)

    # --- items ---

    async def push(self, name: str, records: Sequence[tuple[str, bytes]], key: Key | None) -> Told:
        """Store records of id and payload."""
        told = await self.store.push(name, records, key)
        self._note_pushed(name, len(records))
        return told

    async def submit(
        self, name: str, payloads: Sequence[bytes], options: PushOptions, key: Key | None
    ) -> Told:
        """Store payloads under options; the reply has their ids, and those of items with their keys."""
        told = await self.store.submit(name, payloads, options, key)
        self._note_pushed(name, len(payloads))
        for seconds in (options.delay, options.ttl):
            self.traffic(name).look_within(seconds or None)
        return told

    def _note_pushed(self, name: str, count: int) -> None:
        traffic = self.traffic(name)
        traffic.rates.pushed += count
        traffic.wake(count)

    async def await_room(self, name: str, count: int, wait: float, gone: Callable[[], bool]) -> bool:
        """Return True when a queue has room for so many items, or False after `wait` seconds."""
        end = self._loop.time() + wait
        with self._dropping(name), contextlib.ExitStack() as watch:
            slept = False
            while not gone():
                pushers = [self.traffic(name).pushers]
                since = woken_of(pushers)
                free, change = await self.store.has_room(name, count)
                left = end - self._loop.time()
                if free or left <= 0 or self.closing:
                    return free
                if not slept:
                    watch.enter_context(self.store.watching(name, "room"))
                slept = True
                await sleep_among(pushers, _until(left, change), since)
        return False

    async def fetch(
        self, name: str, item_ids: Sequence[str], wait: float, key: Key | None, gone: Callable[[], bool]
    ) -> list[Reply]:
        """Return what became of items, waiting for the first of which it is known."""
        end = self._loop.time() + wait
        with (
            self._dropping(name),
            self.traffic(name).asking(item_ids) as sleepers,
            contextlib.ExitStack() as watch,
        ):
            slept = False
            while not gone():
                since = woken_of(sleepers)
                found, change = await self.store.fetch(name, item_ids, key)
                left = end - self._loop.time()
                if found or left <= 0 or self.closing:
                    return found
                if not slept:
                    watch.enter_context(self.store.watching(name, "answers", item_ids))
                slept = True
                await sleep_among(sleepers, _until(left, change), since)
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
        end = self._loop.time() + wait if wait else 0.0
        slept = more = False
        with self._dropping(name), contextlib.ExitStack() as watch:
            while True:
                if gone():
                    self._pass_on(name, more)
                    return []
                traffic = self.traffic(name)  # another one where a queue was removed and made again
                since = traffic.woken
                try:
                    taken, change = await self.store.pop(
                        name, n, lease_timeout, key, answers=answers, woken=slept
                    )
                except BaseException:
                    if slept:
                        self._pass_on(name, more)
                    raise
                traffic.look_within(lease_timeout if taken else change)
                if taken and more:
                    traffic.wake(more=True)
                if taken or not wait or (left := end - self._loop.time()) <= 0:
                    traffic.rates.take(taken)
                    return taken
                self.store.check()
                if self.closing:
                    raise QueueUnavailableError("the server is stopping")
                if not slept:
                    watch.enter_context(self.store.watching(name, "items"))
                slept = True
                more = await traffic.sleep(left, since)

    def _pass_on(self, name: str, more: bool) -> None:
        """Wake another pop in place of one that was woken, and takes nothing."""
        if (known := self._traffic.get(name)) is not None:
            known.wake(more=more)

    async def done(
        self, name: str, lease_ids: Sequence[str], key: Key | None, given: Sequence[EncodedReply | None] = ()
    ) -> Told:
        """Finish items by their leases, with answers; the reply has the leases that are not good."""
        told = await self.store.done(name, lease_ids, given or [None] * len(lease_ids), key)
        traffic = self.traffic(name)
        traffic.rates.done += len(lease_ids) - len(told["refused"])
        if traffic.pushers:
            traffic.pushers.wake()
        return told

    async def release(
        self, name: str, lease_id: str, delay: float, failure: Failure, key: Key | None
    ) -> Told:
        """Give an item back."""
        told = await self.store.release(name, lease_id, delay, failure, key)
        traffic = self.traffic(name)
        traffic.wake()
        traffic.pushers.wake()
        traffic.look_within(delay or None)
        return told

    async def extend(self, name: str, lease_id: str, lease_timeout: float, key: Key | None) -> Told:
        """Hold an item longer, or less long."""
        told = await self.store.extend(name, lease_id, lease_timeout, key)
        self.traffic(name).look_within(lease_timeout)
        return told

    async def extend_many(
        self, name: str, lease_ids: Sequence[str], lease_timeout: float, key: Key | None
    ) -> Told:
        """Hold items longer, or less long."""
        told = await self.store.extend_many(name, lease_ids, lease_timeout, key)
        self.traffic(name).look_within(lease_timeout)
        return told

    async def give_back(self, name: str, lease_ids: Sequence[str], key: Key | None) -> Told:
        """Give back items that were not worked on; the reply has the leases that are not good."""
        told = await self.store.give_back(name, lease_ids, key)
        self.traffic(name).wake(len(lease_ids))
        return told

    async def requeue(self, name: str, item_ids: Sequence[str] | None, key: Key | None) -> Told:
        """Bring dead letters back."""
        told = await self.store.requeue(name, item_ids, key)
        self.traffic(name).wake(told["count"])
        return told

    async def purge(self, name: str, item_ids: Sequence[str] | None, key: Key | None, *, dead: bool) -> Told:
        """Remove items, or dead letters."""
        if dead:
            told = await self.store.purge_dead(name, item_ids, key)
        else:
            told = await self.store.purge(name, key)
        self.traffic(name).pushers.wake()
        return told

    async def sample(self) -> None:
        """Note each queue's rates; called once a second."""
        self._samples += 1
        used = [name for name, each in self._traffic.items() if not each.rates.is_quiet(self._samples)]
        sizes = dict(await self.store.sizes(used))
        for name, size in sizes.items():
            self.traffic(name).rates.sample(self._samples, size)
        for name in used:
            if name not in sizes:  # others removed it
                self._drop(name)
        await self.store.every_second(self._samples)


def _until(left: float, change: float | None) -> float:
    return left if change is None else min(left, max(_SHORTEST_WAIT, change))
