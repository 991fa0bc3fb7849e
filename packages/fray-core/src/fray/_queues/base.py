"""What every queue derives from the calls that take many."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Generic, TypeVar, cast

from fray._contracts.queue import Queue
from fray._queues.heartbeat import kept_alive
from fray._telemetry import listeners as _listeners
from fray._values.errors import FrayError
from fray._values.leases import Lease

T = TypeVar("T")


class QueueBase(ABC, Generic[T]):
    """Derive the single-item calls and `lease` from the calls that take many; tell listeners of leases."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # A class is left as it is until there may be a listener: a lease in memory costs a microsecond,
        # and one more call would be a tenth of that.
        _listeners.once_watched(partial(_observe_leases, cls))

    @abstractmethod
    def push_many(self, items: Iterable[T]) -> list[str]: ...

    @abstractmethod
    def pop_many(self, n: int, lease_timeout: float = 60.0, *, wait: float = 0.0) -> list[Lease[T]]: ...

    @abstractmethod
    def done_many(self, leases: Iterable[Lease[T]]) -> None: ...

    @abstractmethod
    def release(self, lease: Lease[T], *, delay: float = 0.0) -> None: ...

    @abstractmethod
    def extend(self, lease: Lease[T], lease_timeout: float) -> Lease[T]: ...

    def push(self, item: T) -> str:
        """Store an item; see `Queue.push`."""
        return self.push_many([item])[0]

    def pop(self, lease_timeout: float = 60.0, *, wait: float = 0.0) -> Lease[T] | None:
        """Lease the oldest item that waits; see `Queue.pop`."""
        leases = self.pop_many(1, lease_timeout, wait=wait)
        return leases[0] if leases else None

    def done(self, lease: Lease[T]) -> None:
        """Finish an item; see `Queue.done`."""
        self.done_many([lease])

    @contextlib.contextmanager
    def lease(self, lease_timeout: float = 60.0, *, wait: float = 0.0) -> Iterator[Lease[T] | None]:
        """Lease an item for a `with` block; see `Queue.lease`.

        The lease is None when there was nothing to take. A lease that was lost meanwhile (this process was
        stopped for longer than `lease_timeout`, say) shows as the LeaseExpiredError of `done` at the end.
        """
        lease = self.pop(lease_timeout, wait=wait)
        if lease is None:
            yield None
            return
        with kept_alive(cast(Queue[T], self), lease, lease_timeout):
            try:
                yield lease
            except BaseException:
                # What went wrong in the block is the news; a lease that is lost as well is not.
                with contextlib.suppress(FrayError, OSError):
                    self.release(lease)
                raise
        self.done(lease)


def _observe_leases(queue_class: type) -> None:
    from fray._telemetry.job_instrumentation import observe_leases  # for listeners only

    observe_leases(queue_class)
