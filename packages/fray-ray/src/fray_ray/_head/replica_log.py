"""A replica's lines in the log of the job, which is what this process writes to stdout."""

import sys
import threading
from collections import deque
from collections.abc import Iterable

from fray.backend import complete_lines
from fray.cluster import redacted
from fray_ray._head.log_marks import LogMarks

_LAST_LINES = 20


class ReplicaLog:
    """What a replica writes, attempt after attempt."""

    _one_at_a_time = threading.Lock()
    _marks = LogMarks()

    def __init__(self, number: int, secrets: Iterable[str]) -> None:
        self._prefix, self._number = f"[replica-{number}] ", number
        self._secrets = tuple(secrets)
        self._rest = b""
        self._last: deque[str] = deque(maxlen=_LAST_LINES)

    def begin(self, attempt: int) -> None:
        """Mark where an attempt starts."""
        self._last.clear()
        self._print(f"[fray] replica {self._number} starts, attempt {attempt}\n")

    def write(self, piece: bytes) -> None:
        """Write the lines that a piece of output completes.

        As text: Ray reads this process's output as that, and gives nothing of one that holds other bytes.
        """
        lines, self._rest = complete_lines(self._rest + piece)
        self._last.extend(lines)
        if lines:
            self._print("".join(f"{self._prefix}{line}\n" for line in lines))

    def end(self) -> None:
        """Complete a last line without an end."""
        if self._rest:
            self.write(b"\n")

    def last_lines(self) -> str:
        """Return how an error message goes on with what the attempt wrote last, without secrets."""
        if not self._last:
            return "; it wrote nothing"
        text = redacted("\n".join(self._last), self._secrets)
        return "; its last lines:" + "".join(f"\n  {line}" for line in text.split("\n"))

    def _print(self, text: str) -> None:
        with self._one_at_a_time:
            sys.stdout.buffer.write((text + self._marks.after(text)).encode())
            sys.stdout.flush()
