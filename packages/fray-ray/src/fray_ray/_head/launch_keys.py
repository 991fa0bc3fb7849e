"""Which job has a launch key: of the launches with one key the job that the scheduler takes first runs."""

from collections.abc import Iterator
from typing import Any

from fray_ray import _job_kv
from fray_ray._job_table import STARTS, JobEntry, keyed_job, taken_at
from fray_ray._queued_job import QueuedJob, metadata_of
from fray_ray._ray_internals.kv import table_entry, table_submissions
from fray_ray._reading import UNREADABLE

_LATEST = 1 << 62  # later than all that the table has


class LaunchKeys:
    """The keys of all jobs. Ray's table is read once, when the first job with a key comes."""

    def __init__(self) -> None:
        self._holders: dict[str, str] | None = None  # what Ray calls the first run of the job, by key

    def holder(self, submission: str, queued: QueuedJob) -> str | None:
        """Return the job that has the key of a job; None where it is that job itself, or is in no doubt.

        A job that has begun stays: an earlier version of Fray could start two with one key.
        """
        known = keyed_job(queued.metadata)
        if known is None or queued.previous_run is not None:
            return None
        if self._holders is None:
            self._holders = _read_holders()
        key = known[0]
        holder = self._holders.setdefault(key, submission)
        if holder == submission or has_begun(submission):
            return None
        if not has_begun(holder) and _job_kv.fetch(_job_kv.queued_name(holder)) is None:  # it was removed
            self._holders[key] = submission
            return None
        return holder


def is_listed(submission: str) -> bool:
    """Whether Ray's table has a job, also while Ray makes an entry of its own."""
    return any(table_entry(name) is not None for name in (submission, submission + STARTS))


def has_begun(submission: str) -> bool:
    """Whether a scheduler has taken a job."""
    return is_listed(submission) or _job_kv.fetch(_job_kv.state_name(submission)) is not None


def _read_holders() -> dict[str, str]:
    """Return the jobs with a key that the table has, and those that were taken and are not in it yet."""
    found: dict[str, tuple[int, str]] = {}
    for since, metadata in (*_in_table(), *_taken()):
        known = keyed_job(metadata)
        if known is not None:
            key, submission = known
            found[key] = min(found.get(key, (since, submission)), (since, submission))
    return {key: submission for key, (_, submission) in found.items()}


def _in_table() -> Iterator[tuple[int, Any]]:
    for submission in table_submissions(""):
        try:
            entry = JobEntry.of(table_entry(submission))
        except UNREADABLE:  # others may write into the table, too
            continue
        yield taken_at(entry), entry.metadata


def _taken() -> Iterator[tuple[int, Any]]:
    for submission, words in _job_kv.all_names().items():
        if {_job_kv.QUEUED, "state"} <= set(words) and not is_listed(submission):
            yield _LATEST, metadata_of(_job_kv.fetch(_job_kv.queued_name(submission)))
