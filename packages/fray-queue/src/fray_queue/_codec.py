"""Items as bytes: pickled where they are pushed, unpickled where they are popped, opaque in between."""

import contextlib
import pickle
from collections.abc import Callable, Iterable
from typing import Any

from fray import LeaseExpiredError, QueueUnavailableError
from fray.backend import dumps
from fray.queue import Lease

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
    """Unpickle what leases hold; what cannot be is given back, and raises only when it is all there is."""
    decoded: list[Lease[Any]] = []
    first: Exception | None = None
    for lease in leases:
        try:
            item = pickle.loads(lease.item)
        except Exception as error:  # noqa: BLE001 - whatever a stranger's class raises
            first = first or error
            with contextlib.suppress(LeaseExpiredError, QueueUnavailableError):
                give_back(lease)
        else:
            decoded.append(
                Lease(
                    item,
                    lease.lease_id,
                    lease.timestamp,
                    lease.item_id,
                    lease.attempt,
                    lease.expires_at,
                )
            )
    if first is not None and not decoded:
        first.add_note("an item of the queue cannot be unpickled in this process; its lease was given back")
        raise first
    return decoded
