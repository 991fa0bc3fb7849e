"""The state of a job whose replicas have a supervisor each (`replica_records`), derived from theirs."""

from collections.abc import Sequence
from dataclasses import replace

from fray._jobs.supervision import first_failure
from fray._values.job_states import JobInfo, JobStatus


def info_of_replicas(info: JobInfo, replicas: Sequence[JobInfo]) -> JobInfo:
    """Return how a job reads whose replicas read so, each as a job of one task.

    As under one supervisor: the others finish when one has failed, and the first failure is the job's. A job
    of which a replica was stopped is stopped.
    """
    started = [each.started_at for each in replicas if each.started_at is not None]
    found = replace(
        info,
        tasks=tuple(task for each in replicas for task in each.tasks),
        started_at=min(started, default=None),
        last_seen=next((each.last_seen for each in replicas if each.last_seen is not None), None),
        warnings=tuple(dict.fromkeys(text for each in replicas for text in each.warnings)),
    )
    waiting = [each for each in replicas if each.status is JobStatus.PENDING]
    if len(waiting) == len(replicas):
        return replace(found, status=JobStatus.PENDING, pending_reason=waiting[0].pending_reason)
    found = replace(found, pending_reason=None)
    if any(not each.finished for each in replicas):
        waits = _waits(waiting, len(replicas)) if waiting else ()
        return replace(found, status=JobStatus.RUNNING, warnings=(*found.warnings, *waits))
    ended = max((each.finished_at or 0.0 for each in replicas), default=0.0) or None
    status, message = _verdict(replicas)
    return replace(found, status=status, error_message=message, finished_at=ended)


def _waits(waiting: list[JobInfo], count: int) -> tuple[str, ...]:
    reasons = dict.fromkeys(each.pending_reason or "starting" for each in waiting)
    return (f"{len(waiting)} of {count} replicas wait: {'; '.join(reasons)}",)


def _verdict(replicas: Sequence[JobInfo]) -> tuple[JobStatus, str | None]:
    failed = [each for each in replicas if each.status is JobStatus.FAILED]
    stopped = [each for each in replicas if each.status is JobStatus.STOPPED]
    failed.sort(key=lambda each: each.finished_at or 0.0)
    message = first_failure([each.error_message for each in failed], len(replicas))
    if stopped:
        return JobStatus.STOPPED, message or stopped[0].error_message
    return (JobStatus.FAILED if failed else JobStatus.SUCCEEDED), message
