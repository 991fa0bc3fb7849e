"""The items of a queue in memory, in line. The lease machine decides what becomes of one; this finds it.

No lock, thread or clock: the caller holds its lock and brings the time.
"""

import enum
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from fray import LeaseExpiredError
from fray.backend import LeaseState, lease_machine

T = TypeVar("T")
FRESH = lease_machine.FRESH


class Phase(enum.Enum):
    """Where an item is found."""

    WAITING = "waiting"  # in `_line` or `_returned`
    HELD = "held"  # leased or delayed: a timer will bring it back
    DEAD = "dead"
    GONE = "gone"


WAITING, HELD, DEAD, GONE = Phase
_FEW_TIMERS = 64  # below this many, stale timers are not worth a rebuild


@dataclass(slots=True, eq=False)
class Entry(Generic[T]):
    """One item in line."""

    seq: int  # its place in line, for good
    item_id: str
    item: T
    phase: Phase = WAITING
    grants: int = 0  # leases ever given; unlike `attempt`, never reset: it makes lease ids unique
    state: LeaseState = FRESH

    def __lt__(self, other: "Entry[T]") -> bool:
        return self.seq < other.seq


class Line(Generic[T]):
    """The items of one queue. Each operation is O(log n) or better, amortised."""

    def __init__(self, max_attempts: int | None) -> None:
        self.max_attempts = max_attempts
        self.dead: dict[str, Entry[T]] = {}
        self._live: dict[str, Entry[T]] = {}
        self._line: deque[Entry[T]] = deque()  # not leased yet, in order of arrival
        self._returned: list[Entry[T]] = []  # a heap by place in line; all of it is before all of `_line`
        self._timers: list[tuple[float, Entry[T]]] = []  # a heap; a timer whose entry moved on is stale
        self._waiting = 0
        self._last_seq = 0

    # --- what a worker does ---

    def push(self, item_id: str, item: T) -> None:
        """Add an item at the end of the line; one of an id that is there already changes nothing."""
        if item_id in self._live or item_id in self.dead:
            return
        self._last_seq = seq = self._last_seq + 1
        self._live[item_id] = entry = Entry(seq, item_id, item)
        self._line.append(entry)
        self._waiting += 1

    def take(self, lease_timeout: float, now: float) -> Entry[T] | None:
        """Lease the oldest item that waits."""
        timers = self._timers
        if timers and timers[0][0] <= now:
            self._advance(now)
        entry = self._pull() if self._returned or not self._line else self._line.popleft()
        if entry is None:
            return None
        self._waiting -= 1
        entry.grants = grant = entry.grants + 1
        lease_id = f"{entry.item_id}.{grant}"
        state = lease_machine.lease(entry.state, lease_id, lease_timeout, now, self.max_attempts)
        self._hold(entry, state)
        return entry

    def done(self, item_id: str, lease_id: str, now: float) -> None:
        """Remove the item that a lease holds."""
        timers = self._timers
        if timers and timers[0][0] <= now and self.max_attempts is not None:
            self._advance(now)  # may be its last lease, and over; any other that ran out is good until taken
        entry = self._find(item_id, lease_id)
        lease_machine.check_held(entry.state, lease_id)
        if timers and timers[-1][1] is entry:  # a heap's last may go: short work leaves no stale timers
            timers.pop()
        self._remove(entry)

    def release(self, item_id: str, lease_id: str, delay: float, now: float) -> None:
        """Give the item back, at once or after `delay` seconds."""
        self._advance(now)
        entry = self._find(item_id, lease_id)
        state = lease_machine.release(entry.state, lease_id, delay, now, self.max_attempts)
        self._settle(entry, state)

    def extend(self, item_id: str, lease_id: str, lease_timeout: float, now: float) -> Entry[T]:
        """Make the lease end `lease_timeout` seconds from now."""
        self._advance(now)
        entry = self._find(item_id, lease_id)
        state = lease_machine.extend(entry.state, lease_id, lease_timeout, now)
        if entry.phase is WAITING:  # it ran out and nobody took it
            self._waiting -= 1
        self._hold(entry, state)
        return entry

    # --- what an onlooker sees ---

    def size(self, now: float) -> int:
        """Count what is waiting, delayed or leased."""
        self._advance(now)
        return len(self._live)

    def pending(self, now: float) -> int:
        """Count what a take could have now."""
        self._advance(now)
        return self._waiting

    def peek(self, now: float) -> Entry[T] | None:
        """Return what a take would have now."""
        self._advance(now)
        entry = self._pull()
        if entry is not None:
            heappush(self._returned, entry)  # before all of `_line` still
        return entry

    def dead_letters(self, now: float) -> list[Entry[T]]:
        """List the dead in their order in line."""
        self._advance(now)
        return sorted(self.dead.values())

    def next_change(self) -> float | None:
        """Return the time at which something may become takeable by itself."""
        return self._timers[0][0] if self._timers else None

    # --- what an operator does ---

    def requeue(self, item_ids: Iterable[str] | None, now: float) -> int:
        """Put the dead (all, or those of these ids) back at their old places with a fresh count."""
        entries = self._pop_dead(item_ids, now)
        for entry in entries:
            entry.state = FRESH
            self._live[entry.item_id] = entry
            self._return(entry)
        return len(entries)

    def purge(self) -> int:
        """Remove every item that is not dead, leased ones too; return how many."""
        entries = list(self._live.values())
        for entry in entries:
            self._remove(entry)
        self._line.clear()
        return len(entries)

    def purge_dead(self, item_ids: Iterable[str] | None, now: float) -> int:
        """Remove the dead (all, or those of these ids); return how many."""
        entries = self._pop_dead(item_ids, now)
        for entry in entries:
            entry.phase = GONE
        return len(entries)

    # --- the moves ---

    def _find(self, item_id: str, lease_id: str) -> Entry[T]:
        entry = self._live.get(item_id)
        if entry is None:
            raise LeaseExpiredError(lease_id)
        return entry

    def _advance(self, now: float) -> None:
        timers = self._timers
        while timers and timers[0][0] <= now:
            until, entry = heappop(timers)
            if entry.phase is not HELD or entry.state.until != until:
                continue
            entry.state = lease_machine.expire(entry.state, now, self.max_attempts)
            if entry.state.dead:
                self._bury(entry)
            else:
                self._return(entry)

    def _settle(self, entry: Entry[T], state: LeaseState) -> None:
        if entry.phase is WAITING:  # its lease ran out; it stands in `_returned` already
            self._waiting -= 1
            entry.phase = HELD
        if state.dead:
            entry.state = state
            self._bury(entry)
        elif state.until:
            self._hold(entry, state)
        else:
            entry.state = state
            self._return(entry)

    def _bury(self, entry: Entry[T]) -> None:
        entry.phase = DEAD
        self.dead[entry.item_id] = self._live.pop(entry.item_id)

    def _return(self, entry: Entry[T]) -> None:
        entry.phase = WAITING
        self._waiting += 1
        heappush(self._returned, entry)

    def _hold(self, entry: Entry[T], state: LeaseState) -> None:
        entry.phase, entry.state = HELD, state
        timers = self._timers
        heappush(timers, (state.until, entry))
        if len(timers) > _FEW_TIMERS and len(timers) > 4 * (len(self._live) - self._waiting):
            # In place: stale timers would else outlive their items for a whole lease.
            timers[:] = [
                timer for timer in timers if timer[1].phase is HELD and timer[0] == timer[1].state.until
            ]
            heapify(timers)

    def _remove(self, entry: Entry[T]) -> None:
        del self._live[entry.item_id]
        if entry.phase is WAITING:
            self._waiting -= 1
        entry.phase = GONE

    def _pop_dead(self, item_ids: Iterable[str] | None, now: float) -> list[Entry[T]]:
        self._advance(now)
        wanted = list(self.dead) if item_ids is None else list(dict.fromkeys(item_ids))
        return [self.dead.pop(item_id) for item_id in wanted if item_id in self.dead]

    def _pull(self) -> Entry[T] | None:
        """Take the first entry in line, and drop what stands before it and does not wait any more."""
        while self._returned:
            entry = heappop(self._returned)
            # An entry may stand here twice: its lease ran out, then it was released. One take ends both.
            if entry.phase is WAITING:
                return entry
        return self._line.popleft() if self._line else None
