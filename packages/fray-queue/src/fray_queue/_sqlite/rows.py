"""Rows of a store as Python has them."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fray.backend import LeaseState
from fray.queue import Attempt
from fray_queue._checks import MOST_DEAD
from fray_queue._items import Settings
from fray_queue._sqlite.schema import DEAD, HELD, RETURNED, SEQ_BITS

_SEQ_MASK = (1 << SEQ_BITS) - 1
OPTIONS, ASKED = 1, 2
NO_LIMIT = (1 << 31) - 1  # attempts
_LONGEST_SEQ = len(str(_SEQ_MASK))


STATE = "attempt, lease_id, leased_at, until, history, deadline"
"""Columns of `leases`, as `state_of` takes them."""


@dataclass(slots=True)
class QueueRow:
    """One queue: its settings, its line and its counters.

    Args:
        tag: Begins the ids of its items, so that no other queue's are the same.
        pushed: The place in line of the newest item.
        cursor: A place in line; what is fresh (never leased, and not in `leases`) is behind it.
        bytes: Size of all payloads, of dead items too, and of answers.
        dropped: Dead letters that were dropped because there were more than `max_dead`.
        special: `OPTIONS` when an item was ever pushed with options, and `ASKED` when for an answer, or with
            a key: only then is there anything to look for.
        seen: When the queue was last written to, on the axis of the leases.
        earliest: No lease or delay ends before; what is not known is long ago.
    """

    number: int
    name: str
    tag: str
    max_attempts: int | None
    pushed: int = 0
    cursor: int = 0
    returned: int = 0
    held: int = 0
    dead: int = 0
    bytes: int = 0
    seen: float = 0.0
    fresh: int = 0
    max_size: int | None = None
    max_dead: int = MOST_DEAD
    dropped: int = 0
    special: int = 0
    changed: bool = False
    earliest: float = -math.inf

    @property
    def base(self) -> int:
        """What the ids of its rows are above."""
        return self.number << SEQ_BITS

    @property
    def most_attempts(self) -> int:
        """The limit of attempts as a number for SQL."""
        return self.max_attempts or NO_LIMIT

    @property
    def live(self) -> int:
        """How many items are not dead."""
        return self.fresh + self.returned + self.held

    def count(self, state: int, change: int) -> None:
        """Note that so many more items are in a state."""
        self.changed = True
        if state == RETURNED:
            self.returned += change
        elif state == HELD:
            self.held += change
        else:
            self.dead += change

    def seq_of_item(self, item_id: str) -> int | None:
        """Return the place in line that an id was made of; None for one that a pusher gave."""
        tag, _, seq = item_id.rpartition("-")
        if tag != self.tag or not (seq.isascii() and seq.isdecimal()) or len(seq) > _LONGEST_SEQ:
            return None
        number = int(seq)
        return number if 0 < number <= _SEQ_MASK else None  # more than that is a row of another queue

    def item_id(self, seq: int, given: str | None) -> str:
        """Return an item's id: what its pusher gave, or one made of its place in line."""
        return given if given is not None else f"{self.tag}-{seq}"


def differs(settings: Settings, row: QueueRow) -> str | None:
    """Return which options of a queue differ from the wanted ones; None where it is the same."""
    for name in ("max_attempts", "max_size"):
        if getattr(row, name) != getattr(settings, name):
            return f"{name}={getattr(row, name)}, not {getattr(settings, name)}"
    if settings.max_dead not in (None, row.max_dead):
        return f"max_dead={row.max_dead}, not {settings.max_dead}"
    return None


def seq_of(row: int) -> int:
    """Return the place in line that a row's id names."""
    return row & _SEQ_MASK


def lease_id_of(seq: int, token: str) -> str:
    """Return a lease's id, which contains the place of its item."""
    return f"{seq:x}.{token}"


def seq_of_lease(lease_id: str) -> int | None:
    """Return the place in line of a lease's item; None for an id that no store gave."""
    try:
        seq = int(lease_id.partition(".")[0], 16)
    except ValueError:
        return None
    return seq if 0 < seq <= _SEQ_MASK else None


def state_of(
    attempt: int, lease_id: str, leased_at: float, until: float, history: str, deadline: float | None
) -> LeaseState:
    """Return what the lease machine works on, from the columns `STATE`."""
    date = math.inf if deadline is None else deadline
    return LeaseState(attempt, lease_id, leased_at, until, False, load_history(history), date)


def state_number(state: LeaseState) -> int:
    """Return the place of a row's item."""
    return DEAD if state.dead else HELD if state.until else RETURNED


def dump_history(history: Sequence[Attempt], known: int, offset: float) -> str:
    """Write a history down; what follows the first `known` attempts is on the leases' axis: translated."""
    if not history:
        return ""
    rows: list[list[Any]] = []
    for index, each in enumerate(history):
        shift = 0.0 if index < known else offset
        row = [each.number, each.outcome, each.started_at + shift, each.ended_at + shift]
        rows.append(row if each.error is None else [*row, each.error])
    return json.dumps(rows)


def load_history(text: str) -> tuple[Attempt, ...]:
    """Read a history; one that is damaged is none, as the item matters more."""
    if not text:
        return ()
    try:
        return tuple(Attempt(*row) for row in json.loads(text))
    except (ValueError, TypeError):
        return ()
