"""Calls of the queue's functions, prepared once and sent in binary: a cursor costs as much as the call."""

import struct
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import psycopg
from psycopg import generators
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus, Format

from fray_queue._errors import LimitError
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
_MOST_BYTES = (1 << 30) - (1 << 20)  # of a request, with something for the rest of it


class Prepared:
    """A statement as a session knows it, with what writes its arguments and reads its rows."""

    __slots__ = ("encoders", "formats", "knows_columns", "loading", "name")

    def __init__(self, name: bytes, kinds: str, loading: Any) -> None:
        self.name, self.loading, self.knows_columns = name, loading, False
        self.encoders = [_encoder(kind) for kind in kinds]
        self.formats = [Format.BINARY] * len(kinds)


@cache
def statement(function: str, kinds: str) -> bytes:
    """Return the call of a function.

    Args:
        kinds: A letter for each argument: i, q, d, t, b and o are int4, int8, float8, text, bytea and bool;
            capitals are arrays of them.
    """
    # The first is the time, or none: the function would have an expression more.
    now = "coalesce($1::float8, date_part('epoch', clock_timestamp()))"
    casts = [now, *(_cast(kind, at) for at, kind in enumerate(kinds[1:], 2))]
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
    prepared = connection.prepared.get(text)
    if prepared is None:
        name = b"fray_%d" % len(connection.prepared)
        pgconn.send_prepare(name, text)
        _finish(connection, ExecStatus.COMMAND_OK)
        prepared = connection.prepared[text] = Prepared(name, kinds, Transformer(connection))
    pgconn.send_query_prepared(
        prepared.name,
        [
            None if value is None else encode(value)
            for encode, value in zip(prepared.encoders, values, strict=True)
        ],
        prepared.formats,
        result_format=Format.BINARY,
    )
    result = _finish(connection, ExecStatus.TUPLES_OK)
    prepared.loading.set_pgresult(result, set_loaders=not prepared.knows_columns)
    prepared.knows_columns = True
    rows: list[tuple[Any, ...]] = prepared.loading.load_rows(0, result.ntuples, tuple)
    prepared.loading.set_pgresult(None, set_loaders=False)
    return rows


def _finish(connection: TimedConnection, expected: ExecStatus) -> Any:
    results = connection.wait(generators.execute(connection.pgconn))
    result = results[-1]
    if result.status != expected:
        raise psycopg.errors.error_from_result(result, "utf-8")
    return result


def _encoder(kind: str) -> Callable[[Any], bytes]:
    number = _NUMBERS.get(kind.lower())
    if kind.isupper():
        return partial(_encoded_array, kind.lower())
    if number is not None:
        return number.pack
    return str.encode if kind == "t" else bytes


def _encoded_array(kind: str, values: Sequence[Any]) -> bytes:
    oid = _TYPES[kind][1]
    if not values:
        return _EMPTY.pack(0, 0, oid)
    parts = [_ARRAY.pack(1, 1, oid, len(values), 1)]
    number = _NUMBERS.get(kind)
    for each in values:
        if each is None:
            parts.append(_NULL)
        else:
            element = number.pack(each) if number else each.encode() if kind == "t" else each
            parts += (_LENGTH.pack(len(element)), element)
    joined = b"".join(parts)
    if len(joined) > _MOST_BYTES:
        raise LimitError(
            f"PostgreSQL takes at most 1 GiB in a request, and these have {len(joined)} bytes together; "
            "send fewer at once"
        )
    return joined
