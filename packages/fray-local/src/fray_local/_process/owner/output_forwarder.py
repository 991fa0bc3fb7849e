"""What workers print, on its way to the `sys.stdout` and `sys.stderr` of the process that owns them."""

import contextlib
import os
import sys

_CHUNK = 1 << 16


class OutputForwarder:
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
