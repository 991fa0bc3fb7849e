"""Connections to PostgreSQL: one pool for each address and process."""

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TypeVar
from urllib.parse import parse_qs, urlsplit
from weakref import WeakValueDictionary, finalize

import psycopg

from fray import SpecError, UnsupportedError
from fray.backend import readable
from fray_queue._engines.store import TransientError
from fray_queue._errors import AccessRefusedError, QueueFullError, QueueVersionError
from fray_queue._passwords import refuse_password

R = TypeVar("R")
_CONNECT_SECONDS = 5
_IDLE = 32  # connections that wait for the next request; more are closed
# Every look has an index of its own; a plan that was made when the tables were empty must not outlive that.
_OPTIONS = (
    "-c enable_seqscan=off -c enable_bitmapscan=off -c plan_cache_mode=force_generic_plan -c jit=off "
    "-c default_transaction_isolation=read\\ committed"
)
# A firewall forgets idle connections after some minutes, and no server sends the end of those that it forgot.
_KEPT_ALIVE = {
    "keepalives_idle": "60",  # seconds
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",  # milliseconds
}
_REFUSED = (
    "authentication failed",
    "no password supplied",
    "pg_hba.conf",
    "does not exist",
    "permission denied",
)
_POOLER = (
    "a pooler (PgBouncer, ...) stands before this PostgreSQL and {what}; give the queue the server's own "
    "address, or a pool of pool_mode=session with ignore_startup_parameters=options"
)
_UNPREPARED = (psycopg.errors.InvalidSqlStatementName, psycopg.errors.DuplicatePreparedStatement)
_LATER = (
    psycopg.errors.OperationalError,
    psycopg.errors.InterfaceError,
    psycopg.errors.ReadOnlySqlTransaction,
    psycopg.errors.SerializationFailure,
)


class TimedConnection(psycopg.Connection[Any]):
    """A connection whose every request ends in time: a server that is stopped would hold it for ever."""

    seconds = 10.0
    prepared: dict[bytes, Any]
    """Statement -> what `calls` keeps of it."""

    def wait(self, gen: Generator[Any, Any, R], interval: float = 0.1, timeout: float | None = None) -> R:
        """Carry out what psycopg began."""
        try:
            return super().wait(gen, interval, self.seconds if timeout is None else timeout)
        except psycopg.errors._WaitTimeout as error:
            raise psycopg.OperationalError(f"no answer within {self.seconds:g} s") from error


def check_url(url: str) -> str:
    """Return a URL without a password.

    Raises:
        SpecError: It has one, or names no server.
    """
    refuse_password(url, "PGPASSWORD or PGPASSFILE")
    parts = urlsplit(url)
    if parts.scheme not in ("postgresql", "postgres"):
        raise SpecError(
            f"{url!r} is not a PostgreSQL address; it is postgresql://user@host:5432/db?queue=name"
        )
    return url


class Pool:
    """The connections of this process to one address.

    Args:
        seconds: How long a single request may take.
    """

    def __init__(self, url: str, seconds: float) -> None:
        self._url, self._seconds = url, seconds
        self._idle: deque[TimedConnection] = deque()
        finalize(self, _close_all, self._idle)

    @contextmanager
    def connection(self, meaning: Callable[[psycopg.Error], None] | None = None) -> Iterator[TimedConnection]:
        """Lend a connection for one request.

        Args:
            meaning: Raises what an error means to the caller. The connection is back by then: a push that
                waits for room is refused many times, and none of them may cost a session.

        Raises:
            TransientError: There is no server, or it did not answer.
            AccessRefusedError: It refuses the user, or the user may not.
        """
        connection: TimedConnection | None = None
        try:
            connection = self._take()
            yield connection
        except psycopg.Error as error:
            if connection is not None and not connection.broken and _is_harmless(error):
                self._give_back(connection)
            elif connection is not None:
                connection.close()
                if isinstance(error, _LATER):  # the others are as old, and would take as long to fail
                    _close_all(self._idle)
            if meaning is not None:
                meaning(error)
            refuse(error)
        except BaseException:  # its answer may come yet, and would be taken for another's
            if connection is not None:
                connection.close()
            raise
        else:
            self._give_back(connection)

    def _take(self) -> TimedConnection:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return self.connect()
            if connection.pgconn.status == psycopg.pq.ConnStatus.OK and not _has_ended(connection):
                return connection
            connection.close()

    def _give_back(self, connection: TimedConnection) -> None:
        if len(self._idle) < _IDLE:
            self._idle.append(connection)
        else:
            connection.close()

    def connect(self) -> TimedConnection:
        """Return a new connection, which is the caller's."""
        options = " ".join(filter(None, (os.environ.get("PGOPTIONS"), _OPTIONS)))
        parts = urlsplit(self._url)
        several = {"target_session_attrs": "read-write"} if "," in parts.netloc else {}
        kept_alive = {name: given for name, given in _KEPT_ALIVE.items() if name not in parse_qs(parts.query)}
        connection = TimedConnection.connect(
            self._url,
            autocommit=True,
            options=options,
            connect_timeout=_CONNECT_SECONDS,
            application_name="fray-queue",
            **several,  # type: ignore[arg-type]
            **kept_alive,  # type: ignore[arg-type]
        )
        connection.seconds, connection.prepared = self._seconds, {}
        _convert_nothing(connection)
        return connection


_pools: "WeakValueDictionary[tuple[str, float], Pool]" = WeakValueDictionary()
_lock = threading.Lock()
_inherited: list[Any] = []  # of a forked child's parent: to close them would end the parent's sessions


def pool(url: str, seconds: float) -> Pool:
    """Return this process's pool for an address; it ends with the last queue that uses it."""
    with _lock:
        found = _pools.get((url, seconds))
        if found is None:
            found = _pools[url, seconds] = Pool(url, seconds)
        return found


def _reset_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    for each in list(_pools.values()):
        _inherited.extend(each._idle)
        each._idle.clear()


os.register_at_fork(after_in_child=_reset_in_child)


def _convert_nothing(connection: TimedConnection) -> None:
    """Have text sent and read as it is, whatever PGCLIENTENCODING says.

    A database of SQL_ASCII looks into no text, but psycopg reads what that sends as bytes. One of another
    encoding than UTF-8 cannot hold every text: it keeps the bytes as they are.
    """
    server, client = (
        (connection.pgconn.parameter_status(name) or b"").decode()
        for name in (b"server_encoding", b"client_encoding")
    )
    wanted = "UTF8" if server == "SQL_ASCII" else server
    if server and client != wanted:  # a pooler may not say it
        connection.execute(f"SET client_encoding TO '{wanted}'")


def _close_all(idle: "deque[TimedConnection]") -> None:
    with suppress(IndexError):  # another thread takes them as well
        while True:
            idle.pop().close()


def _has_ended(connection: TimedConnection) -> bool:
    """Return whether the server sent a notice that it ends the session."""
    return bool(readable([connection.pgconn.socket], 0.0))


def _is_harmless(error: psycopg.Error) -> bool:
    """Return whether the session is still good: the server refused one call, with a reason.

    A session that may not write is not: with several hosts, the next is one of the server that takes writes.
    """
    state = error.sqlstate
    return (
        state is not None
        and state[:2] not in ("57", "08")
        and not isinstance(error, psycopg.errors.ReadOnlySqlTransaction)
    )


def refuse(error: psycopg.Error) -> NoReturn:
    """Raise what an error of the server means."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    state = error.sqlstate
    if isinstance(error, psycopg.errors.UndefinedFunction) and "fray." in text:
        raise QueueVersionError(
            "the queues in this database were upgraded by a newer release of fray-queue; upgrade this program"
        ) from None
    if "unsupported startup parameter" in text:
        raise UnsupportedError(_POOLER.format(what="refuses a queue's settings of its session")) from None
    if isinstance(error, _UNPREPARED):
        raise UnsupportedError(_POOLER.format(what="gives each transaction another session")) from None
    if isinstance(error, psycopg.errors.InsufficientPrivilege) or (state or "").startswith("28"):
        raise AccessRefusedError(f"PostgreSQL refuses this user: {text}") from None
    if isinstance(error, (psycopg.errors.DiskFull, psycopg.errors.OutOfMemory)):
        raise QueueFullError(f"PostgreSQL has no room left: {text}") from None
    if isinstance(error, _LATER) or (state or "")[:2] in ("57", "53", "08", "40"):
        if state is None and any(refusal in text for refusal in _REFUSED):
            raise AccessRefusedError(f"PostgreSQL refuses the connection: {text}") from None
        raise TransientError(f"{type(error).__name__}: {text}") from None
    raise error
