"""The lines of a job: of its replicas, attempt after attempt, as `monitor` gives them."""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

from fray._jobs.logs.lines import LineSplitter, last_line_end, prefixed
from fray._jobs.logs.listing import listed_once
from fray._jobs.logs.reader import LogSource, OffsetLog
from fray._jobs.logs.tails import FairTail, LogRange, LogTail, Tail, TailAfter
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
        open_log: Opens the logs, each once, for a backend whose logs know times, or whose tails cost only
            what they show.
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
    open_log = cache(open_log)  # what one look at a log has read the next one has
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
        return ([] if self._grows(info) else self._chosen.of(self._splitter.finish())), False

    def tail(self, info: JobInfo) -> LogTail:
        """Return the lines until now, of which the last ones can be taken, and continue after them."""
        self._attempt = max(self._latest(info), 1)
        self._log = self._open_log(self.replica, self._attempt)
        end = self._log.end()
        self._offset = last_line_end(self._log, end) if self._grows(info) else end
        return LogTail(self._backwards(self._log, self._attempt, self._offset), self._chosen.matches)

    def _backwards(self, log: LogSource, attempt: int, end: int) -> Iterator[LogRange]:
        """What is requested of the logs, from an attempt on to the first one."""
        yield LogRange(log, self._begin(log), end)
        for earlier in range(attempt - 1, 0, -1):
            log = self._open_log(self.replica, earlier)
            yield LogRange(log, self._begin(log), log.end())

    def stop_here(self) -> None:
        """End with what is there now, however much more is written meanwhile."""
        self._until = self._log.end()

    def _at_end(self) -> bool:
        return self._until is not None and self._offset >= self._until

    def _grows(self, info: JobInfo) -> bool:
        """Whether to wait for the end of a line in the making; a look without following ends with it."""
        over = self.replica is None and info.status is not JobStatus.PENDING  # the replicas have started
        return self._chosen.follow and not info.finished and not over

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
                lines += (prefixed(self._prefix(part), line) for line in own)
                read = read or more
        return lines, read

    def tail(self, info: JobInfo) -> Tail:
        """Return the lines of all until now, of which the last ones are taken in fair shares."""
        with listed_once():
            parts = self._all(info)
            replicas = FairTail([(self._prefix(part), part.tail(info)) for part in parts])
            return TailAfter(self._setup.tail(info), replicas)

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

    def _prefix(self, part: _Part) -> str:
        return f"[replica-{part.replica}] " if len(self._replicas) > 1 else ""


def _lines(
    poll: Callable[[], JobInfo], open_log: OpenLog, chosen: ChosenLines, interval: float
) -> Iterator[str]:
    # The state is read before the logs: what a job wrote before it ended is there when its end is seen.
    info = poll()
    parts = Parts(open_log, chosen)
    if not chosen.follow:
        parts.stop_here(info)
    if chosen.tail is not None:
        tail = parts.tail(info)
        tail.take(chosen.tail)
        yield from tail.lines()
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


def _pattern(grep: str | None) -> Callable[[str], object] | None:
    if grep is None:
        return None
    try:
        return re.compile(grep).search
    except re.error as error:
        raise ValueError(f"grep must be a regular expression, got {grep!r}: {error}") from error


def _offset_log(read: ReadLog, replica: int | None, attempt: int) -> LogSource:
    return OffsetLog(lambda offset: read(replica, attempt, offset))
