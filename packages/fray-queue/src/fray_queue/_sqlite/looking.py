"""What can be seen of a store's queues without changing them; each call is part of a transaction."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fray_queue._sqlite.rows import QueueRow, Taken, load_history, seq_of
from fray_queue._sqlite.schema import DEAD, HELD, RETURNED
from fray_queue._sqlite.store import QueueStore

_NO_LIMIT = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Counts:
    """How many items of a queue are where."""

    size: int
    pending: int
    in_flight: int  # leased, or delayed
    dead: int
    bytes: int


def counts(store: QueueStore, queue: QueueRow) -> Counts:
    """Count a queue's items, at the same cost at any depth."""
    back = over = 0
    if queue.held and store.file.clock.now() >= queue.earliest:
        most = queue.max_attempts or _NO_LIMIT
        execute: Callable[..., Any] = store.file.connection.execute
        ((back, over),) = execute(
            "SELECT count(*) FILTER (WHERE lease_id = '' OR attempt < ?1), "
            "count(*) FILTER (WHERE lease_id <> '' AND attempt >= ?1) FROM leases "
            f"WHERE queue = ?2 AND state = {HELD} AND until <= ?3",
            (most, queue.number, store.file.clock.now()),
        ).fetchall()
    pending = queue.fresh + queue.returned + back
    size = queue.live - over
    return Counts(size, pending, size - pending, queue.dead + over, queue.bytes)


def peek(store: QueueStore, queue: QueueRow) -> Taken | None:
    """Return the item that a pop would lease."""
    execute: Callable[..., Any] = store.file.connection.execute
    rows: list[int] = []
    if queue.returned:
        rows += execute(
            f"SELECT id FROM leases WHERE queue = ? AND state = {RETURNED} ORDER BY id LIMIT 1",
            (queue.number,),
        ).fetchall()[0]
    if queue.held:
        over = execute(
            f"SELECT min(id) FROM leases WHERE queue = ? AND state = {HELD} AND until <= ? "
            "AND (lease_id = '' OR attempt < ?)",
            (queue.number, store.file.clock.now(), queue.max_attempts or _NO_LIMIT),
        ).get
        rows += [over] if over is not None else []
    if not rows and queue.fresh:
        rows.append(queue.base + queue.cursor + 1)
    if not rows:
        return None
    row = min(rows)
    ((item_id, payload),) = execute("SELECT item_id, payload FROM items WHERE id = ?", (row,)).fetchall()
    return Taken(queue.item_id(seq_of(row), item_id), "", 0.0, 0.0, 0, payload, seq_of(row))


def dead(
    store: QueueStore, queue: QueueRow, *, after: int = 0, most: int = -1, most_bytes: int | None = None
) -> tuple[list[Taken], bool]:
    """Return the dead behind a place in line, and whether there are more.

    Args:
        most: How many at most; -1 for all.
        most_bytes: Where to stop; None leaves the payloads unread.
    """
    what = "payload" if most_bytes is not None else "x''"
    cursor = store.file.connection.execute(
        f"SELECT id, item_id, {what}, attempt, history, bytes FROM leases JOIN items USING (id) "
        f"WHERE queue = ? AND state = {DEAD} AND id > ? ORDER BY id",
        (queue.number, queue.base + after),
    )
    found: list[Taken] = []
    size = 0
    try:
        for row, given, payload, attempt, history, length in cursor:
            if len(found) == most or (most_bytes is not None and size >= most_bytes):
                return found, True
            seq = seq_of(row)
            letter = Taken(queue.item_id(seq, given), "", 0.0, 0.0, attempt, payload, seq)
            letter.history, letter.size = load_history(history), length
            found.append(letter)
            size += length
    finally:
        cursor.close()
    return found, False


def next_change(store: QueueStore, queue: QueueRow) -> float | None:
    """Return the seconds until an item may become takeable by itself; None when none is held."""
    if not queue.held:
        return None
    until: Any = store.file.connection.execute(
        f"SELECT min(until) FROM leases WHERE queue = ? AND state = {HELD}", (queue.number,)
    ).get
    return None if until is None else until - store.file.clock.now()


def oldest(store: QueueStore, queue: QueueRow) -> float | None:
    """Return when the item was pushed that has been here longest; None when there is none."""
    rows: list[Any] = store.file.connection.execute(
        f"SELECT id FROM leases WHERE id > ? AND id <= ? AND state <> {DEAD} ORDER BY id LIMIT 1",
        (queue.base, queue.base + queue.cursor),
    ).fetchall()
    if rows:
        row = rows[0][0]
    elif queue.fresh:
        row = queue.base + queue.cursor + 1
    else:
        return None
    at: float = store.file.connection.execute("SELECT pushed_at FROM items WHERE id = ?", (row,)).get
    return at
