"""A queue on PostgreSQL."""

from typing import TypeVar

from fray_queue._engines.queue import EngineQueue
from fray_queue._postgres.connection import check_url
from fray_queue._postgres.store import PostgresStore

T = TypeVar("T")


class PostgresQueue(EngineQueue[T]):
    """A queue on PostgreSQL 13 or newer, for many machines; leases run on the engine's clock.

    The tables are in the schema `fray` of the database, made by the first who opens a queue there and may.
    What a push that returned is worth is the engine's setting: `stats()["stored"]` says it.

    All processes share the queue by its address and name. Pickled it is the same queue elsewhere; the
    password comes from the environment there too, as for every program that uses libpq: `PGPASSWORD`,
    `PGPASSFILE`; likewise `PGSSLMODE` and `PGSSLROOTCERT`.

    Args:
        url: `postgresql://user@host:5432/database`; `postgresql://one,other/database` where one is a standby
            that may take the other's place.
        name: The queue's name in its database.
        max_attempts: Leases that may end without `done` before an item goes to the dead letters. The queue
            keeps what it was first opened with; None takes what it has.
        max_size: Items that it holds at most, dead letters apart; a push waits for room. Kept likewise.
        max_dead: Dead letters that it keeps (100,000 unless said); the first in line go. Kept likewise.
        timeout: Seconds that requests are repeated for while the engine is away, and a push waits for room.
        clock: Seconds since the epoch, for tests; default is the engine's.

    Raises:
        AccessRefusedError: The engine refuses the user.
        QueueExistsError: The queue is there with other bounds.
        QueueVersionError: Another release of Fray made the tables.
    """

    def _connect(self) -> PostgresStore:
        return PostgresStore(check_url(self._url), self._name, self._request_seconds, self._clock)
