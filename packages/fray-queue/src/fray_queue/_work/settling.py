"""Telling the queue what became of items, many in one request."""

import asyncio
import enum
import inspect
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from fray import LeaseExpiredError, SerializationError, TaskError
from fray.backend import AsyncQueue, BriefThreads, Heartbeat, describe
from fray_queue._errors import LimitError
from fray_queue._work.calls import WorkItem, is_awaited
from fray_queue._work.options import WorkSummary
from fray_queue._work.patience import GivenUpError, Patience

_log = logging.getLogger("fray.queue")
_AT_ONCE = 1000  # items in one request
_BESIDE = 32  # requests at a time for items that are settled one by one
_MOST_SAID = 1000  # characters of a failure that is too large


class Ending(enum.Enum):
    """What became of an item; each is a count of the summary."""

    DONE = "done"
    FAILED = "failed"
    LOST = "lost"
    RELEASED = "released"
    TIMED_OUT = "timed_out"
    RETURNED = "returned"


_ONE_BY_ONE = (Ending.FAILED, Ending.RELEASED, Ending.TIMED_OUT)


@dataclass(frozen=True, slots=True)
class Settlement:
    """What is to be reported to the queue of an item."""

    entry: WorkItem
    ending: Ending
    value: Any = None
    error: BaseException | None = None
    delay: float = 0.0


class Settler:
    """Settles the items of a pool on the queue, and counts.

    What comes while a request is under way goes into the next one: the more there is to settle, the more fits
    into each. The heartbeat keeps leases until the queue knows.

    Args:
        settled: Is called when there is room for more.
    """

    def __init__(
        self,
        twin: AsyncQueue[Any],
        patience: Patience,
        heartbeat: Heartbeat,
        summary: WorkSummary,
        settled: Callable[[], None],
    ) -> None:
        self._twin, self._patience, self._heartbeat = twin, patience, heartbeat
        self._summary, self._settled = summary, settled
        self._waiting: deque[Settlement] = deque()
        self._changed = asyncio.Event()
        self._ending = False
        self._tells_errors = "error" in inspect.signature(twin.queue.release).parameters
        self._endless: bool | None = None  # whether an item may fail for ever; read when it matters

    @property
    def backlog(self) -> int:
        """How many items have not been reported to the queue."""
        return len(self._waiting)

    def add(self, settlement: Settlement) -> None:
        """Settle an item on the queue, soon."""
        self._waiting.append(settlement)
        self._changed.set()

    def finish(self) -> None:
        """Let `run` return when everything is reported."""
        self._ending = True
        self._changed.set()

    async def run(self) -> None:
        """Settle items, until `finish`. If it is cancelled, it can be run again."""
        while self._waiting or not self._ending:
            await self._changed.wait()
            self._changed.clear()
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(_AT_ONCE, len(self._waiting)))]
                try:
                    await self._tell(batch)
                finally:  # where it is cancelled, the rest is for the next `run`
                    self._waiting.extendleft(each for each in reversed(batch) if not each.entry.settled)
                self._settled()
            if self._ending:
                self._changed.set()

    async def _tell(self, settlements: list[Settlement]) -> None:
        done = [each for each in settlements if each.ending is Ending.DONE]
        returned = [each for each in settlements if each.ending is Ending.RETURNED]
        lost = [each for each in settlements if each.ending is Ending.LOST]
        others = [each for each in settlements if each.ending in _ONE_BY_ONE]
        if lost:  # which the heartbeat knows from the queue
            self._count(lost, set(), "")
        if done:
            await self._done(done)
        if returned:
            await self._ask(returned, self._twin.give_back, _leases(returned))
        await self._one_by_one(self._release, others)

    async def _one_by_one(
        self,
        settle: Callable[[Settlement], Coroutine[Any, Any, None]],
        settlements: Sequence[Settlement],
    ) -> None:
        for start in range(0, len(settlements), _BESIDE):
            await asyncio.gather(*(settle(each) for each in settlements[start : start + _BESIDE]))

    async def _done(self, settlements: list[Settlement]) -> None:
        leases, options = _leases(settlements), {}
        if any(is_awaited(lease) for lease in leases):
            options["results"] = [each.value for each in settlements]
        try:
            await self._ask(settlements, self._twin.done_many, leases, may_be_large=True, **options)
        except (SerializationError, LimitError):
            await self._one_by_one(self._answer, settlements)

    async def _answer(self, settlement: Settlement) -> None:
        """Finish one item; its asker gets an error when its result cannot be pickled, or is too large."""
        lease = settlement.entry.lease
        try:
            await self._ask([settlement], self._twin.done, lease, result=settlement.value, may_be_large=True)
        except SerializationError as error:
            await self._ask([settlement], self._twin.done, lease, error=error)
        except LimitError as refusal:
            too_large = LimitError(f"the result of item {lease.item_id} is too large: {refusal}")
            await self._ask([settlement], self._twin.done, lease, error=too_large)

    async def _release(self, settlement: Settlement) -> None:
        try:
            await self._fail(settlement, settlement.error, may_be_large=True)
        except LimitError as refusal:
            await self._fail(settlement, _shortened(settlement.error, refusal))

    async def _fail(
        self, settlement: Settlement, error: BaseException | None, *, may_be_large: bool = False
    ) -> None:
        lease = settlement.entry.lease
        if error is not None and is_awaited(lease) and await self._fails_for_ever():
            # No attempt is the last one: its asker would wait for ever.
            await self._ask([settlement], self._twin.done, lease, error=error, may_be_large=may_be_large)
            return
        options: dict[str, Any] = {"delay": settlement.delay}
        if error is not None and self._tells_errors:
            options["error"] = error
        await self._ask([settlement], self._twin.release, lease, may_be_large=may_be_large, **options)

    async def _fails_for_ever(self) -> bool:
        if self._endless is None:
            try:
                limit = await self._patience.ask(self._max_attempts)
            except GivenUpError:
                return False
            self._endless = limit is None
        return self._endless

    async def _max_attempts(self) -> int | None:
        look = BriefThreads(1, "fray-work-look").submit(lambda: getattr(self._twin.queue, "max_attempts", 0))
        return await asyncio.wrap_future(look)

    async def _ask(
        self,
        settlements: Sequence[Settlement],
        call: Callable[..., Coroutine[Any, Any, None]],
        *args: Any,
        may_be_large: bool = False,
        **options: Any,
    ) -> None:
        """Settle items by one call, and count them.

        Args:
            may_be_large: Whether the caller sends less when the queue finds it too large; else the items are
                left to their leases. To repeat it would hold up all others for ever.
        """
        lost: set[str] = set()
        tries = 0

        async def counted() -> None:
            nonlocal tries
            tries += 1
            await call(*args, **options)

        why = "its lease was lost while it was worked on"
        try:
            await self._patience.ask(counted, answers=(LimitError,))
        except LeaseExpiredError as error:
            lost = {error.lease_id, *error.lease_ids}
            if tries > 1:
                why = "the queue failed while it was settled, so it is settled or its lease was lost"
        except (GivenUpError, LimitError) as error:
            if may_be_large and isinstance(error, LimitError):
                raise
            _log.warning("%d items were not settled, so their leases run out: %s", len(settlements), error)
            lost = {each.entry.lease.lease_id for each in settlements}
            why = "its settlement is not confirmed"
        self._count(settlements, lost, why)

    def _count(self, settlements: Sequence[Settlement], lost: set[str], why: str) -> None:
        now, summary = time.time(), self._summary
        for each in settlements:
            each.entry.settled = True
            lease = each.entry.lease
            ending = each.ending
            if lease.lease_id in lost and ending is not Ending.RETURNED:
                _log.warning("item %s: %s", lease.item_id, why)
                ending = Ending.LOST
            setattr(summary, ending.value, getattr(summary, ending.value) + 1)
            if ending is not Ending.RETURNED:
                summary.attempts += lease.attempt
                _count_wait(summary, lease)
            summary.seconds_in_hand += max(0.0, now - lease.timestamp)
        summary.in_hand -= len(settlements)
        self._heartbeat.drop(each.entry.lease.lease_id for each in settlements)


def _shortened(error: BaseException | None, refusal: LimitError) -> TaskError | None:
    """Return what is passed on of an exception that is too large."""
    if error is None:
        return None
    name, _, message = describe(error).partition(": ")
    return TaskError(name, message[:_MOST_SAID], f"(The exception itself is too large: {refusal})")


def _leases(settlements: Sequence[Settlement]) -> list[Any]:
    return [each.entry.lease for each in settlements]


def _count_wait(summary: WorkSummary, lease: Any) -> None:
    waited = getattr(lease, "seconds_in_queue", None)  # the lease of another author's queue may have none
    if waited is not None:
        summary.dated += 1
        summary.seconds_in_queue += waited
