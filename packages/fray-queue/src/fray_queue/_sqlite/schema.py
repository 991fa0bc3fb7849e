"""The tables of a store.

An item is one row of `items`, written once and never changed: a lease does not rewrite a payload. Plain items
that were never leased have nothing else; they are behind their queue's `cursor`, in line. An item that was
leased, or pushed with options or behind such an item, has a row in `leases`, with what changes. A row's id is
its queue's number and its place in line. An answer that waits for its asker is a row of `replies`, under the
id of its item.
"""

from typing import Any

import apsw

from fray_queue._checks import MOST_DEAD

APPLICATION_ID = 0x46725131  # "FrQ1", in the header of the file
VERSION = 3  # 1 was the journal of the first release, a file of another name
_BEFORE = 2  # the version that `migrate` begins with: without options and answers
SEQ_BITS = 44
LAST_NUMBER = (1 << (63 - SEQ_BITS)) - 1  # row ids have 63 bits

RETURNED, HELD, DEAD = 0, 1, 2
"""States of a row of `leases`: takeable; leased or delayed until `until`; given up."""

_INDEXES = f"""
CREATE INDEX leases_returned ON leases (queue, priority DESC) WHERE state = {RETURNED};
CREATE INDEX leases_held ON leases (queue, until) WHERE state = {HELD};
CREATE INDEX leases_dead ON leases (queue) WHERE state = {DEAD};
CREATE INDEX leases_dated ON leases (queue, deadline) WHERE state = {RETURNED} AND deadline IS NOT NULL;
CREATE UNIQUE INDEX leases_key ON leases (queue, key) WHERE key IS NOT NULL;
"""
_REPLIES = """
CREATE TABLE replies (
    id INTEGER PRIMARY KEY, queue INTEGER NOT NULL, outcome TEXT NOT NULL, payload BLOB NOT NULL,
    until REAL NOT NULL, askers INTEGER NOT NULL
) STRICT;
CREATE INDEX replies_until ON replies (queue, until);
"""
SCHEMA = f"""
CREATE TABLE store (only INTEGER PRIMARY KEY CHECK (only = 1), version INTEGER NOT NULL, axis TEXT NOT NULL)
    STRICT;
CREATE TABLE queues (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, tag TEXT NOT NULL, max_attempts INTEGER,
    pushed INTEGER NOT NULL, cursor INTEGER NOT NULL, returned INTEGER NOT NULL, held INTEGER NOT NULL,
    dead INTEGER NOT NULL, bytes INTEGER NOT NULL, seen REAL NOT NULL, fresh INTEGER NOT NULL DEFAULT 0,
    max_size INTEGER, max_dead INTEGER NOT NULL DEFAULT {MOST_DEAD}, dropped INTEGER NOT NULL DEFAULT 0,
    special INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE items (id INTEGER PRIMARY KEY, item_id TEXT, pushed_at REAL NOT NULL, payload BLOB NOT NULL)
    STRICT;
CREATE TABLE leases (
    id INTEGER PRIMARY KEY, queue INTEGER NOT NULL, state INTEGER NOT NULL, attempt INTEGER NOT NULL,
    lease_id TEXT NOT NULL, leased_at REAL NOT NULL, until REAL NOT NULL, history TEXT NOT NULL,
    bytes INTEGER NOT NULL, priority INTEGER NOT NULL DEFAULT 0, deadline REAL, key TEXT, reply_ttl REAL,
    askers INTEGER
) STRICT;
CREATE TABLE answers (slot TEXT PRIMARY KEY, number INTEGER NOT NULL, at REAL NOT NULL, reply TEXT NOT NULL)
    STRICT;
{_INDEXES}
{_REPLIES}
"""
_MIGRATION = f"""
ALTER TABLE queues ADD COLUMN fresh INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queues ADD COLUMN max_size INTEGER;
ALTER TABLE queues ADD COLUMN max_dead INTEGER NOT NULL DEFAULT {MOST_DEAD};
ALTER TABLE queues ADD COLUMN dropped INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queues ADD COLUMN special INTEGER NOT NULL DEFAULT 0;
UPDATE queues SET fresh = pushed - cursor;
ALTER TABLE leases ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
ALTER TABLE leases ADD COLUMN deadline REAL;
ALTER TABLE leases ADD COLUMN key TEXT;
ALTER TABLE leases ADD COLUMN reply_ttl REAL;
ALTER TABLE leases ADD COLUMN askers INTEGER;
DROP INDEX leases_returned;
DROP INDEX leases_held;
DROP INDEX leases_dead;
{_INDEXES}
{_REPLIES}
UPDATE store SET version = {VERSION};
"""


def create(connection: apsw.Connection, axis: str) -> None:
    """Make the tables, in the transaction that is open."""
    connection.execute(SCHEMA)
    connection.execute("INSERT INTO store VALUES (1, ?, ?)", (VERSION, axis))
    connection.pragma("application_id", APPLICATION_ID)


def is_store(connection: apsw.Connection, path: str) -> bool:
    """Return whether a file is a store; False where it is empty. Nothing is changed.

    Raises:
        ValueError: The file is another program's database.
    """
    # Before the id: another process makes both in one transaction, which may come between the two looks.
    tables = [name for (name,) in _rows(connection, "SELECT name FROM sqlite_master WHERE type = 'table'")]
    if connection.pragma("application_id") == APPLICATION_ID:
        return True
    if tables:
        raise ValueError(
            f"{path!r} is a database of something else: it has a table {min(tables)!r}; "
            "give the queue a file of its own"
        )
    return False


def check(connection: apsw.Connection, path: str) -> bool:
    """Return whether the tables are there; those of the version before are brought up to this one.

    A process of the release before that has the file open gets errors from then on, and changes nothing.

    Raises:
        ValueError: The file is another program's database, or a store of another version.
    """
    if not is_store(connection, path):
        return False
    ((version,),) = _rows(connection, "SELECT version FROM store")
    if version == _BEFORE:
        connection.execute(_MIGRATION)
    elif version != VERSION:
        raise ValueError(
            f"{path!r} is a store of version {version}, and this release reads version {VERSION}; "
            "use the release that wrote it to empty it, or a newer one"
        )
    return True


def _rows(connection: apsw.Connection, sql: str) -> list[tuple[Any, ...]]:
    return connection.execute(sql).fetchall()
