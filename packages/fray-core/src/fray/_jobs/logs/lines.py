"""Take output apart into lines, forwards and backwards, in time that grows with its size alone."""

import re
from collections.abc import Iterator

from fray._jobs.logs.reader import LogSource

# As text files have them: a progress bar that goes back to the start of its line is one line per step. A
# \r that comes last may be half of \r\n.
_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")
LONGEST = 64 << 20  # bytes of a line that is shown in one piece
_WINDOW, _LARGEST_WINDOW = 64 << 10, 4 << 20


class PartialLine(str):
    """A line that did not end as lines do.

    Args:
        end: "\\r" for a step that the next line is to take the place of, "" for a piece of a line that is
            too long to be held in memory.
    """

    __slots__ = ("end",)
    end: str

    def __new__(cls, text: str, end: str) -> "PartialLine":
        """Make a line with its end."""
        line = super().__new__(cls, text)
        line.end = end
        return line

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return PartialLine, (str(self), self.end)


def complete_lines(output: bytes) -> tuple[list[str], bytes]:
    """Return the lines of a piece of output that have their end, without it, and what is left."""
    if b"\r" not in output:
        *lines, rest = output.split(b"\n")
        return [line.decode(errors="replace") for line in lines], rest
    found: list[str] = []
    start = 0
    for end in _LINE_END.finditer(output):
        text = output[start : end.start()].decode(errors="replace")
        found.append(PartialLine(text, "\r") if end[0] == b"\r" else text)
        start = end.end()
    return found, output[start:]


class LineSplitter:
    """Complete lines of output that comes in pieces; each byte is looked at once.

    Args:
        longest: Bytes of a line after which a piece of it is given out as a `PartialLine`.
    """

    def __init__(self, longest: int = LONGEST) -> None:
        self._longest = longest
        self._pieces: list[bytes] = []  # of the line that has no end yet
        self._size = 0

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that some more output completes."""
        if self._pieces and self._pieces[-1].endswith(b"\r"):
            data = self._pieces.pop() + data
            self._size = sum(map(len, self._pieces))
        end = _first_end(data)
        if end is None:
            return self._put_by(data)
        lines, rest = complete_lines(b"".join((*self._pieces, data)))
        self._pieces, self._size = [], 0
        return lines + (self._put_by(rest) if rest else [])

    def finish(self) -> list[str]:
        """Return what is left when no more comes: a last line may lack its end."""
        return self.feed(b"\n") if self._pieces else []

    def _put_by(self, data: bytes) -> list[str]:
        self._pieces.append(data)
        self._size += len(data)
        if self._size < self._longest:
            return []
        whole, self._pieces, self._size = b"".join(self._pieces), [], 0
        return [PartialLine(whole.decode(errors="replace"), "")]


def lines_backwards(log: LogSource, end: int, start: int = 0) -> Iterator[list[str]]:
    """Yield the lines between two offsets, some at once, the last ones first; `end` is the end of a line."""
    size = _WINDOW
    while end > start:
        data, begin = _before(log, end, max(size, 1), start)
        first = _LINE_END.search(data) if begin > start else None
        cut = first.end() if first is not None and first.end() < len(data) else 0
        if begin > start and not cut and len(data) < LONGEST:
            size *= 4  # not one line from its beginning: look further back
            continue
        lines, rest = complete_lines(data[cut:])
        yield lines + ([rest.rstrip(b"\r").decode(errors="replace")] if rest else [])
        end, size = begin + cut, min(max(size, _WINDOW) * 2, _LARGEST_WINDOW)


def last_line_end(log: LogSource, end: int) -> int:
    """Return where the last complete line before an offset ends; what follows is a line in the making."""
    at = end
    while at > 0 and end - at < LONGEST:
        data, begin = log.read_before(at, _WINDOW)
        ends = [found.end() for found in _LINE_END.finditer(data)]
        if ends:
            return min(begin + ends[-1], at)  # a note of what was dropped may be longer than that
        at = begin
    return at


def _before(log: LogSource, end: int, size: int, start: int) -> tuple[bytes, int]:
    """So many bytes before an offset, from as many segments as it takes."""
    pieces: list[bytes] = []
    begin = end
    while begin > start and end - begin < size:
        data, begin = log.read_before(begin, min(size - (end - begin), begin - start))
        pieces.append(data)
    return b"".join(reversed(pieces)), begin


def _first_end(data: bytes) -> int | None:
    if b"\n" in data:
        return data.find(b"\n")
    found = _LINE_END.search(data) if b"\r" in data else None
    return None if found is None else found.start()
