"""All jobs of a folder of records, looked at again and again: each record is read once, and when it changes.

A look reads for a limited time, the latest records first; what is left is read by the next ones. Of what
has ended a few records are looked at each time, all of them every few seconds: a retry changes them.
"""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fray._jobs.records.files import CHILDREN, REQUEST
from fray._jobs.records.housekeeping_due import FEW
from fray._jobs.records.index import load_index, stamp_of
from fray._jobs.records.record import JobRecord, Records
from fray._values.errors import JobNotFoundError
from fray._values.job_states import JobId, JobInfo

_FIRST, _BUDGET = 0.2, 0.5  # seconds of the first look, and of the next ones
_LEAST = 100  # records that a look reads, however long that takes: those that a page shows first
_ROUND = 10.0  # seconds in which everything is looked at once, though nothing seems to have changed
_TICK = 1_000_000_000  # nanoseconds in which a file may change again without another time of change
_SETTLED = 60.0  # seconds after the end of a job in which its status is still looked at each time

Stamp = tuple[int, int]
Current = Callable[[JobInfo], JobInfo | None]


@dataclass(frozen=True, eq=False)
class JobsSeen:
    """The jobs that are known, in no order; the same object for as long as they are the same.

    Args:
        unread: How many more there are, which later looks read.
    """

    infos: list[JobInfo]
    unread: int = 0


class RecordWatch:
    """Looks at the jobs of a folder, or at those that one job launched, again and again; of one thread.

    Args:
        below: Whether to look at what jobs launched, too. What is below a sweep is left out.
        current: What a job that has not ended reads now; None for one that is gone.
    """

    def __init__(self, folder: Path, parent: JobId | None, *, below: bool, current: Current) -> None:
        self._folder = _Folder(folder, parent, below=below)
        self._current = current
        self._seen = JobsSeen([], -1)
        self._running: dict[JobId, JobInfo] = {}  # what those that have not ended read at the last look
        self._looked = 0.0

    def renew(self) -> None:
        """Let the next look be at everything: something was changed."""
        self._looked = 0.0

    def look(self, budget: float | None = None, least: int = _LEAST) -> JobsSeen:
        """Return what is known after some seconds of reading, or less.

        Args:
            least: Records of each folder to read in any case.
        """
        now = time.monotonic()
        if budget is None:
            budget = _BUDGET if self._looked else _FIRST
        share, self._looked = min(1.0, (now - self._looked) / _ROUND), now
        changed = self._folder.look(now + budget, share, least)
        unread = self._folder.unread()
        running = {info.job_id: info for info in self._folder.unfinished()}
        read = {job_id: self._current(info) for job_id, info in running.items()}
        now_running = {job_id: info for job_id, info in read.items() if info is not None}
        if changed or unread != self._seen.unread or now_running != self._running:
            ended = [info for info in self._folder.infos() if info.finished]
            self._seen = JobsSeen([*ended, *now_running.values()], unread)
        self._running = now_running
        return self._seen


class _Known(NamedTuple):
    """What was read of a record; without a stamp it is read again."""

    stamp: Stamp | None
    written: JobInfo
    info: JobInfo


class _Folder:
    """What is known of the records of one folder."""

    def __init__(self, folder: Path, parent: JobId | None, *, below: bool) -> None:
        self._path, self._parent = folder, parent
        self._with_below = below
        self._new = True
        self._listed: int | None = None  # the folder's time of change when it was listed, if it is reliable
        self._names: dict[str, float] = {}  # and when each was launched
        self._open: list[str] = []  # those that are looked at each time
        self._known: dict[str, _Known] = {}
        self._settled: list[str] = []
        self._next = 0
        self._below: dict[str, _Folder] = {}

    def look(self, until: float, share: float, least: int) -> bool:
        """Read what is new or may have changed; whether anything has.

        Args:
            until: When to read no more, by the monotonic clock.
            share: How much of what has ended to look at, of 1.
            least: Records to read in any case.
        """
        changed = self._list(again=share >= 1.0)
        self._look_at_settled(share)
        looked, records = 0, Records(self._path, self._parent)
        while looked < len(self._open) and (looked < least or time.monotonic() < until):
            changed = self._read(records.record(self._open[looked])) or changed
            looked += 1
        # The next look continues where this one stopped.
        self._open = [*self._open[looked:], *filter(self._is_open, self._open[:looked])]
        for each in self._below.values():
            changed = each.look(until, share, least) or changed
        return changed

    def infos(self) -> Iterator[JobInfo]:
        """Yield what is known."""
        for known in self._known.values():
            yield known.info
        for each in self._below.values():
            yield from each.infos()

    def unfinished(self) -> Iterator[JobInfo]:
        """Yield what is known of the jobs that have not ended."""
        for name in self._open:
            known = self._known.get(name)
            if known is not None and not known.info.finished:
                yield known.info
        for each in self._below.values():
            yield from each.unfinished()

    def unread(self) -> int:
        """Return how many records have not been read."""
        here = sum(name not in self._known for name in self._open)
        return here + sum(each.unread() for each in self._below.values())

    def _list(self, *, again: bool) -> bool:
        """Find out which records there are; whether these are others."""
        try:
            changed = os.stat(self._path).st_mtime_ns
        except FileNotFoundError:
            changed = None
        if changed == self._listed and not again:
            return False
        first, self._new = self._new, False
        self._listed = -1 if changed is not None and _is_recent(changed) else changed
        found = set(Records(self._path, self._parent).names())
        gone, new = self._names.keys() - found, found - self._names.keys()
        for name in gone:
            del self._names[name]
            self._known.pop(name, None)
            self._below.pop(name, None)
        self._names |= {name: _launched_at(self._path, name) for name in new}
        if first and self._parent is None and len(found) > FEW:
            self._take_index()
        if new or gone:
            self._settled = [name for name in self._settled if name not in gone]
            fresh = (new - set(self._settled)) if first else new
            latest = sorted(fresh, key=self._names.__getitem__, reverse=True)
            self._open = [*latest, *(name for name in self._open if name not in gone)]
        return bool(new or gone)

    def _take_index(self) -> None:
        for name, (when, size, info, has_below) in load_index(self._path).items():
            if name in self._names and stamp_of(self._path, name) == (when, size):
                self._known[name] = _Known((when, size), info, info)
                self._settled.append(name)
                if has_below:
                    self._look_below(Records(self._path).record(name), info)

    def _look_at_settled(self, share: float) -> None:
        """Check whether records of ended jobs were written again, and read those."""
        count = min(len(self._settled), int(len(self._settled) * share) + 1)
        again = set()
        for _ in range(count):
            self._next = (self._next + 1) % len(self._settled)
            name = self._settled[self._next]
            if stamp_of(self._path, name) != self._known[name].stamp:
                again.add(name)
        if again:
            self._settled = [name for name in self._settled if name not in again]
            self._open = [*again, *self._open]

    def _is_open(self, name: str) -> bool:
        """Whether a record that was read is looked at again the next time."""
        known = self._known.get(name)
        if known is None:
            return False
        if _is_settled(known.written):
            self._settled.append(name)
            return False
        return True

    def _read(self, record: JobRecord) -> bool:
        """Read one record, or see that it is as it was; whether the job reads otherwise now."""
        name = record.path.name
        before, stamp = self._known.get(name), stamp_of(self._path, name)
        try:
            same = before is not None and stamp is not None and before.stamp == stamp
            written = before.written if before is not None and same else record.written()
            info = record.info(written)
        except JobNotFoundError:  # it is being deleted
            self._known.pop(name, None)
            self._names.pop(name, None)
            return before is not None
        self._look_below(record, info)
        if before is not None and before.info == info:
            info = before.info
        told = stamp is not None and not _is_recent(stamp[0])
        self._known[name] = _Known(stamp if told else None, written, info)
        return before is None or info is not before.info

    def _look_below(self, record: JobRecord, info: JobInfo) -> None:
        name = record.path.name
        if not self._with_below or info.is_sweep or name in self._below:
            return
        folder = record.path / CHILDREN
        if os.path.isdir(folder):  # `Path.is_dir` raises where that is forbidden
            self._below[name] = _Folder(folder, record.job_id, below=True)


def _is_recent(changed: int) -> bool:
    """Whether something may change again and have the same time of change."""
    return abs(time.time_ns() - changed) < _TICK


def _is_settled(written: JobInfo) -> bool:
    ended = written.finished_at
    return written.finished and not (ended is not None and 0 <= time.time() - ended < _SETTLED)


def _launched_at(folder: Path, name: str) -> float:
    """Return what orders records as their jobs were launched, without reading them."""
    if name.isdecimal():  # a member of a sweep: the first are shown first
        return -float(name)
    try:
        return os.stat(f"{folder}/{name}/{REQUEST}").st_mtime
    except OSError:
        return 0.0
