"""The dead letters of a queue; each call is part of a transaction."""

from collections.abc import Sequence
from typing import Any

from fray_queue._sqlite import replies
from fray_queue._sqlite.rows import QueueRow, seq_of
from fray_queue._sqlite.schema import DEAD, RETURNED
from fray_queue._sqlite.working import WorkingStore


def requeue(store: WorkingStore, queue: QueueRow, item_ids: Sequence[str] | None) -> int:
    """Put the dead back in line; see `QueueStore.requeue`."""
    rows = _rows(store, queue, item_ids)
    store.file.connection.executemany(
        f"UPDATE leases SET state = {RETURNED}, attempt = 0, lease_id = '', until = 0, history = '', "
        "deadline = NULL WHERE id = ?",
        [(row,) for row in rows],
    )
    if queue.special:
        replies.forget(store, queue, rows)
    queue.count(DEAD, -len(rows))
    queue.count(RETURNED, len(rows))
    return len(rows)


def purge(store: WorkingStore, queue: QueueRow, item_ids: Sequence[str] | None) -> int:
    """Remove the dead; see `QueueStore.purge_dead`."""
    rows = _rows(store, queue, item_ids)
    _remove(store, queue, rows)
    return len(rows)


def drop_first(store: WorkingStore, queue: QueueRow, count: int) -> None:
    """Drop those that are first in line."""
    execute: Any = store.file.connection.execute
    ids = execute(
        f"SELECT id FROM leases WHERE queue = ? AND state = {DEAD} ORDER BY id LIMIT ?", (queue.number, count)
    ).fetchall()
    _remove(store, queue, [row for (row,) in ids])
    queue.dropped += len(ids)


def _remove(store: WorkingStore, queue: QueueRow, rows: Sequence[int]) -> None:
    execute: Any = store.file.connection.execute
    for row in rows:
        (size,) = execute("DELETE FROM leases WHERE id = ? RETURNING bytes", (row,)).fetchall()[0]
        execute("DELETE FROM items WHERE id = ?", (row,))
        queue.bytes -= size
    queue.count(DEAD, -len(rows))


def _rows(store: WorkingStore, queue: QueueRow, item_ids: Sequence[str] | None) -> list[int]:
    store.sweep(queue, store.file.clock.now())
    wanted = None if item_ids is None else set(item_ids)
    execute: Any = store.file.connection.execute
    found = execute(
        "SELECT id, item_id FROM leases JOIN items USING (id) "
        f"WHERE queue = ? AND state = {DEAD} ORDER BY id",
        (queue.number,),
    ).fetchall()
    return [row for row, given in found if wanted is None or queue.item_id(seq_of(row), given) in wanted]
