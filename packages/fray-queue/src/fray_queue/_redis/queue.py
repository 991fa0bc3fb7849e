"""A queue on Redis or Valkey."""

from typing import TypeVar

from fray_queue._engines.queue import EngineQueue
from fray_queue._redis.nodes import Address, Nodes
from fray_queue._redis.store import RedisStore

T = TypeVar("T")


class RedisQueue(EngineQueue[T]):
    """A queue on Redis 7 or Valkey, for many machines; leases run on the engine's clock.

    What a push that returned is worth is the engine's setting: `stats()["stored"]` says it, and
    `capabilities.durable` is true only with `appendonly yes` and `appendfsync always`.

    All processes share the queue by its address and name. Pickled it is the same queue elsewhere; the user
    and the password come from the environment there too: `FRAY_REDIS_USERNAME`, `FRAY_REDIS_PASSWORD`.

    Args:
        url: `redis://host:6379/0`; `rediss:` with TLS (`FRAY_REDIS_CA_FILE` for an authority of your own);
            `redis://one:6379,other:6379/0` where one is a replica that may take the other's place.
        name: The queue's name. All of its keys begin with `fray:{name}:`, in one slot of a cluster.
        max_attempts: Leases that may end without `done` before an item goes to the dead letters. The queue
            keeps what it was first opened with; None takes what it has.
        max_size: Items that it holds at most, dead letters apart; a push waits for room. Kept likewise.
        max_dead: Dead letters that it keeps (100,000 unless said); the first in line go. Kept likewise.
        timeout: Seconds that requests are repeated for while the engine is away, and a push waits for room.
        clock: Seconds since the epoch, for tests; default is the engine's.

    Raises:
        AccessRefusedError: The engine refuses the user.
        QueueExistsError: The queue is there with other bounds.
        QueueVersionError: Another release of Fray made the queue.
    """

    def _connect(self) -> RedisStore:
        nodes = Nodes(Address.of(self._url), self._request_seconds)
        return RedisStore(nodes, self._name, self._clock)
