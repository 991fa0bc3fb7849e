"""The tables of a store.

An item is one row of `items`, written once and never changed: a lease does not rewrite a payload. Items that
were never leased have nothing else; they are those behind their queue's `cursor`, in line. An item that was
leased has a row in `leases`, with what changes. A row's id is its queue's number and its place in line.
"""

from typing import Any

import apsw

APPLICATION_ID = 0x46725131  # "FrQ1", in the header of the file
VERSION = 2  # 1 was the journal of the first release, a file of another name
SEQ_BITS = 44
LAST_NUMBER = (1 << (63 - SEQ_BITS)) - 1  # row ids have 63 bits

RETURNED, HELD, DEAD = 0, 1, 2
"""States of a row of `leases`: takeable; leased or delayed until `until`; given up."""

SCHEMA = f"""
CREATE TABLE store (only INTEGER PRIMARY KEY CHECK (only = 1), version INTEGER NOT NULL, axis TEXT NOT NULL)
    STRICT;
CREATE TABLE queues (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, tag TEXT NOT NULL, max_attempts INTEGER,
    pushed INTEGER NOT NULL, cursor INTEGER NOT NULL, returned INTEGER NOT NULL, held INTEGER NOT NULL,
    dead INTEGER NOT NULL, bytes INTEGER NOT NULL, seen REAL NOT NULL
) STRICT;
CREATE TABLE items (id INTEGER PRIMARY KEY, item_id TEXT, pushed_at REAL NOT NULL, payload BLOB NOT NULL)
    STRICT;
CREATE TABLE leases (
    id INTEGER PRIMARY KEY, queue INTEGER NOT NULL, state INTEGER NOT NULL, attempt INTEGER NOT NULL,
    lease_id TEXT NOT NULL, leased_at REAL NOT NULL, until REAL NOT NULL, history TEXT NOT NULL,
    bytes INTEGER NOT NULL
) STRICT;
CREATE INDEX leases_returned ON leases (queue) WHERE state = {RETURNED};
CREATE INDEX leases_held ON leases (queue, until) WHERE state = {HELD};
CREATE INDEX leases_dead ON leases (queue) WHERE state = {DEAD};
CREATE TABLE answers (slot TEXT PRIMARY KEY, number INTEGER NOT NULL, at REAL NOT NULL, reply TEXT NOT NULL)
    STRICT;
"""


def create(connection: apsw.Connection, axis: str) -> None:
    """Make the tables, in the transaction that is open."""
    connection.execute(SCHEMA)
    connection.execute("INSERT INTO store VALUES (1, ?, ?)", (VERSION, axis))
    connection.pragma("application_id", APPLICATION_ID)


def check(connection: apsw.Connection, path: str) -> bool:
    """Return whether the tables are there.

    Raises:
        ValueError: The file is another program's database, or a store of another version.
    """
    if connection.pragma("application_id") != APPLICATION_ID:
        tables = [
            name for (name,) in _rows(connection, "SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        if tables:
            raise ValueError(
                f"{path!r} is a database of something else: it has a table {min(tables)!r}; "
                "give the queue a file of its own"
            )
        return False
    ((version,),) = _rows(connection, "SELECT version FROM store")
    if version != VERSION:
        raise ValueError(
            f"{path!r} is a store of version {version}, and this release reads version {VERSION}; "
            "use the release that wrote it to empty it, or a newer one"
        )
    return True


def _rows(connection: apsw.Connection, sql: str) -> list[tuple[Any, ...]]:
    return connection.execute(sql).fetchall()
