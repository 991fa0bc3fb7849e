"""Copy what replicas write from pipes into logs, in the loop of a supervisor. Imports little."""

import fcntl
import os
import sys

from fray._jobs.logs.writer import LogWriter

_PIPE = 1 << 20  # bytes; what a replica may write ahead of its supervisor
_AT_ONCE = 256 << 10
_TURNS = 8  # reads of one pipe before the others have their turn


class OutputPump:
    """The pipes of a job's processes, each with the log that it ends up in.

    It has no thread: the supervisor waits for `readable`, and calls `copy` when one of them is, and now and
    then without a reason, so that what found no room on the disk is tried again.
    """

    def __init__(self) -> None:
        self._logs: dict[int, tuple[str, LogWriter]] = {}  # by the pipe's end that is read

    def open(self, path: str, limit: int | None = None) -> int:
        """Begin a log; return the end of a pipe for a child's stdout and stderr, which the caller closes."""
        reads, writes = os.pipe2(os.O_CLOEXEC) if hasattr(os, "pipe2") else os.pipe()
        try:
            os.set_blocking(reads, False)
            if hasattr(fcntl, "F_SETPIPE_SZ"):
                _enlarge(reads)
            self._logs[reads] = (path, LogWriter(path, limit))
        except BaseException:
            os.close(reads)
            os.close(writes)
            raise
        return writes

    def readable(self) -> list[int]:
        """Return the pipes to wait for."""
        return list(self._logs)

    def copy(self) -> None:
        """Copy what has been written, the same share of each pipe; never blocks."""
        for pipe in list(self._logs):
            self._copy(pipe, _TURNS * _AT_ONCE)

    def settle(self, path: str) -> None:
        """Copy all that was written to a log until now: its process has ended."""
        for pipe, (name, _) in list(self._logs.items()):
            if name == path:
                self._drain(pipe)

    def close(self) -> None:
        """Copy the rest and end every log: nobody writes any more."""
        for pipe in list(self._logs):
            self._drain(pipe)
            if pipe in self._logs:
                self._end(pipe)

    def _drain(self, pipe: int) -> None:
        import termios  # no replica's start waits for it

        # What is there now, and no more: a child that the process left may write for ever.
        there = fcntl.ioctl(pipe, termios.FIONREAD, b"\0\0\0\0")
        self._copy(pipe, max(1, int.from_bytes(there, sys.byteorder)))

    def _copy(self, pipe: int, most: int) -> None:
        _, log = self._logs[pipe]
        log.retry()
        while most > 0:
            try:
                data = os.read(pipe, min(most, _AT_ONCE))
            except BlockingIOError:
                return
            if not data:
                self._end(pipe)
                return
            log.write(data)
            most -= len(data)

    def _end(self, pipe: int) -> None:
        _, log = self._logs.pop(pipe)
        os.close(pipe)
        log.close()


def _enlarge(pipe: int) -> None:
    try:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE)
    except OSError:  # the user has many pipes: a small one does as well
        return
