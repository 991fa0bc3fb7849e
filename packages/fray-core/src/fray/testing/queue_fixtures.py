"""What the promises of a queue are tested with: a clock that the test moves, and a few words."""

from collections.abc import Callable
from typing import Any

import pytest

from fray._contracts.queue import Queue
from fray._values.errors import LeaseExpiredError
from fray._values.leases import Lease
from fray.testing.promises import Promises

MakeQueue = Callable[..., Queue[Any]]
SOON = 5.0  # seconds within which a waiting pop must have woken; far below LONG, far above a slow machine
LONG = 60.0


class ManualClock:
    """Seconds since the epoch that pass only when a test says so."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


def take(queue: Queue[Any], lease_timeout: float = 60.0) -> Lease[Any]:
    """Pop an item that must be there."""
    lease = queue.pop(lease_timeout)
    assert lease is not None, "the queue has an item that waits, and pop returned None"
    return lease


def refused(call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Expect LeaseExpiredError."""
    with pytest.raises(LeaseExpiredError):
        call(*args, **kwargs)


class QueueFixtures(Promises):
    """What the promises are tested with."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def make_queue(self) -> MakeQueue:
        """Make an empty queue under the options given: the one fixture that every subclass gives."""
        raise NotImplementedError(
            "a contract's subclass gives `make_queue`: fixture -> (**options) -> an empty queue"
        )

    @pytest.fixture
    def queue(self, make_queue: MakeQueue) -> Queue[Any]:
        return make_queue()

    @pytest.fixture
    def limited(self, make_queue: MakeQueue) -> Queue[Any]:
        """A queue that gives an item up after its second attempt."""
        return make_queue(max_attempts=2)
