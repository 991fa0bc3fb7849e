"""What can be seen of a store's queues without changing them; each call is part of a transaction."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fray_queue._items import Taken
from fray_queue._sqlite.rows import QueueRow, load_history, seq_of
from fray_queue._sqlite.schema import DEAD, HELD, RETURNED
from fray_queue._sqlite.store import DEADLINE, QueueStore
from fray_queue._sqlite.takeable import FRESH_PLAIN, FRESH_SPECIAL

# Of a row whose lease or delay ran out by ?3: it is given up. `lease_machine.is_over`, in SQL.
_OVER = f"(lease_id <> '' AND attempt >= ?1 OR {DEADLINE} <= ?3)"


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """How many items of a queue are where."""

    size: int
    pending: int
    in_flight: int  # leased, or delayed
    dead: int
    bytes: int


def counts(store: QueueStore, queue: QueueRow) -> QueueCounts:
    """Count a queue's items, at the same cost at any depth."""
    back = over = late = 0
    execute: Callable[..., Any] = store.file.connection.execute
    now = store.file.clock.now()
    if queue.held and now >= queue.earliest:
        ((back, over),) = execute(
            f"SELECT count(*) FILTER (WHERE NOT {_OVER}), count(*) FILTER (WHERE {_OVER}) FROM leases "
            f"WHERE queue = ?2 AND state = {HELD} AND until <= ?3",
            (queue.most_attempts, queue.number, now),
        ).fetchall()
    if queue.special and now >= queue.earliest:
        late = execute(
            f"SELECT count(*) FROM leases WHERE queue = ? AND state = {RETURNED} AND deadline <= ?",
            (queue.number, now),
        ).get
    pending = queue.fresh + queue.returned - late + back
    size = queue.live - over - late
    return QueueCounts(size, pending, size - pending, queue.dead + over + late, queue.bytes)


def peek(store: QueueStore, queue: QueueRow) -> Taken | None:
    """Return the item that a pop would lease."""
    execute: Callable[..., Any] = store.file.connection.execute
    now = store.file.clock.now()
    heads: list[tuple[int, int]] = []  # the lower comes first
    if queue.returned:
        heads += execute(
            f"SELECT -priority, id FROM leases WHERE queue = ? AND state = {RETURNED} "
            f"AND {DEADLINE} > ? ORDER BY priority DESC, id LIMIT 1",
            (queue.number, now),
        ).fetchall()
    if queue.held:
        heads += execute(
            f"SELECT -priority, id FROM leases WHERE queue = ?2 AND state = {HELD} AND until <= ?3 "
            f"AND NOT {_OVER} ORDER BY priority DESC, id LIMIT 1",
            (queue.most_attempts, queue.number, now),
        ).fetchall()
    if (first := first_fresh(store, queue)) is not None:
        heads.append((0, first))
    if not heads:
        return None
    row = min(heads)[1]
    ((item_id, payload),) = execute("SELECT item_id, payload FROM items WHERE id = ?", (row,)).fetchall()
    return Taken(queue.item_id(seq_of(row), item_id), "", 0.0, 0.0, 0, payload, seq_of(row))


def first_fresh(store: QueueStore, queue: QueueRow) -> int | None:
    """Return the row of the first fresh item."""
    if not queue.fresh:
        return None
    found: list[Any] = store.file.connection.execute(
        FRESH_SPECIAL if queue.special else FRESH_PLAIN,
        (queue.base + queue.cursor, queue.base + queue.pushed, 1),
    ).fetchall()
    row: int = found[0][0]
    return row


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
        f"SELECT id, item_id, {what}, attempt, history, bytes, deadline FROM leases JOIN items USING (id) "
        f"WHERE queue = ? AND state = {DEAD} AND id > ? ORDER BY id",
        (queue.number, queue.base + after),
    )
    found: list[Taken] = []
    size = 0
    try:
        for row, given, payload, attempt, history, length, deadline in cursor:
            if len(found) == most or (most_bytes is not None and size >= most_bytes):
                return found, True
            seq = seq_of(row)
            letter = Taken(queue.item_id(seq, given), "", 0.0, 0.0, attempt, payload, seq)
            letter.history, letter.size = load_history(history), length
            letter.expired = deadline is not None
            found.append(letter)
            size += length
    finally:
        cursor.close()
    return found, False


def next_change(store: QueueStore, queue: QueueRow) -> float | None:
    """Return the seconds until an item may become takeable by itself; None when none is held."""
    if not queue.held and not queue.special:
        return None
    change = store.next_change(queue)
    return None if change is None else change - store.file.clock.now()


def oldest(store: QueueStore, queue: QueueRow) -> float | None:
    """Return when the item was pushed that has been here longest; None when there is none."""
    rows: list[Any] = store.file.connection.execute(
        f"SELECT id FROM leases WHERE id > ? AND id <= ? AND state <> {DEAD} ORDER BY id LIMIT 1",
        (queue.base, queue.base + queue.pushed),
    ).fetchall()
    first = first_fresh(store, queue)
    row = min([*(row for (row,) in rows), *([] if first is None else [first])], default=None)
    if row is None:
        return None
    at: float = store.file.connection.execute("SELECT pushed_at FROM items WHERE id = ?", (row,)).get
    return at
