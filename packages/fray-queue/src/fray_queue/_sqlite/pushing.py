"""Pushes with options, and into queues with a bound; each call is part of a transaction."""

from collections.abc import Sequence
from typing import Any

from fray.backend import PushOptions, lease_machine
from fray_queue._checks import full_message
from fray_queue._errors import NoRoomError
from fray_queue._sqlite.rows import ASKED, OPTIONS, QueueRow, state_number
from fray_queue._sqlite.schema import HELD
from fray_queue._sqlite.working import WorkingStore


def push(
    store: WorkingStore,
    queue: QueueRow,
    records: Sequence[tuple[str | None, bytes]],
    options: PushOptions,
) -> list[str]:
    """Store payloads, all or none; see `QueueStore.push`."""
    store.sweep(queue, store.file.clock.now())  # what is over needs no room, and its key is free
    known = {key: row for key in options.keys or () if key is not None and (row := _find(store, queue, key))}
    check_room(queue, _count_new(len(records), options, known))
    if options.is_plain:
        return store.append(queue, records)
    ids = []
    for index, (_, payload) in enumerate(records):
        key = options.key_of(index)
        row = None if key is None else known.get(key)
        if row is None:
            row = _insert(store, queue, payload, key, options)
            if key is not None:
                known[key] = row
        elif options.reply_ttl:
            _ask_too(store, row, options.reply_ttl)
        ids.append(queue.item_id(row - queue.base, None))
    return ids


def check_room(queue: QueueRow, count: int) -> None:
    """Refuse more items than the queue has room for.

    Raises:
        NoRoomError: Says whether waiting would help.
    """
    most = queue.max_size
    if most is not None and queue.live + count > most and count:
        raise NoRoomError(full_message(queue.live, count, most), ever=count <= most, count=count)


def _count_new(count: int, options: PushOptions, known: dict[str, int]) -> int:
    keys = [key for key in options.keys or () if key is not None]
    return count - len(keys) + len(set(keys) - known.keys())


def _find(store: WorkingStore, queue: QueueRow, key: str) -> int | None:
    if not queue.special:
        return None
    row: int | None = store.file.connection.execute(
        "SELECT id FROM leases WHERE queue = ? AND key = ?", (queue.number, key)
    ).get
    return row


def _insert(
    store: WorkingStore, queue: QueueRow, payload: bytes, key: str | None, options: PushOptions
) -> int:
    clock = store.file.clock
    now = clock.now()
    state = lease_machine.pushed(options.delay, options.seconds, now)
    row = queue.base + queue.pushed + 1
    execute: Any = store.file.connection.execute
    execute("INSERT INTO items VALUES (?, NULL, ?, ?)", (row, now + clock.offset(), payload))
    execute(
        "INSERT INTO leases VALUES (?, ?, ?, 0, '', 0, ?, '', ?, ?, ?, ?, ?, ?)",
        (
            row,
            queue.number,
            state_number(state),
            state.until,
            len(payload),
            options.priority,
            None if options.ttl is None else state.deadline,
            key,
            options.reply_ttl or None,
            1 if options.reply_ttl else 0,
        ),
    )
    queue.pushed += 1
    queue.bytes += len(payload)
    queue.special |= OPTIONS | (ASKED if options.reply_ttl or key is not None else 0)
    queue.count(state_number(state), 1)
    if state_number(state) == HELD or options.ttl is not None:
        queue.earliest = min(queue.earliest, state.until or state.deadline, state.deadline)
    return row


def _ask_too(store: WorkingStore, row: int, reply_ttl: float) -> None:
    store.file.connection.execute(
        "UPDATE leases SET askers = askers + 1, reply_ttl = max(ifnull(reply_ttl, 0), ?) WHERE id = ?",
        (reply_ttl, row),
    )
