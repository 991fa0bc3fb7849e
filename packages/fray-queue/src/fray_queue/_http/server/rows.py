"""The rows of a journal: what is kept of each item, with a checksum."""

import json
import zlib
from dataclasses import dataclass, field
from typing import Any

from fray.queue import Attempt
from fray_queue._errors import DamagedError
from fray_queue._http.server.machine import DEAD, DELAYED, GONE, LEASED, WAITING, Entry

_PHASES = {phase.value: phase for phase in (WAITING, LEASED, DELAYED, DEAD)}
SCHEMA = """
CREATE TABLE meta (version INTEGER, commits INTEGER, items INTEGER);
CREATE TABLE queues (name TEXT PRIMARY KEY, number INTEGER, max_attempts INTEGER);
CREATE TABLE items (
    id INTEGER PRIMARY KEY, item_id TEXT, pushed_at REAL, payload BLOB, payload_crc INTEGER,
    state TEXT, state_crc INTEGER
);
CREATE TABLE slots (slot TEXT PRIMARY KEY, number INTEGER, at REAL, reply TEXT);
"""
INSERT = "INSERT INTO items VALUES (?, ?, ?, ?, ?, ?, ?)"
UPDATE = "UPDATE items SET state = ?, state_crc = ? WHERE id = ?"
DELETE = "DELETE FROM items WHERE id = ?"
_SEQ_BITS = 44  # an item's row id is its queue's number and its place in line
MOST_ATTEMPTS = (1 << 31) - 1
LAST_NUMBER = (1 << (63 - _SEQ_BITS)) - 1  # SQLite's row ids have 63 bits

Statement = tuple[str, tuple[Any, ...]]


@dataclass
class Stored:
    """What a journal held."""

    queues: dict[str, tuple[int, int | None]] = field(default_factory=dict)  # name -> number, max_attempts
    items: dict[int, list[Entry[bytes]]] = field(default_factory=dict)  # queue's number -> entries in line
    slots: dict[str, tuple[int, float, Any]] = field(default_factory=dict)


def statement_for(number: int, entry: Entry[bytes]) -> Statement:
    """Return what brings an entry's row up to date."""
    row = number << _SEQ_BITS | entry.seq
    if entry.phase is GONE:
        return DELETE, (row,)
    state = json.dumps(
        [
            entry.phase.value,
            entry.attempt,
            entry.grants,
            entry.lease_id,
            entry.leased_at,
            entry.until,
            [(each.number, each.outcome, each.started_at, each.ended_at) for each in entry.history],
        ]
    )
    crc = _crc(row, entry.item_id, state)
    if entry.grants == 0 and entry.phase is WAITING:
        payload = (entry.item_id, entry.pushed_at, entry.payload, zlib.crc32(entry.payload))
        return INSERT, (row, *payload, state, crc)
    return UPDATE, (state, crc, row)


def _crc(row: int, item_id: str, state: str) -> int:
    return zlib.crc32(f"{row} {item_id} {state}".encode())


def entry_of(
    row: int, item_id: str, pushed_at: float, payload: bytes, crc: int, state: str, state_crc: int
) -> Entry[bytes]:
    """Return the entry that a row keeps.

    Raises:
        DamagedError: The row is not what was written.
    """
    if zlib.crc32(payload) != crc or _crc(row, item_id, state) != state_crc:
        raise DamagedError(f"the store is damaged: item {item_id!r} has a wrong checksum")
    entry = Entry(row & ((1 << _SEQ_BITS) - 1), item_id, payload, pushed_at)
    phase, entry.attempt, entry.grants, entry.lease_id, entry.leased_at, entry.until, history = json.loads(
        state
    )
    entry.phase = _PHASES[phase]
    entry.history = tuple(Attempt(*attempt) for attempt in history)
    return entry


def queue_of(row: int) -> int:
    """Return the number of the queue that a row is of."""
    return row >> _SEQ_BITS
