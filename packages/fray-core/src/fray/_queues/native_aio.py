"""The asynchronous twin of a queue whose calls are coroutines themselves: it needs no thread."""

import asyncio
import contextlib
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

from fray._contracts.queue import Queue
from fray._contracts.replies import Reply
from fray._queues.aio import AsyncQueue
from fray._queues.answers import Answer, answer_of, answers_of, check_lease
from fray._queues.base import QueueBase
from fray._queues.mapping import Window, amap_in_order
from fray._telemetry import listeners as _listeners
from fray._values.errors import FrayError, LeaseExpiredError
from fray._values.events import Outcome
from fray._values.leases import DeadLetter, Lease
from fray._values.push_options import PushOptions, push_options

T = TypeVar("T")

_BEATS_PER_LEASE = 3  # an extension that is late, or lost once, still arrives in time


class QueueCalls(Protocol):
    """The calls of a queue as coroutines. One that is cancelled gives back what it was granted."""

    async def store(self, items: Iterable[Any], options: PushOptions) -> Sequence[str]: ...
    async def pop_many(self, n: int, lease_timeout: float, *, wait: float = 0.0) -> list[Lease[Any]]: ...
    async def finish(
        self, leases: Sequence[Lease[Any]], answers: Sequence[Answer | None]
    ) -> Sequence[str]: ...
    async def release(
        self, lease: Lease[Any], *, delay: float = 0.0, error: BaseException | None = None
    ) -> None: ...
    async def give_back(self, leases: Iterable[Lease[Any]]) -> None: ...
    async def extend(self, lease: Lease[Any], lease_timeout: float) -> Lease[Any]: ...
    async def extend_many(
        self, leases: Iterable[Lease[Any]], lease_timeout: float
    ) -> list[Lease[Any] | LeaseExpiredError]: ...
    async def fetch_replies(self, item_ids: Sequence[str], *, wait: float = 0.0) -> Mapping[str, Reply]: ...
    async def peek(self) -> Any: ...
    async def size(self) -> int: ...
    async def pending(self) -> int: ...
    async def dead_letters(self) -> list[DeadLetter[Any]]: ...
    async def requeue_dead(self, item_ids: Sequence[str] | None = None) -> int: ...


class NativeAsyncQueue(AsyncQueue[T]):
    """A twin that awaits its queue's own coroutines, in whichever event loop runs.

    What a `QueueBase` checks, derives and reports to listeners is the same here.
    """

    _longest_slice = 1e9  # a call that waits is cancelled at once

    def __init__(self, queue: QueueBase[T]) -> None:
        super().__init__(cast(Queue[T], queue))
        self._base = queue

    @abstractmethod
    def _calls(self) -> QueueCalls:
        """Return the calls as they are made in the running event loop."""
        raise NotImplementedError

    @abstractmethod
    async def wait_for_reply(self, item_id: str) -> Reply:
        """Wait for one answer; what `await ticket` does."""
        raise NotImplementedError

    # --- storing ---

    async def push(self, item: T, *, key: str | None = None, **options: Any) -> str:
        """Store an item; see `Queue.push`."""
        given = push_options(keys=None if key is None else [key], **options)
        item_id: str = (await self._push([item], given))[0]
        return item_id

    async def push_many(self, items: Iterable[T], **options: Any) -> list[str]:
        """Store items in order; see `Queue.push_many`."""
        return await self._push(items, push_options(**options))

    async def _push(self, items: Iterable[T], options: PushOptions) -> list[Any]:
        ids = await self._calls().store(self._base._to_push(items, options), options)
        return self._base._pushed(ids, options)

    # --- taking and settling ---

    async def _take(self, n: int, lease_timeout: float, wait: float) -> list[Lease[T]]:
        leases = await self._calls().pop_many(n, lease_timeout, wait=wait)
        if _listeners.listening():
            _telling().tell_taken(self._queue, leases)
        return leases

    async def done(self, lease: Lease[T], **options: Any) -> None:
        """Finish an item; see `Queue.done`."""
        await self._done(check_lease(lease), **options)

    async def _done(self, lease: Lease[T], result: Any = None, error: BaseException | None = None) -> None:
        await self._settle([lease], [answer_of(lease, result, error)])

    async def done_many(self, leases: Iterable[Lease[T]], **options: Any) -> None:
        """Finish every item whose lease is good; see `Queue.done_many`."""
        await self._done_many([check_lease(lease) for lease in leases], **options)

    async def _done_many(self, leases: list[Lease[T]], results: Iterable[Any] | None = None) -> None:
        await self._settle(leases, answers_of(leases, results))

    async def _settle(self, leases: Sequence[Lease[T]], answers: Sequence[Answer | None]) -> None:
        lost = await self._calls().finish(leases, answers)
        error = LeaseExpiredError(*lost) if lost else None
        if _listeners.listening():
            _telling().tell_settled(self._queue, leases, Outcome.OK, lost=error)
        if error is not None:
            raise error

    async def release(self, lease: Lease[T], **options: Any) -> None:
        """Give an item back; see `Queue.release`."""
        lost: LeaseExpiredError | None = None
        try:
            await self._calls().release(lease, **options)
        except LeaseExpiredError as error:
            lost = error
            raise
        finally:
            if _listeners.listening():
                _telling().tell_settled(self._queue, [lease], Outcome.RELEASED, lost=lost)

    async def give_back(self, leases: Iterable[Lease[T]]) -> None:
        """Give back items that were not worked on; see `QueueBase.give_back`."""
        await self._calls().give_back(leases)

    async def extend(self, lease: Lease[T], lease_timeout: float) -> Lease[T]:
        """Hold the item for `lease_timeout` seconds from now; see `Queue.extend`."""
        return await self._calls().extend(lease, lease_timeout)

    async def extend_many(
        self, leases: Iterable[Lease[T]], lease_timeout: float
    ) -> list[Lease[T] | LeaseExpiredError]:
        """Hold items for `lease_timeout` seconds from now; see `QueueBase.extend_many`."""
        return await self._calls().extend_many(leases, lease_timeout)

    @contextlib.asynccontextmanager
    async def _kept_alive(self, lease: Lease[T], lease_timeout: float) -> AsyncIterator[None]:
        beating = asyncio.create_task(self._extend_again_and_again(lease, lease_timeout))
        try:
            yield
        finally:
            beating.cancel()
            await asyncio.wait([beating])

    async def _extend_again_and_again(self, lease: Lease[T], lease_timeout: float) -> None:
        while True:
            await asyncio.sleep(lease_timeout / _BEATS_PER_LEASE)
            with contextlib.suppress(FrayError, OSError):  # one that is lost shows at the end of the block
                await self.extend(lease, lease_timeout)

    # --- answers ---

    async def map(
        self, items: Iterable[T], *, in_flight: int = 100, timeout: float | None = None, **options: Any
    ) -> AsyncIterator[Any]:
        """Push items and yield their answers in the same order; see `Queue.map`."""
        given = push_options(reply=True, **options)
        self._base._check_can(given)
        window = Window(items, in_flight, timeout)
        async for answer in amap_in_order(self._push, self.fetch_replies, window, given):
            yield answer

    async def fetch_replies(self, item_ids: Sequence[str], *, wait: float = 0.0) -> Mapping[str, Reply]:
        """Return what became of items; see `Queue.fetch_replies`."""
        return await self._calls().fetch_replies(item_ids, wait=wait)

    # --- looking ---

    async def peek(self) -> T | None:
        """Return the item that a pop would take now; see `Queue.peek`."""
        item: T | None = await self._calls().peek()
        return item

    async def size(self) -> int:
        """Count the items that wait, are delayed or are leased."""
        return await self._calls().size()

    async def pending(self) -> int:
        """Count the items that a pop could take now."""
        return await self._calls().pending()

    async def dead_letters(self) -> list[DeadLetter[T]]:
        """List the items that were given up."""
        return await self._calls().dead_letters()

    async def requeue_dead(self, item_ids: Sequence[str] | None = None) -> int:
        """Put dead letters back; see `Queue.requeue_dead`."""
        return await self._calls().requeue_dead(item_ids)


class ReplyPoller:
    """Fetches the answers that coroutines of one event loop wait for from one queue.

    A request that is under way does not include items that come later. Those are requested by another, up
    to a few; questions that end leave what is left to one of them.
    """

    def __init__(self, fetch: Any, *, most: int = 4, longest: float = 1.0, most_asked: int = 500) -> None:
        self._fetch, self._most, self._longest, self._most_asked = fetch, most, longest, most_asked
        self._waiting: dict[str, list[asyncio.Future[Reply]]] = {}
        self._unasked: dict[str, None] = {}
        self._asking: set[asyncio.Task[None]] = set()

    async def wait(self, item_id: str) -> Reply:
        """Return the answer to an item when it is there."""
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        if item_id not in self._waiting:
            self._unasked[item_id] = None
            if len(self._asking) < self._most:
                task = asyncio.create_task(self._ask())
                self._asking.add(task)
                task.add_done_callback(lambda ended: self._asking.discard(ended))
        self._waiting.setdefault(item_id, []).append(answer)
        try:
            return await answer
        finally:
            self._forget(item_id, answer)

    def _forget(self, item_id: str, answer: "asyncio.Future[Reply]") -> None:
        waiting = self._waiting.get(item_id, [])
        if answer in waiting:
            waiting.remove(answer)
            if not waiting:
                del self._waiting[item_id]
                self._unasked.pop(item_id, None)
        if not self._waiting:
            asking, self._asking = self._asking, set()
            for task in asking:
                task.cancel()

    async def _ask(self) -> None:
        while asked := list(self._unasked)[: self._most_asked]:
            for item_id in asked:
                del self._unasked[item_id]
            try:
                found: Mapping[str, Reply] = await self._fetch(asked, wait=self._longest)
            except Exception as error:  # noqa: BLE001 - it belongs to those who wait
                for item_id in asked:
                    for answer in self._waiting.pop(item_id, ()):
                        if not answer.done():
                            answer.set_exception(error)
                continue
            for item_id, reply in found.items():
                for answer in self._waiting.pop(item_id, ()):
                    if not answer.done():
                        answer.set_result(reply)
            self._unasked.update(dict.fromkeys(each for each in asked if each in self._waiting))


def _telling() -> Any:
    from fray._telemetry import job_instrumentation  # for listeners only

    return job_instrumentation
