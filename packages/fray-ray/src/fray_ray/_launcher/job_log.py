"""The one log of a job in Ray, taken apart into those of its replicas and their attempts.

Ray gives the last lines of a log, or all of it, and no range. The log has marks in it (`_head.log_marks`),
lines that are like no other: only what is behind the last mark that was read can be new, so a look costs what
came since then, and a tail what it shows. What was read reaches from somewhere up to the end, without a gap;
what a reader has taken is held no longer.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from fray import UnsupportedError
from fray_ray._log_names import MARK

_LINE = re.compile(r"\[replica-(\d{1,9})\] ?(.*)", re.DOTALL)
_BEGIN = re.compile(r"\[fray\] replica (\d{1,9}) starts, attempt (\d{1,9})")
_FRESH = 0.05  # seconds
_SHARE = 0.1  # of the time that reading a long log may take
# Lines that are asked for first; so many times more where they do not reach back far enough.
_FEW, _MORE = 500, 8
# Offsets of an attempt's log whose beginning was not read count from here, beyond every size.
_SOMEWHERE = 1 << 60

Fetch = Callable[[int | None], str]
"""Returns the last lines of a log, at least so many where there are; all of it for None."""


@dataclass
class _Part:
    """What was read of an attempt's log, and is held.

    Args:
        whole: Whether it begins where the attempt does.
    """

    start: int
    whole: bool
    data: bytearray = field(default_factory=bytearray)

    @property
    def end(self) -> int:
        return self.start + len(self.data)


class JobLog:
    """What a job has written so far.

    Args:
        attempt_of: Returns the latest attempt of a replica that has begun; less than 1 for none.
    """

    def __init__(self, fetch: Fetch, attempt_of: Callable[[int], int]) -> None:
        self._fetch, self._attempt_of = fetch, attempt_of
        self._parts: dict[tuple[int, int], _Part] = {}
        self._attempts: dict[int, int] = {}
        self._started = self.whole = False  # whether anything was read; whether from the beginning
        self._mark = ""  # the last one that was read, between the ends of lines
        self._dropped = 0  # lines that were read, and are held no longer
        self._behind = 0  # characters that were read behind it; where there is none, of the whole log
        self._rests_until = 0.0

    def attempt(self, replica: int | None, attempt: int) -> "AttemptLog":
        """Return the log of an attempt, as `fray.cluster.follow_logs` opens it."""
        return AttemptLog(self, replica, attempt)

    def part(self, replica: int | None, attempt: int) -> _Part:
        """Return what was read of an attempt's log; one of which nothing is known yet keeps its place."""
        if replica is None:
            return _Part(0, whole=True)
        return self._parts.setdefault((replica, attempt), _Part(0 if self.whole else _SOMEWHERE, self.whole))

    def stale(self) -> None:
        """Have the next read fetch: what was written until now must be in it."""
        self._rests_until = 0.0

    def read_all(self) -> None:
        """Read the log from its beginning, where not all of it is held."""
        if not self.complete:
            self._read_back(None)

    @property
    def complete(self) -> bool:
        """Whether all that was written is held."""
        return self.whole and not self._dropped

    def drop(self, part: _Part, offset: int) -> None:
        """Hold no longer what is before an offset: a job may write more than there is memory."""
        taken = part.data[: offset - part.start]
        if taken:
            self._dropped += taken.count(b"\n")
            del part.data[: len(taken)]
            part.start, part.whole = part.start + len(taken), False

    def read_further(self) -> None:
        """Read much more of what is before that which was read."""
        known = self._dropped + sum(part.data.count(b"\n") for part in self._parts.values())
        self._read_back(max(_FEW, known) * _MORE)

    def read_new(self) -> None:
        """Read what came since the last look, unless that was a moment ago; at first, the last lines."""
        if time.monotonic() <= self._rests_until:
            return
        begun = time.monotonic()
        if self._started:
            self._take(self._new_text())
        else:
            self._read_back(_FEW)
        took = time.monotonic() - begun
        self._rests_until = begun + took + max(_FRESH, took / _SHARE - took)

    def _new_text(self) -> str:
        """Return what is behind that which was read."""
        if not self._mark:  # then it is all that was written, and little
            return _complete(self._fetch(None))[self._behind :]
        lines: int | None = _FEW
        while True:
            text = _complete(self._fetch(lines))
            at = text.rfind(self._mark)
            if at >= 0 or lines is None:
                return text[at + len(self._mark) + self._behind :] if at >= 0 else ""
            lines = lines * _MORE if text.count("\n") >= lines else None

    def _read_back(self, lines: int | None) -> None:
        """Read the log from so many lines before its end, or more; offsets stay what they are."""
        if self._started and not self._mark:  # where that ends which was read is counted from the beginning
            lines = None
        while True:
            text = _complete(self._fetch(lines))
            self.whole = lines is None or text.count("\n") < lines
            if lines is None or self.whole or (self._mark or f"\n{MARK}") in text:
                break
            lines *= _MORE
        before, self._parts = self._parts, {}
        known = len(text)
        if self._started:
            known = self._behind + (text.rfind(self._mark) + len(self._mark) if self._mark else 0)
        from_its_end = self._started or not self.whole
        self._started, self._mark, self._behind, self._attempts, self._dropped = True, "", 0, {}, 0
        # Lines before an attempt's first marker belong to the attempt before it; without a marker, to the
        # latest.
        if not self.whole:
            begins = _BEGIN.finditer(text)
            self._attempts = {int(each[1]): int(each[2]) - 1 for each in reversed(list(begins))}
        self._take(text[:known])
        for key, part in self._parts.items():
            if from_its_end:
                end = before[key].end if key in before else _SOMEWHERE
                part.start = end - len(part.data)
        for key, part in before.items():
            if key not in self._parts:  # it has not begun, or is further back
                self._parts[key] = _Part(part.end, self.whole)
        self._take(text[known:])

    def _take(self, text: str) -> None:
        """Take complete lines that follow on those before."""
        for line in text.split("\n")[:-1]:  # other marks of an end are the replica's text
            self._behind += len(line) + 1
            if begin := _BEGIN.match(line):
                replica, attempt = int(begin[1]), int(begin[2])
                self._attempts[replica] = attempt
                part = self._parts.setdefault((replica, attempt), _Part(0, whole=True))
                part.whole = part.whole or not part.data
            elif found := _LINE.match(line):
                self._part_of(int(found[1])).data.extend(found[2].encode() + b"\n")
            elif line.startswith(MARK):
                self._mark, self._behind = f"\n{line}\n", 0

    def _part_of(self, replica: int) -> _Part:
        if replica not in self._attempts:
            self._attempts[replica] = 1 if self.whole else max(1, self._attempt_of(replica))
        key = replica, self._attempts[replica]
        return self._parts.setdefault(key, _Part(0 if self.whole else _SOMEWHERE, self.whole))


class AttemptLog:
    """A `LogSource`: the log of one attempt of a replica; for replica None, of the job itself: nothing."""

    def __init__(self, log: JobLog, replica: int | None, attempt: int) -> None:
        self._log, self._replica, self._attempt = log, replica, attempt

    def read(self, offset: int) -> tuple[bytes, int]:
        """See `LogSource.read`."""
        if self._replica is None:
            return b"", offset
        part = self._part()
        if offset < part.start and not part.whole:
            self._log.read_all()
            part = self._part()
        offset = max(offset, part.start)
        if offset >= part.end:
            self._log.read_new()
            part = self._part()
        self._log.drop(part, offset)
        data = bytes(part.data[offset - part.start :])
        return data, offset + len(data)

    def read_before(self, offset: int, size: int) -> tuple[bytes, int]:
        """See `LogSource.read_before`."""
        part = self._part()
        while offset <= part.start and not part.whole and not self._log.complete:
            self._log.read_further()
            part = self._part()
        if offset <= part.start:
            return b"", 0
        begin = max(part.start, offset - size)
        return bytes(part.data[begin - part.start : offset - part.start]), begin

    def end(self) -> int:
        """See `LogSource.end`."""
        if self._replica is not None:
            self._log.read_new()
        return self._part().end

    def since(self, time: float) -> int:
        """See `LogSource.since`."""
        raise UnsupportedError("Ray does not know when a line was written; use tail= or grep=")

    def _part(self) -> _Part:
        return self._log.part(self._replica, self._attempt)


def _complete(text: str) -> str:
    """Return a text without its last line where that is in the making."""
    return text[: text.rfind("\n") + 1]
