"""What workers print, on its way to the `sys.stdout` and `sys.stderr` of the process that owns them."""

import codecs
import contextlib
import fcntl
import os
import sys
import termios

_CHUNK = 1 << 16
_LONGEST = 1 << 20  # of a line that comes out in one piece


class OutputForwarder:
    """In the caller's process: passes on what comes out of one pipe, in whole lines."""

    def __init__(self, descriptor: int, name: str) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor, self._name = descriptor, name
        self._rest = bytearray()  # of a line that has not ended; never empty in the middle of one
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self.closed = False

    def forward(self) -> bool:
        """Pass on what is there, and not what is printed meanwhile; False where the other end is closed."""
        left = int.from_bytes(fcntl.ioctl(self.descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)
        while True:
            try:
                data = os.read(self.descriptor, _CHUNK)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._take(data)
            left -= len(data)
            if left <= 0:
                return True

    def close(self) -> None:
        """Pass on what is left, a line without its end included."""
        self.forward()
        if self._rest:
            self._write(self._rest + b"\n")
        self.closed = True
        os.close(self.descriptor)

    def _take(self, data: bytes) -> None:
        end = data.rfind(b"\n") + 1
        if end:
            self._write(self._rest + data[:end])
            self._rest = bytearray(data[end:])
        elif len(self._rest) + len(data) > _LONGEST:
            self._write(self._rest)
            self._rest = bytearray(data)
        else:
            self._rest += data

    def _write(self, data: bytearray) -> None:
        text = self._decoder.decode(data)  # a piece of a line may end inside of a character
        stream = getattr(sys, self._name)
        # None under pythonw, closed at exit, a pipe whose reader is gone, or what a program has put in its
        # place and is for its main thread only: losing output ends no task.
        with contextlib.suppress(Exception):
            try:
                stream.write(text)
            except UnicodeEncodeError as error:  # not even a part of it was written
                stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
            stream.flush()
