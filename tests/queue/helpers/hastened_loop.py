"""An event loop whose time passes as fast as a test wants."""

import asyncio
import selectors
import time


class _Selector(selectors.DefaultSelector):
    speed = 1.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(timeout if timeout is None else timeout / self.speed)


class HastenedLoop(asyncio.SelectorEventLoop):
    """Sleeps and timeouts of its coroutines end `speed` times as early. Threads have their own time."""

    def __init__(self) -> None:
        self._waiting = _Selector()
        self._now = self._seen = time.monotonic()
        super().__init__(self._waiting)

    @property
    def speed(self) -> float:
        """Seconds of the loop in one second."""
        return self._waiting.speed

    @speed.setter
    def speed(self, speed: float) -> None:
        self.time()  # what passed until now passed at the old speed
        self._waiting.speed = speed

    def time(self) -> float:
        """Return the loop's own time."""
        seen = time.monotonic()
        self._now += (seen - self._seen) * self._waiting.speed
        self._seen = seen
        return self._now
