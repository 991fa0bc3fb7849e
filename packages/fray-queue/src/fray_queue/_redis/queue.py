"""A queue on Redis or Valkey."""

from collections.abc import Callable
from typing import Any, TypeVar

from fray_queue._engines.queue import EngineQueue
from fray_queue._redis.nodes import Address, Nodes
from fray_queue._redis.store import RedisStore

T = TypeVar("T")
_LONGEST_REQUEST = 10.0  # seconds; then its answer is taken for lost, and it is made again


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

    def __init__(
        self,
        url: str,
        name: str = "default",
        *,
        max_attempts: int | None = None,
        max_size: int | None = None,
        max_dead: int | None = None,
        timeout: float = 30.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._address = Address.of(url)
        super().__init__(
            url,
            name,
            max_attempts=max_attempts,
            max_size=max_size,
            max_dead=max_dead,
            timeout=timeout,
            clock=clock,
        )

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        queue: str = "default",
        max_attempts: int | None = None,
        max_size: int | None = None,
        max_dead: int | None = None,
        timeout: float = 30.0,
    ) -> "RedisQueue[Any]":
        """Open `redis://host:6379/0?queue=name`."""
        return cls(
            url, queue, max_attempts=max_attempts, max_size=max_size, max_dead=max_dead, timeout=timeout
        )

    def _connect(self) -> RedisStore:
        request = min(_LONGEST_REQUEST, max(self._timeout / 2, 0.5))
        return RedisStore(Nodes(self._address, request), self._name, self._clock)
