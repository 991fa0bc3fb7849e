"""A queue on Redis or Valkey."""

from typing import TypeVar

from fray_queue._engines.queue import EngineQueue
from fray_queue._redis.nodes import Nodes, RedisAddress
from fray_queue._redis.store import RedisStore

T = TypeVar("T")


class RedisQueue(EngineQueue[T]):
    """A queue on Redis 7 or Valkey, for many machines; the engine's clock times the leases.

    What survives a crash depends on the engine's settings. `stats()["stored"]` describes them, and
    `capabilities.durable` is true only with `appendonly yes` and `appendfsync always`.

    All processes share the queue by its address and name. A pickled copy is the same queue elsewhere. There,
    too, the user and the password come from the environment: `FRAY_REDIS_USERNAME`, `FRAY_REDIS_PASSWORD`.

    Args:
        url: `redis://host:6379/0`; `rediss:` with TLS (`FRAY_REDIS_CA_FILE` for an authority of your own);
            `redis://one:6379,other:6379/0` if one is a replica that may take the other's place.
        name: The queue's name. All of its keys begin with `fray:{name}:`, in one slot of a cluster.
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
        QueueVersionError: Another release of Fray made the queue.
    """

    def _connect(self) -> RedisStore:
        nodes = Nodes(RedisAddress.of(self._url), self._request_seconds)
        return RedisStore(nodes, self._name, self._clock)
