"""What goes through a server's queues, and the calls that wait for it; all in the event loop's thread."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fray_queue._http.server.rates import Rates


class Sleepers:
    """The calls that wait for one thing."""

    def __init__(self) -> None:
        self._futures: set[asyncio.Future[None]] = set()
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
    """What goes through one queue, and the calls that wait for it."""

    rates: Rates = field(default_factory=Rates)
    waiters: deque["asyncio.Future[None]"] = field(default_factory=deque)
    woken: int = 0  # as `Sleepers.woken`, of `waiters`
    pushers: Sleepers = field(default_factory=Sleepers)  # calls that wait for room
    askers: dict[str, Sleepers] = field(default_factory=dict)  # calls that wait for answers, by item

    def wake(self, count: int = 1) -> None:
        """Let up to `count` waiting pops look again."""
        self.woken += 1
        while count > 0 and self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

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

    async def sleep(self, seconds: float, since: int) -> None:
        """Return when woken, or after so many seconds.

        Args:
            since: What `woken` was before the caller looked: its look and a change may have crossed.
        """
        if self.woken != since:
            return
        waiter = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        try:
            await _done_within(waiter, seconds)
        finally:
            with contextlib.suppress(ValueError):
                self.waiters.remove(waiter)

    @contextlib.contextmanager
    def asking(self, item_ids: Sequence[str]) -> Iterator[list[Sleepers]]:
        """Be woken by the answers to these items while the block runs."""
        mine = [self.askers.setdefault(item_id, Sleepers()) for item_id in item_ids]
        try:
            yield mine
        finally:
            for item_id in item_ids:
                if item_id in self.askers and not self.askers[item_id]:
                    del self.askers[item_id]


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


async def _done_within(future: "asyncio.Future[None]", seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await future


def woken_of(groups: Sequence[Sleepers]) -> int:
    """Return how often these were woken, together."""
    return sum(group.woken for group in groups)
