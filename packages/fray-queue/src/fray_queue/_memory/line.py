"""The items of a queue in memory, in line. The lease machine decides what becomes of one; this finds it.

No lock, thread or clock: the caller holds its lock and brings the time.
"""

import enum
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from fray import LeaseExpiredError
from fray.backend import Answer, LeaseState, PushOptions, lease_machine
from fray.queue import Reply
from fray_queue._memory.replies import Replies

T = TypeVar("T")
FRESH = lease_machine.FRESH


class Phase(enum.Enum):
    """Where an item is found."""

    WAITING = "waiting"  # in `_line` or `_returned`
    HELD = "held"  # leased or delayed: a timer will bring it back
    DEAD = "dead"
    GONE = "gone"


WAITING, HELD, DEAD, GONE = Phase
_FEW_STALE = 64  # timers, or places of items that moved on: so few are not worth a rebuild
_PLACES = 44  # bits of a place in line


@dataclass(slots=True, eq=False)
class Extra:
    """What an item has that was pushed with a key, or for an answer."""

    key: str | None
    reply_ttl: float  # 0 where nobody waits for an answer
    askers: int


@dataclass(slots=True, eq=False)
class Entry(Generic[T]):
    """One item in line.

    Args:
        rank: Its place in line, for good; higher priorities have ranks below those of lower ones.
    """

    rank: int
    item_id: str
    item: T
    pushed_at: float
    phase: Phase = WAITING
    grants: int = 0  # leases ever given; unlike `attempt`, never reset: it makes lease ids unique
    state: LeaseState = FRESH
    extra: Extra | None = None

    def __lt__(self, other: "Entry[T]") -> bool:
        return self.rank < other.rank

    @property
    def place(self) -> int:
        """Its place among all items, whatever their priorities."""
        return self.rank & ((1 << _PLACES) - 1)

    @property
    def wants_reply(self) -> bool:
        """Whether a producer waits for an answer, or may yet: a later push of its key can request it."""
        extra = self.extra
        return extra is not None and (extra.reply_ttl > 0 or extra.key is not None)


class Line(Generic[T]):
    """The items of one queue. Each operation is O(log n) or better, amortised.

    Args:
        max_dead: Dead letters that are kept; beyond that the first in line go.
    """

    def __init__(self, max_attempts: int | None, max_dead: int, replies: Replies) -> None:
        self.max_attempts, self.max_dead = max_attempts, max_dead
        self.dead: dict[str, Entry[T]] = {}
        self.dead_dropped = 0
        self.replies = replies
        self._live: dict[str, Entry[T]] = {}
        self._line: deque[Entry[T]] = deque()  # plain items that were never leased, in order of arrival
        self._returned: list[Entry[T]] = []  # a heap of all others that wait
        self._timers: list[tuple[float, Entry[T]]] = []  # a heap; a timer whose entry moved on is stale
        self._keys: dict[str, Entry[T]] = {}
        self._graves: list[tuple[int, Entry[T]]] = []  # a heap by place; one that was requeued is stale
        self._waiting = 0
        self._dated = 0  # those that wait and have a deadline
        self._gives_up = max_attempts is not None  # whether an item may die by time alone
        self._last_place = 0

    # --- what a producer does ---

    def push(self, item_id: str, item: T, pushed_at: float) -> None:
        """Add an item at the end of the line; one of an id that is there already changes nothing."""
        if item_id in self._live or item_id in self.dead:
            return
        self._last_place = place = self._last_place + 1
        self._live[item_id] = entry = Entry(place, item_id, item, pushed_at)
        self._line.append(entry)
        self._waiting += 1

    def push_with(self, item_id: str, item: T, key: str | None, options: PushOptions, now: float) -> str:
        """Add an item under options; return its id, or that of the item that has its key."""
        self._advance(now)
        if key is not None and (known := self._keys.get(key)) is not None:
            self._ask_too(known, options.reply_ttl)
            return known.item_id
        self._last_place = place = self._last_place + 1
        state = lease_machine.pushed(options.delay, options.seconds, now)
        entry = Entry(place - (options.priority << _PLACES), item_id, item, now, state=state)
        if key is not None or options.reply_ttl:
            entry.extra = Extra(key, options.reply_ttl, 1)
        if key is not None:
            self._keys[key] = entry
        self._live[item_id] = entry
        self._gives_up = self._gives_up or options.ttl is not None
        if state.until:
            self._hold(entry, state)
        else:
            self._return(entry)
        return item_id

    def _ask_too(self, entry: Entry[T], reply_ttl: float) -> None:
        extra = entry.extra
        if extra is not None and reply_ttl:
            extra.askers += 1 if extra.reply_ttl else 0
            extra.reply_ttl = max(extra.reply_ttl, reply_ttl)

    def has_key(self, key: str, now: float) -> bool:
        """Return whether an item of this key waits or is leased."""
        self._advance(now)
        return key in self._keys

    # --- what a worker does ---

    def take(self, lease_timeout: float, now: float) -> Entry[T] | None:
        """Lease the first item in line."""
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

    def done(self, item_id: str, lease_id: str, now: float, answer: Answer | None = None) -> None:
        """Remove the item that a lease holds; keep the answer for the producer."""
        timers = self._timers
        if timers and timers[0][0] <= now and self._gives_up:
            self._advance(now)  # may be its last lease, and over; any other that ran out is good until taken
        entry = self._find(item_id, lease_id)
        lease_machine.check_held(entry.state, lease_id)
        if timers and timers[-1][1] is entry:  # a heap's last may go: short work leaves no stale timers
            timers.pop()
        self._remove(entry)
        if entry.extra is not None:
            outcome, value = answer or ("value", None)
            self._answer(entry, Reply(item_id, outcome, value, packed=False), now)

    def release(
        self,
        item_id: str,
        lease_id: str,
        delay: float,
        now: float,
        error: str | None = None,
        failure: BaseException | None = None,
    ) -> None:
        """Give the item back, at once or after `delay` seconds.

        Args:
            error: What failed the attempt, for the history; `failure` is for the producer.
        """
        self._advance(now)
        entry = self._find(item_id, lease_id)
        state = lease_machine.release(entry.state, lease_id, delay, now, self.max_attempts, error)
        self._settle(entry, state, now, failure)

    def give_back(self, item_id: str, lease_id: str, now: float) -> None:
        """Give back an item that was not worked on."""
        self._advance(now)
        entry = self._find(item_id, lease_id)
        self._settle(entry, lease_machine.give_back(entry.state, lease_id), now)

    def extend(self, item_id: str, lease_id: str, lease_timeout: float, now: float) -> Entry[T]:
        """Make the lease end `lease_timeout` seconds from now."""
        self._advance(now)
        entry = self._find(item_id, lease_id)
        state = lease_machine.extend(entry.state, lease_id, lease_timeout, now)
        if entry.phase is WAITING:  # it ran out and nobody took it
            self._leave(entry)
        self._hold(entry, state)
        return entry

    # --- what an asker does ---

    def fetch(self, item_id: str, now: float) -> Reply | None:
        """Return what became of an item; None while it is under way."""
        self._advance(now)
        self.replies.drop(now)
        reply = self.replies.fetch(item_id, now)
        if reply is not None:
            return reply
        if (entry := self.dead.get(item_id)) is not None:
            return Reply(item_id, "expired" if entry.state.expired else "dead")
        return None if item_id in self._live else Reply(item_id, "gone")

    # --- what an onlooker sees ---

    def size(self, now: float) -> int:
        """Count what is waiting, delayed or leased."""
        self._advance(now)
        return len(self._live)

    def oldest(self, now: float) -> float | None:
        """Return when the item was pushed that has been here longest; one that was requeued is a new one."""
        self._advance(now)
        return next((entry.pushed_at for entry in self._live.values()), None)

    def pending(self, now: float) -> int:
        """Count what a take could have now."""
        self._advance(now)
        return self._waiting

    def peek(self, now: float) -> Entry[T] | None:
        """Return what a take would have now."""
        self._advance(now)
        entry = self._pull()
        if entry is not None:
            self._dated += entry.state.deadline < math.inf
            heappush(self._returned, entry)
        return entry

    def dead_letters(self, now: float) -> list[Entry[T]]:
        """List the dead in their order in line."""
        self._advance(now)
        return sorted(self.dead.values(), key=lambda entry: entry.place)

    def next_change(self) -> float | None:
        """Return the time at which something may become takeable, or be given up, by itself."""
        return self._timers[0][0] if self._timers else None

    # --- what an operator does ---

    def requeue(self, item_ids: Iterable[str] | None, now: float) -> int:
        """Put the dead (all, or those of these ids) back at their old places with a fresh count."""
        entries = self._find_dead(item_ids, now)
        for entry in entries:
            entry.state = FRESH
            self._live[entry.item_id] = entry
            del self.dead[entry.item_id]
            self.replies.forget(entry.item_id)
            self._return(entry)
        self._drop_graves()
        return len(entries)

    def purge(self) -> int:
        """Remove every item that is not dead, leased ones too; return how many."""
        entries = list(self._live.values())
        for entry in entries:
            self._remove(entry)
            if entry.wants_reply:
                self.replies.gone(entry.item_id)
        for places in (self._line, self._returned, self._timers):  # each would keep what was purged
            places.clear()
        return len(entries)

    def purge_dead(self, item_ids: Iterable[str] | None, now: float) -> int:
        """Remove the dead (all, or those of these ids); return how many."""
        entries = self._find_dead(item_ids, now)
        for entry in entries:
            entry.phase = GONE
            del self.dead[entry.item_id]
        self._drop_graves()
        return len(entries)

    # --- the moves ---

    def __enter__(self) -> None:
        """Begin an operation that an interrupt (Ctrl-C in a notebook) may cut off between any two steps."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            self.failed(error)

    def failed(self, error: BaseException) -> None:
        """After an interrupt derive everything from the states of the items: one may be half moved."""
        if isinstance(error, Exception):
            return
        entries = list(self._live.values())
        self._line, self._returned, self._timers = deque(), [], []
        self._keys, self._waiting, self._dated = {}, 0, 0
        for entry in entries:
            if entry.state.dead:
                self._move_to_dead(entry)
                continue
            if entry.extra is not None and entry.extra.key is not None:
                self._keys[entry.extra.key] = entry
            if entry.state.until:
                self._hold(entry, entry.state)
            else:
                self._return(entry)
        for entry in self.dead.values():
            if entry.extra is not None:
                entry.extra.key = None
        self._graves = [(each.place, each) for each in self.dead.values()]
        heapify(self._graves)

    def _find(self, item_id: str, lease_id: str) -> Entry[T]:
        entry = self._live.get(item_id)
        if entry is None:
            raise LeaseExpiredError(lease_id)
        return entry

    def _advance(self, now: float) -> None:
        timers = self._timers
        while timers and timers[0][0] <= now:
            until, entry = heappop(timers)
            if not _is_due(until, entry):
                continue
            state = lease_machine.expire(entry.state, now, self.max_attempts)
            if state.dead:
                self._settle(entry, state, now)
            elif entry.phase is HELD:
                self._return(entry)

    def _settle(
        self, entry: Entry[T], state: LeaseState, now: float, failure: BaseException | None = None
    ) -> None:
        if entry.phase is WAITING:  # its lease ran out, or its deadline; it stands in `_returned` already
            self._leave(entry)
            entry.phase = HELD
        if state.dead:
            entry.state = state
            self._mark_dead(entry, now, failure)
        elif state.until:
            self._hold(entry, state)
        else:
            entry.state = state
            self._return(entry)

    def _mark_dead(self, entry: Entry[T], now: float, failure: BaseException | None) -> None:
        self._move_to_dead(entry)
        self._forget_key(entry)
        if failure is not None:
            self._answer(entry, Reply(entry.item_id, "error", failure, packed=False), now)
        else:
            self._answer(entry, Reply(entry.item_id, "expired" if entry.state.expired else "dead"), now)
        graves = self._graves
        heappush(graves, (entry.place, entry))
        self._drop_graves()
        while len(self.dead) > self.max_dead:
            oldest = heappop(graves)[1]
            if self.dead.get(oldest.item_id) is oldest:
                del self.dead[oldest.item_id]
                oldest.phase = GONE
                self.dead_dropped += 1

    def _drop_graves(self) -> None:
        """Drop the graves of items that are not dead any more, where most are: they would keep the items."""
        if len(self._graves) > _FEW_STALE + 2 * len(self.dead):
            self._graves[:] = [(each.place, each) for each in self.dead.values()]
            heapify(self._graves)

    def _move_to_dead(self, entry: Entry[T]) -> None:
        # Never in neither: no call, after which an interrupt could come, is between the two.
        self.dead[entry.item_id] = entry
        entry.phase = DEAD
        del self._live[entry.item_id]

    def _answer(self, entry: Entry[T], reply: Reply, now: float) -> None:
        extra = entry.extra
        if extra is not None and extra.reply_ttl:
            self.replies.drop(now)
            self.replies.put(reply, now + extra.reply_ttl, extra.askers)

    def _forget_key(self, entry: Entry[T]) -> None:
        extra = entry.extra
        if extra is not None and extra.key is not None:
            del self._keys[extra.key]
            extra.key = None  # of an item that comes back, another may have it by then

    def _return(self, entry: Entry[T]) -> None:
        entry.phase = WAITING
        self._waiting += 1
        heappush(self._returned, entry)
        if entry.state.deadline < math.inf:
            self._dated += 1
            self._time(entry.state.deadline, entry)

    def _leave(self, entry: Entry[T]) -> None:
        """Note that an entry does not wait any more; it may stay in `_returned` for now."""
        self._waiting -= 1
        self._dated -= entry.state.deadline < math.inf
        self._drop_stale()

    def _drop_stale(self) -> None:
        """Drop what stands in `_returned` and does not wait any more, where most of it is such."""
        returned = self._returned
        if len(returned) > _FEW_STALE + 2 * self._waiting:
            # In place: what stands behind a backlog that never ends would else stay for ever.
            returned[:] = dict.fromkeys(entry for entry in returned if entry.phase is WAITING)
            heapify(returned)

    def _hold(self, entry: Entry[T], state: LeaseState) -> None:
        entry.phase, entry.state = HELD, state
        self._time(state.until, entry)

    def _time(self, until: float, entry: Entry[T]) -> None:
        timers = self._timers
        heappush(timers, (until, entry))
        if len(timers) > _FEW_STALE and len(timers) > 4 * (len(self._live) - self._waiting + self._dated):
            # In place: stale timers would else outlive their items for a whole lease.
            timers[:] = dict.fromkeys(timer for timer in timers if _is_due(*timer))
            heapify(timers)

    def _remove(self, entry: Entry[T]) -> None:
        del self._live[entry.item_id]
        if entry.extra is not None:
            self._forget_key(entry)
        if entry.phase is WAITING:
            self._leave(entry)
        entry.phase = GONE

    def _find_dead(self, item_ids: Iterable[str] | None, now: float) -> list[Entry[T]]:
        self._advance(now)
        wanted = list(self.dead) if item_ids is None else list(dict.fromkeys(item_ids))
        return [self.dead[item_id] for item_id in wanted if item_id in self.dead]

    def _pull(self) -> Entry[T] | None:
        """Take the first entry in line, and drop what stands before it and does not wait any more."""
        line, returned = self._line, self._returned
        self._drop_stale()
        while returned:
            if line and line[0].rank < returned[0].rank:
                return line.popleft()
            entry = heappop(returned)
            # An entry may stand here twice: its lease ran out, then it was released. One take ends both.
            if entry.phase is WAITING:
                self._dated -= entry.state.deadline < math.inf
                return entry
        return line.popleft() if line else None


def _is_due(at: float, entry: Entry[T]) -> bool:
    """Return whether a timer still means its entry."""
    if entry.phase is HELD:
        return entry.state.until == at
    return entry.phase is WAITING and entry.state.deadline == at
