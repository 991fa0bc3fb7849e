"""How many items a pool takes before it has a free slot for them."""

import time
from collections.abc import Iterable

from fray_queue._work.calls import Call
from fray_queue._work.options import WorkOptions

_MOST = 500  # items
_HORIZON = 0.2  # seconds of work that may be in hand beyond what runs: how long an item waits here, about
_WEIGHT = 0.2  # of a new measurement
_STALE = 2.0  # seconds without an end of any call, after which what was fetched ahead is for others


class Prefetch:
    """Decides from how long calls take: short ones are fetched ahead by the hundred, long ones not at all.

    An item that waits here behind a long call would wait for nothing while another worker is idle.

    Args:
        allowed: Whether the queue takes unused items back without counting an attempt.
    """

    def __init__(self, options: WorkOptions, *, allowed: bool) -> None:
        self._most = _MOST if options.prefetch is None else options.prefetch
        self._batch = options.batch
        if options.prefetch is None and not allowed:
            self._most = 0
        self._seconds: float | None = None  # of a call, on average
        self._moved = time.monotonic()

    def learn(self, seconds: float) -> None:
        """Record a call that ended."""
        self._moved = time.monotonic()
        before = seconds if self._seconds is None else self._seconds
        # At once when calls become long: what is fetched ahead meanwhile waits for them.
        self._seconds = (
            max(seconds, before + _WEIGHT * (seconds - before))
            if seconds > _HORIZON
            else (before + _WEIGHT * (seconds - before))
        )

    def ahead(self, slots: int) -> int:
        """Return how many items to have in hand beyond those for free slots."""
        if self._seconds is None or slots < 1:
            return 0
        calls = int(_HORIZON / max(self._seconds, 1e-6)) * slots
        return min(self._most, calls * self._batch)

    def is_stale(self, now: float, running: Iterable[Call]) -> bool:
        """Return whether the calls that run take so much longer that nothing is to be kept for after them."""
        if now - self._moved < _STALE or not any(call.started for call in running):
            return False
        self._seconds = max(self._seconds or 0.0, now - self._moved)
        return True
