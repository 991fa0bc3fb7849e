"""Queues that lose nothing: an item stays until the worker that leased it calls `done`."""

from typing import Any

from fray import _legacy
from fray._contracts.queue import Queue
from fray._contracts.replies import Reply, Ticket
from fray._queues.base import QueueBase
from fray._queues.opening import open_queue
from fray._queues.stored import ItemStore, StoredItem, StoredQueue
from fray._values.errors import (
    LeaseExpiredError,
    NoReplyError,
    QueueFullError,
    QueueUnavailableError,
    UnreadableItemError,
)
from fray._values.leases import Attempt, DeadLetter, Lease, UnreadableItem

__all__ = [
    "Attempt",
    "DeadLetter",
    "ItemStore",
    "Lease",
    "LeaseExpiredError",
    "NoReplyError",
    "Queue",
    "QueueBase",
    "QueueFullError",
    "QueueUnavailableError",
    "Reply",
    "StoredItem",
    "StoredQueue",
    "Ticket",
    "UnreadableItem",
    "UnreadableItemError",
    "open_queue",
]


def __getattr__(name: str) -> Any:
    return _legacy.find_name(__name__, name)
