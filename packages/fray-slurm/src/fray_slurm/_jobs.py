"""The state of jobs: their records, and Slurm's state of those whose supervisors could not write it."""

import contextlib
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fray import ClusterUnavailableError, JobNotFoundError
from fray.backend import JobRecord, info_of_replicas, sweep_info
from fray.cluster import DirectoryCluster, JobInfo, JobStatus
from fray_slurm._after import failed_before, not_started
from fray_slurm._allocation import ALLOCATION, FOLDER, JOB, NOT_SUCCEEDED, array_id, path_of, read
from fray_slurm._client import SlurmClient, SlurmError
from fray_slurm._readings import SlurmJob
from fray_slurm._states import (
    ENDED,
    WAITING,
    End,
    end_of,
    forgotten,
    is_of_step,
    never_submitted,
    pending_reason,
)
from fray_slurm._watch import JobTable, Key, found_job

ENVIRONMENTS = ".environments"  # in the folder of records
_SCAN_SHARE = 20.0  # of the time that a look at many records took, until the next one
_LONGEST_SCAN_PAUSE = 30.0  # seconds until that at the most
_SUBMITS_WITHIN = 300.0  # seconds in which Slurm answers sbatch, or sbatch gives up
_SETTLES_WITHIN = 30.0  # seconds in which a last status crosses a network file system


class SlurmJobs(DirectoryCluster):
    """A `DirectoryCluster` that queries Slurm about jobs which have not ended by their records.

    Args:
        poll_interval: Seconds between two questions, at the least.
    """

    def __init__(self, spec: str, root: Path, client: SlurmClient, poll_interval: float) -> None:
        super().__init__(spec, root, environments=root / ENVIRONMENTS)
        self._client = client
        self._table = JobTable(client, poll_interval)
        self._failures: dict[Key, SlurmJob] = {}
        self._ended: dict[tuple[str, int], JobInfo] = {}  # members of sweeps, by the run in which they ended
        self._ended_at: dict[Key, float] = {}
        self._scans: dict[Path, tuple[float, JobInfo]] = {}  # of many records: until when each will do

    def _info(self, job_id: str) -> JobInfo | None:
        try:
            return self._state(self._records.find(job_id))
        except JobNotFoundError:
            return None

    def _state(self, record: JobRecord) -> JobInfo:
        """Return the state of what a record is of: a job, a sweep, or a replica with its own supervisor.

        Where it is derived from those of many records that is done seldom, as it takes long.
        """
        started, asked = time.monotonic(), self._client.seconds
        until, last = self._scans.get(record.path, (0.0, None))
        if last is not None and started < until:
            return last
        info = record.written()
        if info.finished:
            return info
        replicas = record.replicas()
        if replicas:
            found = info_of_replicas(info, [self._state(each) for each in replicas])
        elif info.is_sweep:
            found = self._look_at_members(record, info)
        else:
            return self._state_of_one(record, info)
        if not found.finished:
            now = time.monotonic()
            own = now - started - (self._client.seconds - asked)
            self._scans[record.path] = (now + min(_SCAN_SHARE * own, _LONGEST_SCAN_PAUSE), found)
        return found

    def _state_of_one(self, record: JobRecord, info: JobInfo) -> JobInfo:
        noted = self._noted(record)
        number, never = noted.get("id"), noted.get("never")
        if never is not None:
            return _ended(info, not_started(never))
        another = self._client.known_another(noted.get("cluster"))
        if number is None:
            return self._written(info, noted) if another is not False else self._unsubmitted(record, info)
        # Of a federation, each cluster may know it; by its number alone it would be taken for another job.
        name = _name(record, noted) if another is False else noted.get("name")
        key = (number, noted.get("name"))
        job = self._table.look(key, info.submitted_at or time.time(), name)
        if job is None and another is not False:
            return self._written(info, noted)
        if job is None:
            if not self._table.is_gone(key):
                return self._unanswered(info)
            began = _runs(record, number) or ("_" in number and log_of(record, number).exists())
            end = forgotten(number, started=began)
        else:
            job = self._with_code(job)
            found = end_of(job)
            if found is None:
                return self._shown(info, job)
            end = found if job.exit_code in (None, 0) else found.with_log(log_of(record, number))
        fresh = record.written()
        if fresh.finished or not self._settled(job, key):
            return fresh
        if not any(task.attempt for task in fresh.tasks):
            end = failed_before(self._predecessors(record.job_id), self._info) or end
        return _ended(fresh, end)

    def _noted(self, record: JobRecord) -> dict[str, Any]:
        """Return what was noted of a record's Slurm job, with its number as soon as Slurm has it.

        Its launcher may have been killed before it had noted the number; the name was noted before.
        """
        noted = read(path_of(os.fspath(record.path), JOB))
        if "name" in noted and "id" not in noted:
            number = self._table.number(noted["name"])
            if number is not None:
                task = noted.get("task")
                noted["id"] = number if task is None else f"{number}_{task}"
        return noted

    def _unsubmitted(self, record: JobRecord, info: JobInfo) -> JobInfo:
        """Return the state of a job that Slurm has not taken: lost, where its launcher must have ended."""
        folders = [record.path]
        if record.path.parent != self._records.folder:  # a member: each submission shows that it goes on
            folders.append(record.path.parent.parent)
        begun = max(_changed_at(each / FOLDER) for each in folders)
        if time.time() - max(begun, info.submitted_at or 0.0) < _SUBMITS_WITHIN:
            return info
        if self._table.error is not None:
            return self._unanswered(info)
        fresh = record.written()
        if fresh.finished or "id" in self._noted(record):
            return fresh
        return _ended(fresh, never_submitted())

    def _names_by_number(self, records: Iterable[JobRecord]) -> dict[str, str | None]:
        """Return the numbers of records' Slurm jobs, each with its name: a number may be another job's.

        Not those of jobs that another Slurm has: home folders are often shared by several.

        A slurmctld that has lost jobs gives their numbers to others. None where the name is not known, or the
        number is enough, because the job has started.

        Raises:
            ClusterUnavailableError: Slurm does not say whether it is another.
        """
        noted = [(record, self._noted(record)) for record in records]
        return {
            job["id"]: _name(record, job)
            for record, job in noted
            if job.get("id") is not None and not self._client.is_another(job.get("cluster"))
        }

    def _look_at_members(self, record: JobRecord, info: JobInfo) -> JobInfo:
        members, run = [], run_of(record)
        for member in record.children():
            found = self._ended.get((member.job_id, run)) or self._info(member.job_id)
            if found is not None:
                members.append(found)
                if found.finished:
                    self._ended[member.job_id, run] = found
        return sweep_info(info, members)

    def _shown(self, info: JobInfo, job: SlurmJob) -> JobInfo:
        shown = _shown(info, job, self._table.answered_at)
        if shown.pending_reason and job.reason.startswith("Dependency"):
            names = ", ".join(self._predecessors(info.job_id))
            return replace(shown, pending_reason=f"waiting for {names} to succeed ({job.reason})")
        return shown

    def _current(self, info: JobInfo) -> JobInfo | None:
        return self._info(info.job_id)

    def _written(self, info: JobInfo, noted: Mapping[str, Any]) -> JobInfo:
        """Show a job as its record says, which another Slurm has, or may have."""
        another = self._client.known_another(noted["cluster"])
        return _elsewhere(info, noted["cluster"]) if another else self._unanswered(info)

    def _unanswered(self, info: JobInfo) -> JobInfo:
        if self._table.error is None or info.status is not JobStatus.PENDING:
            return info
        return replace(info, pending_reason=f"Slurm does not answer ({self._table.error})")

    def _unfinished(self, names: Mapping[str, str | None]) -> dict[str, SlurmJob]:
        """Return those of these Slurm jobs that have not ended, by number: one call.

        Args:
            names: What `_names_by_number` returned; a job of another name is not one of them.
        """
        jobs = self._client.queue() if names else {}
        found = {number: found_job(jobs, number, name) for number, name in names.items()}
        return {number: job for number, job in found.items() if job is not None and job.state not in ENDED}

    def _with_code(self, job: SlurmJob) -> SlurmJob:
        """Add the exit code of a batch step that failed, which squeue does not print: one call for each."""
        if job.state != "FAILED" or job.exit_code is not None or not is_of_step(job):
            return job
        key = (job.job_id, job.name)
        if key not in self._failures:
            with contextlib.suppress(ClusterUnavailableError, SlurmError):
                self._failures[key] = self._client.details(job.job_id) or job
        return self._failures.get(key, job)

    def _settled(self, job: SlurmJob | None, key: Key) -> bool:
        """Whether a last status that is to come would have come."""
        if job is None or (job.state != "COMPLETED" and job.exit_code != NOT_SUCCEEDED):
            return True
        since = self._ended_at.setdefault(key, time.monotonic())
        return time.monotonic() - since > _SETTLES_WITHIN

    def _predecessors(self, job_id: str) -> list[str]:
        return [str(each) for each in self._records.find(job_id).request().get("after", ())]


def members_of(record: JobRecord) -> list[JobRecord]:
    """Return what has a number of its own with Slurm: the members of a sweep, or replicas; else nothing."""
    return record.children() if record.written().is_sweep else record.replicas()


def run_of(sweep: JobRecord) -> int:
    """Return how often a sweep was run again."""
    return int(read(path_of(os.fspath(sweep.path), JOB)).get("run", 0))


def has_run(record: JobRecord) -> bool:
    """Whether the Slurm job that was submitted last for a record has started."""
    number = read(path_of(os.fspath(record.path), JOB)).get("id")
    return number is not None and _runs(record, number)


def log_of(record: JobRecord, number: str) -> Path:
    """Return the file with the output of a batch step; that of a task is in the record of all."""
    if "_" not in number:
        return record.path / FOLDER / "slurm.log"
    return record.path.parent.parent / FOLDER / f"slurm-{number}.log"


def _changed_at(folder: Path) -> float:
    with contextlib.suppress(OSError):
        return folder.stat().st_mtime
    return 0.0


def _name(record: JobRecord, noted: Mapping[str, Any]) -> str | None:
    """Return what the Slurm job of a record is called, unless its number is enough."""
    name: str | None = noted.get("name")
    return None if _runs(record, noted["id"]) else name


def _runs(record: JobRecord, number: str) -> bool:
    """Whether the Slurm job of this number has started."""
    variables: dict[str, str] = read(path_of(os.fspath(record.path), ALLOCATION)).get("variables", {})
    return "SLURM_JOB_ID" in variables and array_id(variables) == number


def _elsewhere(info: JobInfo, cluster: str) -> JobInfo:
    """Show a job of another Slurm as its record says."""
    if info.status is not JobStatus.PENDING:
        return info
    why = f"it is in the queue of the Slurm cluster {cluster!r}, which is not asked from here"
    return replace(info, pending_reason=f"{why}: look there, or open 'slurm?cluster={cluster}'")


def _shown(info: JobInfo, job: SlurmJob, answered_at: float) -> JobInfo:
    """Add Slurm's data on a job that has not ended."""
    started_at = max((task.started_at or 0.0 for task in info.tasks), default=0.0)
    limit = () if job.limit is None else (f"Slurm ends this job after {job.limit} (its time limit)",)
    info = replace(info, warnings=(*info.warnings, *limit))
    # Also one that ran, and was requeued; but an answer from before the start is old.
    if job.state in WAITING and answered_at > started_at:
        return replace(info, status=JobStatus.PENDING, pending_reason=pending_reason(job))
    if info.status is JobStatus.PENDING and info.pending_reason == "starting":
        return replace(info, pending_reason=f"starting (Slurm job {job.job_id} is {job.state.lower()})")
    return info


def _ended(info: JobInfo, end: End) -> JobInfo:
    """Derive the state of a job whose supervisor could not write it; nothing is written."""
    tasks = tuple(
        task
        if task.status.finished
        else replace(task, status=end.status, reason=end.reason, error_message=end.message)
        for task in info.tasks
    )
    return replace(info, status=end.status, tasks=tasks, error_message=end.message, pending_reason=None)
