"""Values as text in an entry of Ray's job table: JSON, compressed where it is long.

Ray answers a list with all that is in all entries.
"""

import base64
import json
import zlib
from typing import Any

_LONG = 512  # characters
_LARGEST = 128 * 1024 * 1024  # bytes of JSON; the most replicas that are read have half of it
_COMPRESSED = "e"  # how Base64 of what zlib gives begins; no JSON does


def to_text(value: Any) -> str:
    """Return a value that JSON can hold as text."""
    text = json.dumps(value, separators=(",", ":"))
    if len(text) < _LONG:
        return text
    return base64.b64encode(zlib.compress(text.encode())).decode()


def from_text(text: str) -> Any:
    """Return what `to_text` was given.

    Raises:
        ValueError: The text is damaged.
        RecursionError: It is nested too deeply.
    """
    return json.loads(_decompressed(text) if text.startswith(_COMPRESSED) else text)


def _decompressed(text: str) -> bytes:
    unpacking = zlib.decompressobj()
    try:
        found = unpacking.decompress(base64.b64decode(text, validate=True), _LARGEST)
    except zlib.error as error:
        raise ValueError(f"the compressed text is damaged: {error}") from error
    if not unpacking.eof:
        raise ValueError("the compressed text is cut off, or larger than any of ours")
    return found
