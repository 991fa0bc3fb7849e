"""A Redis or Valkey as a whole: many queues by name."""

from collections.abc import Callable
from contextlib import suppress

from fray_queue._engines.store import Counts, DeletedQueueError, TransientError
from fray_queue._errors import QueueVersionError
from fray_queue._redis.nodes import Nodes, RedisAddress
from fray_queue._redis.store import RedisStore

_FIRST, _LAST = b"fray:{", b"}:meta"
_STEP = 1000  # keys that one SCAN looks at


class RedisEngine:
    """The queues of a Redis.

    Args:
        seconds: How long a single request may take.
        clock: Seconds since the epoch, for tests; default is the engine's.
    """

    def __init__(self, url: str, seconds: float, clock: Callable[[], float] | None = None) -> None:
        self._address, self._seconds, self._clock = RedisAddress.of(url), seconds, clock
        self._nodes = Nodes(self._address, seconds)

    def store(self, name: str) -> RedisStore:
        """Return the store of a queue."""
        return RedisStore(Nodes(self._address, self._seconds, self._nodes), name, self._clock)

    def check(self) -> None:
        """Check the connection to one of the nodes, with a command that every user may run."""
        for _ in self._address.nodes[1:]:
            with suppress(TransientError):  # the next call begins with the next node
                self._nodes.command("TIME")
                return
        self._nodes.command("TIME")

    def counts(self) -> dict[str, Counts]:
        """Return the counts of all queues: of a cluster, of those on the nodes that the URL names."""
        found: dict[str, Counts] = {}
        for name in sorted(self._names()):
            store = self.store(name)
            try:
                found[name] = store.counts()
            except (DeletedQueueError, QueueVersionError):
                continue  # deleted since it was listed, or a queue, or a key, that this release cannot read
            finally:
                store.close()
        return found

    def _names(self) -> set[str]:
        names: set[str] = set()
        away: list[TransientError] = []
        for node in self._address.nodes:
            try:
                names |= self._names_on(node)
            except TransientError as error:  # the other of two may have taken its place
                away.append(error)
        if len(away) == len(self._address.nodes):
            raise away[0]
        return names

    def _names_on(self, node: tuple[str, int]) -> set[str]:
        nodes = Nodes(self._address.only(node), self._seconds)
        names: set[str] = set()
        cursor = b"0"
        while True:
            cursor, keys = nodes.command("SCAN", cursor, "MATCH", "fray:{*}:meta", "COUNT", _STEP)
            names |= {key[len(_FIRST) : -len(_LAST)].decode() for key in keys}
            if int(cursor) == 0:
                nodes.close()
                return names

    def close(self) -> None:
        """Release the connections."""
        self._nodes.close()
