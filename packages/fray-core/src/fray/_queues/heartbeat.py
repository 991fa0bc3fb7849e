"""Leases that last as long as the work on their items."""

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import TypeVar

from fray._contracts.queue import Queue
from fray._values.errors import LeaseExpiredError
from fray._values.leases import Lease

T = TypeVar("T")

_log = logging.getLogger("fray.queue")
_BEATS_PER_LEASE = 3  # a heartbeat that is late, or lost once, still arrives in time


@contextlib.contextmanager
def kept_alive(queue: Queue[T], lease: Lease[T], lease_timeout: float) -> Iterator[None]:
    """Extend a lease again and again, from a thread, while the block runs."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(min(lease_timeout / _BEATS_PER_LEASE, threading.TIMEOUT_MAX)):
            try:
                queue.extend(lease, lease_timeout)
            except LeaseExpiredError:
                return  # `done` reports it
            except Exception as error:  # noqa: BLE001 - the lease may still be good when the queue is back
                _log.warning("item %s: its lease was not extended: %r", lease.item_id, error)

    thread = threading.Thread(target=beat, name=f"fray-heartbeat-{lease.item_id}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
