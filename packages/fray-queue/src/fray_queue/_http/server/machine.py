"""The lease rules, once: no lock, thread, clock or I/O. The caller holds its lock and brings the time.

    push ──> WAITING ──take──> LEASED ──finish──> gone
                ^                 │
                ├──── release ────┤──> DELAYED ──time──> WAITING
                ├──── expiry ─────┤
                └──── requeue ── DEAD  <── release or expiry number `max_attempts`

A lease that ran out leaves its item WAITING but keeps its id on it until the item is taken again,
so its holder may still finish, release or extend it.
"""

import enum
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from fray import LeaseExpiredError
from fray.queue import Attempt

P = TypeVar("P")


class Phase(enum.Enum):
    """Where an item is; the module's docstring draws the moves."""

    WAITING = "waiting"
    LEASED = "leased"
    DELAYED = "delayed"
    DEAD = "dead"
    GONE = "gone"


WAITING, LEASED, DELAYED, DEAD, GONE = Phase
_TIMED = (LEASED, DELAYED)
_FEW_TIMERS = 64  # below this many, stale timers are not worth a rebuild


@dataclass(slots=True, eq=False)
class Entry(Generic[P]):
    """One item in the machine."""

    seq: int  # its place in line, for good
    item_id: str
    payload: P
    pushed_at: float
    phase: Phase = WAITING
    attempt: int = 0
    grants: int = 0  # leases ever given; unlike `attempt`, never reset: it makes lease ids unique
    lease_id: str = ""
    leased_at: float = 0.0
    until: float = 0.0  # when the lease or the delay ends
    history: tuple[Attempt, ...] = ()

    def __lt__(self, other: "Entry[P]") -> bool:
        return self.seq < other.seq


class LeaseMachine(Generic[P]):
    """The state of one queue. Each operation is O(log n) or better, amortised.

    Args:
        max_attempts: Leases that may end without `finish` before an item is dead; None for no end.
        changed: Called with each entry that changed, for a journal.
    """

    def __init__(
        self, *, max_attempts: int | None = None, changed: Callable[[Entry[P]], None] | None = None
    ) -> None:
        if max_attempts is not None and (isinstance(max_attempts, bool) or max_attempts < 1):
            raise ValueError(f"max_attempts is 1 or more, or None for no limit; got {max_attempts!r}")
        self.max_attempts = max_attempts
        self.dead: dict[str, Entry[P]] = {}
        self._changed = changed
        self._live: dict[str, Entry[P]] = {}
        self._line: deque[Entry[P]] = deque()  # not leased yet, in order of arrival
        self._returned: list[Entry[P]] = []  # a heap by place in line; all of it is before all of `_line`
        self._timers: list[tuple[float, Entry[P]]] = []  # a heap; a timer whose entry moved on is stale
        self._waiting = 0
        self._last_seq = 0

    # --- what a worker does ---

    def push(self, item_id: str, payload: P, now: float) -> Entry[P] | None:
        """Add an item at the end of the line; None when one of that id is there already."""
        if item_id in self._live or item_id in self.dead:
            return None
        self._last_seq = seq = self._last_seq + 1
        self._live[item_id] = entry = Entry(seq, item_id, payload, now)
        self._line.append(entry)
        self._waiting += 1
        if self._changed is not None:
            self._changed(entry)
        return entry

    def take(self, lease_timeout: float, now: float) -> Entry[P] | None:
        """Lease the oldest item that waits."""
        timers = self._timers
        if timers and timers[0][0] <= now:
            self._advance(now)
        until = now + lease_timeout  # first: an item that left the line must be leased, whatever was asked
        entry = self._pull() if self._returned or not self._line else self._line.popleft()
        if entry is None:
            return None
        self._waiting -= 1
        entry.attempt += 1
        entry.grants = grant = entry.grants + 1
        entry.lease_id = f"{entry.item_id}.{grant}"
        entry.leased_at = now
        self._hold(entry, LEASED, until)
        return entry

    def finish(self, item_id: str, lease_id: str) -> Entry[P]:
        """Remove the item that a lease holds."""
        entry = self._held(item_id, lease_id)
        timers = self._timers
        if timers and timers[-1][1] is entry:  # a heap's last may go: short work leaves no stale timers
            timers.pop()
        self._remove(entry)
        return entry

    def release(self, item_id: str, lease_id: str, delay: float, now: float) -> Entry[P]:
        """Give the item back, at once or after `delay` seconds."""
        until = now + delay
        entry = self._held(item_id, lease_id)
        if entry.phase is LEASED:
            self._end_attempt(entry, "released", now)
        entry.lease_id = ""
        if entry.phase is not DEAD and delay > 0:
            if entry.phase is WAITING:
                self._waiting -= 1
            self._hold(entry, DELAYED, until)
        elif self._changed is not None:
            self._changed(entry)
        return entry

    def extend(self, item_id: str, lease_id: str, lease_timeout: float, now: float) -> Entry[P]:
        """Make the lease end `lease_timeout` seconds from now."""
        until = now + lease_timeout
        entry = self._held(item_id, lease_id)
        if entry.phase is WAITING:  # it ran out and nobody took it: the attempt goes on
            entry.history = entry.history[:-1]
            self._waiting -= 1
        self._hold(entry, LEASED, until)
        return entry

    def held(self, item_id: str, lease_id: str) -> Entry[P] | None:
        """Return the item that a good lease holds."""
        entry = self._live.get(item_id)
        return entry if entry is not None and entry.lease_id == lease_id else None

    # --- what an onlooker sees ---

    def size(self, now: float) -> int:
        """Count what is waiting, delayed or leased."""
        self._advance(now)
        return len(self._live)

    def pending(self, now: float) -> int:
        """Count what a take could have now."""
        self._advance(now)
        return self._waiting

    def peek(self, now: float) -> Entry[P] | None:
        """Return what a take would have now."""
        self._advance(now)
        return self._oldest()

    def dead_letters(self, now: float, after: int = 0) -> list[Entry[P]]:
        """List the dead in their order in line, from behind a place in it."""
        self._advance(now)
        return sorted(entry for entry in self.dead.values() if entry.seq > after)

    def oldest(self) -> Entry[P] | None:
        """Return the live item that was pushed first."""
        return next(iter(self._live.values()), None)

    def next_change(self) -> float | None:
        """Return the time at which something may become takeable by itself."""
        return self._timers[0][0] if self._timers else None

    # --- what an operator does ---

    def requeue(self, item_ids: Iterable[str] | None, now: float) -> int:
        """Put the dead (all, or those of these ids) back at their old places with a fresh count."""
        self._advance(now)
        wanted = list(self.dead) if item_ids is None else list(dict.fromkeys(item_ids))
        entries = [self.dead.pop(item_id) for item_id in wanted if item_id in self.dead]
        for entry in entries:
            entry.attempt, entry.history = 0, ()
            self._live[entry.item_id] = entry
            self._return(entry)
            if self._changed is not None:
                self._changed(entry)
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
        self._advance(now)
        wanted = list(self.dead) if item_ids is None else list(dict.fromkeys(item_ids))
        entries = [self.dead.pop(item_id) for item_id in wanted if item_id in self.dead]
        for entry in entries:
            entry.phase = GONE
            if self._changed is not None:
                self._changed(entry)
        return len(entries)

    def restore(self, entry: Entry[P]) -> None:
        """Take in an entry as a journal kept it. Call in the order of `seq`, before anything else."""
        self._last_seq = max(self._last_seq, entry.seq)
        if entry.phase is DEAD:
            self.dead[entry.item_id] = entry
            return
        self._live[entry.item_id] = entry
        if entry.phase is WAITING:
            self._return(entry)
        else:
            heappush(self._timers, (entry.until, entry))

    # --- the moves ---

    def _held(self, item_id: str, lease_id: str) -> Entry[P]:
        entry = self._live.get(item_id)
        if entry is None or entry.lease_id != lease_id or not lease_id:
            raise LeaseExpiredError(lease_id)
        return entry

    def _advance(self, now: float) -> None:
        timers = self._timers
        while timers and timers[0][0] <= now:
            until, entry = heappop(timers)
            if entry.until != until:
                continue
            if entry.phase is LEASED:
                self._end_attempt(entry, "expired", until)
            elif entry.phase is DELAYED:
                self._return(entry)
            else:
                continue
            if self._changed is not None:
                self._changed(entry)

    def _end_attempt(self, entry: Entry[P], outcome: str, when: float) -> None:
        if self.max_attempts is not None:
            entry.history += (Attempt(entry.attempt, outcome, entry.leased_at, when),)  # type: ignore[arg-type]
            if entry.attempt >= self.max_attempts:
                entry.phase, entry.lease_id = DEAD, ""
                self.dead[entry.item_id] = self._live.pop(entry.item_id)
                return
        self._return(entry)

    def _return(self, entry: Entry[P]) -> None:
        entry.phase = WAITING
        self._waiting += 1
        heappush(self._returned, entry)

    def _hold(self, entry: Entry[P], phase: Phase, until: float) -> None:
        entry.phase, entry.until = phase, until
        timers = self._timers
        heappush(timers, (until, entry))
        if len(timers) > _FEW_TIMERS and len(timers) > 4 * (len(self._live) - self._waiting):
            # In place: stale timers would else outlive their items for a whole lease.
            timers[:] = [timer for timer in timers if timer[0] == timer[1].until and timer[1].phase in _TIMED]
            heapify(timers)
        if self._changed is not None:
            self._changed(entry)

    def _remove(self, entry: Entry[P]) -> None:
        del self._live[entry.item_id]
        if entry.phase is WAITING:
            self._waiting -= 1
        entry.phase, entry.lease_id = GONE, ""
        if self._changed is not None:
            self._changed(entry)

    def _pull(self) -> Entry[P] | None:
        """Take the first entry in line, and drop what stands before it and does not wait any more."""
        while self._returned:
            entry = heappop(self._returned)
            if entry.phase is WAITING:
                return entry
        return self._line.popleft() if self._line else None

    def _oldest(self) -> Entry[P] | None:
        entry = self._pull()
        if entry is not None:
            heappush(self._returned, entry)  # before all of `_line` still
        return entry
