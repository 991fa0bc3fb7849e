"""Calls of the queue's functions, prepared once and sent in binary: a cursor costs as much as the call."""

import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

import psycopg
from psycopg import generators
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus, Format

from fray_queue._postgres.connection import TimedConnection

_TYPES = {
    "i": ("int4", 23),
    "q": ("int8", 20),
    "d": ("float8", 701),
    "t": ("text", 25),
    "b": ("bytea", 17),
    "o": ("bool", 16),
}
_NUMBERS = {
    "i": struct.Struct("!i"),
    "q": struct.Struct("!q"),
    "d": struct.Struct("!d"),
    "o": struct.Struct("!?"),
}
_ARRAY, _EMPTY, _LENGTH = struct.Struct("!iiIii"), struct.Struct("!iiI"), struct.Struct("!i")
_OF_ROWS = {"pop", "peek", "dead", "fetch"}
_NULL = _LENGTH.pack(-1)


@cache
def statement(function: str, kinds: str) -> bytes:
    """Return the call of a function.

    Args:
        kinds: A letter for each argument: i, q, d, t, b and o are int4, int8, float8, text, bytea and bool;
            capitals are arrays of them.
    """
    casts = (_cast(kind, at) for at, kind in enumerate(kinds, 1))
    rows = "* FROM " if function.rpartition("_")[0] in _OF_ROWS else ""  # which costs a scan of the function
    return f"SELECT {rows}fray.{function}({', '.join(casts)})".encode()


def _cast(kind: str, at: int) -> str:
    name, _ = _TYPES[kind.lower()]
    return f"${at}::{name}{'[]' if kind.isupper() else ''}"


def call(
    connection: TimedConnection, function: str, kinds: str, values: Sequence[Any]
) -> list[tuple[Any, ...]]:
    """Call a function and return its rows.

    Raises:
        Error: The server refuses it.
    """
    text = statement(function, kinds)
    pgconn = connection.pgconn
    name = connection.prepared.get(text)
    if name is None:
        name = b"fray_%d" % len(connection.prepared)
        pgconn.send_prepare(name, text)
        _finish(connection, ExecStatus.COMMAND_OK)
        connection.prepared[text] = name
    pgconn.send_query_prepared(
        name,
        [_encoded(kind, value) for kind, value in zip(kinds, values, strict=True)],
        [Format.BINARY] * len(kinds),
        result_format=Format.BINARY,
    )
    result = _finish(connection, ExecStatus.TUPLES_OK)
    loading = Transformer(connection)
    loading.set_pgresult(result)
    return loading.load_rows(0, result.ntuples, tuple)


def _finish(connection: TimedConnection, expected: ExecStatus) -> Any:
    results = connection.wait(generators.execute(connection.pgconn))
    result = results[-1]
    if result.status != expected:
        raise psycopg.errors.error_from_result(result, "utf-8")
    return result


def _encoded(kind: str, value: Any) -> bytes | None:
    if value is None:
        return None
    if not kind.isupper():
        return _element(kind, value)
    kind = kind.lower()
    oid = _TYPES[kind][1]
    if not value:
        return _EMPTY.pack(0, 0, oid)
    parts = [_ARRAY.pack(1, 1, oid, len(value), 1)]
    number = _NUMBERS.get(kind)
    for each in value:
        if each is None:
            parts.append(_NULL)
        else:
            element = number.pack(each) if number else each.encode() if kind == "t" else each
            parts += (_LENGTH.pack(len(element)), element)
    return b"".join(parts)


def _element(kind: str, value: Any) -> bytes:
    number = _NUMBERS.get(kind)
    if number is not None:
        return number.pack(value)
    return value.encode() if kind == "t" else bytes(value)
