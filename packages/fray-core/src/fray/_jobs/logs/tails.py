"""The last lines of logs: found from the end backwards, then read forwards.

Only where they begin is kept of them, or a few that were searched for, so that a tail of long lines, or of
many logs, needs little memory.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

from fray._jobs.logs.lines import Window, lines_forwards, prefixed, windows_backwards
from fray._jobs.logs.reader import LogSource

_MOST_KEPT = 1 << 20  # characters


class Tail(Protocol):
    """Lines up to an end, of one log or several."""

    def take(self, count: int) -> int:
        """Extend it by so many lines before those that it has; return how many there were."""
        ...

    def lines(self) -> Iterator[str]:
        """Read the lines that were taken; nothing can be taken any more."""
        ...


class LogRange(NamedTuple):
    """What of a log may be shown: from the beginning of a line to the end of one."""

    log: LogSource
    start: int
    end: int


class _Place(NamedTuple):
    """Where the lines that were taken begin: in which range, and so many lines after an offset.

    It has the first one of them, where that had to be read to be chosen.
    """

    range: int
    start: int
    skip: int
    line: str | None


class LogTail:
    """The last lines of a replica.

    Args:
        ranges: Its logs, the last one first.
        matches: Chooses the lines; None for all.
    """

    def __init__(self, ranges: Iterator[LogRange], matches: Callable[[str], object] | None) -> None:
        self._matches = matches
        self._ranges: list[LogRange] = []  # that were looked at
        self._places = self._backwards(ranges)
        self._first: _Place | None = None
        # The lines that were found, while they are few: what is between them is not read again then.
        self._kept: list[str] | None = None if matches is None else []
        self._size = 0

    def take(self, count: int) -> int:
        """See `Tail.take`."""
        taken = 0
        for place in islice(self._places, count):
            self._first = place
            self._keep(place.line or "")
            taken += 1
        return taken

    def lines(self) -> Iterator[str]:
        """See `Tail.lines`."""
        self._places.close()
        if self._kept is not None:
            yield from reversed(self._kept)
        elif self._first is not None:
            yield from self._forwards(self._first)

    def _keep(self, line: str) -> None:
        self._size += len(line)
        if self._size > _MOST_KEPT:
            self._kept = None
        elif self._kept is not None:
            self._kept.append(line)

    def _forwards(self, first: _Place) -> Iterator[str]:
        last, start, skip, _ = first
        for number in range(last, -1, -1):
            log, begin, end = self._ranges[number]
            lines = lines_forwards(log, start if number == last else begin, end)
            wanted = islice(lines, skip if number == last else 0, None)
            yield from wanted if self._matches is None else filter(self._matches, wanted)

    def _backwards(self, ranges: Iterator[LogRange]) -> Generator[_Place, None, None]:
        for number, each in enumerate(ranges):
            self._ranges.append(each)
            for window in windows_backwards(each.log, each.end, each.start):
                for at, line in self._chosen(window):
                    yield _Place(number, window.start, window.skip + at, line)

    def _chosen(self, window: Window) -> Iterable[tuple[int, str | None]]:
        """The lines that are requested, by their numbers, the last one first."""
        matches = self._matches
        if matches is None:
            return ((number, None) for number in range(window.line_count() - 1, -1, -1))
        return [(number, line) for number, line in enumerate(window.lines()) if matches(line)][::-1]


class FairTail:
    """The last lines of several, in fair shares: what one does not need of its share goes to the others.

    Args:
        tails: Each with what its lines begin with.
    """

    def __init__(self, tails: Sequence[tuple[str, Tail]]) -> None:
        self._tails = tails
        self._taken = [0] * len(tails)
        self._more = list(range(len(tails)))  # those that may have more lines

    def take(self, count: int) -> int:
        """See `Tail.take`."""
        left = count
        while left > 0 and self._more:
            share = max(1, left // len(self._more))
            # Where there is not one for each, those that have the fewest get it, of equals the last ones.
            self._more.sort(key=lambda number: (self._taken[number], -number))
            ended = set()
            for number in self._more[:left]:
                taken = self._tails[number][1].take(share)
                self._taken[number] += taken
                left -= taken
                if taken < share:
                    ended.add(number)
            self._more = [number for number in self._more if number not in ended]
        return count - left

    def lines(self) -> Iterator[str]:
        """See `Tail.lines`."""
        for prefix, tail in self._tails:
            yield from (prefixed(prefix, line) for line in tail.lines())


class TailAfter:
    """The last lines of one; where it has no more, those of another that was written before it."""

    def __init__(self, before: Tail, last: Tail) -> None:
        self._before, self._last = before, last

    def take(self, count: int) -> int:
        """See `Tail.take`."""
        taken = self._last.take(count)
        return taken + self._before.take(count - taken)

    def lines(self) -> Iterator[str]:
        """See `Tail.lines`."""
        yield from self._before.lines()
        yield from self._last.lines()
