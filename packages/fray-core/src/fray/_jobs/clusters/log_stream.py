"""The lines of a job: of its replicas, attempt after attempt, as `monitor` gives them."""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from fray._jobs.logs.lines import LineSplitter, PartialLine, last_line_end, lines_backwards
from fray._jobs.logs.listing import listed_once
from fray._jobs.logs.reader import LogSource, OffsetLog
from fray._values.delays import poll_delays
from fray._values.jobs import JobInfo, JobStatus

if TYPE_CHECKING:
    from fray._contracts.cluster import LogStream

# Reads a log from a byte offset: of a replica's attempt, or, for replica None, what the job itself
# wrote before its replicas started. b"" where there is nothing (yet).
ReadLog = Callable[[int | None, int, int], bytes]
# Opens the log of a replica's attempt, or of the job itself; one that is not there yet is empty.
OpenLog = Callable[[int | None, int], LogSource]


def follow_logs(
    poll: Callable[[], JobInfo],
    read: ReadLog | None = None,
    *,
    open_log: OpenLog | None = None,
    replica: int | None = None,
    tail: int | None = None,
    since: float | None = None,
    grep: str | None = None,
    follow: bool = True,
    interval: float = 0.02,
) -> "LogStream":
    """Implement a backend's `monitor`: merge the logs of a job's replicas until `poll` says finished.

    Args:
        read: Reads the logs from an offset on, for a backend that can do no more.
        open_log: Opens the logs, for a backend whose logs know times, or whose tails cost only what they
            show.
        interval: Seconds between two looks at most.

    Raises:
        ValueError: The job has no such replica, or an argument is wrong.
        UnsupportedError: `since` was given, and the logs have no times.
    """
    from fray._contracts.cluster import LogStream
    from fray._jobs.clusters.following import final_info

    if open_log is None:
        if read is None:
            raise TypeError("follow_logs needs read= or open_log=")
        open_log = partial(_offset_log, read)
    count = len(poll().tasks)
    if replica is not None and not 0 <= replica < count:
        raise ValueError(f"replica must be 0 to {count - 1}, got {replica}")
    if since is not None:
        open_log(0, 1).since(since)  # where it is refused, it is refused here
    chosen = chosen_lines(replica=replica, tail=tail, since=since, grep=grep, follow=follow)
    return LogStream(_lines(poll, open_log, chosen, interval), partial(final_info, poll))


@dataclass(frozen=True, kw_only=True)
class ChosenLines:
    """The selection of lines."""

    replica: int | None
    tail: int | None
    since: float | None
    matches: Callable[[str], object] | None
    follow: bool

    def of(self, lines: list[str]) -> list[str]:
        return lines if self.matches is None else list(filter(self.matches, lines))


def chosen_lines(
    *, replica: int | None = None, tail: int | None, since: float | None, grep: str | None, follow: bool
) -> ChosenLines:
    """Check the selection of lines.

    Raises:
        ValueError: An argument is wrong.
    """
    if tail is not None and tail < 0:
        raise ValueError(f"tail must be 0 or more, got {tail}")
    return ChosenLines(replica=replica, tail=tail, since=since, matches=_pattern(grep), follow=follow)


class _Part:
    """The log of one replica, or of the job itself: where reading it has come to."""

    def __init__(self, open_log: OpenLog, replica: int | None, chosen: ChosenLines) -> None:
        self._open_log, self.replica, self._chosen = open_log, replica, chosen
        self._attempt = self._offset = 0
        self._until: int | None = None
        self._next()

    def round(self, info: JobInfo) -> tuple[list[str], bool]:
        """Return some lines that follow, and whether there was anything to read."""
        data, offset = self._log.read(self._offset) if not self._at_end() else (b"", self._offset)
        if offset > self._offset:
            if self._until is not None and offset > self._until:
                data, offset = data[: self._until - self._offset], self._until
            self._offset = offset
            return self._chosen.of(self._splitter.feed(data)), True
        latest = self._latest(info)
        if self._attempt < latest:
            lines = self._chosen.of(self._splitter.finish())
            self._next()
            return lines, True
        # A look without following ends with the line in the making.
        over = info.finished or not self._chosen.follow
        over = over or (self.replica is None and info.status is not JobStatus.PENDING)
        return (self._chosen.of(self._splitter.finish()) if over else []), False

    def tail(self, info: JobInfo, count: int) -> list[str]:
        """Return the last lines until now, and continue after them."""
        latest = self._latest(info)
        found: list[str] = []
        for attempt in range(max(latest, 1), 0, -1):
            log = self._open_log(self.replica, attempt)
            end = log.end()
            growing = attempt == latest and not info.finished and self._chosen.follow
            complete = last_line_end(log, end) if growing else end
            if attempt == max(latest, 1):
                self._attempt, self._log, self._offset = attempt, log, complete
            found = (
                _last(lines_backwards(log, complete, self._begin(log)), self._chosen, count - len(found))
                + found
            )
            if len(found) >= count:
                break
        return found

    def stop_here(self) -> None:
        """End with what is there now, however much more is written meanwhile."""
        self._until = self._log.end()

    def _at_end(self) -> bool:
        return self._until is not None and self._offset >= self._until

    def _latest(self, info: JobInfo) -> int:
        if self.replica is None or self.replica >= len(info.tasks):
            return 0
        return info.tasks[self.replica].attempt

    def _begin(self, log: LogSource) -> int:
        """Return where what is requested of a log begins: at the beginning of a line."""
        return 0 if self._chosen.since is None else last_line_end(log, log.since(self._chosen.since))

    def _next(self) -> None:
        self._attempt += 1
        self._log = self._open_log(self.replica, self._attempt)
        self._splitter = LineSplitter()
        self._offset = self._begin(self._log)
        if self._until is not None:
            self._until = self._log.end()


class Parts:
    """The logs of a job that are read: a gang may have more of them when it starts again."""

    def __init__(self, open_log: OpenLog, chosen: ChosenLines) -> None:
        self._open_log, self._chosen = open_log, chosen
        self._setup = _Part(open_log, None, chosen)
        self._replicas: dict[int, _Part] = {}

    def round(self, info: JobInfo) -> tuple[list[str], bool]:
        """Return a share of what each has, so that one that writes much does not hide the others."""
        with listed_once():
            lines, read = self._setup.round(info)
            if read:
                return lines, True
            for part in self._all(info):
                own, more = part.round(info)
                lines += self._prefixed(part, own)
                read = read or more
        return lines, read

    def tail(self, info: JobInfo, count: int) -> list[str]:
        """Return the last lines of all, in fair shares."""
        tails = {part: self._prefixed(part, part.tail(info, count)) for part in self._all(info)}
        shares = fair_shares([len(lines) for lines in tails.values()], count)
        shown = [
            line for lines, share in zip(tails.values(), shares, strict=True) for line in _end(lines, share)
        ]
        before = self._setup.tail(info, count)
        return _end(before, count - len(shown)) + shown

    def stop_here(self, info: JobInfo) -> None:
        """End with what is there now."""
        with listed_once():
            for part in [self._setup, *self._all(info)]:
                part.stop_here()

    def _all(self, info: JobInfo) -> list[_Part]:
        chosen = self._chosen.replica
        for number in range(len(info.tasks)) if chosen is None else [chosen]:
            if number not in self._replicas:
                self._replicas[number] = _Part(self._open_log, number, self._chosen)
        return list(self._replicas.values())

    def _prefixed(self, part: _Part, lines: list[str]) -> list[str]:
        if len(self._replicas) < 2:
            return lines
        prefix = f"[replica-{part.replica}] "
        return [
            PartialLine(prefix + line, line.end) if isinstance(line, PartialLine) else prefix + line
            for line in lines
        ]


def fair_shares(sizes: list[int], count: int) -> list[int]:
    """Share `count` places: what one does not need of its share goes to the others."""
    shares = [0] * len(sizes)
    while count > 0 and (hungry := [n for n, size in enumerate(sizes) if shares[n] < size]):
        each = max(1, count // len(hungry))
        for number in hungry[-count:]:
            given = min(each, sizes[number] - shares[number], count)
            shares[number] += given
            count -= given
    return shares


def _lines(
    poll: Callable[[], JobInfo], open_log: OpenLog, chosen: ChosenLines, interval: float
) -> Iterator[str]:
    # The state is read before the logs: what a job wrote before it ended is there when its end is seen.
    info = poll()
    parts = Parts(open_log, chosen)
    if not chosen.follow:
        parts.stop_here(info)
    if chosen.tail is not None:
        yield from parts.tail(info, chosen.tail)
        if not chosen.follow:
            return
    seen, delays = time.monotonic(), poll_delays(longest=interval)
    while True:
        lines, read = parts.round(info)
        yield from lines
        if not read:
            if info.finished or not chosen.follow:
                return
            time.sleep(next(delays))
        else:
            delays = poll_delays(longest=interval)  # a program that writes, writes more: look again soon
        if chosen.follow and not info.finished and (not read or time.monotonic() - seen >= interval):
            info, seen = poll(), time.monotonic()


def _last(windows: Iterator[list[str]], chosen: ChosenLines, count: int) -> list[str]:
    """The last lines of a log that are requested."""
    backwards = (line for lines in windows for line in reversed(chosen.of(lines)))
    return list(islice(backwards, count))[::-1] if count > 0 else []


def _end(lines: list[str], count: int) -> list[str]:
    return lines[-count:] if count > 0 else []


def _pattern(grep: str | None) -> Callable[[str], object] | None:
    if grep is None:
        return None
    try:
        return re.compile(grep).search
    except re.error as error:
        raise ValueError(f"grep must be a regular expression, got {grep!r}: {error}") from error


def _offset_log(read: ReadLog, replica: int | None, attempt: int) -> LogSource:
    return OffsetLog(lambda offset: read(replica, attempt, offset))
