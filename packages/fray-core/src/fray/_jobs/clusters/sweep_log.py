"""The lines of a sweep: of its members, as they come, each behind the number of its member."""

import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import TYPE_CHECKING

from fray._jobs.clusters.log_stream import ChosenLines, OpenLog, Parts, chosen_lines
from fray._jobs.logs.lines import prefixed
from fray._jobs.logs.reader import LogSource
from fray._jobs.logs.tails import FairTail
from fray._jobs.plans.sweep_plan import TURN
from fray._values.delays import poll_delays
from fray._values.jobs import JobId, JobInfo, JobStatus

if TYPE_CHECKING:
    from fray._contracts.cluster import LogStream

_SHARE = 10.0  # times the cost of a look at all members, until the next one


def follow_members(
    poll: Callable[[str], JobInfo],
    sweep_id: str,
    members: Callable[[], list[JobInfo]],
    open_log: Callable[[str, int | None, int], LogSource],
    *,
    replica: int | None = None,
    tail: int | None = None,
    since: float | None = None,
    grep: str | None = None,
    follow: bool = True,
    interval: float = 0.02,
) -> "LogStream":
    """Be `monitor` of a sweep; see `follow_logs`.

    Args:
        poll: Gives the state of a job.
        members: Gives the states of all members.
        open_log: Opens a log of a member.

    Raises:
        ValueError: A replica is requested, which members have and a sweep has not, or an argument is wrong.
    """
    from fray._contracts.cluster import LogStream
    from fray._jobs.clusters.following import final_info

    if replica is not None:
        raise ValueError(f"{sweep_id} is a sweep: a replica is one of a member, e.g. of {sweep_id}/0")
    chosen = chosen_lines(tail=tail, since=since, grep=grep, follow=follow)
    lines = _SweepLines(partial(poll, sweep_id), members, open_log, chosen)
    return LogStream(lines.follow(interval), partial(final_info, partial(poll, sweep_id)))


class _Member:
    """The logs of a member that has started."""

    def __init__(self, info: JobInfo, open_log: OpenLog, chosen: ChosenLines) -> None:
        self.info, self.parts = info, Parts(open_log, chosen)
        self.prefix = f"[{info.job_id.leaf}] "


class _SweepLines:
    """Where reading the logs of a sweep has come to."""

    def __init__(
        self,
        poll: Callable[[], JobInfo],
        members: Callable[[], list[JobInfo]],
        open_log: Callable[[str, int | None, int], LogSource],
        chosen: ChosenLines,
    ) -> None:
        self._poll, self._members, self._open_log, self._chosen = poll, members, open_log, chosen
        self._reading: dict[JobId, _Member] = {}
        self._read: set[JobId] = set()  # to the end

    def follow(self, interval: float) -> Iterator[str]:
        """Yield the lines, until the sweep has ended and all are read."""
        info, next_look = self._look(interval)
        if not self._chosen.follow:
            for member in self._reading.values():
                member.parts.stop_here(member.info)
        if self._chosen.tail is not None:
            tail = FairTail([(each.prefix, each.parts.tail(each.info)) for each in self._reading.values()])
            tail.take(self._chosen.tail)
            yield from tail.lines()
            if not self._chosen.follow:
                return
        delays = poll_delays(longest=interval)
        while True:
            lines, read = self._round()
            yield from lines
            if read:
                delays = poll_delays(longest=interval)
            elif not self._chosen.follow or info.finished:
                return
            else:
                time.sleep(next(delays))
            if self._chosen.follow and time.monotonic() >= next_look:
                info, next_look = self._look(interval)

    def _look(self, interval: float) -> tuple[JobInfo, float]:
        """Find what has started since, and what has ended; return the sweep's state, and when to look again.

        The state is read before those of the members, and those before the logs: when the end is seen, all
        that was written is there.
        """
        began = time.monotonic()
        sweep = self._poll()
        for info in self._members():
            if info.job_id in self._reading:
                self._reading[info.job_id].info = info
            elif info.job_id not in self._read and _has_written(info):
                self._reading[info.job_id] = _Member(
                    info,
                    cache(partial(self._open_log, info.job_id)),
                    self._chosen,
                )
        now = time.monotonic()
        return sweep, now + max(interval, _SHARE * (now - began))

    def _round(self) -> tuple[list[str], bool]:
        """Return a share of what each member has."""
        lines: list[str] = []
        any_read = False
        for job_id, member in list(self._reading.items()):
            own, read = member.parts.round(member.info)
            lines += (prefixed(member.prefix, line) for line in own)
            any_read = any_read or read
            if not read and (member.info.finished or not self._chosen.follow):
                del self._reading[job_id]
                self._read.add(job_id)
        return lines, any_read


def _has_written(info: JobInfo) -> bool:
    """Whether a member may have lines: of replicas, or of what was done before they could start."""
    return info.status is not JobStatus.PENDING or info.pending_reason != TURN
