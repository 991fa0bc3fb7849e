"""A PostgreSQL as a whole: many queues by name."""

from collections.abc import Callable

from fray_queue._engines.store import Counts
from fray_queue._postgres import schema
from fray_queue._postgres.connection import check_url, pool
from fray_queue._postgres.store import PostgresStore


class PostgresEngine:
    """The queues of a database.

    Args:
        seconds: How long a single request may take.
        clock: Seconds since the epoch, for tests; default is the engine's.
    """

    def __init__(self, url: str, seconds: float, clock: Callable[[], float] | None = None) -> None:
        self._url, self._seconds, self._clock = check_url(url), seconds, clock
        self._pool = pool(self._url, seconds)

    def store(self, name: str) -> PostgresStore:
        """Return the store of a queue."""
        return PostgresStore(self._url, name, self._seconds, self._clock)

    def check(self) -> None:
        """Check the connection, with a statement that every user may run."""
        with self._pool.connection() as connection:
            connection.execute("SELECT 1")

    def counts(self) -> dict[str, Counts]:
        """Return the counts of all queues, in one statement."""
        with self._pool.connection() as connection:
            if not schema.are_there(connection):
                return {}
            rows = connection.execute(f"SELECT * FROM fray.list_{schema.VERSION}()").fetchall()
        return {name: Counts(*counts) for name, *counts in rows}

    def close(self) -> None:
        """Release nothing: the pool ends with its last user."""
