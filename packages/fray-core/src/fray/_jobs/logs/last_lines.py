"""The end of a log as the end of a message, without what is secret."""

import os

from fray._jobs.logs.reader import LogReader
from fray._jobs.logs.redaction import covered, shown, worth_hiding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_LAST_LINES, _LAST_BYTES = 20, 4096  # the most of a log that a message ends with


def last_lines(log: "str | os.PathLike[str]", secrets: "Iterable[str]") -> str:
    """Return the last lines of a log in the form in which the message of a failure ends with them.

    Args:
        log: Its first segment; if it is missing or cannot be read, the result is "".
        secrets: The values of the job's `env_vars`, in any order.
    """
    secrets = tuple(secrets)
    reader = LogReader(log)
    try:
        if not reader.files():
            return ""
        end = reader.last(bytes_for_last_lines(secrets))
    except OSError:
        return ""
    return as_last_lines(end, secrets)


def bytes_for_last_lines(secrets: "Iterable[str]") -> int:
    """Return how much of the end of a log `as_last_lines` needs."""
    # As much before the end as one secret may have there, so that none is seen in part.
    return _LAST_BYTES + max(map(len, worth_hiding(secrets)), default=0)


def as_last_lines(end: bytes, secrets: "Iterable[str]") -> str:
    """Return the end of a log in the form in which the message of a failure ends with it.

    Args:
        end: So much as `bytes_for_last_lines` says, or all there is.
    """
    masked = covered(end, worth_hiding(secrets))
    text = shown(masked[-_LAST_BYTES:]).decode(errors="replace")
    lines = text.splitlines()[-_LAST_LINES:]
    return "\nits last lines:\n" + "\n".join(f"  {line}" for line in lines) if lines else "; it wrote nothing"
