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
from fray._values.brief_threads import BriefThreads
from fray._values.checks import check_seconds
from fray._values.errors import FrayError, LeaseExpiredError
from fray._values.leases import DeadLetter, Lease

T = TypeVar("T")
R = TypeVar("R")

_THREADS = 16  # calls of one queue that run at a time
_LONGEST_SLICE = 0.25  # seconds that a waiting pop keeps a thread: how long its cancellation may take
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
        # Of the pops that wait in one loop one keeps a thread; else they would keep all, and `done` out.
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    @property
    def queue(self) -> Queue[T]:
        """The queue that this is the twin of."""
        return self._queue

    async def push(self, item: T, **options: Any) -> str:
        """Store an item; see `Queue.push`."""
        return await self._call(self._queue.push, item, **options)

    async def push_many(self, items: Iterable[T], **options: Any) -> list[str]:
        """Store items in order; see `Queue.push_many`."""
        return await self._call(self._queue.push_many, list(items), **options)

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
        async with self._turn(end):
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

    async def map(self, items: Iterable[T], **options: Any) -> AsyncIterator[Any]:
        """Push items and yield their answers in the same order; see `Queue.map`."""
        answers = self._queue.map(items, **options)
        end = object()
        while (answer := await self._call(next, answers, end)) is not end:
            yield answer

    async def fetch_replies(self, item_ids: Sequence[str], *, wait: float = 0.0) -> Mapping[str, Reply]:
        """Return what became of items; see `Queue.fetch_replies`."""
        return await self._call(self._queue.fetch_replies, item_ids, wait=wait)

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

    def _turn(self, end: float) -> contextlib.AbstractAsyncContextManager[None]:
        """Be the one that waits, of those in this loop; from `end` on it may be none."""
        lock = self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        return held_within(lock, end - time.monotonic())


@contextlib.asynccontextmanager
async def held_within(lock: asyncio.Lock, seconds: float) -> AsyncIterator[None]:
    """Hold a lock; where others have it for longer than so many seconds, nothing."""
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            await lock.acquire()
    except TimeoutError:
        yield
        return
    try:
        yield
    finally:
        lock.release()


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
