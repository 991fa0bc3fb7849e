"""Items as bytes: pickled where they are pushed, unpickled where they are popped, opaque in between."""

import pickle
from collections.abc import Callable, Iterable
from typing import Any

from fray._pickling import dumps
from fray._queue import Lease

_PLAIN = frozenset({bytes, str, int, float, bool, type(None)})  # by exact class: they need no cloudpickle


def encode(item: Any) -> bytes:
    """Pickle an item; what cannot be pickled is a SerializationError."""
    if item.__class__ in _PLAIN:
        return pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
    return dumps(item, f"the item {type(item).__name__}")


def encode_many(items: Iterable[Any]) -> list[bytes]:
    """Pickle items, all of them or none."""
    return [encode(item) for item in items]


def decode_leases(leases: list[Lease[bytes]], give_back: Callable[[Lease[bytes]], None]) -> list[Lease[Any]]:
    """Unpickle what leases hold; when one cannot be, all are given back before its error is raised."""
    try:
        return [
            Lease(
                pickle.loads(lease.item),
                lease.lease_id,
                lease.timestamp,
                lease.item_id,
                lease.attempt,
                lease.expires_at,
            )
            for lease in leases
        ]
    except Exception as error:
        for lease in leases:
            give_back(lease)
        error.add_note("an item of the queue cannot be unpickled in this process; its lease was given back")
        raise
