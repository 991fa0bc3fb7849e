"""Queues that lose nothing: an item stays until the worker that leased it says `done`."""

from typing import Any

from fray import _plugins
from fray._errors import LeaseExpiredError, QueueUnavailableError
from fray._queue import Attempt, DeadLetter, Lease, Queue, QueueBase, open_queue
from fray._stored_queue import ItemStore, StoredItem, StoredQueue

__all__ = [
    "Attempt",
    "DeadLetter",
    "ItemStore",
    "Lease",
    "LeaseExpiredError",
    "Queue",
    "QueueBase",
    "QueueUnavailableError",
    "StoredItem",
    "StoredQueue",
    "open_queue",
]


def __getattr__(name: str) -> Any:
    return _plugins.public_name("queue", name)
