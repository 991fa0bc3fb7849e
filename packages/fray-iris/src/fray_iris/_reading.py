"""Jobs as Iris has them, read: their states, what was noted at their launches, and their logs."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fray.backend import LogSource, map_in_threads, with_request
from fray.cluster import JobId, JobInfo, TaskStatus
from fray_iris._connection import GoneError, Iris
from fray_iris._ids import IrisTask, iris_name, is_job_id, job_id_of
from fray_iris._logs import EmptyLog, IrisLog
from fray_iris._requests import about_of
from fray_iris._states import attempts_that_said_their_end, job_info, seconds_of

_AT_ONCE = 8  # jobs that are requested side by side
_FORGETS = 4096  # jobs whose requests are remembered here
# Seconds after the end of an attempt; more than a worker needs, because its clock and this one may differ.
_LOG_COMES_WITHIN = 600.0


class JobReader:
    """What a cluster reads of one user's jobs; nothing here changes any.

    Args:
        iris: The controller.
        user: Returns whose jobs these are: to find that out the controller may have to be asked.
    """

    def __init__(self, iris: Iris, user: Callable[[], str]) -> None:
        self._iris, self._user = iris, user
        self._abouts: dict[str, tuple[float | None, Mapping[str, Any]]] = {}
        self._ended: dict[tuple[str, int, int], bool] = {}
        self._lock = threading.Lock()

    def info(self, job_id: str) -> JobInfo | None:
        """Return the state of a job; None where there is no such job."""
        if not is_job_id(job_id):
            return None
        answer = self._iris.status(self._name(job_id))
        if answer is None:
            return None
        job, request = answer
        try:
            return self._read(JobId(job_id), job, self._keep(job_id, job, about_of(request)))
        except GoneError:  # Iris has removed it meanwhile
            return None

    def described(self, info: JobInfo) -> JobInfo:
        """Add what was noted of a job at its launch, and the jobs that it launched."""
        about = self._abouts.get(info.job_id, (None, {}))[1]  # of its state, which was read just now
        return replace(
            with_request(info, about),
            user=about.get("user") or self._user(),
            children=tuple(sorted(child for child in self.ids(info.job_id) if child.parent == info.job_id)),
        )

    def ids(self, below: str | None = None) -> list[JobId]:
        """Return the ids of all jobs, or of those below one."""
        found_ids = (job_id_of(self._user(), job["job_id"]) for job in self._iris.jobs(self._below(below)))
        return [job_id for job_id in found_ids if job_id is not None]

    def all(self, parent: str | None = None) -> list[JobInfo]:
        """Return the states of all jobs, or of those that one launched."""
        jobs = [
            (job_id, job)
            for job in self._iris.jobs(self._below(parent))
            if (job_id := job_id_of(self._user(), job["job_id"])) is not None
            and (parent is None or job_id.parent == parent)
        ]
        rows = map_in_threads(lambda each: self._row(*each), jobs, _AT_ONCE, "fray-iris")
        return [row for row in rows if row is not None]

    def _row(self, job_id: JobId, job: Mapping[str, Any]) -> JobInfo | None:
        """Return the state of a job that was listed; None if Iris has removed it meanwhile."""
        try:
            return self._read(job_id, job, self._about(job_id, job))
        except GoneError:
            return None

    def log(self, job_id: str, replica: int | None, attempt: int) -> LogSource:
        """Return the log of an attempt (from 1) to read from."""
        if replica is None or attempt < 1:
            return EmptyLog()
        key = IrisTask(self._name(job_id), replica, attempt - 1).log_key
        return IrisLog(self._iris, key, lambda: self._ended.get((job_id, replica, attempt)))

    def _name(self, job_id: str) -> str:
        return iris_name(self._user(), job_id)

    def _below(self, job_id: str | None) -> str:
        return f"/{self._user()}/" if job_id is None else f"{self._name(job_id)}/"

    def _read(self, job_id: JobId, job: Mapping[str, Any], about: Mapping[str, Any]) -> JobInfo:
        tasks = self._iris.tasks(self._name(job_id), whole=True)
        info = job_info(job_id, job, tasks, about)
        said = attempts_that_said_their_end(tasks) if about else set()
        for task in info.tasks:
            latest = task.attempt + (info.finished or task.status.finished)
            recent = {each.attempt for each in (*task.previous, task) if _is_recent(each)}
            self._ended |= {
                (job_id, task.replica, attempt): (task.replica, attempt) in said and attempt in recent
                for attempt in range(1, latest)
            }
        return info

    def _about(self, job_id: JobId, job: Mapping[str, Any]) -> Mapping[str, Any]:
        """What was noted at a job's launch, which does not change: requested once."""
        known = self._abouts.get(job_id)
        if known is not None and known[0] == seconds_of(job.get("submitted_at")):  # else of another that
            return known[1]  # had its name
        answer = self._iris.status(self._name(job_id))
        return self._keep(job_id, job, about_of(answer[1] if answer is not None else {}))

    def _keep(self, job_id: str, job: Mapping[str, Any], about: Mapping[str, Any]) -> Mapping[str, Any]:
        with self._lock:
            if len(self._abouts) >= _FORGETS:
                self._abouts.clear()
            self._abouts[job_id] = seconds_of(job.get("submitted_at")), about
        return about


def _is_recent(attempt: TaskStatus) -> bool:
    """Whether the last line of an attempt may be on its way; later it has come, or Iris has dropped it."""
    ended = attempt.finished_at
    return ended is None or time.time() - ended < _LOG_COMES_WITHIN
