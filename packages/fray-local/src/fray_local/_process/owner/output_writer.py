"""Writes what workers print to `sys.stdout` and `sys.stderr`, in threads that may wait for a reader."""

import contextlib
import io
import math
import os
import select
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

from fray.backend import NoThreadError, start_thread
from fray_local._process.owner.event_loop import EventLoop

_MOST = 1 << 20  # characters that wait, before what prints more waits, too
_MOST_KEPT = 1 << 26  # of a context that ends while nobody reads; further ones are dropped
_SHORT_SECONDS = 2.0  # without a reader, after which no result waits for its output
_LONG_SECONDS = 5.0  # without a reader, after which the end of a context waits no longer
_LOOK_SECONDS = 0.25


class OutputWriter:
    """Writes to one stream of this program; its thread starts with the first text.

        put -> queue -> thread: waits until the reader has made room -> writes whole lines -> progress

    Args:
        progressed: Called in that thread after each text.
    """

    def __init__(self, name: str, progressed: Callable[[], None]) -> None:
        self._name, self._progressed = name, progressed
        self._texts: SimpleQueue[str | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._began = math.inf  # what is being written, or waits for a reader
        self.put_so_far = self.written = 0

    @property
    def full(self) -> bool:
        """Whether so much waits that no more is to be read."""
        return self.put_so_far - self.written >= _MOST

    @property
    def stalled(self) -> bool:
        """Whether nobody has read for a while."""
        return self._stalled_for(_SHORT_SECONDS)

    @property
    def given_up(self) -> bool:
        """Whether nobody has read for so long that the end of a context waits no longer."""
        return self._stalled_for(_LONG_SECONDS)

    def _stalled_for(self, seconds: float) -> bool:
        return time.monotonic() - self._began > seconds

    def put(self, text: str) -> None:
        """Let a text be written after those before."""
        if self.put_so_far - self.written > _MOST_KEPT:
            return
        self.put_so_far += len(text)
        self._texts.put(text)
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=f"fray-{self._name}", daemon=True)
            try:
                self._thread = start_thread(thread)
            except NoThreadError:  # the program has ended: it is written here
                self.let_go()
                self._run()

    def let_go(self) -> None:
        """Let the thread end after what is there; from any thread, finalizers included."""
        self._texts.put(None)

    def finish(self, *, wanted: bool) -> None:
        """Wait until everything is written, as long as it is read, and a while longer.

        What nobody has read then, the end of the program waits for, as for what the program prints itself.

        Args:
            wanted: The context was not aborted.
        """
        thread = self._thread
        if thread is None:
            return
        self.let_go()
        program_runs = threading.main_thread().is_alive()
        patience = (_LONG_SECONDS if program_runs else math.inf) if wanted else _SHORT_SECONDS
        while thread.is_alive() and not self._stalled_for(patience):
            thread.join(_LOOK_SECONDS)
        if thread.is_alive() and wanted:
            with contextlib.suppress(NoThreadError):
                start_thread(threading.Thread(target=thread.join, name=f"{thread.name}-rest", daemon=False))

    def _run(self) -> None:
        while (text := self._texts.get()) is not None:
            # None under pythonw, closed at exit, a pipe whose reader is gone, or what a program has put in
            # its place and is for its main thread only: losing output ends no task.
            with contextlib.suppress(Exception):
                self._write_all(getattr(sys, self._name), text)
            self._began = math.inf
            self.written += len(text)
            self._progressed()

    def _write_all(self, stream: Any, text: str) -> None:
        room = _room_of(stream)
        for piece in [text] if room is None else _pieces(text):
            self._began = time.monotonic()
            if room is not None:
                room.poll()
            with contextlib.suppress(OSError):  # the next piece may have a reader again
                _write(stream, piece)


def _write(stream: Any, text: str) -> None:
    try:
        stream.write(text)
    except UnicodeEncodeError as error:  # not even a part of it was written
        stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
    stream.flush()


def _room_of(stream: Any) -> "select.poll | None":
    """Return what waits until a stream can be written to without waiting; None where that is always so.

    A write that waits has the stream's own lock, which the interpreter needs at its end.
    """
    if not isinstance(stream, io.TextIOWrapper):  # what a notebook, say, has put in its place
        return None
    try:
        descriptor = stream.fileno()
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
    except (OSError, ValueError):  # it is closed
        return None
    return poll


def _pieces(text: str) -> Iterator[str]:
    """Cut a text at ends of lines into what a pipe with any room takes at once; a longer line is whole."""
    most = select.PIPE_BUF if text.isascii() else select.PIPE_BUF // 4
    start = 0
    while start < len(text):
        end = text.rfind("\n", start, start + most) + 1 or text.find("\n", start) + 1 or len(text)
        yield text[start:end]
        start = end


class OutputWriters:
    """Both streams of this program, for the workers of one context."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self.stdout, self.stderr = (OutputWriter(name, self._progressed) for name in ("stdout", "stderr"))
        self._looks: dict[Callable[[], None], None] = {}
        self._ticking = False
        self._wanted = True

    def look_later(self, look: Callable[[], None]) -> None:
        """On the loop's thread: call something once, when something was written, or soon in any case."""
        self._looks[look] = None
        if not self._ticking:
            self._ticking = True
            self._loop.call_later(_LOOK_SECONDS, self._tick)

    def _tick(self) -> None:
        self._ticking = False
        self._look()

    def _progressed(self) -> None:
        self._loop.call_soon(self._look)

    def _look(self) -> None:
        looks, self._looks = self._looks, {}
        for look in looks:
            self._loop.guarded(look)

    def abort(self) -> None:
        """Let the end of the context wait for no reader."""
        self._wanted = False

    def let_go(self) -> None:
        """Let the threads end soon; from any thread, finalizers included."""
        self.stdout.let_go()
        self.stderr.let_go()

    def finish(self) -> None:
        """Wait until everything is written, but not for long where nobody reads."""
        self.stdout.finish(wanted=self._wanted)
        self.stderr.finish(wanted=self._wanted)
