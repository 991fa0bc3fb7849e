"""Many byte strings in one body: a checksummed header of JSON, then the payloads as they are.

    "FRQ1" | length of the header | CRC-32 of the header | header | payload | payload | …

The header is a list with an object per payload; `size` and `crc` in it are the payload's.
"""

import json
import struct
from collections.abc import Iterable, Sequence
from typing import Any
from zlib import crc32

_MAGIC = b"FRQ1"
_encode = json.JSONEncoder(separators=(",", ":")).encode  # `json.dumps` would make one at each call
_decode = json.JSONDecoder().decode
_PREFIX = struct.Struct(">4sII")


def pack(metas: Iterable[dict[str, Any]], payloads: Sequence[bytes]) -> bytes:
    """Return one body that holds the payloads and the fields of each."""
    header = _encode(
        [
            {**meta, "size": len(payload), "crc": crc32(payload)}
            for meta, payload in zip(metas, payloads, strict=True)
        ]
    ).encode()
    return b"".join([_PREFIX.pack(_MAGIC, len(header), crc32(header)), header, *payloads])


def unpack(body: bytes) -> list[tuple[dict[str, Any], bytes]]:
    """Read a body.

    Raises:
        ValueError: It is not what `pack` made: too short, too long, or damaged.
    """
    if len(body) < _PREFIX.size:
        raise ValueError(f"a body of {len(body)} bytes is too short")
    magic, length, crc = _PREFIX.unpack_from(body)
    start = _PREFIX.size + length
    header = body[_PREFIX.size : start]
    if magic != _MAGIC or len(header) != length or crc32(header) != crc:
        raise ValueError("the body is not a list of records, or its header is damaged")
    records: list[tuple[dict[str, Any], bytes]] = []
    for meta in _metas(header):
        payload = body[start : start + meta["size"]]
        start += meta["size"]
        if crc32(payload) != meta["crc"] or len(payload) != meta["size"]:
            raise ValueError(f"record {len(records)} of the body is damaged or cut short")
        records.append((meta, payload))
    if start != len(body):
        raise ValueError(f"the body has {len(body) - start} bytes too many")
    return records


def _metas(header: bytes) -> list[dict[str, Any]]:
    """Read a header; its checksum says that it arrived as it was sent, not that it makes sense."""
    try:
        metas = _decode(header.decode())
    except RecursionError:
        metas = None
    if not isinstance(metas, list) or not all(_is_meta(meta) for meta in metas):
        raise ValueError("the header is not a list of objects with a size and a crc")
    return metas


def _is_meta(meta: Any) -> bool:
    if not isinstance(meta, dict):
        return False
    size, crc = meta.get("size"), meta.get("crc")
    return type(size) is int and type(crc) is int and size >= 0 and crc >= 0
