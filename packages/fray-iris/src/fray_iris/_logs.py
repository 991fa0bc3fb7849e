"""The log of an attempt, as `monitor` reads it: bytes from offsets on, of lines that Iris keeps.

Iris gives the lines behind a cursor, those after a time, or the last ones; it does not say how long a log is.
So offsets of lines whose place is not known count from far behind. A tail costs what it shows, and what was
read is held no longer.
"""

import time
from collections.abc import Callable, Sequence

from fray_iris._connection import LINES, Iris
from fray_iris._in_task.words import END
from fray_iris._reports import HIDDEN

# Seconds in which a worker delivers what an attempt that has ended wrote last: where nobody knows whether it
# could say that this was all, and where it has said so, so that its last line comes for sure.
_LAST_LINES_WITHIN, _LAST_LINE_COMES = 2.0, 60.0
_PAUSE = 0.05
_AT_ONCE = 1 << 20  # bytes
# Lines from the end that are requested first; so many times more where they do not reach back far enough; and
# how many are requested at most, beyond which the log is read from its beginning.
_FEW, _MORE, _MOST = 500, 8, 64_000
_SOMEWHERE = 1 << 60  # the offset of an end that was found without what is before it
_MARK = 100  # lines by which a place is found again

Lines = Sequence[tuple[int, str]]
"""Lines of Iris, each with its time in milliseconds."""


class IrisLog:
    """One attempt's log, for one reader. A part of it is held, which reaches up to where reading has come.

    Args:
        key: What Iris calls the log.
        ended: True where the attempt said that it has ended, a short time ago; False where it ended without a
            word, or its last line would have come; None where it is not known to have ended.
    """

    def __init__(self, iris: Iris, key: str, ended: Callable[[], bool | None]) -> None:
        self._iris, self._key, self._ended = iris, key, ended
        self._since = 0  # milliseconds; lines up to then are none of the log
        self._end: tuple[int, int, bool] | None = None  # a known end: its cursor, its offset, `_over` there
        self._begin(0)

    def _begin(self, cursor: int) -> None:
        """Hold nothing, at the log's beginning."""
        self._cursor, self._start, self._data = cursor, 0, bytearray()
        self._mark: Lines = []  # the last lines that were read
        self._count = 0
        self._whole = True  # whether nothing is before that which is held
        self._over = False  # whether there will be no more

    def read(self, offset: int) -> tuple[bytes, int]:
        """See `LogSource.read`. What is before the offset is held no longer."""
        if offset < self._start:
            self._end = self._end or (self._cursor, self._start + len(self._data), self._over)
            self._begin(0)
        at = offset - self._start
        while at >= len(self._data) and self._fetch():
            continue
        if at > len(self._data):
            return b"", offset
        data = bytes(self._data[at : at + _AT_ONCE])
        offset = self._start + at  # which is another one where a known end was reached
        if at:
            del self._data[:at]
            self._start, self._whole = offset, False
        return data, offset + len(data)

    def read_before(self, offset: int, size: int) -> tuple[bytes, int]:
        """See `LogSource.read_before`."""
        while offset <= self._start and not self._whole:
            self._read_back(max(_FEW, self._count) * _MORE)
        if offset <= self._start:
            return b"", 0
        begin = max(self._start, offset - size)
        return bytes(self._data[begin - self._start : offset - self._start]), begin

    def end(self) -> int:
        """See `LogSource.end`."""
        if not self._cursor:
            self._read_back(_FEW)
        while not self._over and (self._fetch() >= LINES or self._ended() is not None):
            continue
        return self._start + len(self._data)

    def since(self, time: float) -> int:
        """See `LogSource.since`; by the times at which the worker has read the lines.

        The log begins there from now on, for Iris gives what follows on a time, and not its place.
        """
        since = max(0, int(time * 1000) - 1)
        if since != self._since:
            self._since = since
            if self._cursor:
                self._read_back(max(_FEW, self._count))
        return 0

    def _fetch(self) -> int:
        """Get some lines that follow; of an attempt that has ended, wait for its last one.

        Returns:
            How many came.
        """
        said = self._ended()
        deadline = time.monotonic() + (_LAST_LINE_COMES if said else _LAST_LINES_WITHIN)
        while not self._over:
            lines, cursor = self._iris.log(self._key, self._cursor, since=self._since)
            self._take(lines, cursor)
            if lines or said is None:
                return len(lines)
            self._over = time.monotonic() >= deadline  # it was killed before it could say that this was all
            time.sleep(_PAUSE)
        return 0

    def _read_back(self, count: int) -> None:
        """Hold the last lines, at least so many where there are; offsets of what was held stay the same."""
        lines, cursor = self._last(count)
        whole = count > _MOST or len(lines) < count
        known = [each for each in self._mark if each[0] > self._since]
        at = _behind(known, lines) if known else 0 if self._cursor else len(lines)
        if at is None:
            if not whole:  # so much was written since
                return self._read_back(count * _MORE)
            at = len(lines)
        end = self._start + len(self._data)
        fresh, over = not self._cursor, self._over
        self._begin(self._cursor)
        self._take(lines[:at], 0)
        if not fresh or not whole:
            self._start = (_SOMEWHERE if fresh else end) - len(self._data)
        self._take(lines[at:], cursor)
        self._whole, self._over = whole, self._over or over
        return None

    def _last(self, count: int) -> tuple[Lines, int]:
        """Return the last lines and the cursor behind them; all, where they are more than Iris is to send."""
        if count <= _MOST:
            return self._iris.log(self._key, since=self._since, last=count)
        found: list[tuple[int, str]] = []
        cursor, page = 0, LINES
        while page >= LINES:
            lines, cursor = self._iris.log(self._key, cursor, since=self._since)
            found += lines
            page = len(lines)
        return found, cursor

    def _take(self, lines: Lines, cursor: int) -> None:
        """Hold lines that follow on those before."""
        for _, line in lines:
            self._over = self._over or line.startswith(END)
            if not line.startswith(HIDDEN):
                self._data += line.encode("utf-8", "replace") + b"\n"
        self._mark = [*self._mark, *lines][-_MARK:]
        self._count += len(lines)
        self._cursor = max(self._cursor, cursor)
        if self._end is not None and self._cursor >= self._end[0]:
            _, offset, over = self._end
            self._start, self._over, self._end = offset - len(self._data), self._over or over, None


def _behind(mark: Lines, lines: Lines) -> int | None:
    """Return the place behind a mark, where it was seen last; None where it is not among the lines."""
    size = len(mark)
    return next((at for at in range(len(lines), size - 1, -1) if lines[at - size : at] == mark), None)


class EmptyLog:
    """What a job writes before its replicas start: Iris writes that into the log of each task."""

    def read(self, offset: int) -> tuple[bytes, int]:
        """See `LogSource.read`."""
        return b"", offset

    def read_before(self, offset: int, size: int) -> tuple[bytes, int]:
        """See `LogSource.read_before`."""
        return b"", offset

    def end(self) -> int:
        """See `LogSource.end`."""
        return 0

    def since(self, time: float) -> int:
        """See `LogSource.since`."""
        return 0
