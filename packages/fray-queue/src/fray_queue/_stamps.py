"""Push times behind payloads, for stores that keep nothing else of an item that was never leased.

A payload is a pickle, and a pickle says where it ends: a reader that knows nothing of stamps reads it as
before. It ends with ".", which no stamp does, so one without a stamp can be distinguished from one with.
"""

import struct

_STAMP = struct.Struct(">3sdc")
STAMP_BYTES = _STAMP.size
_MAGIC, _END = b"\0at", b"\n"


def stamped(payload: bytes, pushed_at: float) -> bytes:
    """Return a payload with the time of its push, in seconds since the epoch."""
    return payload + _STAMP.pack(_MAGIC, pushed_at, _END)


def unstamped(data: bytes) -> tuple[bytes, float | None]:
    """Return a payload and the time of its push; None where it was stored without."""
    if not data.endswith(_END) or data[-_STAMP.size :][: len(_MAGIC)] != _MAGIC:
        return data, None
    return data[: -_STAMP.size], _STAMP.unpack(data[-_STAMP.size :])[1]
