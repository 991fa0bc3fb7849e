"""Lines by which a reader of the end of a job's log knows how it joins what was read before."""

import secrets

from fray_ray._log_names import MARK

_EVERY = 128 << 10  # bytes


class LogMarks:
    """Says when the log that one process writes is due for a mark, which is like no other line in it."""

    def __init__(self) -> None:
        self._since = 0

    def after(self, text: str) -> str:
        """Return what to write behind some lines: a mark, or nothing."""
        self._since += len(text.encode())
        if self._since < _EVERY:
            return ""
        self._since = 0
        return f"{MARK}{secrets.token_hex(8)}\n"
