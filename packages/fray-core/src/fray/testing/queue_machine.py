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
from fray._values.capabilities import QueueCapabilities
from fray._values.errors import LeaseExpiredError, QueueFullError
from fray._values.leases import Lease

_KEPT_AFTER_FETCH = 60.0
_OPTIONS = ("priorities", "delays", "ttl", "keys", "replies", "max_size")


class _Hold:
    """The model's view of one lease."""

    def __init__(self, lease: Lease[int], attempt: int, ends: float) -> None:
        self.lease, self.attempt, self.ends = lease, attempt, ends


class _Asked:
    """The model's view of one item that is to be answered, and of its answer."""

    def __init__(self, item_id: str, ttl: float) -> None:
        self.item_id, self.ttl, self.askers = item_id, ttl, 1
        self.answer: tuple[str, int | None] | None = None
        self.until = 0.0


class QueueMachine(RuleBasedStateMachine):
    """Compare a queue with a list of numbers, a table of holds, a table of delays and a set of the dead."""

    LIMIT = 3  # max_attempts
    MOST = 8  # max_size, where there is one
    MOST_DEAD = 3

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
        self.can = QueueCapabilities.of(make_queue()) or QueueCapabilities()
        bounds = {"max_size": self.MOST, "max_dead": self.MOST_DEAD} if self.can.max_size else {}
        self.queue, self.clock = make_queue(max_attempts=self.LIMIT, **bounds), clock
        self.priorities: dict[int, int] = {}
        self.deadlines: dict[int, float] = {}
        self.expired: set[int] = set()
        self.keys: dict[str, int] = {}
        self.asked: dict[int, _Asked] = {}
        self.pushed = 0
        self.alive: list[int] = []  # in line, whatever their state
        self.dead: list[int] = []
        self.attempts: dict[int, int] = {}
        self.holds: dict[int, _Hold] = {}  # the last lease of an item; it may have ended
        self.delays: dict[int, float] = {}

    leases: Bundle[Lease[int]] = Bundle("leases")

    def free(self) -> list[int]:
        """Items that a pop could take now, in order; gives up those that are over."""
        now = self.clock()
        for item in list(self.alive):
            hold = self.holds.get(item)
            if hold and hold.ends > now:
                continue
            if hold and self.attempts[item] >= self.LIMIT:
                self.mark_dead(item, "dead")
            elif self.deadlines.get(item, now + 1.0) <= now:
                self.mark_dead(item, "expired")
        found = [
            item
            for item in self.alive
            if self.delays.get(item, now) <= now and (item not in self.holds or self.holds[item].ends <= now)
        ]
        return sorted(found, key=lambda item: (-self.priorities.get(item, 0), item))

    def mark_dead(self, item: int, why: str) -> None:
        self.leave(item, (why, None))
        self.dead = sorted([*self.dead, item])
        if why == "expired":
            self.expired.add(item)
        if self.can.max_size:
            del self.dead[: -self.MOST_DEAD]

    def leave(self, item: int, answer: tuple[str, int | None]) -> None:
        """Take an item out of the line; its producer gets the answer."""
        self.alive.remove(item)
        self.holds.pop(item, None)
        self.delays.pop(item, None)
        self.deadlines.pop(item, None)
        self.keys = {key: known for key, known in self.keys.items() if known != item}
        if (asked := self.asked.get(item)) is not None:
            asked.answer, asked.until = answer, self.clock() + asked.ttl

    def full(self, count: int, call: Callable[[], Any]) -> Any:
        """Make a push; return None when it was refused, which must be as the model says."""
        self.free()
        too_many = self.can.max_size and count and len(self.alive) + count > self.MOST
        try:
            found = call()
        except QueueFullError:
            assert too_many, f"a push of {count} was refused, and {len(self.alive)} are there"
            return None
        assert not too_many, f"a push of {count} was taken, and {len(self.alive)} are there"
        return found

    @rule(count=st.integers(1, 4))
    def push(self, count: int) -> None:
        numbers = list(range(self.pushed, self.pushed + count))
        if count == 1:
            stored = self.full(1, lambda: self.queue.push(numbers[0], wait=0))
        else:
            stored = self.full(count, lambda: self.queue.push_many(numbers, wait=0))
        if stored is not None:
            self.pushed += count
            self.alive += numbers
            self.attempts.update(dict.fromkeys(numbers, 0))

    @rule(
        priority=st.sampled_from([0, 0, 1, -1]),
        delay=st.sampled_from([0.0, 0.0, 4.0]),
        ttl=st.sampled_from([None, None, 3.0, 10.0]),
        key=st.sampled_from([None, None, "k", "l"]),
        reply=st.booleans(),
        reply_ttl=st.sampled_from([20.0, 1000.0]),
    )
    def push_with(self, **given: Any) -> None:
        """Push one item with options, as far as the queue has them."""
        can, number = self.can, self.pushed
        if not any(getattr(can, name) for name in _OPTIONS):
            return
        needs = {"priority": can.priorities, "delay": can.delays, "ttl": can.ttl, "key": can.keys}
        needs |= {"reply": can.replies, "reply_ttl": True}
        options = {name: value for name, value in given.items() if needs[name]}
        self.free()
        known = self.keys.get(options.get("key") or "")
        found = self.full(known is None, lambda: self.queue.push(number, **options, wait=0))
        if found is None:
            return
        item = number if known is None else known
        if known is None:
            self.pushed += 1
            self.alive.append(item)
            self.attempts[item] = 0
            self.place(item, options)
        if options.get("reply"):
            self.ask(item, str(found), options["reply_ttl"])

    def place(self, item: int, options: dict[str, Any]) -> None:
        now = self.clock()
        self.priorities[item] = options.get("priority", 0)
        if options.get("delay"):
            self.delays[item] = now + options["delay"]
        if options.get("ttl"):
            self.deadlines[item] = now + options["ttl"]
        if options.get("key"):
            self.keys[options["key"]] = item

    def ask(self, item: int, item_id: str, ttl: float) -> None:
        asked = self.asked.get(item)
        if asked is None:
            self.asked[item] = _Asked(item_id, ttl)
        else:
            assert asked.item_id == item_id
            asked.askers, asked.ttl = asked.askers + 1, max(asked.ttl, ttl)

    @rule(pick=st.integers(0, 1000))
    def fetch(self, pick: int) -> None:
        """Ask what became of one item."""
        if not self.asked:
            return
        self.free()
        self.queue.dead_letters()
        item = sorted(self.asked)[pick % len(self.asked)]
        asked, now = self.asked[item], self.clock()
        reply = self.queue.fetch_replies([asked.item_id]).get(asked.item_id)
        if asked.answer is not None and asked.until > now:
            outcome, value = asked.answer
            assert reply is not None
            assert reply.outcome == outcome
            if outcome == "value":
                assert reply.get() == value
            asked.askers -= 1
            if asked.askers <= 0:
                asked.until = min(asked.until, now + _KEPT_AFTER_FETCH)
        elif item in self.dead:
            assert reply is not None
            assert reply.outcome == ("expired" if item in self.expired else "dead")
        elif item in self.alive:
            assert reply is None, f"{item} is in line, and answered: {reply}"
        else:
            assert reply is not None
            assert reply.outcome == "gone"

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
        assert lease.reply == (lease.item in self.asked or lease.item in self.keys.values())
        self.holds[lease.item] = _Hold(lease, lease.attempt, self.clock() + timeout)
        self.delays.pop(lease.item, None)
        return lease

    def holder(self, lease: Lease[int]) -> bool:
        hold = self.holds.get(lease.item)
        return hold is not None and hold.lease is lease

    def good(self, lease: Lease[int], call: Callable[[], object]) -> bool:
        """Make the call; return whether it was accepted, which must be as the model says."""
        if lease.item == -1:
            return False
        self.free()  # the first that looks marks the dead, in the model as in the queue
        self.queue.dead_letters()
        try:
            call()
        except LeaseExpiredError:
            assert not self.holder(lease), f"a good lease of {lease.item} was refused"
            return False
        assert self.holder(lease), f"a stale lease of {lease.item} was accepted"
        return True

    @rule(lease=leases, answers=st.booleans())
    def done(self, lease: Lease[int], answers: bool) -> None:
        result = lease.item * 10 if answers else None
        if self.good(lease, lambda: self.queue.done(lease, result=result)):
            self.leave(lease.item, ("value", result))

    @rule(lease=leases)
    def fail(self, lease: Lease[int]) -> None:
        if self.good(lease, lambda: self.queue.done(lease, error=ValueError(lease.item))):
            self.leave(lease.item, ("error", None))

    @rule(lease=consumes(leases), delay=st.sampled_from([0.0, 0.0, 7.0]), fails=st.booleans())
    def release(self, lease: Lease[int], delay: float, fails: bool) -> None:
        error = ValueError("why") if fails else None
        if not self.good(lease, lambda: self.queue.release(lease, delay=delay, error=error)):
            return
        item, now = lease.item, self.clock()
        del self.holds[item]
        if self.attempts[item] >= self.LIMIT:
            self.mark_dead(item, "dead")
        elif self.deadlines.get(item, now + 1.0) <= now:
            self.mark_dead(item, "expired")
        elif delay:
            self.delays[item] = now + delay
        if item not in self.alive and fails and item in self.asked:
            self.asked[item].answer = ("error", None)

    @rule(lease=leases, timeout=st.sampled_from([3.0, 30.0]))
    def extend(self, lease: Lease[int], timeout: float) -> None:
        if self.good(lease, lambda: self.queue.extend(lease, timeout)):
            self.holds[lease.item].ends = self.clock() + timeout

    @rule()
    def crash(self) -> None:
        """Lose the client: the next client finds what it left."""
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
                self.mark_dead(item, "dead")
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
        assert all(
            letter.attempts == len(letter.history) == self.LIMIT
            for letter in letters
            if letter.item not in self.expired
        )
        expired = {letter.item for letter in letters if letter.reason == "expired"}
        assert expired == self.expired.intersection(self.dead)
        chosen = letters[:pick] if pick else letters
        assert self.queue.requeue_dead([letter.item_id for letter in chosen] if pick else None) == len(chosen)
        back = {letter.item for letter in chosen}
        self.dead = [item for item in self.dead if item not in back]
        self.alive = sorted({*self.alive, *back})
        self.attempts.update(dict.fromkeys(back, 0))
        for item in back:
            self.failures.pop(item, None)
            self.expired.discard(item)
            if item in self.asked:
                self.asked[item].answer = None

    @rule()
    def peek(self) -> None:
        free = self.free()
        assert self.queue.peek() == (free[0] if free else None)

    @invariant()
    def counts_agree(self) -> None:
        free = self.free()
        if self.can.replies:  # an answer is kept from when it is noted that an item is over
            self.queue.dead_letters()
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
