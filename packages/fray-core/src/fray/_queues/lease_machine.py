"""The lease rules: pure transitions of one item, with no lock, clock or I/O. The caller brings the time.

    push ──> WAITING ──lease──> LEASED ──done──> gone
                ^                  │
                ├──── release ─────┤──> DELAYED ──time──> WAITING
                ├──── set_aside ───┤──> DELAYED
                ├──── expire ──────┤
                └──── requeue ── DEAD  <── the end of lease number `max_attempts`

A lease that ran out keeps its id on the item until another one is given, so its holder may still finish,
release or extend it. With `max_attempts` the last lease is different: when it runs out the item is dead.

Queues that hold their items in Python call these functions. A queue that decides elsewhere (in SQL, or by
creating files) is checked against them.
"""

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
    """

    attempt: int = 0
    lease_id: str = ""
    leased_at: float = 0.0
    until: float = 0.0
    dead: bool = False
    history: tuple[Attempt, ...] = ()


_new = tuple.__new__  # a call of the class takes twice as long, and each lease in memory needs one

FRESH = LeaseState()
"""An item as `push` stores it, and as `requeue` puts it back."""


def lease(
    state: LeaseState, lease_id: str, seconds: float, now: float, max_attempts: int | None
) -> LeaseState:
    """Give the item to a taker. It must be waiting: not dead, and `until` has passed."""
    history = _history(state, now, max_attempts, "expired") if state.lease_id else state.history
    return _new(LeaseState, (state.attempt + 1, lease_id, now, now + seconds, False, history))


def extend(state: LeaseState, lease_id: str, seconds: float, now: float) -> LeaseState:
    """Make a lease end `seconds` from now.

    Raises:
        LeaseExpiredError: Another lease took the item, or this one was settled.
    """
    check_held(state, lease_id)
    return state._replace(until=now + seconds)


def release(
    state: LeaseState, lease_id: str, delay: float, now: float, max_attempts: int | None
) -> LeaseState:
    """Give the item back, for everybody to take after `delay` seconds; dead after its last attempt.

    Raises:
        LeaseExpiredError: Another lease took the item, or this one was settled.
    """
    check_held(state, lease_id)
    history = _history(state, now, max_attempts, "released" if now < state.until else "expired")
    if max_attempts is not None and state.attempt >= max_attempts:
        return LeaseState(state.attempt, dead=True, history=history)
    return LeaseState(state.attempt, until=now + delay if delay else 0.0, history=history)


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
    return LeaseState(state.attempt, until=now + UNREADABLE_DELAYS[takers - 1], history=history)


def is_last_lease_over(state: LeaseState, now: float, max_attempts: int | None) -> bool:
    """Return whether `expire` is due: the lease that ran out was the last that the item may have."""
    return (
        max_attempts is not None
        and bool(state.lease_id)
        and state.until <= now
        and state.attempt >= max_attempts
    )


def expire(state: LeaseState, now: float, max_attempts: int | None) -> LeaseState:
    """Give up an item whose last lease ran out; any other stays as it is, its holder may still settle it."""
    if not is_last_lease_over(state, now, max_attempts):
        return state
    return LeaseState(state.attempt, dead=True, history=_history(state, now, max_attempts, "expired"))


def check_held(state: LeaseState, lease_id: str) -> None:
    """Refuse a lease that may not settle the item; `done` asks nothing else.

    Raises:
        LeaseExpiredError: Another lease took the item, or this one was settled.
    """
    if not lease_id or state.lease_id != lease_id or state.dead:
        raise LeaseExpiredError(lease_id)


def _history(state: LeaseState, now: float, max_attempts: int | None, outcome: Ending) -> tuple[Attempt, ...]:
    if max_attempts is None:
        return state.history
    return (*state.history, Attempt(state.attempt, outcome, state.leased_at, min(now, state.until)))
