"""A cluster whose jobs are directories of a file system that its hosts share (`fray._jobs.record`)."""

import contextlib
import os
import shutil
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from fray._jobs import control_pipe
from fray._jobs.clusters import ClusterBase
from fray._jobs.details import described
from fray._jobs.diagnosis import check_folder, check_machine
from fray._jobs.launch_keys import LaunchKey, held_key
from fray._jobs.liveness import SupervisorLock
from fray._jobs.log_files import LOGS, log_name
from fray._jobs.logs.reader import LogReader
from fray._jobs.on_exit import write_on_exit
from fray._jobs.plan import JobPlan, Keep, packed_plan
from fray._jobs.planning import PAYLOAD, import_paths, plan_of
from fray._jobs.process_tree import TreeKill
from fray._jobs.pruning import KEYS, delete, has_ended, prune_now, write_keep
from fray._jobs.record import LOCK, PLAN, REQUEST, SUPERVISOR_LOG, JobRecord, Records
from fray._jobs.record_index import infos_of, list_records
from fray._jobs.snapshots import take_snapshot
from fray._jobs.status_file import VERSION, replace_file, reserve_room, write_json, write_status
from fray._jobs.stopping import stop_family
from fray._jobs.supervisor_start import supervisor_command
from fray._values.capabilities import ClusterCapabilities
from fray._values.checks import check_seconds
from fray._values.errors import JobNotFoundError
from fray._values.findings import Finding
from fray._values.job_states import JobId, JobInfo
from fray._values.jobs import JobRequest, Pruned


class DirectoryCluster(ClusterBase):
    """Derive a cluster from one primitive: run a command somewhere, and do not wait for it.

    The command supervises one job on the host where it runs, and ends with it: it starts the replicas,
    starts failed ones again, and writes down what happens. Every host that it may run on has this
    interpreter and sees `root`, at the same paths. Where that process is killed the job reads failed, lost,
    and what it had started is ended.

    Args:
        spec: What opens the same cluster again.
        root: Where the records of jobs are; made where it is missing, for this user only.
        keep_jobs: Records of finished jobs to keep; None for all.
        keep_days: Days to keep them at most; None for ever.
        environments: A folder of environments, to which records lead by a link called `environment`; those
            to which none leads any more are deleted with old records.
    """

    _SUPPORTED = frozenset({"snapshot", "log_limit", "labels", "after", "on_exit"})

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

    capabilities = ClusterCapabilities(
        gangs=True,
        retries=True,
        tree_kill=TreeKill.CGROUP,
        dependencies=True,
        snapshots=True,
        usage=True,
        log_limit=True,
        shared_between_machines=True,
        removal=True,
        on_exit=True,
    )

    @abstractmethod
    def _start(self, job_id: str, command: list[str]) -> None:
        """Let a command run somewhere, in a session of its own, and return without waiting for it."""

    def _plan(self, request: JobRequest, job_id: JobId, variables: Mapping[str, str]) -> JobPlan:
        return plan_of(request, job_id, self.spec, variables, record=os.fspath(self._records.path(job_id)))

    def _submit(self, plan: JobPlan) -> None:
        """Write the record, and start the supervisor: complete, or nothing is left of either."""
        plan = plan._replace(keep=self._keep if "/" not in plan.job_id else None)
        record, draft = self._records.path(plan.job_id), self._records.draft_of(plan.job_id)
        self._records.make_folder()
        record.parent.mkdir(mode=0o700, exist_ok=True)
        draft.mkdir(mode=0o700, parents=True)
        try:
            if plan.snapshot_of is not None:
                copy = draft / Path(plan.workspace).name
                take_snapshot(Path(plan.snapshot_of), copy, leave_out=self._records.folder)
            lock = take_lock(draft)
            try:
                self._start_supervisor(plan, draft, record, lock)
            finally:
                lock.close()
        except BaseException:
            with contextlib.suppress(OSError):  # as a rule it is not there yet
                record.rename(draft)
            shutil.rmtree(draft, ignore_errors=True)
            raise

    def _start_supervisor(self, plan: JobPlan, draft: Path, record: Path, lock: SupervisorLock) -> None:
        """Write the record, let it appear, and its supervisor be started somewhere.

        The launcher holds the lock while the record is a draft; who starts the supervisor as a child of its
        own hands it on, so that it is never free.
        """
        write_record(draft, plan)
        replace_file(os.fspath(draft / PLAN), packed_plan(plan))
        draft.rename(record)
        lock.close()
        self._start(plan.job_id, supervisor_command(os.fspath(record), import_paths()))

    def _info(self, job_id: str) -> JobInfo | None:
        try:
            return self._records.find(job_id).info()
        except JobNotFoundError:
            return None

    def _ids(self) -> Iterable[str]:
        return [record.job_id for record in self._records.with_descendants()]

    def _held_key(self, key: str, parent: JobId | None) -> AbstractContextManager[LaunchKey]:
        self._records.make_folder()
        return held_key(self._records.folder / KEYS, key, parent, self._remembers)

    def _remembers(self, job_id: str) -> bool:
        return self._records.path(job_id).is_dir()

    def _described(self, info: JobInfo) -> JobInfo:
        return described(self._records.find(info.job_id), info)

    def remove(self, job_id: str, force: bool = False) -> None:
        """See `Cluster.remove`."""
        record = self._records.find(job_id)
        for each in record.with_descendants():
            if not has_ended(os.fspath(each.path), force=force):
                raise ValueError(
                    f"job {each.job_id} is {each.info().status}: terminate it before it is removed"
                )
        delete(os.fspath(record.path.parent), record.path.name)

    def prune(self, older_than: float = 0.0) -> Pruned:
        """See `Cluster.prune`."""
        check_seconds("older_than", older_than, zero=True)
        return prune_now(self._records, older_than, self._keep.shared)

    def diagnose(self) -> list[Finding]:
        """Check the folder of records and this machine, for `fray doctor`."""
        return [*check_folder(self._records), *check_machine()]

    def _read_log(self, job_id: str, replica: int | None, attempt: int, offset: int) -> bytes:
        raise NotImplementedError("a directory has files: `_log` opens them")

    def _all_jobs(self, parent: str | None) -> Iterable[JobInfo]:
        if parent is not None:
            return infos_of(self._records.find(parent).children())
        return list_records(self._records)

    def _log(self, job_id: str, replica: int | None, attempt: int) -> LogReader:
        record = JobRecord(self._records.path(job_id), JobId(job_id))
        return LogReader(os.fspath(record.logs / log_name(replica, attempt)))

    def _stop(self, job_id: str, grace: float) -> None:
        stop_family(self._records.find(job_id), grace)

    def terminate(self, job_id: str, grace: float = 10.0) -> None:
        """See `Cluster.terminate`. The jobs that it launched are stopped with it."""
        check_seconds("grace", grace, zero=True)
        stop_family(self._records.find(job_id), grace)

    def record(self, job_id: str) -> JobRecord:
        """Return the record of a job.

        Raises:
            JobNotFoundError: There is none.
        """
        return self._records.find(job_id)


def write_record(draft: Path, plan: JobPlan) -> None:
    """Write the record of a job that is to be started."""
    path = os.fspath(draft)
    (draft / LOGS).mkdir(mode=0o700)
    control_pipe.create(path)
    reserve_room(path, plan.replicas)
    write_json(os.fspath(draft / REQUEST), {"version": VERSION, **plan.shown})
    if plan.keep is not None and plan.keep != Keep():
        write_keep(path, plan.keep)
    if plan.on_exit is not None:
        write_on_exit(path, plan)
    if plan.payload is not None:
        replace_file(os.fspath(draft / PAYLOAD), plan.payload)
    if not write_status(path, plan.described, final=False):
        raise OSError(
            f"the status of {plan.job_id} cannot be written to {path}: the disk is full or read-only"
        )


def take_lock(draft: Path) -> SupervisorLock:
    """Take the lock of a record that is being made, and make the log of who will hold it."""
    replace_file(os.fspath(draft / SUPERVISOR_LOG), b"")
    # Under its name it is seen taken or not at all: who prunes meanwhile deletes a draft that nobody holds.
    taken = draft / f"{LOCK}.new"
    lock = SupervisorLock.acquire(os.fspath(taken))
    assert lock is not None, "a draft is its launcher's own"
    try:
        os.rename(taken, draft / LOCK)
    except OSError:
        lock.close()
        raise
    try:
        lock.reserve()
    except BaseException:
        lock.close()
        raise
    return lock
