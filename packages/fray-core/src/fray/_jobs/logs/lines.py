"""Take output apart into lines, forwards and backwards, in time that grows with its size alone."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from fray._jobs.logs.reader import LogSource

# As text files have them: a progress bar that goes back to the start of its line is one line per step. A
# \r that comes last may be half of \r\n.
_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")
LONGEST = 64 << 20  # bytes of a line that is shown in one piece
_FIRST_WINDOW, _LARGEST_WINDOW = 4 << 10, 4 << 20  # bytes read at once, backwards


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
        if not data:
            return []
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


class Window(NamedTuple):
    """Some lines of a log: reading forwards from an offset gives them, after so many that are not of them."""

    start: int
    skip: int
    data: bytes

    def line_count(self) -> int:
        """Return how many lines there are."""
        if b"\r" not in self.data:
            return self.data.count(b"\n") + (not self.data.endswith(b"\n"))
        return len(self.lines())

    def lines(self) -> list[str]:
        """Return the lines; the last one may lack its end."""
        lines, rest = complete_lines(self.data)
        return [*lines, rest.rstrip(b"\r").decode(errors="replace")] if rest else lines


def windows_backwards(log: LogSource, end: int, start: int = 0) -> Iterator[Window]:
    """Yield the lines between two offsets, some at once, the last ones first.

    Args:
        end: The end of a line.
        start: The beginning of one.
    """
    size = _FIRST_WINDOW
    while end > start:
        piece, begin = log.read_before(end, min(size, end - start))
        if len(piece) != end - begin:  # it stands for bytes that are gone, and is lines of its own
            if piece:
                skip = piece.startswith(b"\n")  # the end of the line before it
                yield Window(begin, int(skip), piece[skip:])
            end = begin
            continue
        data, begin, is_line = _further_before(log, piece, begin, size - len(piece), start)
        first = None if is_line else _LINE_END.search(data)
        cut = first.end() if first is not None and first.end() < len(data) else 0
        if not is_line and not cut and len(data) < LONGEST:
            size *= 4  # not one line from its beginning: look further back
            continue
        yield Window(begin + cut, 0, data[cut:])
        end, size = begin + cut, min(size * 2, _LARGEST_WINDOW)


def lines_forwards(log: LogSource, start: int, end: int) -> Iterator[str]:
    """Yield the lines between two offsets, the beginning of one and the end of one."""
    splitter = LineSplitter()
    while start < end:
        data, after = log.read(start)
        if after == start:
            break
        yield from splitter.feed(data if after <= end else data[: end - start])
        start = after
    yield from splitter.finish()


def last_line_end(log: LogSource, end: int) -> int:
    """Return where the last complete line before an offset ends; what follows is a line in the making."""
    at, size = end, _FIRST_WINDOW
    while at > 0 and end - at < LONGEST:
        data, begin = log.read_before(at, size)
        ends = [found.end() for found in _LINE_END.finditer(data)]
        if ends:
            return min(begin + ends[-1], at)  # a note of what was dropped may be longer than that
        at, size = begin, min(size * 2, _LARGEST_WINDOW)
    return at


def prefixed(prefix: str, line: str) -> str:
    """Return a line with something before it, and with its end."""
    return PartialLine(prefix + line, line.end) if isinstance(line, PartialLine) else prefix + line


def _further_before(
    log: LogSource, piece: bytes, begin: int, size: int, start: int
) -> tuple[bytes, int, bool]:
    """Add so many bytes before a piece, from as many segments as it takes.

    Returns:
        The bytes, where they begin, and whether a line is known to begin there.
    """
    pieces = [piece]
    while begin > start and size > 0:
        piece, before = log.read_before(begin, min(size, begin - start))
        if len(piece) != begin - before:  # of bytes that are gone: the line before them has ended
            return b"".join(reversed(pieces)), begin, True
        pieces.append(piece)
        begin, size = before, size - len(piece)
    return b"".join(reversed(pieces)), begin, begin <= start


def _first_end(data: bytes) -> int | None:
    if b"\n" in data:
        return data.find(b"\n")
    found = _LINE_END.search(data) if b"\r" in data else None
    return None if found is None else found.start()
