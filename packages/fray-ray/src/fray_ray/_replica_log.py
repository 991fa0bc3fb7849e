"""A replica's lines in the log of the job, which is what this process writes to stdout."""

import sys
import threading
from collections import deque
from collections.abc import Iterable

from fray.cluster import redacted

_LAST_LINES = 20


class ReplicaLog:
    """What a replica writes, attempt after attempt."""

    _one_at_a_time = threading.Lock()

    def __init__(self, number: int, secrets: Iterable[str]) -> None:
        self._prefix, self._number = f"[replica-{number}] ".encode(), number
        self._secrets = tuple(secrets)
        self._rest = b""
        self._last: deque[str] = deque(maxlen=_LAST_LINES)

    def begin(self, attempt: int) -> None:
        """Mark where an attempt starts."""
        self._last.clear()
        self._print(f"[fray] replica {self._number} starts, attempt {attempt}\n".encode())

    def write(self, piece: bytes) -> None:
        """Write the lines that a piece of output completes."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        self._last.extend(line.decode(errors="replace") for line in lines)
        if lines:
            self._print(b"".join(self._prefix + line + b"\n" for line in lines))

    def end(self) -> None:
        """Complete a last line without an end."""
        if self._rest:
            self.write(b"\n")

    def last_lines(self) -> str:
        """Return how an error message goes on with what the attempt wrote last, without secrets."""
        lines = redacted("\n".join(self._last), self._secrets).splitlines()
        return (
            "; its last lines:\n" + "\n".join(f"  {line}" for line in lines)
            if lines
            else "; it wrote nothing"
        )

    def _print(self, data: bytes) -> None:
        with self._one_at_a_time:
            sys.stdout.buffer.write(data)
            sys.stdout.flush()
