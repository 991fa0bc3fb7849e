"""The end of a job that nobody supervises, as it is read, or written by the process that settles it."""

import time
from dataclasses import replace

from fray._jobs.records.status_file import STATUS, read_json
from fray._values.job_states import ExitReason, JobInfo, JobStatus


def read_status(record: str) -> JobInfo | None:
    """Return the status of a job as it was written; None where there is none that can be read."""
    data = read_json(f"{record}/{STATUS}")
    try:
        return None if data is None else JobInfo.from_dict(data)
    except (TypeError, ValueError, KeyError, AttributeError):
        return None


def lost(info: JobInfo, message: str) -> JobInfo:
    """Return the state of a job whose supervisor is gone."""
    now = time.time()
    tasks = tuple(
        task
        if task.status.finished
        else replace(
            task,
            status=JobStatus.FAILED,
            reason=ExitReason.LOST,
            error_message=message,
            finished_at=now if task.attempt else None,
        )
        for task in info.tasks
    )
    return replace(
        info,
        status=JobStatus.FAILED,
        tasks=tasks,
        error_message=message,
        pending_reason=None,
        finished_at=now,
        last_seen=None,
    )


def stopped(info: JobInfo) -> JobInfo:
    """Return the state of a job that was stopped while it had no supervisor."""
    now = time.time()
    tasks = tuple(
        task
        if task.status.finished
        else replace(task, status=JobStatus.STOPPED, reason=ExitReason.STOPPED, finished_at=now)
        for task in info.tasks
    )
    return replace(
        info, status=JobStatus.STOPPED, tasks=tasks, pending_reason=None, finished_at=now, last_seen=None
    )
