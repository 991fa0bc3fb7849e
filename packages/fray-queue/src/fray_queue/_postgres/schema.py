"""The tables and functions in a database: made, brought up to this release, or refused."""

import re
from functools import cache
from importlib.resources import files
from typing import Any

import psycopg

from fray_queue._checks import KEPT_AFTER_FETCH, MOST_DEAD
from fray_queue._errors import AccessRefusedError, QueueVersionError
from fray_queue._postgres.connection import TimedConnection

VERSION = 8
UPGRADES = {
    1: "ALTER TABLE fray.items ADD COLUMN pushed_at double precision",
    2: "ALTER TABLE fray.items ADD COLUMN due double precision; "
    "UPDATE fray.items SET due = CASE state WHEN 1 THEN until ELSE deadline END WHERE state < 2; "
    "DROP INDEX fray.items_held, fray.items_dated; DROP TABLE fray.waiters; "
    "ALTER TABLE fray.queues ADD COLUMN waited_until timestamptz; "
    "CREATE INDEX items_due ON fray.items (queue, due) WHERE due IS NOT NULL",
    3: "",  # other functions alone
    4: "",
    5: "",
    6: "",
    7: "",
}
"""Version -> statements that make the tables of the next of it; the functions are always created again."""
_FUNCTIONS = ("counts", "items", "queues", "push", "take", "settle", "answers", "operate", "rights")
LOCK = 0x46725131  # "FrQ1": of the advisory locks that are taken for a queue
_UPGRADE_SECONDS = 6 * 3600.0  # it may write every row; given up half-way, it would begin again
_MAKING = 0x4672_5131_0000_0001  # of the one that is held while the schema is made


@cache
def statements(name: str, version: int) -> str:
    """Return a file of statements, for a version of the store."""
    text, before = _text(name), ""
    while text != before:  # a part may have parts
        before, text = text, re.sub(r"^@([A-Z]+)(?: (.*))?@\n", _part, text, flags=re.MULTILINE)
    texts = {"@VERSION@": version, "@V@": version, "@LOCK@": LOCK, "@MOST_DEAD@": MOST_DEAD}
    for mark, value in {**texts, "@KEPT@": KEPT_AFTER_FETCH}.items():
        text = text.replace(mark, str(value))
    return text


def _part(mark: re.Match[str]) -> str:
    """Return the text of call.sql that a mark stands for, with what the mark gives for its names."""
    found = re.search(rf"^-- @{mark[1]}(?: (.*))?@\n((?:(?!-- @).*\n)*)", _text("call"), re.MULTILINE)
    assert found is not None, mark[0]
    names, values = (text.split("; ") if text else [] for text in (found[1], mark[2]))
    text = found[2].rstrip("\n") + "\n"
    for name, value in zip(names, values, strict=True):
        text = text.replace(f"{{{name}}}", value)
    return text


def _text(name: str) -> str:
    return (files("fray_queue._postgres") / "sql" / f"{name}.sql").read_text(encoding="utf-8")


def prepare(connection: TimedConnection) -> None:
    """See that the database has the tables of this version.

    Raises:
        QueueVersionError: It has those of a newer release.
        AccessRefusedError: They are to be made, and the user may not.
    """
    if found_version(connection) == VERSION:
        return
    usual, connection.seconds = connection.seconds, _UPGRADE_SECONDS
    try:
        _make(connection)
    finally:
        connection.seconds = usual


def are_there(connection: TimedConnection) -> bool:
    """Return whether the database has tables; makes none, and upgrades those of an earlier version.

    Raises:
        QueueVersionError: It has those of a newer release.
        AccessRefusedError: They are to be upgraded, and the user may not.
    """
    found = found_version(connection)
    if found is not None:
        prepare(connection)
    return found is not None


def _make(connection: TimedConnection) -> None:
    try:
        with connection.transaction():
            for bound in ("statement_timeout", "lock_timeout"):  # of the user, for calls
                connection.execute(f"SET LOCAL {bound} = 0")
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [_MAKING])
            found = found_version(connection)  # another program may have made them meanwhile
            if found is None:
                connection.execute(statements("tables", VERSION))
                _make_functions(connection)
            elif found != VERSION:
                _upgrade(connection, found)
    except psycopg.errors.InsufficientPrivilege as error:
        raise AccessRefusedError(
            f"this database has no queues of version {VERSION} yet, and this user may not make them "
            f"({error.diag.message_primary}); open a queue once as a user who may create a schema"
        ) from None


def found_version(connection: psycopg.Connection[Any]) -> int | None:
    """Return the version of the tables; None where there are none."""
    row = connection.execute("SELECT to_regclass('fray.store') IS NOT NULL").fetchone()
    if row is None or not row[0]:
        return None
    row = connection.execute("SELECT version FROM fray.store").fetchone()
    return None if row is None else int(row[0])


def _make_functions(connection: psycopg.Connection[Any]) -> None:
    for name in _FUNCTIONS:  # those of LANGUAGE sql after what they call
        connection.execute(statements(name, VERSION))


def _upgrade(connection: psycopg.Connection[Any], found: int) -> None:
    if not all(version in UPGRADES for version in range(found, VERSION)) or found > VERSION:
        raise QueueVersionError(
            f"the queues in this database are of version {found}, and this fray-queue reads version "
            f"{VERSION}; use one release for all programs, the newest first for a moment: it upgrades them"
        )
    for version in range(found, VERSION):
        connection.execute(UPGRADES[version])
    connection.execute(
        "DO $$ DECLARE f regprocedure; BEGIN "
        "FOR f IN SELECT p.oid FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace "
        "WHERE n.nspname = 'fray' LOOP EXECUTE 'DROP FUNCTION ' || f; END LOOP; END $$"
    )
    _make_functions(connection)
    connection.execute("SELECT fray.grant_rights(kind, role) FROM fray.rights")
    connection.execute("UPDATE fray.store SET version = %s", [VERSION])
