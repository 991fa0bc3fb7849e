"""What workers print: through two pipes each, it comes out of the caller's `sys.stdout` and `sys.stderr`."""

import contextlib
import io
import os
import sys
from typing import Any

_CHUNK = 1 << 16


class _Counted(io.FileIO):
    """Knows whether something was written since it was asked last."""

    wrote = False

    def write(self, data: Any, /) -> int:
        self.wrote = True
        return super().write(data)


_outputs: list[tuple[io.TextIOWrapper, _Counted]] = []


def redirect(stdout: int, stderr: int) -> None:
    """In a worker: write what is printed, by whatever part of the process, to two descriptors."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (stdout, 1), (stderr, 2)):
        os.dup2(source, target)
        os.close(source)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        raw = _Counted(descriptor, "w", closefd=False)
        stream = io.TextIOWrapper(
            io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
        _outputs.append((stream, raw))


def line_by_line() -> None:
    """In a detached actor: print to where standard output goes already."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def flush() -> bool:
    """In a worker: send what was printed on its way; whether there was anything since the last time."""
    wrote = False
    for stream, raw in _outputs:
        with contextlib.suppress(ValueError):  # the program closed it
            stream.flush()
        wrote = wrote or raw.wrote
        raw.wrote = False
    return wrote


class Forwarder:
    """In the caller's process: passes on what comes out of one pipe, in whole lines."""

    def __init__(self, descriptor: int, name: str) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor, self._name = descriptor, name
        self._rest = b""
        self.closed = False

    def forward(self) -> bool:
        """Pass on what is there; False where the other end is closed."""
        while True:
            try:
                data = os.read(self.descriptor, _CHUNK)
            except BlockingIOError:
                return True
            if not data:
                return False
            lines, newline, self._rest = (self._rest + data).rpartition(b"\n")
            if newline:
                self._write(lines + newline)

    def close(self) -> None:
        """Pass on what is left, a line without its end included."""
        self.forward()
        if self._rest:
            self._write(self._rest + b"\n")
        self.closed = True
        os.close(self.descriptor)

    def _write(self, data: bytes) -> None:
        stream = getattr(sys, self._name)
        # None under pythonw, closed at exit, a pipe whose reader is gone: losing output ends no task.
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.write(data.decode("utf-8", "backslashreplace"))
            stream.flush()
