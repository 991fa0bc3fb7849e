"""Waiting on PostgreSQL: one thread listens for all calls of a process that wait on a queue."""

import contextlib
import os
import socket
import threading
import time
from typing import Any

import psycopg

from fray.backend import NoThreadError, readable, start_thread
from fray_queue._engines.store import TransientError
from fray_queue._postgres.connection import Pool, TimedConnection
from fray_queue._postgres.schema import LOCK, VERSION

_REGISTERED = 30  # seconds for which a note of a waiting call is valid
_RENEWED = 10.0
_LINGER = 10.0  # seconds after the last waiting call


class Listener:
    """Waits for what the queue's functions notify of: items, room, answers.

    A push notifies only if a waiting call is registered, because a notification makes commits wait
    for each other. Once that is written, the lock that those functions share is taken: what they did before
    can be seen then, and of all else there is a notification.
    """

    def __init__(self, pool: Pool, queue: int) -> None:
        self._pool, self._queue = pool, queue
        self._changed = threading.Condition()
        self._told = 0
        self._seen = threading.local()
        self._thread: threading.Thread | None = None
        self._wake: socket.socket | None = None
        self._used = 0.0
        self._pid = os.getpid()

    def wait(self, seconds: float) -> bool:
        """Return whether there was a notification since the last wait; at the latest after so long."""
        if self._pid != os.getpid():  # forked: the thread is the parent's
            self.__init__(self._pool, self._queue)  # type: ignore[misc]
        with self._changed:
            self._used = time.monotonic()
            if self._thread is None:
                self._start()
                self._seen.told = self._told
                return True  # nobody listened while the caller looked
            if getattr(self._seen, "told", -1) == self._told:
                self._changed.wait_for(lambda: self._seen.told != self._told, seconds)
            told = getattr(self._seen, "told", -1) != self._told
            self._seen.told = self._told
            return told

    def wake(self) -> None:
        """Wake all waiting calls."""
        with self._changed:
            self._told += 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Listen no more."""
        with self._changed:
            if self._wake is not None:
                with contextlib.suppress(OSError):
                    self._wake.send(b"x")

    def _start(self) -> None:
        try:
            connection = self._pool.connect()
        except psycopg.Error as error:
            raise TransientError(str(error)) from None
        try:
            connection.execute(f"LISTEN fray_{self._queue}")
            self._register(connection)
            connection.execute("SELECT pg_advisory_lock(%s, %s)", [LOCK, self._queue])
            connection.execute("SELECT pg_advisory_unlock(%s, %s)", [LOCK, self._queue])
        except psycopg.Error as error:
            connection.close()
            raise TransientError(str(error)) from None
        self._wake, woken = socket.socketpair()
        thread = threading.Thread(
            target=self._listen, args=(connection, woken), name="fray-postgres-listener", daemon=True
        )
        try:
            self._thread = start_thread(thread)
        except NoThreadError:
            connection.close()
            raise

    def _register(self, connection: TimedConnection) -> None:
        connection.execute(f"SELECT fray.wait_{VERSION}(%s, %s)", [self._queue, _REGISTERED])

    def _listen(self, connection: TimedConnection, woken: socket.socket) -> None:
        try:
            renewed = time.monotonic()
            while time.monotonic() - self._used < _LINGER:
                ready = readable([connection.pgconn.socket, woken.fileno()], _RENEWED / 4)
                if woken.fileno() in ready:
                    break
                if ready:
                    self._receive(connection)
                if time.monotonic() - renewed > _RENEWED:
                    self._register(connection)
                    renewed = time.monotonic()
        except (psycopg.Error, OSError):
            pass  # a waiting call looks, begins again, and has the time for it
        finally:
            with self._changed:
                self._thread = None
                self._told += 1
                self._changed.notify_all()
                if self._wake is not None:
                    self._wake.close()
                    self._wake = None
            woken.close()
            connection.close()

    def _receive(self, connection: TimedConnection) -> None:
        connection.pgconn.consume_input()
        told: Any = None
        while (notify := connection.pgconn.notifies()) is not None:
            told = notify
        if told is not None:
            with self._changed:
                self._told += 1
                self._changed.notify_all()
