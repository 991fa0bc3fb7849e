"""What every queue derives from the calls that take many."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast, overload

from fray._contracts.queue import Queue
from fray._contracts.replies import Reply, Ticket
from fray._queues.answers import Answer, answer_of, answers_of, check_lease
from fray._queues.heartbeat import extend_each, kept_alive, release_each
from fray._queues.mapping import Window, map_in_order
from fray._telemetry import listeners as _listeners
from fray._values.capabilities import QueueCapabilities
from fray._values.errors import FrayError, LeaseExpiredError
from fray._values.leases import Lease
from fray._values.push_options import PLAIN, REPLY_TTL, PushOptions, push_options

if TYPE_CHECKING:
    from fray._queues.aio import AsyncQueue

T = TypeVar("T")


class QueueBase(ABC, Generic[T]):
    """Derive the single-item calls, `map` and `lease` from those that take many; report leases to listeners.

    A queue that takes the options of `push` implements `_store_items`; one that takes none may override
    `push_many(items)` instead. What its `capabilities` do not declare is refused before either is called.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # A class is left as it is until there may be a listener: a lease in memory costs a microsecond,
        # and one more call would be a tenth of that.
        _listeners.once_watched(partial(_observe_leases, cls))

    def _store_items(self, items: Iterable[T], options: PushOptions) -> Sequence[str]:
        """Store items in order, all or none; return their ids, those of the first of its key where given."""
        raise NotImplementedError(f"{type(self).__name__} has neither push_many nor _store_items")

    @abstractmethod
    def pop_many(self, n: int, lease_timeout: float = 60.0, *, wait: float = 0.0) -> list[Lease[T]]: ...

    @abstractmethod
    def release(self, lease: Lease[T], *, delay: float = 0.0, error: BaseException | None = None) -> None: ...

    @abstractmethod
    def extend(self, lease: Lease[T], lease_timeout: float) -> Lease[T]: ...

    # --- storing ---

    @overload
    def push(
        self,
        item: T,
        *,
        priority: int = 0,
        delay: float = 0.0,
        ttl: float | None = None,
        key: str | None = None,
        reply: Literal[False] = False,
        reply_ttl: float = REPLY_TTL,
        wait: float | None = None,
    ) -> str: ...

    @overload
    def push(
        self,
        item: T,
        *,
        priority: int = 0,
        delay: float = 0.0,
        ttl: float | None = None,
        key: str | None = None,
        reply: Literal[True],
        reply_ttl: float = REPLY_TTL,
        wait: float | None = None,
    ) -> Ticket[Any]: ...

    def push(
        self,
        item: T,
        *,
        priority: int = 0,
        delay: float = 0.0,
        ttl: float | None = None,
        key: str | None = None,
        reply: bool = False,
        reply_ttl: float = REPLY_TTL,
        wait: float | None = None,
    ) -> str:
        """Store an item; see `Queue.push`."""
        options = push_options(
            priority=priority,
            delay=delay,
            ttl=ttl,
            keys=None if key is None else [key],
            reply=reply,
            reply_ttl=reply_ttl,
            wait=wait,
        )
        return (self.push_many([item]) if options is PLAIN else self._push([item], options))[0]

    @overload
    def push_many(
        self,
        items: Iterable[T],
        *,
        priority: int = 0,
        delay: float = 0.0,
        ttl: float | None = None,
        keys: Sequence[str | None] | None = None,
        reply: Literal[False] = False,
        reply_ttl: float = REPLY_TTL,
        wait: float | None = None,
    ) -> list[str]: ...

    @overload
    def push_many(
        self,
        items: Iterable[T],
        *,
        priority: int = 0,
        delay: float = 0.0,
        ttl: float | None = None,
        keys: Sequence[str | None] | None = None,
        reply: Literal[True],
        reply_ttl: float = REPLY_TTL,
        wait: float | None = None,
    ) -> list[Ticket[Any]]: ...

    def push_many(
        self,
        items: Iterable[T],
        *,
        priority: int = 0,
        delay: float = 0.0,
        ttl: float | None = None,
        keys: Sequence[str | None] | None = None,
        reply: bool = False,
        reply_ttl: float = REPLY_TTL,
        wait: float | None = None,
    ) -> Sequence[str]:
        """Store items in order; see `Queue.push_many`."""
        options = push_options(
            priority=priority,
            delay=delay,
            ttl=ttl,
            keys=keys,
            reply=reply,
            reply_ttl=reply_ttl,
            wait=wait,
        )
        return self._push(items, options)

    def _push(self, items: Iterable[T], options: PushOptions) -> list[Any]:
        """Store items under options that the queue has; return tickets where answers are wanted."""
        return self._pushed(self._store_items(self._to_push(items, options), options), options)

    def _to_push(self, items: Iterable[T], options: PushOptions) -> Iterable[T]:
        """Return items that may be pushed under these options; refuse what the queue cannot do."""
        if options is not PLAIN:
            self._check_can(options)
        if options.keys is not None:
            items = list(items)
            if len(items) != len(options.keys):
                raise ValueError(
                    f"keys are {len(options.keys)}, and the items {len(items)}; give one for each"
                )
        return items

    def _pushed(self, ids: Sequence[str], options: PushOptions) -> list[Any]:
        """Return what a push returns: ids, or tickets where answers are wanted."""
        return [Ticket(item_id, self) for item_id in ids] if options.reply_ttl else list(ids)

    def _check_can(self, options: PushOptions) -> None:
        # What the class can at most: what an instance can may be a question to a server.
        can = QueueCapabilities.of(type(self)) or QueueCapabilities()
        for capability, option in options.needs():
            can.check(capability, f"{type(self).__name__}: push({option})", "use a queue that has it")

    # --- taking and settling ---

    def pop(self, lease_timeout: float = 60.0, *, wait: float = 0.0) -> Lease[T] | None:
        """Lease the first item in line; see `Queue.pop`."""
        leases = self.pop_many(1, lease_timeout, wait=wait)
        return leases[0] if leases else None

    def done(self, lease: Lease[T], *, result: Any = None, error: BaseException | None = None) -> None:
        """Finish an item; see `Queue.done`."""
        if result is None and error is None:
            self.done_many([lease])
        else:
            self._settle([check_lease(lease)], [answer_of(lease, result, error)])

    def done_many(self, leases: Iterable[Lease[T]], *, results: Iterable[Any] | None = None) -> None:
        """Finish every item whose lease is good; see `Queue.done_many`."""
        held = [check_lease(lease) for lease in leases]
        self._settle(held, answers_of(held, results))

    def _settle(self, leases: Sequence[Lease[T]], answers: Sequence[Answer | None]) -> None:
        lost = self._finish(leases, answers)
        if lost:
            raise LeaseExpiredError(*lost)

    def _finish(self, leases: Sequence[Lease[T]], answers: Sequence[Answer | None]) -> Sequence[str]:
        """Finish items, each with its answer where one is wanted; return the lease ids that are not held."""
        if any(answers):
            raise NotImplementedError(
                f"{type(self).__name__} gives leases with reply=True, and has no _finish"
            )
        self.done_many(leases)
        return ()

    @contextlib.contextmanager
    def lease(self, lease_timeout: float = 60.0, *, wait: float = 0.0) -> Iterator[Lease[T] | None]:
        """Lease an item for a `with` block; see `Queue.lease`.

        The lease is None when there was nothing to take. A lease that was lost meanwhile (this process was
        stopped for longer than `lease_timeout`, say) shows as the LeaseExpiredError of `done` at the end.
        """
        lease = self.pop(lease_timeout, wait=wait)
        if lease is None:
            yield None
            return
        with kept_alive(cast(Queue[T], self), lease, lease_timeout):
            try:
                yield lease
            except BaseException:
                # What went wrong in the block is raised; that a lease is lost as well is not.
                with contextlib.suppress(FrayError, OSError):
                    self.release(lease)
                raise
        self.done(lease)

    def extend_many(
        self, leases: Iterable[Lease[T]], lease_timeout: float
    ) -> list[Lease[T] | LeaseExpiredError]:
        """Extend leases; return, for each in its place, the longer lease, or the error that it is lost."""
        return extend_each(cast(Queue[T], self), leases, lease_timeout)

    def give_back(self, leases: Iterable[Lease[T]]) -> None:
        """Give back items that were not worked on; leases that are lost are passed over.

        Where the queue declares `give_back` their attempts do not count; else it is `release`.
        """
        release_each(cast(Queue[T], self), leases)

    @cached_property
    def aio(self) -> "AsyncQueue[T]":
        """The queue's asynchronous twin: every call, to be awaited."""
        return self._asynchronous()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "aio"}

    def _asynchronous(self) -> "AsyncQueue[T]":
        """Make the asynchronous twin; a queue that need not use threads for it has its own."""
        from fray._queues.aio import AsyncQueue  # it imports asyncio, which most programs do without

        return AsyncQueue(cast(Queue[T], self))

    # --- answers ---

    def map(
        self,
        items: Iterable[T],
        *,
        in_flight: int = 100,
        timeout: float | None = None,
        priority: int = 0,
        delay: float = 0.0,
        ttl: float | None = None,
        reply_ttl: float = REPLY_TTL,
    ) -> Iterator[Any]:
        """Push items and yield their answers in the same order; see `Queue.map`."""
        options = push_options(
            priority=priority,
            delay=delay,
            ttl=ttl,
            keys=None,
            reply=True,
            reply_ttl=reply_ttl,
            wait=None,
        )
        self._check_can(options)
        return map_in_order(self._push, self.fetch_replies, Window(items, in_flight, timeout), options)

    def fetch_replies(self, item_ids: Sequence[str], *, wait: float = 0.0) -> Mapping[str, Reply]:
        """Return what became of items; see `Queue.fetch_replies`."""
        self._check_can(PushOptions(reply_ttl=REPLY_TTL))
        raise NotImplementedError(f"{type(self).__name__} declares replies, and has no fetch_replies")

    async def wait_for_reply(self, item_id: str) -> Reply:
        """Wait for one answer; what `await ticket` does. One thread fetches the answers for all waiters."""
        from fray._queues.awaiting import watcher_of

        return await watcher_of(self).wait(item_id, self.fetch_replies)


def _observe_leases(queue_class: type) -> None:
    from fray._telemetry.job_instrumentation import observe_leases  # for listeners only

    observe_leases(queue_class)


_listeners.once_watched(partial(_observe_leases, QueueBase))
