"""Whether a queue is empty, for a pool that ends when it is."""

import asyncio
import time
from typing import Any

from fray.backend import AsyncQueue
from fray_queue._work.patience import Patience

_PAUSES = 0.05, 2.0  # seconds, the first and the longest, between looks whether the queue is empty
_PATIENCE = 20  # times what a look takes: what costs little is looked at often, an object store seldom


class Vacancy:
    """Looks whether anything is left, items that others lease included; ever less often."""

    def __init__(self, twin: AsyncQueue[Any], patience: Patience) -> None:
        self._twin, self._patience = twin, patience
        self._pause = _PAUSES[0]

    def forget(self) -> None:
        """Begin again: there was an item."""
        self._pause = _PAUSES[0]

    async def looked(self, in_hand: int, changed: asyncio.Event) -> bool:
        """Return whether the queue is empty; where it is not, only after a pause.

        Args:
            in_hand: Items that the pool itself holds: while there are some, the queue need not be queried.
            changed: Ends the pause.
        """
        start = time.monotonic()
        if not in_hand and await self._patience.ask(self._twin.size) == 0:
            return True
        took = time.monotonic() - start
        try:
            async with asyncio.timeout(self._pause):
                await changed.wait()
        except TimeoutError:
            pass
        self._pause = max(_PAUSES[0], min(_PAUSES[1], self._pause * 2, took * _PATIENCE))
        return False
