"""The end of what has several supervisors, when all have ended: of sweeps, of jobs with replicas apart."""

import os
import time
from dataclasses import replace
from pathlib import Path

from fray._jobs.records.endings import read_status
from fray._jobs.records.files import LOCK
from fray._jobs.records.liveness import SupervisorLock
from fray._jobs.records.record import JobRecord
from fray._jobs.records.status_file import write_status
from fray._values.delays import poll_delays
from fray._values.job_states import JobId, JobInfo, JobStatus

_SETTLES_WITHIN = 5.0  # seconds
_NAMED = 3  # members in the message of a sweep that failed


def settle_by_members(record: JobRecord, *, stopped: bool = False) -> bool:
    """Write the end of a sweep that nobody coordinates, where all of its members have written theirs.

    The same for a job whose replicas have a supervisor each.

    Args:
        stopped: Whether a sweep ends because a user stopped it.

    Returns:
        Whether its end is written, by whomever.
    """
    # Who else settles it holds its lock for a moment, and may have looked too early.
    lock = lock_when_free(record, _SETTLES_WITHIN)
    if lock is None:
        return False
    try:
        info = read_status(os.fspath(record.path))
        if info is None or info.finished:
            return info is not None
        if info.is_sweep:
            now = sweep_info(info, [member.written() for member in record.children()], stopped=stopped)
        else:
            now = record.written()
        if not now.finished:
            return False
        return write_status(
            os.fspath(record.path), replace(now, finished_at=time.time()).to_dict(), final=True
        )
    finally:
        lock.close()


def settle_job(record: str) -> bool:
    """Write the end of a job whose replicas have a supervisor each, where all have ended; see above."""
    return settle_by_members(JobRecord(Path(record), JobId(os.path.basename(record))))


def lock_when_free(record: JobRecord, patience: float) -> SupervisorLock | None:
    """Take the lock of a record as soon as it is free; None where it is not, within so many seconds."""
    deadline = time.monotonic() + patience
    for pause in poll_delays(longest=0.05):
        lock = SupervisorLock.acquire(os.path.join(record.path, LOCK))
        if lock is not None or time.monotonic() > deadline:
            return lock
        time.sleep(pause)
    raise AssertionError("the pauses do not end")


def sweep_info(info: JobInfo, members: list[JobInfo], *, stopped: bool = False) -> JobInfo:
    """Return how a sweep reads whose members read so."""
    started = [member.started_at for member in members if member.started_at is not None]
    found = replace(info, progress=sweep_progress(members), started_at=min(started, default=None))
    if any(not member.finished for member in members):
        status = JobStatus.RUNNING if started else JobStatus.PENDING
        return replace(found, status=status, pending_reason=None if started else "no member runs yet")
    failed = [member for member in members if member.status is JobStatus.FAILED]
    if stopped:
        status, message = JobStatus.STOPPED, None
    elif failed:
        status, message = JobStatus.FAILED, _failures(failed, len(members))
    else:
        any_stopped = any(member.status is JobStatus.STOPPED for member in members)
        status, message = JobStatus.STOPPED if any_stopped else JobStatus.SUCCEEDED, None
    ended = max((member.finished_at or 0.0 for member in members), default=0.0) or None
    return replace(found, status=status, error_message=message, pending_reason=None, finished_at=ended)


def _failures(failed: list[JobInfo], count: int) -> str:
    lines = [f"{len(failed)} of {count} members failed"]
    for member in sorted(failed, key=lambda each: int(each.job_id.leaf))[:_NAMED]:
        why = (member.error_message or "it was lost").partition("\n")[0]
        lines.append(f"  {member.job_id}: {why}")
    more = len(failed) - _NAMED
    return "\n".join([*lines, f"  and {more} more"] if more > 0 else lines)


def progress_of(record: JobRecord) -> dict[str, int]:
    """Count the members of a sweep by status, as they are now."""
    return sweep_progress([member.info() for member in record.children()])


def sweep_progress(members: list[JobInfo]) -> dict[str, int]:
    """Count members by status."""
    counts = {str(status): sum(info.status is status for info in members) for status in JobStatus}
    return {status: count for status, count in counts.items() if count}
