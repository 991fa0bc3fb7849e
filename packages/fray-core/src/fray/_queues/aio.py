"""A queue's calls for asynchronous programs; by default each runs in a thread, beside the event loop."""

import asyncio
import contextlib
import functools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from fray._contracts.queue import Queue
from fray._contracts.replies import Reply
from fray._queues.heartbeat import Heartbeat, extend_many, release_each
from fray._queues.mapping import Window, amap_in_order
from fray._queues.turns import Turns, held_within
from fray._values.brief_threads import BriefThreads
from fray._values.capabilities import QueueCapabilities
from fray._values.checks import check_seconds
from fray._values.errors import FrayError, LeaseExpiredError, QueueFullError
from fray._values.leases import DeadLetter, Lease
from fray._values.push_options import ROOM_TIMEOUT, PushOptions, push_options

T = TypeVar("T")
R = TypeVar("R")

_THREADS = 16  # calls of one queue that run at a time
_FETCHES = 8  # threads of these that calls which wait for answers may keep at a time
_LONGEST_SLICE = 0.25  # seconds that a waiting call keeps a thread: how long its cancellation may take
_FIRST_SLICE = 0.01  # seconds that a push waits for room before it waits in turn with others
_PATIENCE = 1.0  # seconds that a cancelled pop waits until what it was granted is given back


class AsyncQueue(Generic[T]):
    """The asynchronous twin of a queue: its calls, to be awaited.

    A `pop` that is cancelled gives back what it was granted, without counting an attempt where the queue can.
    Any other call that is cancelled is done nevertheless, or not begun.
    """

    _longest_slice = _LONGEST_SLICE

    def __init__(self, queue: Queue[T]) -> None:
        self._queue = queue
        self._threads = BriefThreads(_THREADS, "fray-aio")
        can = QueueCapabilities.of(type(queue))
        self._may_be_full = can is not None and can.max_size
        self._waits: WeakKeyDictionary[asyncio.AbstractEventLoop, _Waits] = WeakKeyDictionary()

    @property
    def queue(self) -> Queue[T]:
        """The queue that this is the twin of."""
        return self._queue

    async def push(self, item: T, **options: Any) -> str:
        """Store an item; see `Queue.push`."""
        return await self._push_with_room(functools.partial(self._queue.push, item), options)

    async def push_many(self, items: Iterable[T], **options: Any) -> list[str]:
        """Store items in order; see `Queue.push_many`."""
        return await self._push_with_room(functools.partial(self._queue.push_many, list(items)), options)

    async def _push_with_room(self, push: Callable[..., R], options: dict[str, Any]) -> R:
        if not self._may_be_full:
            return await self._call(push, **options)
        wait = options.pop("wait", None)
        if wait is None:
            wait = getattr(self._queue, "_timeout", ROOM_TIMEOUT)
        end = time.monotonic() + check_seconds("wait", wait, zero=True)
        push = functools.partial(push, **options)
        first = min(wait, _FIRST_SLICE)
        try:
            return await self._call(push, wait=first)
        except QueueFullError as error:
            if not error.waited or first == wait:
                raise
        room = self._of_loop().room
        while True:
            async with room.take(end - time.monotonic()) as longest:
                left = max(0.0, end - time.monotonic())
                try:
                    return await self._call(push, wait=min(left, longest))
                except QueueFullError as error:
                    if not left:
                        error.waited = wait
                    if not left or not error.waited:
                        raise

    async def pop(self, lease_timeout: float = 60.0, *, wait: float = 0.0) -> Lease[T] | None:
        """Lease the oldest item that waits; see `Queue.pop`."""
        leases = await self.pop_many(1, lease_timeout, wait=wait)
        return leases[0] if leases else None

    async def pop_many(self, n: int, lease_timeout: float = 60.0, *, wait: float = 0.0) -> list[Lease[T]]:
        """Lease up to `n` items; see `Queue.pop_many`."""
        end = time.monotonic() + check_seconds("wait", wait, zero=True)
        leases = await self._take(n, lease_timeout, 0.0)
        if leases or not wait:
            return leases
        async with held_within(self._of_loop().items, end - time.monotonic()):
            return await self._wait_for(n, lease_timeout, end)

    async def _wait_for(self, n: int, lease_timeout: float, end: float) -> list[Lease[T]]:
        leases: list[Lease[T]] = []
        while not leases and (left := end - time.monotonic()) > 0:
            leases = await self._take(n, lease_timeout, min(left, self._longest_slice))
        return leases

    async def peek(self) -> T | None:
        """Return the item that a pop would take now; see `Queue.peek`."""
        return await self._call(self._queue.peek)

    async def done(self, lease: Lease[T], **options: Any) -> None:
        """Finish an item; see `Queue.done`."""
        await self._call(self._queue.done, lease, **options)

    async def map(
        self, items: Iterable[T], *, in_flight: int = 100, timeout: float | None = None, **options: Any
    ) -> AsyncIterator[Any]:
        """Push items and yield their answers in the same order; see `Queue.map`."""
        self._queue.map((), in_flight=in_flight, timeout=timeout, **options)  # it checks them

        async def push(more: Iterable[T], _: PushOptions) -> list[Any]:
            return await self.push_many(more, reply=True, **options)

        window = Window(items, in_flight, timeout)
        async for answer in amap_in_order(push, self.fetch_replies, window, push_options()):
            yield answer

    async def fetch_replies(self, item_ids: Sequence[str], *, wait: float = 0.0) -> Mapping[str, Reply]:
        """Return what became of items; see `Queue.fetch_replies`."""
        end = time.monotonic() + check_seconds("wait", wait, zero=True)
        fetch = functools.partial(self._queue.fetch_replies, item_ids)
        found = await self._call(fetch, wait=0.0)
        waits = self._of_loop()
        waits.fetching += 1
        try:
            while not found and end > time.monotonic():
                async with waits.answers:
                    # They take turns, as each waits for other answers; the more there are, the shorter.
                    longest = self._longest_slice * min(1.0, _FETCHES / waits.fetching)
                    left = max(0.0, end - time.monotonic())
                    found = await self._call(fetch, wait=min(left, longest))
        finally:
            waits.fetching -= 1
        return found

    async def done_many(self, leases: Iterable[Lease[T]], **options: Any) -> None:
        """Finish every item whose lease is good; see `Queue.done_many`."""
        await self._call(self._queue.done_many, list(leases), **options)

    async def release(self, lease: Lease[T], **options: Any) -> None:
        """Give an item back; see `Queue.release`."""
        await self._call(self._queue.release, lease, **options)

    async def give_back(self, leases: Iterable[Lease[T]]) -> None:
        """Give back items that were not worked on; see `QueueBase.give_back`."""
        await self._call(give_back, self._queue, list(leases))

    async def extend(self, lease: Lease[T], lease_timeout: float) -> Lease[T]:
        """Hold the item for `lease_timeout` seconds from now; see `Queue.extend`."""
        return await self._call(self._queue.extend, lease, lease_timeout)

    async def extend_many(
        self, leases: Iterable[Lease[T]], lease_timeout: float
    ) -> list[Lease[T] | LeaseExpiredError]:
        """Hold items for `lease_timeout` seconds from now; see `QueueBase.extend_many`."""
        return await self._call(extend_many, self._queue, list(leases), lease_timeout)

    async def size(self) -> int:
        """Count the items that wait, are delayed or are leased."""
        return await self._call(self._queue.size)

    async def pending(self) -> int:
        """Count the items that a pop could take now."""
        return await self._call(self._queue.pending)

    async def dead_letters(self) -> list[DeadLetter[T]]:
        """List the items that were given up."""
        return await self._call(self._queue.dead_letters)

    async def requeue_dead(self, item_ids: Sequence[str] | None = None) -> int:
        """Put dead letters back; see `Queue.requeue_dead`."""
        return await self._call(self._queue.requeue_dead, item_ids)

    @contextlib.asynccontextmanager
    async def lease(
        self, lease_timeout: float = 60.0, *, wait: float = 0.0
    ) -> AsyncIterator[Lease[T] | None]:
        """Lease an item for an `async with` block; see `Queue.lease`."""
        lease = await self.pop(lease_timeout, wait=wait)
        if lease is None:
            yield None
            return
        async with self._kept_alive(lease, lease_timeout):
            try:
                yield lease
            except BaseException:
                # What went wrong in the block is raised; that a lease is lost as well is not.
                with contextlib.suppress(FrayError, OSError):
                    await asyncio.shield(self.release(lease))
                raise
        await self.done(lease)

    @contextlib.asynccontextmanager
    async def _kept_alive(self, lease: Lease[T], lease_timeout: float) -> AsyncIterator[None]:
        """Extend a lease again and again while the block runs."""
        heartbeat = Heartbeat(self._queue, lease_timeout)
        heartbeat.keep([lease])
        try:
            yield
        finally:
            heartbeat.drop([lease.lease_id])
            heartbeat.halt()

    # --- threads ---

    async def _call(self, call: Callable[..., R], *args: Any, **options: Any) -> R:
        return await asyncio.wrap_future(self._submit(call, *args, **options))

    async def _take(self, n: int, lease_timeout: float, wait: float) -> list[Lease[T]]:
        grant: _Grant[T] = _Grant(self._queue)
        taken = asyncio.wrap_future(self._submit(grant.take, n, lease_timeout, wait))
        try:
            return await asyncio.shield(taken)
        except asyncio.CancelledError:
            if grant.abandon():
                taken = asyncio.wrap_future(self._submit(grant.give_back))
            # Nobody is to see the items leased once this has returned.
            await asyncio.wait([taken], timeout=_PATIENCE)
            raise

    def _submit(self, call: Callable[..., R], *args: Any, **options: Any) -> "Future[R]":
        return self._threads.submit(functools.partial(call, *args, **options))

    def _of_loop(self) -> "_Waits":
        return self._waits.setdefault(asyncio.get_running_loop(), _Waits())


class _Waits:
    """The calls that wait in one loop. They keep few threads; else they would keep all, and `done` out."""

    def __init__(self) -> None:
        self.items, self.room = asyncio.Lock(), Turns(_LONGEST_SLICE)  # one at a time keeps a thread
        self.answers = asyncio.Semaphore(_FETCHES)
        self.fetching = 0


class PollingAsyncQueue(AsyncQueue[T]):
    """The twin of a queue that a waiting pop has to query again and again: no thread waits meanwhile.

    Args:
        first: Seconds before a waiting pop looks for the second time; each pause is longer than the last.
        longest: Seconds of the longest pause.
    """

    def __init__(self, queue: Queue[T], first: float, longest: float) -> None:
        super().__init__(queue)
        self._first, self._longest = first, longest

    async def _wait_for(self, n: int, lease_timeout: float, end: float) -> list[Lease[T]]:
        pause = self._first
        leases: list[Lease[T]] = []
        while not leases and (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(left, pause))
            leases = await self._take(n, lease_timeout, 0.0)
            pause = min(self._longest, pause * 1.5)
        return leases


class _Grant(Generic[T]):
    """What one pop took in a thread, for a caller who may have left meanwhile."""

    def __init__(self, queue: Queue[T]) -> None:
        self._queue = queue
        self._lock = threading.Lock()
        self._abandoned = False
        self._leases: list[Lease[T]] | None = None

    def take(self, n: int, lease_timeout: float, wait: float) -> list[Lease[T]]:
        """Pop; give back at once what nobody waits for any more."""
        if self._abandoned:
            return []
        leases = self._queue.pop_many(n, lease_timeout, wait=wait)
        with self._lock:
            self._leases = leases
            if not self._abandoned:
                return leases
        return self.give_back()

    def abandon(self) -> bool:
        """Want nothing any more; whether there is something to give back."""
        with self._lock:
            self._abandoned = True
            return bool(self._leases)

    def give_back(self) -> list[Lease[T]]:
        """Give back what was taken, and return nothing; where that fails the leases run out."""
        with contextlib.suppress(FrayError, OSError):
            give_back(self._queue, self._leases or [])
        return []


def async_queue(queue: Queue[T]) -> AsyncQueue[T]:
    """Return a queue's asynchronous twin, also of one that knows nothing of it."""
    twin = getattr(queue, "aio", None)
    return twin if isinstance(twin, AsyncQueue) else AsyncQueue(queue)


def give_back(queue: Queue[T], leases: list[Lease[T]]) -> None:
    """Give back items that were not worked on; see `QueueBase.give_back`."""
    at_once = getattr(queue, "give_back", None)
    if at_once is not None:
        at_once(leases)
        return
    release_each(queue, leases)
