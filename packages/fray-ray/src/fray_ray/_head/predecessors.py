"""What has become of the jobs that a job is to run after, as the head's own store has them."""

from collections.abc import Iterable

from fray.cluster import JobInfo, JobStatus
from fray_ray._job_table import stored_entry
from fray_ray._lookup import find

_PHRASES = {JobStatus.FAILED: "failed", JobStatus.STOPPED: "was stopped"}


def state_of(job_id: str) -> JobInfo | None:
    """Return the state of a job; None where it was removed."""
    found = find(stored_entry, job_id)
    return None if found is None else found.info


def unfinished(job_ids: Iterable[str]) -> tuple[list[str], str | None]:
    """Return which of these jobs have not ended, and why what waits for them cannot start, if so."""
    waits_for = []
    for job_id in job_ids:
        info = state_of(job_id)
        if info is None:
            return [], f"it was to run after job {job_id}, which was removed before it was known to succeed"
        if not info.finished:
            waits_for.append(job_id)
        elif (failure := failure_of(info)) is not None:
            return [], failure
    return waits_for, None


def failure_of(info: JobInfo) -> str | None:
    """Say that a job which has ended did not succeed; None where it did."""
    if info.status is JobStatus.SUCCEEDED:
        return None
    return f"it was to run after job {info.job_id}, which {_PHRASES[info.status]}"
