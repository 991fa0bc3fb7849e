"""The lease rules: pure transitions of one item, with no lock, clock or I/O. The caller brings the time.

    push ──> WAITING ──lease──> LEASED ──done──> gone
      │         ^                  │
      │         ├──── release ─────┤──> DELAYED ──time──> WAITING
      └─delay───┼──── set_aside ───┤──> DELAYED
                ├──── expire ──────┤
                └──── requeue ── DEAD  <── the end of lease number `max_attempts`,
                                           or `deadline` while nobody holds the item

A lease that ran out keeps its id on the item until another one is given, so its holder may still finish,
release or extend it. With `max_attempts` the last lease is different: when it runs out the item is dead. So
is an item whose deadline passes while it waits, or has passed when its lease ends.

Queues that hold their items in Python call these functions. A queue that decides elsewhere (in SQL, or by
creating files) is checked against them.
"""

import math
from typing import NamedTuple

from fray._values.errors import LeaseExpiredError
from fray._values.leases import Attempt, Ending

UNREADABLE_DELAYS = (40.0, 80.0, 160.0, 320.0)
"""Seconds that an item rests after each taker that could not unpickle it; 10 minutes together."""
UNREADABLE_ATTEMPTS = len(UNREADABLE_DELAYS) + 1
"""Takers that could not unpickle an item before it is dead, where no `max_attempts` comes first."""
_LONGEST_ERROR = 2000


class LeaseState(NamedTuple):
    """What changes about an item while it is in a queue.

    Args:
        attempt: Leases so far, the present one included.
        lease_id: The lease that may settle the item; empty when none may.
        until: The time before which nobody else may take the item: its lease or its delay ends then.
        history: The leases that ended without `done`. Without `max_attempts`, only those of takers that
            could not unpickle the item: releases and expiries have no bound.
        deadline: When the item is given up if nobody holds it then. A dead item has it if that was why.
    """

    attempt: int = 0
    lease_id: str = ""
    leased_at: float = 0.0
    until: float = 0.0
    dead: bool = False
    history: tuple[Attempt, ...] = ()
    deadline: float = math.inf

    @property
    def expired(self) -> bool:
        """Whether the item is dead because nobody took it in time."""
        return self.dead and self.deadline < math.inf


_new = tuple.__new__  # a call of the class takes twice as long, and each lease in memory needs one

FRESH = LeaseState()
"""An item as a plain `push` stores it, and as `requeue` puts it back."""


def pushed(delay: float, ttl: float, now: float) -> LeaseState:
    """Return an item as `push` stores it: for nobody within `delay`, given up after `ttl` seconds."""
    deadline = now + ttl
    return LeaseState(until=min(now + delay, deadline) if delay else 0.0, deadline=deadline)


def lease(
    state: LeaseState, lease_id: str, seconds: float, now: float, max_attempts: int | None
) -> LeaseState:
    """Give the item to a taker. It must be waiting: not dead, and `until` has passed."""
    history = _history(state, now, max_attempts, "expired") if state.lease_id else state.history
    fields = (state.attempt + 1, lease_id, now, now + seconds, False, history, state.deadline)
    return _new(LeaseState, fields)


def extend(state: LeaseState, lease_id: str, seconds: float, now: float) -> LeaseState:
    """Make a lease end `seconds` from now.

    Raises:
        LeaseExpiredError: Another lease took the item, or this one was settled.
    """
    check_held(state, lease_id)
    return state._replace(until=now + seconds)


def release(
    state: LeaseState,
    lease_id: str,
    delay: float,
    now: float,
    max_attempts: int | None,
    error: str | None = None,
) -> LeaseState:
    """Give the item back, for everybody to take after `delay` seconds; dead after its last attempt.

    Args:
        error: What failed the attempt, for the history.

    Raises:
        LeaseExpiredError: Another lease took the item, or this one was settled.
    """
    check_held(state, lease_id)
    history = _history(state, now, max_attempts, "released" if now < state.until else "expired", error)
    if max_attempts is not None and state.attempt >= max_attempts:
        return LeaseState(state.attempt, dead=True, history=history)
    return _given_back(state, history, now + delay if delay else 0.0, now)


def give_back(state: LeaseState, lease_id: str) -> LeaseState:
    """Undo a lease whose taker did not begin to work: its attempt does not count.

    Raises:
        LeaseExpiredError: Another lease took the item, or this one was settled.
    """
    check_held(state, lease_id)
    return state._replace(attempt=state.attempt - 1, lease_id="", leased_at=0.0, until=0.0)


def set_aside(
    state: LeaseState, lease_id: str, error: str, now: float, max_attempts: int | None
) -> LeaseState:
    """Give back an item that its taker could not unpickle: for later, or, after several takers, dead.

    Raises:
        LeaseExpiredError: Another lease took the item, or this one was settled.
    """
    check_held(state, lease_id)
    ended = Attempt(state.attempt, "unreadable", state.leased_at, now, error[:_LONGEST_ERROR])
    history = (*state.history, ended)
    takers = sum(attempt.outcome == "unreadable" for attempt in history)
    if takers >= UNREADABLE_ATTEMPTS or (max_attempts is not None and state.attempt >= max_attempts):
        return LeaseState(state.attempt, dead=True, history=history)
    return _given_back(state, history, now + UNREADABLE_DELAYS[takers - 1], now)


def is_over(state: LeaseState, now: float, max_attempts: int | None) -> bool:
    """Return whether `expire` is due: nobody holds the item, and nobody may take it any more.

    The lease that ran out was the last that the item may have, or the deadline passed.
    """
    if state.until > now or state.dead:
        return False
    return state.deadline <= now or _was_last(state, max_attempts)


def expire(state: LeaseState, now: float, max_attempts: int | None) -> LeaseState:
    """Give up an item that is over; any other stays as it is, whose lease ran out may still settle it."""
    if not is_over(state, now, max_attempts):
        return state
    history = _history(state, now, max_attempts, "expired") if state.lease_id else state.history
    deadline = math.inf if _was_last(state, max_attempts) else state.deadline
    return LeaseState(state.attempt, dead=True, history=history, deadline=deadline)


def check_held(state: LeaseState, lease_id: str) -> None:
    """Refuse a lease that may not settle the item; `done` checks nothing else.

    Raises:
        LeaseExpiredError: Another lease took the item, or this one was settled.
    """
    if not lease_id or state.lease_id != lease_id or state.dead:
        raise LeaseExpiredError(lease_id)


def _was_last(state: LeaseState, max_attempts: int | None) -> bool:
    return max_attempts is not None and bool(state.lease_id) and state.attempt >= max_attempts


def _given_back(state: LeaseState, history: tuple[Attempt, ...], until: float, now: float) -> LeaseState:
    if state.deadline <= now:
        return LeaseState(state.attempt, dead=True, history=history, deadline=state.deadline)
    return LeaseState(
        state.attempt, until=min(until, state.deadline), history=history, deadline=state.deadline
    )


def _history(
    state: LeaseState, now: float, max_attempts: int | None, outcome: Ending, error: str | None = None
) -> tuple[Attempt, ...]:
    if max_attempts is None:
        return state.history
    text = None if error is None else error[:_LONGEST_ERROR]
    return (
        *state.history,
        Attempt(state.attempt, outcome, state.leased_at, min(now, state.until), text),
    )
