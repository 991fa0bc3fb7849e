"""What a cluster answers from the records of its jobs, and does to them, without starting anything."""

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from fray._jobs.clusters.base import ClusterBase
from fray._jobs.clusters.diagnosis import check_folder, check_machine
from fray._jobs.clusters.following import parent_job
from fray._jobs.logs.attempts import log_name
from fray._jobs.logs.reader import LogReader
from fray._jobs.plans.planning import FAMILY
from fray._jobs.plans.values import Keep
from fray._jobs.records.details import described
from fray._jobs.records.endpoint_files import read_endpoints
from fray._jobs.records.files import CHILDREN
from fray._jobs.records.index import infos_of, list_records
from fray._jobs.records.launch_keys import LaunchKey, held_key
from fray._jobs.records.pruning import KEYS, delete, has_ended, prune_now
from fray._jobs.records.record import JobRecord, Records
from fray._jobs.records.usage_history import read_usage
from fray._jobs.records.watch import RecordWatch
from fray._values.checks import check_seconds
from fray._values.delays import poll_until
from fray._values.endpoints import Endpoint
from fray._values.errors import JobNotFoundError
from fray._values.findings import Finding
from fray._values.job_states import JobId, JobInfo
from fray._values.jobs import Pruned
from fray._values.usage import UsageSample

_LETS_GO_WITHIN = 10.0  # seconds


class RecordedJobs(ClusterBase):
    """Read the jobs of a cluster from records in a folder; `DirectoryCluster` starts them.

    Args:
        spec: See `DirectoryCluster`, here and for the rest.
    """

    def __init__(
        self,
        spec: str,
        root: str | os.PathLike[str],
        *,
        keep_jobs: int | None = None,
        keep_days: float | None = None,
        environments: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(spec)
        shared = None if environments is None else os.fspath(environments)
        self._keep = Keep(keep_jobs, keep_days, shared)
        self._records = Records(Path(root).absolute())

    def record(self, job_id: str) -> JobRecord:
        """Return the record of a job.

        Raises:
            JobNotFoundError: There is none.
        """
        return self._records.find(job_id)

    def _info(self, job_id: str) -> JobInfo | None:
        try:
            return self._records.find(job_id).info()
        except JobNotFoundError:
            return None

    def _ids(self) -> Iterable[str]:
        return [record.job_id for record in self._records.with_descendants()]

    def _described(self, info: JobInfo) -> JobInfo:
        return described(self._records.find(info.job_id), info)

    def _all_jobs(self, parent: str | None) -> Iterable[JobInfo]:
        if parent is not None:
            found = infos_of(self._records.find(parent).children())
        else:
            found = list_records(self._records)
        read = (info if info.finished else self._current(info) for info in found)
        return [info for info in read if info is not None]

    def _current(self, info: JobInfo) -> JobInfo | None:
        """Return what a job that has not ended reads now, by its record; None where it is gone.

        A cluster that knows more than the record says overrides this.
        """
        return info

    def watch_jobs(self, parent: str | None = None) -> RecordWatch:
        """Return what lists all jobs, or those that one launched, again and again, at little cost.

        Raises:
            JobNotFoundError: No job has the id of the parent.
        """
        if parent is None:
            return RecordWatch(self._records.folder, None, below=True, current=self._current)
        record = self._records.find(parent)
        return RecordWatch(record.path / CHILDREN, record.job_id, below=False, current=self._current)

    def _log(self, job_id: str, replica: int | None, attempt: int) -> LogReader:
        record = JobRecord(self._records.path(job_id), JobId(job_id)).of_replica(replica)
        return LogReader(os.fspath(record.logs / log_name(replica, attempt)))

    def _read_log(self, job_id: str, replica: int | None, attempt: int, offset: int) -> bytes:
        raise NotImplementedError("a directory has files: `_log` opens them")

    def usage(self, job_id: str) -> list[UsageSample]:
        """Return what the attempts of a job used over time, by replica, attempt and time.

        Raises:
            JobNotFoundError: No job has this id.
        """
        record = self._records.find(job_id)
        return [
            sample for each in record.replicas() or [record] for sample in read_usage(os.fspath(each.path))
        ]

    def endpoints(self, prefix: str = "", *, everywhere: bool | None = None) -> list[Endpoint]:
        """See `Cluster.endpoints`."""
        family = None if everywhere or parent_job() is None else os.environ.get(FAMILY)
        found = read_endpoints(os.fspath(self._records.folder))
        return [
            Endpoint.from_dict(data)
            for data in found
            if data["name"].startswith(prefix) and (family is None or data.get("family") == family)
        ]

    def remove(self, job_id: str, force: bool = False) -> None:
        """See `Cluster.remove`."""
        record = self._records.find(job_id)
        self._check_removal(record.job_id)
        for each in record.with_descendants():
            if not self._lets_go(each, force=force):
                info = each.info()
                if info.finished:
                    why = info.error_message or "its supervisor has not ended"
                    raise ValueError(f"job {each.job_id} may still run: {why}; force removes it")
                raise ValueError(f"job {each.job_id} is {info.status}: terminate it before it is removed")
        if not delete(os.fspath(record.path.parent), record.path.name) and record.path.is_dir():
            raise PermissionError(
                f"job {record.job_id} cannot be removed from {os.fspath(record.path.parent)}: the disk is "
                "read-only, or the folder belongs to another user"
            )

    def _lets_go(self, record: JobRecord, *, force: bool) -> bool:
        """Whether nothing of a job runs any more; a supervisor may outlive the end that it wrote a little."""

        def look() -> bool | None:
            if has_ended(os.fspath(record.path), force=force):
                return True
            return None if record.info().finished else False

        return bool(poll_until(look, _LETS_GO_WITHIN))

    def prune(self, older_than: float = 0.0, *, dry_run: bool = False) -> Pruned:
        """See `Cluster.prune`."""
        check_seconds("older_than", older_than, zero=True)
        return prune_now(self._records, older_than, self._keep.shared, dry_run=dry_run)

    def diagnose(self) -> list[Finding]:
        """Check the folder of records and this machine, for `fray doctor`."""
        return [*check_folder(self._records), *check_machine()]

    def _held_key(self, key: str, parent: JobId | None) -> AbstractContextManager[LaunchKey]:
        self._records.make_folder()
        return held_key(self._records.folder / KEYS, key, parent, self._remembers)

    def _remembers(self, job_id: str) -> bool:
        return self._records.path(job_id).is_dir()
