"""What goes through a server's queues, and the calls that wait for it; all in the event loop's thread."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fray_queue._http.server.rates import Rates

_SHORTEST_ALARM, _LONGEST_ALARM = 0.001, 86_400.0  # seconds


class Sleepers:
    """The calls that wait for one thing."""

    def __init__(self) -> None:
        self._futures: set[asyncio.Future[None]] = set()
        self.calls = 0
        """Those that sleep, look, or are about to sleep."""
        self.woken = 0
        """How often: a call that looked before the last time must look again."""

    def __bool__(self) -> bool:
        return bool(self._futures)

    def wake(self) -> None:
        """Let all of them look again."""
        self.woken += 1
        for future in self._futures:
            if not future.done():
                future.set_result(None)


@dataclass(slots=True, eq=False)
class Traffic:
    """What goes through one queue, and the calls that wait for it.

    It has one alarm for what changes by itself. Were the time known to the calls alone that saw it coming, it
    would be lost with the last of them: the pop that leases an item may be the only one that knows when that
    lease ends, and does not wait any more.
    """

    rates: Rates = field(default_factory=Rates)
    waiters: deque["asyncio.Future[bool]"] = field(default_factory=deque)
    woken: int = 0  # as `Sleepers.woken`, of `waiters`
    pushers: Sleepers = field(default_factory=Sleepers)  # calls that wait for room
    askers: dict[str, Sleepers] = field(default_factory=dict)  # calls that wait for answers, by item
    _alarm: asyncio.Handle | None = None
    _alarm_at: float = 0.0  # not asked of the handle: uvloop's, of a call due by now, does not know it

    def wake(self, count: int = 1, *, more: bool = False) -> None:
        """Let up to `count` waiting pops look again.

        Args:
            more: Whether there may be something for others, too: who finds something wakes the next.
        """
        self.woken += 1
        while count > 0 and self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.done():
                waiter.set_result(more)
                count -= 1

    def look_within(self, seconds: float | None) -> None:
        """Have the calls that wait look again at the latest after so long; None for no change by itself."""
        if seconds is None:
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + min(max(seconds, _SHORTEST_ALARM), _LONGEST_ALARM)
        if self._alarm is None or at < self._alarm_at:
            self.end_alarm()
            self._alarm, self._alarm_at = loop.call_at(at, self._ring), at

    def end_alarm(self) -> None:
        """Have nobody look."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _ring(self) -> None:
        self._alarm = None
        self.wake(more=True)
        self.pushers.wake()
        self.wake_askers(next(iter(self.askers), ""))  # its look gives up all that is over, and wakes others

    def wake_all(self) -> None:
        """Wake all."""
        self.wake(1 << 60)
        self.pushers.wake()
        self.wake_askers(None)

    def wake_askers(self, item_id: str | None) -> None:
        """Wake the calls that wait for an answer; None for all."""
        for each in list(self.askers) if item_id is None else [item_id]:
            if each in self.askers:
                self.askers[each].wake()

    async def sleep(self, seconds: float, since: int) -> bool:
        """Return when woken, or after so many seconds: whether the next is to be woken, see `wake`.

        Args:
            since: What `woken` was before the caller looked: its look and a change may have crossed.
        """
        if self.woken != since:
            return True
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        try:
            await _done_within(waiter, seconds)
        finally:
            with contextlib.suppress(ValueError):
                self.waiters.remove(waiter)
        return waiter.done() and not waiter.cancelled() and waiter.result()

    @contextlib.contextmanager
    def asking(self, item_ids: Sequence[str]) -> Iterator[list[Sleepers]]:
        """Be woken by the answers to these items while the block runs."""
        mine = [self.askers.setdefault(item_id, Sleepers()) for item_id in item_ids]
        for each in mine:
            each.calls += 1
        try:
            yield mine
        finally:
            for item_id, each in zip(item_ids, mine, strict=True):
                each.calls -= 1
                if not each.calls:
                    self.askers.pop(item_id, None)


async def sleep_among(groups: Sequence[Sleepers], seconds: float, since: int) -> None:
    """Return when one of these is woken, or after so many seconds.

    Args:
        since: The sum of `woken` before the caller looked.
    """
    if woken_of(groups) != since:
        return
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    for group in groups:
        group._futures.add(future)
    try:
        await _done_within(future, seconds)
    finally:
        for group in groups:
            group._futures.discard(future)


async def _done_within(future: "asyncio.Future[Any]", seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await future


def woken_of(groups: Sequence[Sleepers]) -> int:
    """Return how often these were woken, together."""
    return sum(group.woken for group in groups)
