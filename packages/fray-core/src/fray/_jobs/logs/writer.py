"""Write a log: in segments, within a limit, on a disk that may be full."""

import errno
import os
import time

from fray._jobs.logs.segments import index_path, note_path, row_interval, segment_path, segments_of
from fray._jobs.records.status_file import remove_file, replace_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_SEGMENT = 64 << 20  # bytes
_LEAST_SEGMENT = 8 << 10
_PARTS = 8  # of a limit: one at the beginning, the others at the end
_KEPT_IN_MEMORY = 64 << 10  # bytes of the end that wait for room on the disk
_TRY_AGAIN = 0.5  # seconds
# What the disk keeps free: the status of jobs and other programs need it more than a log does.
_RESERVE, _RESERVED_SHARE = 256 << 20, 0.02
_FULL = (errno.ENOSPC, errno.EDQUOT)


class LogWriter:
    """The one writer of a log; none of its calls raises because of the disk.

    What cannot be written is kept as far as it is the end of the log, and tried again; what is lost is
    counted, and a line in the log says so.

    Args:
        path: The first segment; its folder exists.
        limit: Bytes to keep, of the beginning and the end; None for all, as far as the disk has room.
        segment: Bytes of a segment, where the disk has room.
        try_again: Seconds between two tries to write on a disk that is full.
    """

    def __init__(
        self,
        path: str,
        limit: int | None = None,
        clock: "Callable[[], float]" = time.time,
        *,
        segment: int = _SEGMENT,
        try_again: float = _TRY_AGAIN,
    ) -> None:
        self._path, self._limit, self._clock, self._try_again = path, limit, clock, try_again
        free, self._reserve = _room(path)
        self._segment = min(segment, max(_LEAST_SEGMENT, free // (2 * _PARTS)))
        self._cap = limit  # the limit, or what was kept when the disk had little left
        self._head_end: int | None = None
        self._tail: list[tuple[int, int, int]] = []  # finished segments after the first: start, end, lines
        self._gaps: dict[int, tuple[int, int]] = {}  # start -> end and lines of what is missing
        self._file = -1
        self._start = self._size = self._lines = 0
        self._line_start = True
        self._unwritten = bytearray()  # from `_start` on, while no segment can be written
        self._retry_at = 0.0
        self._unchecked = 0
        found = segments_of(path)
        self._index = _Index(index_path(path), clock, new=not found)
        self._start = max((segment.start if segment.note else segment.end for segment in found), default=0)
        if found:  # an earlier writer had its own head and tail; they stay
            self._head_end = self._start
        self._open()

    @property
    def end(self) -> int:
        """The offset behind the last byte that was written, lost ones included."""
        return self._start + self._size + len(self._unwritten)

    def write(self, data: bytes) -> None:
        """Append some output."""
        self._index.note(self.end, data)
        if self._file < 0 and not self.retry():
            self._keep(data)
            return
        while data:
            if self._is_full():
                self._rotate()
            if self._file < 0:
                self._keep(data)
                return
            cut = self._cut(data)
            written = self._append(data[:cut])
            data = data[written:]
            if written < cut:
                self._break()
                self._keep(data)
                return

    def retry(self) -> bool:
        """Write what could not be written before, if it is time to; return whether nothing is left of it."""
        if self._file >= 0:
            return True
        if time.monotonic() < self._retry_at:
            return False
        return self._mend()

    def close(self) -> None:
        """Write what is left; afterwards nothing is written any more."""
        if self._file < 0:
            self._mend()
        self._close_file()
        self._index.close()

    def _close_file(self) -> None:
        file, self._file = self._file, -1
        _close(file)

    def _is_full(self) -> bool:
        if self._unchecked >= min(4 << 20, self._reserve // 2):
            self._check_disk()
        size = self._segment_size()
        return self._size >= size and (self._line_start or self._size >= 2 * size)

    def _segment_size(self) -> int:
        if self._cap is None:
            return self._segment
        return min(self._segment, max(_LEAST_SEGMENT, self._cap // _PARTS))

    def _cut(self, data: bytes) -> int:
        """How much of the data goes into this segment: to the end of a line, where one comes soon."""
        size = self._segment_size()
        left = size - self._size
        if len(data) <= left:
            return len(data)
        last = data.rfind(b"\n", 0, max(0, left)) + 1
        most = max(1, 2 * size - self._size)
        return last or data.find(b"\n", max(0, left), most) + 1 or min(len(data), most)

    def _append(self, data: bytes) -> int:
        """Write to this segment, at the cost of the middle of the log; return how much was."""
        written = 0
        while written < len(data):
            try:
                written += os.write(self._file, data[written:] if written else data)
            except OSError as error:
                if error.errno not in _FULL or not self._drop():
                    break
        done = data[:written] if written < len(data) else data
        self._size += written
        self._unchecked += written
        self._lines += done.count(b"\n")
        self._line_start = done.endswith(b"\n") if done else self._line_start
        return written

    def _rotate(self) -> None:
        self._close_file()
        self._finish_segment()
        cap, size = self._cap, self._segment_size()
        while cap is not None and self._kept() + 2 * size > cap and self._drop():
            continue
        if not self._open():
            self._retry_at = time.monotonic() + self._try_again

    def _finish_segment(self) -> None:
        end = self._start + self._size
        if self._head_end is None:
            self._head_end = end
        elif self._size:
            self._tail.append((self._start, end, self._lines))
        self._start, self._size, self._lines = end, 0, 0

    def _kept(self) -> int:
        return (self._head_end or 0) + sum(end - start for start, end, _ in self._tail)

    def _open(self) -> bool:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        while True:
            try:
                self._file = os.open(segment_path(self._path, self._start), flags, 0o600)
            except OSError as error:
                if error.errno in _FULL and self._drop():
                    continue
                self._file = -1
            return self._file >= 0

    def _drop(self) -> bool:
        """Delete the oldest segment behind the first one; False where there is none."""
        if not self._tail or self._head_end is None:
            return False
        start, end, lines = self._tail.pop(0)
        for gap, (gap_end, gap_lines) in sorted(self._gaps.items()):
            if gap > end:
                break
            lines += gap_lines
            end = max(end, gap_end)
            del self._gaps[gap]
            if gap != self._head_end:
                remove_file(note_path(self._path, gap))
        self._gaps[self._head_end] = (end, lines)
        # The note first, so that a reader finds one or the other; on a full disk it must wait for the room.
        noted = self._note(self._head_end)
        remove_file(segment_path(self._path, start))
        if not noted:
            self._note(self._head_end)
        return True

    def _note(self, gap: int) -> bool:
        end, lines = self._gaps[gap]
        why = "the disk has little left" if self._cap is None or self._cap != self._limit else "log_limit"
        text = f"[fray] {lines:,} lines ({end - gap:,} bytes) were dropped here: {why}\n"
        try:
            replace_file(note_path(self._path, gap), text.encode())
        except OSError:
            return False
        return True

    def _check_disk(self) -> None:
        self._unchecked = 0
        free, self._reserve = _room(self._path)
        if free < self._reserve:
            kept = self._kept() + self._size
            self._cap = kept if self._cap is None else min(self._cap, kept)
        elif free > 2 * self._reserve:
            self._cap = self._limit

    def _break(self) -> None:
        """The disk is full: continue in memory."""
        self._close_file()
        if not self._size and self._start:
            remove_file(segment_path(self._path, self._start))  # or it would part a gap in two
        self._finish_segment()
        self._retry_at = time.monotonic() + self._try_again

    def _keep(self, data: bytes) -> None:
        self._unwritten += data
        excess = len(self._unwritten) - _KEPT_IN_MEMORY
        if excess > 0:
            cut = self._unwritten.find(b"\n", excess, excess + _KEPT_IN_MEMORY // 2) + 1 or excess
            gap, lines = self._last_gap()
            lines += self._unwritten.count(b"\n", 0, cut)
            del self._unwritten[:cut]
            self._start += cut
            self._gaps[gap] = (self._start, lines)

    def _last_gap(self) -> tuple[int, int]:
        """The gap that ends where the next segment begins; one is begun where there is none."""
        for gap, (end, lines) in self._gaps.items():
            if end == self._start:
                return gap, lines
        return self._start, 0

    def _mend(self) -> bool:
        self._retry_at = time.monotonic() + self._try_again
        gap, lines = self._last_gap()
        if lines or gap != self._start:
            self._note(gap)
        if not self._open():
            return False
        data, self._unwritten = bytes(self._unwritten), bytearray()
        written = self._append(data)
        if written < len(data):
            self._break()
            self._keep(data[written:])
            return False
        return True


class _Index:
    """Rows of when which byte was written; it serves to find a time, and the log is whole without it.

    The file is made with the second row: a log that took no second is found by the time of its file.

    Args:
        new: Whether nobody wrote to the log before.
    """

    def __init__(self, path: str, clock: "Callable[[], float]", *, new: bool) -> None:
        self._path, self._clock, self._new = path, clock, new
        self._rows = self._lines = 0
        self._next = 0.0
        self._unwritten = b""
        self._file = -1

    def note(self, offset: int, data: bytes) -> None:
        """Add a row for data that comes at an offset, unless the last row is young."""
        now = self._clock()
        # A clock that was set back gets rows again too.
        if not self._next - row_interval(self._rows) <= now < self._next:
            # Rounded up: nothing before the offset was written later than the row says.
            self._add(f"{-(-now * 1000 // 1) / 1000:.3f} {offset} {self._lines}\n".encode())
            self._rows += 1
            self._next = now + row_interval(self._rows)
        self._lines += data.count(b"\n")

    def close(self) -> None:
        file, self._file = self._file, -1
        _close(file)

    def _add(self, row: bytes) -> None:
        self._unwritten += row
        if not self._rows and self._new:
            return
        try:
            if self._file < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._file = os.open(self._path, flags, 0o600)
            self._unwritten = self._unwritten[os.write(self._file, self._unwritten) :]
        except OSError:  # with the next row
            return


def _close(file: int) -> None:
    if file < 0:
        return
    try:
        os.close(file)
    except OSError:  # NFS says here what it had no room for; the file is closed nevertheless
        return


def _room(path: str) -> tuple[int, int]:
    """The bytes that are free on the disk of a file, and how many of it are to stay free."""
    try:
        disk = os.statvfs(os.path.dirname(path) or ".")
    except OSError:
        return 0, _RESERVE
    return disk.f_bavail * disk.f_frsize, min(_RESERVE, int(disk.f_blocks * disk.f_frsize * _RESERVED_SHARE))
