"""Histories of a queue, drawn by Hypothesis and compared with a model of plain collections.

The model is independent: it numbers its own items, keeps its own time and never looks at the
queue's ids. What a rule did to the queue it does to the model; where the two answer differently
the history is shrunk and shown.
"""

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
    run_state_machine_as_test,
)

from fray._contracts.queue import Queue
from fray._queues import reading
from fray._queues.lease_machine import UNREADABLE_DELAYS
from fray._values.errors import LeaseExpiredError
from fray._values.leases import Lease


class _Hold:
    """The model's view of one lease."""

    def __init__(self, lease: Lease[int], attempt: int, ends: float) -> None:
        self.lease, self.attempt, self.ends = lease, attempt, ends


class QueueMachine(RuleBasedStateMachine):
    """Compare a queue with a list of numbers, a table of holds, a table of delays and a set of the dead."""

    LIMIT = 3  # max_attempts

    def __init__(
        self,
        make_queue: Callable[..., Queue[int]],
        clock: Any,
        reopen: Callable[[Queue[int]], Queue[int]] | None = None,
        pickles: bool = False,
    ) -> None:
        super().__init__()
        self.reopen = reopen or (lambda queue: queue)
        self.pickles = pickles
        self.failures: dict[int, int] = {}  # takers that could not read an item
        self.queue, self.clock = make_queue(max_attempts=self.LIMIT), clock
        self.pushed = 0
        self.alive: list[int] = []  # in line, whatever their state
        self.dead: list[int] = []
        self.attempts: dict[int, int] = {}
        self.holds: dict[int, _Hold] = {}  # the last lease of an item; it may have ended
        self.delays: dict[int, float] = {}

    leases: Bundle[Lease[int]] = Bundle("leases")

    def free(self) -> list[int]:
        """Items that a pop could take now, in order; gives up those whose last lease ended."""
        now = self.clock()
        for item in list(self.alive):
            hold = self.holds.get(item)
            if hold and hold.ends <= now and self.attempts[item] >= self.LIMIT:
                self.bury(item)
        return [
            item
            for item in self.alive
            if self.delays.get(item, now) <= now and (item not in self.holds or self.holds[item].ends <= now)
        ]

    def bury(self, item: int) -> None:
        self.alive.remove(item)
        self.holds.pop(item, None)
        self.dead = sorted([*self.dead, item])

    @rule(count=st.integers(1, 4))
    def push(self, count: int) -> None:
        numbers = list(range(self.pushed, self.pushed + count))
        if count == 1:
            self.queue.push(numbers[0])
        else:
            self.queue.push_many(numbers)
        self.pushed += count
        self.alive += numbers
        self.attempts.update(dict.fromkeys(numbers, 0))

    @rule(target=leases, timeout=st.sampled_from([5.0, 20.0]))
    def pop(self, timeout: float) -> Any:
        free = self.free()
        lease = self.queue.pop(timeout)
        assert (lease is None) == (not free), f"pop gave {lease}, and {free} wait"
        if lease is None:
            return Lease(-1, "none", 0.0, "none", 0, 0.0)
        assert lease.item == free[0], f"pop gave {lease.item}, and {free[0]} was first in line"
        self.attempts[lease.item] += 1
        assert lease.attempt == self.attempts[lease.item]
        self.holds[lease.item] = _Hold(lease, lease.attempt, self.clock() + timeout)
        self.delays.pop(lease.item, None)
        return lease

    def holder(self, lease: Lease[int]) -> bool:
        hold = self.holds.get(lease.item)
        return hold is not None and hold.lease is lease

    def good(self, lease: Lease[int], call: Callable[[], object]) -> bool:
        """Make the call; tell whether it was accepted, which must be as the model says."""
        if lease.item == -1:
            return False
        self.free()  # who looks first buries the dead, in the model as in the queue
        self.queue.dead_letters()
        try:
            call()
        except LeaseExpiredError:
            assert not self.holder(lease), f"a good lease of {lease.item} was refused"
            return False
        assert self.holder(lease), f"a stale lease of {lease.item} was accepted"
        return True

    @rule(lease=leases)
    def done(self, lease: Lease[int]) -> None:
        if self.good(lease, lambda: self.queue.done(lease)):
            self.alive.remove(lease.item)
            del self.holds[lease.item]

    @rule(lease=consumes(leases), delay=st.sampled_from([0.0, 0.0, 7.0]))
    def release(self, lease: Lease[int], delay: float) -> None:
        if self.good(lease, lambda: self.queue.release(lease, delay=delay)):
            del self.holds[lease.item]
            if self.attempts[lease.item] >= self.LIMIT:
                self.bury(lease.item)
            elif delay:
                self.delays[lease.item] = self.clock() + delay

    @rule(lease=leases, timeout=st.sampled_from([3.0, 30.0]))
    def extend(self, lease: Lease[int], timeout: float) -> None:
        if self.good(lease, lambda: self.queue.extend(lease, timeout)):
            self.holds[lease.item].ends = self.clock() + timeout

    @rule()
    def crash(self) -> None:
        """Lose the client: whoever opens the queue next finds what it left."""
        self.queue = self.reopen(self.queue)

    @rule()
    def take_what_cannot_be_read(self) -> None:
        """Take the first item in line with a taker that cannot read it; the next is delivered to nobody."""
        free = self.free()
        if not free or not self.pickles:
            return
        with unreadable_items():
            assert self.queue.pop(5.0) is None
        now = self.clock()
        for item in free:
            self.attempts[item] += 1
            self.failures[item] = self.failures.get(item, 0) + 1
            self.holds.pop(item, None)
            if self.attempts[item] >= self.LIMIT:
                self.bury(item)
            else:
                self.delays[item] = now + UNREADABLE_DELAYS[self.failures[item] - 1]

    @rule(seconds=st.sampled_from([1.0, 6.0, 25.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(pick=st.integers(0, 3))
    def requeue(self, pick: int) -> None:
        self.free()
        letters = self.queue.dead_letters()
        assert [letter.item for letter in letters] == self.dead
        assert all(letter.attempts == len(letter.history) == self.LIMIT for letter in letters)
        chosen = letters[:pick] if pick else letters
        assert self.queue.requeue_dead([letter.item_id for letter in chosen] if pick else None) == len(chosen)
        back = {letter.item for letter in chosen}
        self.dead = [item for item in self.dead if item not in back]
        self.alive = sorted({*self.alive, *back})
        self.attempts.update(dict.fromkeys(back, 0))
        for item in back:
            self.failures.pop(item, None)

    @rule()
    def peek(self) -> None:
        free = self.free()
        assert self.queue.peek() == (free[0] if free else None)

    @invariant()
    def counts_agree(self) -> None:
        free = self.free()
        assert self.queue.pending() == len(free)
        assert self.queue.size() == len(self.alive)


@contextlib.contextmanager
def unreadable_items() -> Iterator[None]:
    """Have no item unpickled in this process while the block runs."""

    def fail(data: bytes) -> None:
        raise ModuleNotFoundError("No module named 'newer'")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "pickle", SimpleNamespace(loads=fail))
        yield


def check_queue_machine(
    make_queue: Callable[..., Queue[int]],
    clock: Any,
    *,
    reopen: Callable[[Queue[int]], Queue[int]] | None = None,
    pickles: bool = False,
    examples: int = 100,
    steps: int = 40,
) -> None:
    """Draw histories and compare.

    Args:
        make_queue: `make_queue(max_attempts=…)` gives a new, empty queue each time.
        reopen: Gives another client of the same queue, as if the first had crashed.
        pickles: Whether takers unpickle items, and may fail to.
    """
    machine: Any = lambda: QueueMachine(make_queue, clock, reopen, pickles)  # noqa: E731 - stands for a class
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
