"""The log of an attempt, as `monitor` reads it: bytes from offsets on, of lines that Iris keeps."""

import time
from bisect import bisect_left
from collections.abc import Callable

from fray_iris._connection import Iris
from fray_iris._in_task.words import END
from fray_iris._reports import HIDDEN

# Seconds in which a worker delivers what an attempt that has ended wrote last: where nobody knows whether it
# could say that this was all, and where it has said so, so that its last line comes for sure.
_LAST_LINES_WITHIN, _LAST_LINE_COMES = 2.0, 60.0
_PAUSE = 0.05


class IrisLog:
    """One attempt's log; what was read is kept, because Iris counts lines by cursors of its own.

    Args:
        key: What Iris calls the log.
        ended: True where the attempt said that it has ended, a short time ago; False where it ended without a
            word, or its last line would have come; None where it is not known to have ended.
    """

    def __init__(self, iris: Iris, key: str, ended: Callable[[], bool | None]) -> None:
        self._iris, self._key, self._ended = iris, key, ended
        self._cursor = 0
        self._data = bytearray()
        self._offsets: list[int] = []
        self._times: list[int] = []
        self._whole = False

    def read(self, offset: int) -> tuple[bytes, int]:
        """See `LogSource.read`."""
        if offset >= len(self._data):
            self._fetch()
        data = bytes(self._data[offset : offset + (1 << 20)])
        return data, offset + len(data)

    def read_before(self, offset: int, size: int) -> tuple[bytes, int]:
        """See `LogSource.read_before`."""
        start = max(0, offset - size)
        return bytes(self._data[start:offset]), start

    def end(self) -> int:
        """See `LogSource.end`. The whole log is read for it: Iris does not say how long one is."""
        before = -1
        while before < len(self._data):
            before = len(self._data)
            self._fetch()
        return len(self._data)

    def since(self, time: float) -> int:
        """See `LogSource.since`; by the times at which the worker has read the lines."""
        self.end()
        position = bisect_left(self._times, int(time * 1000))
        return self._offsets[position] if position < len(self._offsets) else len(self._data)

    def _fetch(self) -> None:
        """Get what has come; of an attempt that has ended, up to its last line."""
        if self._whole:
            return
        said = self._ended()
        deadline = time.monotonic() + (_LAST_LINE_COMES if said else _LAST_LINES_WITHIN)
        while not self._take() and not self._whole and said is not None:
            if time.monotonic() >= deadline:
                self._whole = True  # the replica was killed before it could say that this was all
            time.sleep(_PAUSE)

    def _take(self) -> bool:
        lines, self._cursor = self._iris.log(self._key, self._cursor)
        before = len(self._data)
        for time_, line in lines:
            self._whole = self._whole or line.startswith(END)
            if not line.startswith(HIDDEN):
                self._offsets.append(len(self._data))
                self._times.append(time_)
                self._data += line.encode("utf-8", "replace") + b"\n"
        return len(self._data) > before


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
