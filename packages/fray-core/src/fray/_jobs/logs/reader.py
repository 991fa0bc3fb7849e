"""Read a log from any place, forwards or backwards, without looking at the rest of it."""

import os
import re
from collections.abc import Callable, Iterator
from typing import Protocol

from fray._jobs.logs.listing import known_segments
from fray._jobs.logs.segments import Segment, index_path, row_interval

AT_ONCE = 1 << 20  # bytes
_SHORTEST_ROW = len(b"0.000 0 0\n")
_CLOCK_TICK = 0.02  # seconds by which the time of a file may lag behind the clock
_ROW = re.compile(rb"(\d{1,12}(?:\.\d{1,9})?) (\d{1,18}) \d{1,18}")  # of an index: seconds, offset, lines


class LogSource(Protocol):
    """One attempt's log, as `monitor` reads it. Offsets count all that was written, from 0."""

    def read(self, offset: int) -> tuple[bytes, int]:
        """Return some bytes from an offset on, and the offset behind them; b"" where there is no more yet."""
        ...

    def read_before(self, offset: int, size: int) -> tuple[bytes, int]:
        """Return at most so many bytes that end at an offset, and where they begin."""
        ...

    def end(self) -> int:
        """Return the offset behind the last byte until now."""
        ...

    def since(self, time: float) -> int:
        """Return the offset of what was written from a time on (seconds since the epoch), or a little before.

        Raises:
            UnsupportedError: This log knows no times.
        """
        ...


class LogReader:
    """The log of segments that begins with a file; one that is missing is empty.

    Any number of readers may read while its writer writes. Where bytes were dropped a reader finds the note
    about them in their place.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._segments: list[Segment] = []

    def read(self, offset: int) -> tuple[bytes, int]:
        """See `LogSource.read`."""
        found = self._at(offset)
        if found is not None and not found.note and (data := _read(found, offset, AT_ONCE)):
            return data, offset + len(data)
        # The segment ended, or is gone: the next one, with what is said of the bytes between.
        self._look()
        found, following = self._at(offset), self._after(offset)
        if found is not None and not found.note and (data := _read(found, offset, AT_ONCE)):
            return data, offset + len(data)
        if following is None:
            return b"", offset
        if following.start == offset:  # the note of a gap that begins here, or the next segment
            return self._note(following) if following.note else self.read(offset)
        note = found if found is not None and found.note else None
        return self._text(note, offset, following.start), following.start

    def read_before(self, offset: int, size: int) -> tuple[bytes, int]:
        """See `LogSource.read_before`."""
        known = next((each for each in reversed(self._segments) if each.start < offset), None)
        if known is not None and not known.note and offset <= known.end:
            start = max(known.start, offset - size)
            if data := _read(known, start, offset - start):
                return data, start
        # It grew since it was looked at, or is gone.
        self._look()
        before = [segment for segment in self._segments if segment.start < offset]
        if not before:
            return b"", 0
        last = before[-1]
        if last.note:
            return self._text(last, last.start, offset), last.start
        if last.end < offset:  # nothing was kept from there to `offset`, not even a note
            return self._text(None, last.end, offset), last.end
        start = max(last.start, offset - size)
        return _read(last, start, offset - start), start

    def end(self) -> int:
        """See `LogSource.end`."""
        self._look()
        whole = [segment for segment in self._segments if not segment.note]
        return whole[-1].end if whole else 0

    def since(self, time: float) -> int:
        """See `LogSource.since`; exact to a second at first, and to some in a log of days."""
        index = index_path(self._path)
        if not os.path.exists(index):
            return self._since_by_file_times(time)
        found = end = self.end()
        for before, row in _rows_backwards(index):
            if (read := _read_row(row)) is None:
                continue
            when, offset = read
            if when <= time:
                # What follows on a row, up to the next one, was written within its interval; that is not
                # taken for shorter than it is, because `before` is not less than the bytes before the row.
                late = time >= when + row_interval(before // _SHORTEST_ROW + 1)
                return found if late else min(offset, end)
            found = min(offset, end)
        return 0

    def last(self, size: int) -> bytes:
        """Return the last bytes, over segments."""
        pieces: list[bytes] = []
        offset = self.end()
        while offset > 0 and size > 0:
            data, offset = self.read_before(offset, size)
            pieces.insert(0, data)
            size -= len(data)
        return b"".join(pieces)

    def files(self) -> list[str]:
        """Return the files that the log is in."""
        self._look()
        return [segment.path for segment in self._segments]

    def _look(self) -> None:
        self._segments = known_segments(self._path)

    def _at(self, offset: int) -> Segment | None:
        """The last segment or note that begins at or before an offset."""
        return next((each for each in reversed(self._segments) if each.start <= offset), None)

    def _after(self, offset: int) -> Segment | None:
        """What follows on the segment or note at an offset."""
        current = self._at(offset)
        if current is not None and current.start == offset and current.note:
            return current
        return next((each for each in self._segments if each.start >= offset and each is not current), None)

    def _note(self, note: Segment) -> tuple[bytes, int]:
        following = next((each for each in self._segments if each.start > note.start), None)
        if following is None:  # its writer has found no room for the rest yet
            return b"", note.start
        return self._text(note, note.start, following.start), following.start

    def _text(self, note: Segment | None, start: int, end: int) -> bytes:
        """What stands for bytes that are not there, as a line of its own."""
        text = b"" if note is None else _read(note, note.start, AT_ONCE)
        kept = [each for each in self._segments if each.start < start and not each.note]
        mark = b"\n" if kept and _read(kept[-1], kept[-1].end - 1, 1) != b"\n" else b""
        return mark + (text or f"[fray] {end - start:,} bytes were dropped here\n".encode())

    def _since_by_file_times(self, time: float) -> int:
        """For a log without an index: it took no second, or is of 0.1.0; it has the time of its last byte."""
        self._look()
        try:
            over = self._segments and os.stat(self._segments[-1].path).st_mtime < time - _CLOCK_TICK
        except FileNotFoundError:  # dropped meanwhile: more was written
            return 0
        return self.end() if over else 0


class OffsetLog:
    """The log of a backend that can read from an offset and nothing else.

    Args:
        read: Returns bytes from an offset on; b"" where there is no more yet.
    """

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read

    def read(self, offset: int) -> tuple[bytes, int]:
        """See `LogSource.read`."""
        data = self._read(offset)
        return data, offset + len(data)

    def read_before(self, offset: int, size: int) -> tuple[bytes, int]:
        """See `LogSource.read_before`."""
        start = max(0, offset - size)
        found = b""
        while start + len(found) < offset and (data := self._read(start + len(found))):
            found += data
        return found[: offset - start], start

    def end(self) -> int:
        """See `LogSource.end`; found by doubling and halving, with a read for each step."""
        high = 0
        while data := self._read(high):
            low, high = high, (high + len(data)) * 2
            if not self._read(low + len(data)):
                return low + len(data)
        if not high:
            return 0
        while True:  # there is something at `low`, and nothing at `high`
            middle = (low + high) // 2
            data = self._read(middle)
            if not data:
                high = middle
            elif not self._read(middle + len(data)):
                return middle + len(data)
            else:
                low = middle

    def since(self, time: float) -> int:
        """See `LogSource.since`."""
        from fray._values.errors import UnsupportedError

        raise UnsupportedError("this cluster does not know when a line was written; use tail= or grep=")


def _read(segment: Segment, offset: int, size: int) -> bytes:
    try:
        with open(segment.path, "rb", buffering=0) as file:
            return os.pread(file.fileno(), size, offset - segment.start)
    except FileNotFoundError:  # dropped meanwhile
        return b""


def _read_row(row: bytes) -> tuple[float, int] | None:
    """Read when a row of an index was written and where the log ended then; None where it is damaged."""
    match = _ROW.fullmatch(row)
    return (float(match[1]), int(match[2])) if match else None


def _rows_backwards(path: str) -> Iterator[tuple[int, bytes]]:
    """The rows of an index, the last one first, each with the bytes before it or up to 64 KiB more."""
    with open(path, "rb") as file:
        end, rest = os.path.getsize(path), b""
        while end > 0:
            start = max(0, end - 65536)
            file.seek(start)
            first, *rows = (file.read(end - start) + rest).split(b"\n")
            rest, end = first, start
            yield from ((start + 65536, row) for row in reversed(rows))
        yield 0, rest
