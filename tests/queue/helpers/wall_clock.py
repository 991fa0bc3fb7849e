"""The wall clock of the test's own process, as when somebody sets it."""

import time
from typing import Any

import pytest


class WallClock:
    """`time.time`, off by `step` seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real, self.step = time.time, 0.0
        monkeypatch.setattr(time, "time", lambda: real() + self.step)


def check_leases_last(queue: Any, clock: WallClock) -> None:
    """Hold an item of an empty queue while the clock is set: its lease ends in its own time."""
    queue.push("x")
    lease = queue.pop(30.0)
    assert lease is not None
    for clock.step in (3600.0, -3600.0):
        assert queue.pop() is None
    queue.extend(lease, 0.05)
    clock.step = -7200.0
    taken = queue.pop(wait=20.0)
    assert taken is not None
    assert taken.attempt == 2
    clock.step = 0.0
