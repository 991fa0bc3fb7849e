"""Which rows of a queue may be leased, in line."""

import contextlib
from collections.abc import Callable, Generator, Iterator
from typing import Any

from fray.backend import LeaseState
from fray_queue._sqlite.rows import STATE, QueueRow, seq_of, state_of
from fray_queue._sqlite.schema import RETURNED

Execute = Callable[..., Any]
Takeable = tuple[int, str | None, bytes, float, LeaseState | None, bool]
"""A row that may be leased: its id, item id, payload, push, state, and whether an answer may be wanted."""
FRESH_PLAIN = "SELECT id, item_id, payload, pushed_at FROM items WHERE id > ? AND id <= ? ORDER BY id LIMIT ?"
FRESH_SPECIAL = (
    "SELECT id, item_id, payload, pushed_at FROM items WHERE id > ? AND id <= ? "
    "AND NOT EXISTS (SELECT 1 FROM leases WHERE leases.id = items.id) ORDER BY id LIMIT ?"
)


def takeable(execute: Execute, queue: QueueRow, n: int) -> Iterator[Takeable]:
    """Yield rows in line, a few at a time: they are changed meanwhile, and payloads may be large."""
    if not queue.returned:
        yield from _fresh(execute, queue, n)
        return
    # Rows of plain items that were never leased have priority 0, and their place among the others.
    heads = execute(
        f"SELECT id, priority FROM leases WHERE queue = ? AND state = {RETURNED} "
        "ORDER BY priority DESC, id LIMIT ?",
        (queue.number, n),
    ).fetchall()
    fresh = _fresh(execute, queue, n)
    with contextlib.closing(fresh):
        plain = next(fresh, None)
        for row, priority in heads:
            while plain is not None and n and (0, -plain[0]) > (priority, -row):
                n -= 1
                yield plain
                plain = next(fresh, None)
            if not n:
                return
            n -= 1
            yield _returned(execute, row)
        while plain is not None and n:
            n -= 1
            yield plain
            plain = next(fresh, None)


def _returned(execute: Execute, row: int) -> Takeable:
    (found,) = execute(
        f"SELECT item_id, payload, pushed_at, {STATE}, reply_ttl, key FROM leases JOIN items USING (id) "
        "WHERE id = ?",
        (row,),
    ).fetchall()
    item_id, payload, pushed_at, *state, reply_ttl, key = found
    return row, item_id, payload, pushed_at, state_of(*state), reply_ttl is not None or key is not None


def _fresh(execute: Execute, queue: QueueRow, n: int) -> Generator[Takeable, None, None]:
    """Yield fresh items."""
    if not n or not queue.fresh:
        return
    cursor = execute(
        FRESH_SPECIAL if queue.special else FRESH_PLAIN,
        # With no more than there are, none is looked for behind the last.
        (queue.base + queue.cursor, queue.base + queue.pushed, min(n, queue.fresh)),
    )
    try:
        for row, item_id, payload, pushed_at in cursor:
            # What is before it is leased by now, or in `leases`: it is not walked again.
            queue.cursor, queue.changed = seq_of(row) - 1, True
            yield row, item_id, payload, pushed_at, None, False
    finally:
        cursor.close()
