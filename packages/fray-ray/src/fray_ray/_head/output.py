"""Where a job's log goes: the file that Ray shows as the job's, or this process's stdout."""

import contextlib
import os
import sys
from pathlib import Path
from typing import Protocol


class Output(Protocol):
    """What the lines of a job are written to."""

    def write(self, data: bytes) -> None:
        """Append to the log."""

    def size(self) -> int:
        """Return how long the log is; 0 where nobody can read it back."""


class Stdout:
    """The output of this process."""

    def write(self, data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()

    def size(self) -> int:
        return 0


class LogFile:
    """The log of one job on the head; Ray and the job's own process write to it too, all at its end."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file: int | None = None

    def write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # a full disk costs the log, not the job
            if self._file is None:
                self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            view = memoryview(data)
            while view:
                view = view[os.write(self._file, view) :]

    def size(self) -> int:
        try:
            return Path(self.path).stat().st_size
        except OSError:
            return 0

    def close(self) -> None:
        """Write no more."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
