"""The answers that a store keeps until they are fetched; each call is part of a transaction."""

from collections.abc import Sequence
from typing import Any

from fray.queue import Reply
from fray_queue._checks import KEPT_AFTER_FETCH
from fray_queue._items import EncodedReply
from fray_queue._sqlite.queue_table import QueueTable
from fray_queue._sqlite.rows import QueueRow
from fray_queue._sqlite.schema import DEAD, HELD, RETURNED
from fray_queue._sqlite.working import WorkingStore


def put(
    store: WorkingStore, queue: QueueRow, row: int, answer: EncodedReply, reply_ttl: float, askers: int
) -> None:
    """Keep the answer to an item for `reply_ttl` seconds."""
    now = store.file.clock.now()
    drop(store, queue, now)
    outcome, payload = answer
    store.file.connection.execute(
        "INSERT OR REPLACE INTO replies VALUES (?, ?, ?, ?, ?, ?)",
        (row, queue.number, outcome, payload, now + reply_ttl, askers),
    )
    queue.bytes += len(payload)
    queue.changed = True
    store.note_reply(queue, row)


def drop(store: QueueTable | WorkingStore, queue: QueueRow, now: float) -> None:
    """Drop the answers whose time is over."""
    sizes: list[Any] = store.file.connection.execute(
        "DELETE FROM replies WHERE queue = ? AND until <= ? RETURNING length(payload)", (queue.number, now)
    ).fetchall()
    _count_off(queue, sizes)


def drop_everywhere(store: QueueTable, now: float) -> None:
    """Drop the answers of all queues whose time is over."""
    for queue in store.queues():
        if queue.special:
            drop(store, queue, now)


def forget(store: WorkingStore, queue: QueueRow, rows: Sequence[int]) -> None:
    """Take answers back: their items are in line again."""
    for row in rows:
        sizes: list[Any] = store.file.connection.execute(
            "DELETE FROM replies WHERE id = ? RETURNING length(payload)", (row,)
        ).fetchall()
        _count_off(queue, sizes)


def _count_off(queue: QueueRow, sizes: Sequence[Any]) -> None:
    if sizes:
        queue.bytes -= sum(size for (size,) in sizes)
        queue.changed = True


def fetch(
    store: WorkingStore,
    queue: QueueRow,
    item_ids: Sequence[str],
    *,
    most_bytes: int | None = None,
    again: bool = False,
) -> list[Reply]:
    """Return what became of items, those under way left out; an answer stays a minute for its last asker.

    Args:
        most_bytes: Where to stop; the next call returns the others.
        again: Whether this is the repetition of a call whose result was lost: it is no other asker's.
    """
    now = store.file.clock.now()
    store.sweep(queue, now)
    if queue.special:
        drop(store, queue, now)
    found: list[Reply] = []
    size = 0
    for item_id in item_ids:
        if most_bytes is not None and size >= most_bytes:
            break
        reply = look(store, queue, item_id)
        if reply is not None:
            found.append(reply)
            size += len(reply.payload or b"")
            if reply.outcome in ("value", "error") and not again:
                _note_fetched(store, queue, queue.base + (queue.seq_of_item(item_id) or 0), now)
    return found


def _note_fetched(store: WorkingStore, queue: QueueRow, row: int, now: float) -> None:
    store.file.connection.execute(
        "UPDATE replies SET askers = askers - 1, "
        "until = CASE WHEN askers <= 1 THEN min(until, ?) ELSE until END WHERE id = ? AND queue = ?",
        (now + KEPT_AFTER_FETCH, row, queue.number),
    )


def look(store: WorkingStore, queue: QueueRow, item_id: str) -> Reply | None:
    """Return what became of an item, as it was swept last; None while it is under way."""
    seq = queue.seq_of_item(item_id)
    if seq is None:
        return Reply(item_id, "gone")
    row = queue.base + seq
    execute: Any = store.file.connection.execute
    kept = execute(
        "SELECT outcome, payload FROM replies WHERE id = ? AND queue = ? AND until > ?",
        (row, queue.number, store.file.clock.now()),
    ).fetchall()
    if kept:
        ((outcome, payload),) = kept
        return Reply(item_id, outcome, payload)
    state = execute(
        "SELECT state, deadline FROM leases WHERE id = ? AND queue = ?", (row, queue.number)
    ).fetchall()
    if state:
        ((number, deadline),) = state
        if number != DEAD:
            return None
        return Reply(item_id, "dead" if deadline is None else "expired")
    there = execute("SELECT 1 FROM items WHERE id = ?", (row,)).get
    return None if there else Reply(item_id, "gone")


def is_settled(store: WorkingStore, queue: QueueRow, item_ids: Sequence[str]) -> bool:
    """Return whether `fetch` would return something; writes nothing."""
    return any(look(store, queue, item_id) or _is_over(store, queue, item_id) for item_id in item_ids)


def _is_over(store: WorkingStore, queue: QueueRow, item_id: str) -> bool:
    """Return whether the next sweep gives an item up."""
    now = store.file.clock.now()
    over = store.file.connection.execute(
        "SELECT 1 FROM leases WHERE id = ?1 AND queue = ?4 AND ("
        f"  state = {RETURNED} AND deadline <= ?2 "
        f"  OR state = {HELD} AND until <= ?2 AND (deadline <= ?2 OR lease_id <> '' AND attempt >= ?3))",
        (queue.base + (queue.seq_of_item(item_id) or 0), now, queue.most_attempts, queue.number),
    ).get
    return bool(over)
