"""Find a job in Ray's table: the latest of its runs, or, of a member that waits, its sweep's word on it."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from fray.backend import TURN
from fray.cluster import ExitReason, JobId, JobInfo, JobStatus
from fray_ray._job_table import (
    PENDING,
    TERMINAL,
    JobEntry,
    read,
    submission_of,
    tries_of,
    unreadable,
)
from fray_ray._reading import UNREADABLE, checked, number_in, waiting_replicas
from fray_ray._sweep_entry import count_of_members, member_in, unstarted_in

EntryOf = Callable[[str], JobEntry | None]
"""Returns the entry of a submission; None where there is none."""


@dataclass(frozen=True)
class FoundJob:
    """A job, as it is now.

    Args:
        runs: The submissions of its runs, the latest one last; none of a member that was never started.
        entry: The entry of the latest run; of a member that was never started, that of its sweep.
    """

    info: JobInfo
    runs: tuple[str, ...]
    entry: JobEntry

    @property
    def submission(self) -> str:
        """What Ray calls its latest run, or will call its first one."""
        return self.runs[-1] if self.runs else submission_of(self.info.job_id)

    @property
    def may_be_followed(self) -> bool:
        """Whether its latest run ended so that it may be run again."""
        return bool(self.runs) and self.info.finished and self.info.status is not JobStatus.SUCCEEDED

    @property
    def over(self) -> bool:
        """Whether Ray says that its latest run has ended."""
        return not self.runs or self.entry.status in TERMINAL


def find(entry_of: EntryOf, job_id: str) -> FoundJob | None:
    """Return a job; None where there is no such job."""
    started = find_started(entry_of, job_id)
    sweep_id = JobId(job_id).sweep
    if started is not None or sweep_id is None:
        return started
    sweep = find_started(entry_of, sweep_id)
    info = None if sweep is None else unstarted_member(sweep, number_in(JobId(job_id).leaf, sys.maxsize))
    return None if info is None or sweep is None else FoundJob(info, (), sweep.entry)


def find_started(entry_of: EntryOf, job_id: str) -> FoundJob | None:
    """Return a job that has an entry of its own; None where there is none."""
    runs: list[str] = []
    entry = info = None
    while True:
        submission = submission_of(job_id, len(runs) + 1)
        following = entry_of(submission)
        if following is None:
            break
        entry = following
        runs.append(submission)
        info = read(entry)
        if info is None or not info.finished or info.status is JobStatus.SUCCEEDED:
            break  # it is not run again
    return None if entry is None or info is None else FoundJob(info, tuple(runs), entry)


def jobs_in(entries: Iterable[JobEntry]) -> list[tuple[JobInfo, JobEntry]]:
    """Return the runs of jobs that entries are of; other users of Ray have entries, too."""
    return [(info, entry) for entry in entries if (info := read(entry)) is not None]


def latest(entries: Iterable[JobEntry]) -> dict[JobId, tuple[JobInfo, JobEntry]]:
    """Return the jobs that entries are of, each with its latest run."""
    found: dict[JobId, tuple[JobInfo, JobEntry]] = {}
    # Of a job that starts there may be two: Ray's own comes first.
    for info, entry in jobs_in(sorted(entries, key=lambda entry: entry.waits)):
        known = found.get(info.job_id)
        if known is None or tries_of(known[1]) < tries_of(entry):
            found[info.job_id] = info, entry
    return found


def members_of(sweep: FoundJob) -> int:
    """Return how many members a sweep has."""
    return count_of_members(sweep.entry.metadata)


def unstarted_member(sweep: FoundJob, position: int) -> JobInfo | None:
    """Return the state of a member that has no entry of its own; None where the sweep has no such member."""
    if not sweep.info.is_sweep or position >= members_of(sweep):
        return None
    job_id = JobId(f"{sweep.info.job_id}/{position}")
    try:
        return _unstarted(sweep, job_id, position)
    except UNREADABLE as error:
        return unreadable(job_id, PENDING, error)


def _unstarted(sweep: FoundJob, job_id: JobId, position: int) -> JobInfo:
    metadata = sweep.entry.metadata
    about = member_in(metadata, position)
    info = JobInfo(
        job_id=job_id,
        name=str(job_id) if about is None else about["name"],
        status=JobStatus.PENDING,
        tasks=() if about is None else waiting_replicas(about["replicas"]),
        pending_reason=TURN,
        submitted_at=sweep.info.submitted_at,
        labels={} if about is None else about["labels"],
        after=() if about is None else tuple(about["after"]),
        user=sweep.info.user,
    )
    ended = unstarted_in(metadata, position)
    if ended is None and sweep.info.finished:  # nobody is left to start it
        stopped = sweep.info.status is JobStatus.STOPPED
        ended = {"status": "stopped" if stopped else "failed", "reason": "stopped" if stopped else "lost"}
    return checked(info if ended is None else settled(info, **{"message": None, **ended}))


def settled(info: JobInfo, status: str, reason: str, message: str | None) -> JobInfo:
    """Return a member that ends before it was started."""
    tasks = tuple(
        replace(task, status=JobStatus(status), reason=ExitReason(reason), error_message=message)
        for task in info.tasks
    )
    return replace(info, status=JobStatus(status), tasks=tasks, error_message=message, pending_reason=None)
