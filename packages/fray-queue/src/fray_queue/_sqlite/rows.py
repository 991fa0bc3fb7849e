"""Rows of a store as Python has them."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fray.backend import LeaseState
from fray.queue import Attempt
from fray_queue._sqlite.schema import DEAD, HELD, RETURNED, SEQ_BITS

_SEQ_MASK = (1 << SEQ_BITS) - 1


@dataclass(slots=True)
class QueueRow:
    """One queue: its settings, its line and its counters.

    Args:
        tag: Begins the ids of its items, so that no other queue's are the same.
        pushed: The place in line of the newest item.
        cursor: The place of the newest item that was ever leased; all behind it are fresh.
        bytes: Size of all payloads, of dead items too.
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
    changed: bool = False
    earliest: float = -math.inf

    @property
    def base(self) -> int:
        """What the ids of its rows are above."""
        return self.number << SEQ_BITS

    @property
    def fresh(self) -> int:
        """How many items were never leased."""
        return self.pushed - self.cursor

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

    def item_id(self, seq: int, given: str | None) -> str:
        """Return an item's id: what its pusher gave, or one made of its place in line."""
        return given if given is not None else f"{self.tag}-{seq}"


@dataclass(slots=True)
class Taken:
    """One item with its state, as a queue or a server hands it on. Times are seconds since the epoch."""

    item_id: str
    lease_id: str
    leased_at: float
    until: float
    attempt: int
    payload: bytes
    seq: int = 0
    history: tuple[Attempt, ...] = ()
    size: int = 0  # of the payload, where that was not read


def seq_of(row: int) -> int:
    """Return the place in line that a row's id names."""
    return row & _SEQ_MASK


def lease_id_of(seq: int, token: str) -> str:
    """Return a lease's id, which says where its item is."""
    return f"{seq:x}.{token}"


def seq_of_lease(lease_id: str) -> int | None:
    """Return the place in line of a lease's item; None for an id that no store gave."""
    try:
        seq = int(lease_id.partition(".")[0], 16)
    except ValueError:
        return None
    return seq if 0 < seq <= _SEQ_MASK else None


def state_number(state: LeaseState) -> int:
    """Return the number by which a row says where its item is."""
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
