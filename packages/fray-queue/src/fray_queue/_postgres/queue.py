"""A queue on PostgreSQL."""

from typing import TypeVar

from fray_queue._engines.queue import EngineQueue
from fray_queue._postgres.connection import check_url
from fray_queue._postgres.store import PostgresStore

T = TypeVar("T")


class PostgresQueue(EngineQueue[T]):
    """A queue on PostgreSQL 13 or newer, for many machines; the engine's clock times the leases.

    The tables are in the schema `fray` of the database. The first program that opens a queue there and has
    the right to do so creates them. What survives a crash depends on the engine's settings;
    `stats()["stored"]` describes them.

    All processes share the queue by its address and name. A pickled copy is the same queue elsewhere. There,
    too, the password comes from the environment, as for every program that uses libpq (`PGPASSWORD`,
    `PGPASSFILE`), and so do `PGSSLMODE` and `PGSSLROOTCERT`.

    Args:
        url: `postgresql://user@host:5432/database`; `postgresql://one,other/database` if one is a standby
            that may take the other's place.
        name: The queue's name in its database.
        max_attempts: Leases that may end without `done` before an item goes to the dead letters. The queue
            keeps the value that it was first opened with; None accepts that value.
        max_size: The most items that it holds, not counting dead letters; a push waits for room. Kept
            likewise.
        max_dead: The most dead letters that it keeps (100,000 by default); the first in line are dropped.
            Kept likewise.
        timeout: Seconds for which requests are repeated while the engine is away, and for which a push waits
            for room.
        clock: Seconds since the epoch, for tests; by default the engine's.

    Raises:
        AccessRefusedError: The engine refuses the user.
        QueueExistsError: The queue exists with other bounds.
        QueueVersionError: Another release of Fray made the tables.
    """

    def _connect(self) -> PostgresStore:
        return PostgresStore(check_url(self._url), self._name, self._request_seconds, self._clock)
