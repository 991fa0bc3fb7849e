"""What workers print, on its way to the `sys.stdout` and `sys.stderr` of the process that owns them."""

import codecs
import fcntl
import os
import selectors
import sys
import termios

from fray_local._process.owner.event_loop import EventLoop
from fray_local._process.owner.interfaces import Requests
from fray_local._process.owner.output_writer import OutputWriter

_CHUNK = 1 << 16
_LONGEST = 1 << 20  # of a line that comes out in one piece


class OutputForwarder:
    """In the caller's process, on the loop's thread: passes on what comes out of one pipe, in whole lines.

    While the writer is full, nothing is read: a worker that prints more then waits, and no other does.
    """

    def __init__(self, descriptor: int, writer: OutputWriter, loop: EventLoop, requests: Requests) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor, self._writer, self._loop, self._requests = descriptor, writer, loop, requests
        self._rest = bytearray()  # of a line that has not ended; never empty in the middle of one
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._last = 0  # where the writer has come to when all of this is written
        self._awaited: int | None = None
        self._closed = False

    def watch(self) -> None:
        """Read what comes from now on, as soon as there is room for it."""
        if self._closed:
            return
        if self._has_room():
            self._loop.watch(self._descriptor, selectors.EVENT_READ, self._ready)
        else:
            self._loop.forget(self._descriptor)
            self._requests.outputs.look_later(self.watch)

    def _ready(self, _: int) -> None:
        if not self._has_room():
            self.watch()
        elif not self._forward():
            self._loop.forget(self._descriptor)

    def _has_room(self) -> bool:
        """Whether more may be read; where the context ends, a reader that has stopped is not waited for."""
        return not self._writer.full or (self._writer.given_up and self._requests.is_ending())

    def is_written(self) -> bool:
        """Return whether what was printed before the first look is written, or waits for nobody's reading."""
        if self._awaited is None and (self._has_room() or not self._available()):
            self._forward()
            self._awaited = self._last
        if self._awaited is not None and self._writer.written >= self._awaited:
            return True
        return self._writer.stalled

    def begin_wait(self) -> None:
        """Let the next look be the first one."""
        self._awaited = None

    def close(self) -> None:
        """Pass on what is left, a line without its end included."""
        self._forward()
        if self._rest:
            self._write(self._rest + b"\n")
        self._closed = True
        self._loop.forget(self._descriptor)
        os.close(self._descriptor)

    def _available(self) -> int:
        if self._closed:
            return 0
        count = fcntl.ioctl(self._descriptor, termios.FIONREAD, bytes(4))
        return int.from_bytes(count, sys.byteorder)

    def _forward(self) -> bool:
        """Pass on what is there, and not what is printed meanwhile; False where the other end is closed."""
        left = self._available()
        while not self._closed:
            try:
                data = os.read(self._descriptor, _CHUNK)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._take(data)
            left -= len(data)
            if left <= 0:
                return True
        return False

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
        self._writer.put(self._decoder.decode(data))  # a piece of a line may end inside of a character
        self._last = self._writer.put_so_far
