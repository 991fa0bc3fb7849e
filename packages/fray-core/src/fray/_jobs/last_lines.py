"""The end of a log as the end of a message, without what is secret."""

import os

from fray._jobs.logs.reader import LogReader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_LAST_LINES, _LAST_BYTES = 20, 4096
_SHORTEST_SECRET = 6  # shorter values are words such as "true", and hiding them would garble every message
_HIDDEN = b"\xff"  # in no UTF-8 text


def last_lines(log: "str | os.PathLike[str]", secrets: "Iterable[str]") -> str:
    """Return the last lines of a log in the form in which the message of a failure ends with them.

    Args:
        log: Its first segment; if it is missing or cannot be read, the result is "".
        secrets: The values of the job's `env_vars`, in any order.
    """
    hidden = _worth_hiding(secrets)
    # As much before the end as one secret may have there, so that none is seen in part.
    before = max(map(len, hidden), default=0)
    reader = LogReader(log)
    try:
        if not reader.files():
            return ""
        end = reader.last(_LAST_BYTES + before)
    except OSError:
        return ""
    text = _shown(_masked(end, hidden)[-_LAST_BYTES:]).decode(errors="replace")
    lines = text.splitlines()[-_LAST_LINES:]
    return "\nits last lines:\n" + "\n".join(f"  {line}" for line in lines) if lines else "; it wrote nothing"


def redacted(text: str, secrets: "Iterable[str]") -> str:
    """Return a text with `***` for each secret in it; values of a few characters are left."""
    return _shown(_masked(text.encode(errors="replace"), _worth_hiding(secrets))).decode()


def _worth_hiding(secrets: "Iterable[str]") -> list[bytes]:
    return [os.fsencode(secret) for secret in secrets if len(secret) >= _SHORTEST_SECRET]


def _masked(text: bytes, hidden: list[bytes]) -> bytes:
    """Cover every byte of a secret; one may be part of another, or overlap it."""
    masked = bytearray(text)
    for secret in hidden:
        at = text.find(secret)
        while at >= 0:
            masked[at : at + len(secret)] = _HIDDEN * len(secret)
            at = text.find(secret, at + 1)
    return bytes(masked)


def _shown(masked: bytes) -> bytes:
    while _HIDDEN * 2 in masked:
        masked = masked.replace(_HIDDEN * 2, _HIDDEN)
    return masked.replace(_HIDDEN, b"***")
