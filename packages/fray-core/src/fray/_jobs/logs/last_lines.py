"""The end of a log as the end of a message, without what is secret."""

import os

from fray._jobs.logs.reader import LogReader
from fray._jobs.logs.redaction import covered, shown, worth_hiding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_LAST_LINES, _LAST_BYTES = 20, 4096


def last_lines(log: "str | os.PathLike[str]", secrets: "Iterable[str]") -> str:
    """Return the last lines of a log in the form in which the message of a failure ends with them.

    Args:
        log: Its first segment; if it is missing or cannot be read, the result is "".
        secrets: The values of the job's `env_vars`, in any order.
    """
    hidden = worth_hiding(secrets)
    # As much before the end as one secret may have there, so that none is seen in part.
    before = max(map(len, hidden), default=0)
    reader = LogReader(log)
    try:
        if not reader.files():
            return ""
        end = reader.last(_LAST_BYTES + before)
    except OSError:
        return ""
    text = shown(covered(end, hidden)[-_LAST_BYTES:]).decode(errors="replace")
    lines = text.splitlines()[-_LAST_LINES:]
    return "\nits last lines:\n" + "\n".join(f"  {line}" for line in lines) if lines else "; it wrote nothing"
