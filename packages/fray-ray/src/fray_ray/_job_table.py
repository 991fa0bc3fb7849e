"""Jobs in Ray's own job table: who they are at submission, how they are doing ever after.

Everything is in the metadata of the job's entry, so that whoever reads the table (another process,
`ray job list`, the dashboard) reads the same. The driver of a job is the only one that writes there
between Ray's own note that it runs and Ray's own note that it ended.
"""

import getpass
import json
from typing import Any

from ray._private.ray_constants import KV_NAMESPACE_JOB
from ray.dashboard.modules.job.common import JobInfoStorageClient
from ray.experimental import internal_kv

from fray.cluster import ExitReason, JobId, JobInfo, JobStatus, TaskStatus

_ID, _NAME, _OWNER, _REPLICAS, _INFO = (
    f"fray.{name}" for name in ("job_id", "name", "owner", "replicas", "info")
)
_PARENTS = "~"  # stands for the slashes of an id, which no URL takes
_ENDED = {"FAILED": JobStatus.FAILED, "STOPPED": JobStatus.STOPPED, "SUCCEEDED": JobStatus.FAILED}


def submission_of(job_id: str) -> str:
    """Return the id that Ray knows a job by: its own, with `~` between it and its parents."""
    return job_id.replace("/", _PARENTS)


def describe(job_id: JobId, name: str, replicas: int) -> dict[str, str]:
    """Return the metadata that a job is submitted with."""
    return {_ID: job_id, _NAME: name, _OWNER: _user(), _REPLICAS: str(replicas)}


def read(details: Any) -> JobInfo | None:
    """Return the state of a job by its entry; None for a job that Fray did not launch."""
    metadata = details.metadata or {}
    if _ID not in metadata:
        return None
    status = str(getattr(details.status, "value", details.status))
    try:
        info = (
            JobInfo.from_dict(json.loads(metadata[_INFO]))
            if _INFO in metadata
            else _before_the_driver(details)
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return _unreadable(metadata[_ID], status, error)
    if info.finished or status not in _ENDED:
        return info
    return _after_the_driver(info, _ENDED[status], details)


class TableEntry:
    """The entry of one job, as its driver keeps it."""

    def __init__(self, submission: str) -> None:
        self._key = JobInfoStorageClient.JOB_DATA_KEY.format(job_id=submission).encode()

    def write(self, info: JobInfo) -> None:
        """Replace the state."""
        entry = json.loads(internal_kv._internal_kv_get(self._key, namespace=KV_NAMESPACE_JOB))
        entry["metadata"] = {**(entry.get("metadata") or {}), _INFO: json.dumps(info.to_dict())}
        internal_kv._internal_kv_put(self._key, json.dumps(entry).encode(), namespace=KV_NAMESPACE_JOB)


def _unreadable(job_id: str, status: str, error: Exception) -> JobInfo:
    """Return a row for an entry that holds no readable state: Ray's own word on the job is all there is."""
    known = {**_ENDED, "SUCCEEDED": JobStatus.SUCCEEDED, "PENDING": JobStatus.PENDING}
    return JobInfo(
        job_id=JobId(job_id),
        name=job_id,
        status=known.get(status, JobStatus.RUNNING),
        tasks=(),
        error_message=f"the job's entry in Ray's job table cannot be read: {error!r}",
    )


def _before_the_driver(details: Any) -> JobInfo:
    metadata = details.metadata
    return JobInfo(
        job_id=JobId(metadata[_ID]),
        name=metadata[_NAME],
        status=JobStatus.PENDING,
        tasks=tuple(TaskStatus(replica=number) for number in range(int(metadata[_REPLICAS]))),
        pending_reason="its driver is starting",
        submitted_at=_seconds(details.start_time),
    )


def _after_the_driver(info: JobInfo, status: JobStatus, details: Any) -> JobInfo:
    """Settle a job whose driver ended without a last word: stopped through Ray, or lost."""
    ended = _seconds(details.end_time)
    started = info.status is JobStatus.RUNNING
    reason = ExitReason.LOST if started else ExitReason.COULD_NOT_START
    if status is JobStatus.STOPPED:
        reason = ExitReason.STOPPED
    changes = {"status": status, "reason": reason, "finished_at": ended}
    tasks = [task.to_dict() | ({} if task.status.finished else changes) for task in info.tasks]
    message = None if status is JobStatus.STOPPED else f"the driver of the job ended: {details.message}"
    return JobInfo.from_dict(
        info.to_dict()
        | {
            "status": status,
            "tasks": tasks,
            "error_message": message,
            "pending_reason": None,
            "finished_at": ended,
        }
    )


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without a user database
        return "unknown"
