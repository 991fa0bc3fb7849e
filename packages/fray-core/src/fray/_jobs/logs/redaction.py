"""Hide secrets in a text.

It needs nothing but Python: a cluster on whose machines Fray is not installed sends it along.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_SHORTEST_SECRET = 6  # shorter values are words such as "true", and hiding them would garble every message
_HIDDEN = b"\xff"  # in no UTF-8 text


def redacted(text: str, secrets: "Iterable[str]") -> str:
    """Return a text with `***` for each secret in it; values of a few characters are left."""
    return shown(covered(text.encode(errors="replace"), worth_hiding(secrets))).decode()


def worth_hiding(secrets: "Iterable[str]") -> "list[bytes]":
    """Return the bytes of those secrets that are long enough to be looked for."""
    return [os.fsencode(secret) for secret in secrets if len(secret) >= _SHORTEST_SECRET]


def covered(text: bytes, hidden: "list[bytes]") -> bytes:
    """Cover every byte of a secret; one may be part of another, or overlap it."""
    masked = bytearray(text)
    for secret in hidden:
        at = text.find(secret)
        while at >= 0:
            masked[at : at + len(secret)] = _HIDDEN * len(secret)
            at = text.find(secret, at + 1)
    return bytes(masked)


def shown(masked: bytes) -> bytes:
    """Return a text with `***` for each run of covered bytes."""
    while _HIDDEN * 2 in masked:
        masked = masked.replace(_HIDDEN * 2, _HIDDEN)
    return masked.replace(_HIDDEN, b"***")
