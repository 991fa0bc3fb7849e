"""How long to sleep between two looks, and between two tries."""

import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


def poll_delays(shortest: float = 0.001, longest: float = 0.1) -> Iterator[float]:
    """Yield the sleeps of a poll loop: each a twentieth of the time waited so far, within the bounds."""
    start = time.monotonic()
    while True:
        yield min(longest, max(shortest, (time.monotonic() - start) / 20))


def poll_until(
    look: Callable[[], T | None],
    timeout: float | None = None,
    *,
    shortest: float = 0.001,
    longest: float = 0.1,
    sleep: Callable[[float], object] = time.sleep,
) -> T | None:
    """Call `look` until it returns something, with the pauses of `poll_delays`.

    Args:
        timeout: Seconds after which None is returned; None for no limit.
        sleep: What waits between two looks; it may return early.
    """
    end = None if timeout is None else time.monotonic() + timeout
    for pause in poll_delays(shortest, longest):
        found = look()
        left = pause if end is None else min(pause, end - time.monotonic())
        if found is not None or left <= 0:
            return found
        sleep(left)
    raise AssertionError("unreachable: the delays never end")


def retry_delays(first: float = 0.1, longest: float = 10.0, jitter: bool = True) -> Iterator[float]:
    """Yield the sleeps between tries: each is drawn at random below a bound, and the bound doubles."""
    bound = first
    while True:
        # Not secret, only spread.
        yield bound * random.random() if jitter else bound  # noqa: S311
        bound = min(longest, 2 * bound)


def retrying(action: Callable[[], T], errors: tuple[type[Exception], ...], timeout: float) -> T:
    """Call `action` until it succeeds; after `timeout` seconds, raise its last error."""
    deadline = time.monotonic() + timeout
    for delay in retry_delays():
        try:
            return action()
        except errors:
            if time.monotonic() + delay >= deadline:
                raise
        time.sleep(delay)
    raise AssertionError("unreachable: the delays never end")
