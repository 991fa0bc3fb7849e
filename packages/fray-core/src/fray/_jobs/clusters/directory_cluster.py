"""A cluster whose jobs are directories of a file system that its hosts share (`fray._jobs.records`)."""

import contextlib
import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fray._jobs.clusters.recorded_jobs import RecordedJobs
from fray._jobs.clusters.restart import restart_replicas
from fray._jobs.clusters.retry import (
    check_retry,
    locked_as_judged,
    members_to_retry,
    numbered,
    plan_to_run,
    replicas_to_retry,
    reset,
    reset_members,
    reset_replicas,
    reset_sweep,
    undone_if_not_started,
)
from fray._jobs.plans.plan import JobPlan
from fray._jobs.plans.planning import import_paths, plan_of
from fray._jobs.plans.snapshots import SweepCopies, take_snapshot
from fray._jobs.plans.sweep_plan import SweepPlan
from fray._jobs.process_tree import TreeKill
from fray._jobs.processes.removal import remove_tree
from fray._jobs.records.files import CHILDREN, PLAN, SWEEP
from fray._jobs.records.kept_plans import secrets_of
from fray._jobs.records.liveness import SupervisorLock
from fray._jobs.records.packed_plans import packed_plan
from fray._jobs.records.record import JobRecord
from fray._jobs.records.replica_records import replica_path
from fray._jobs.records.status_file import replace_file
from fray._jobs.records.writing import take_lock, write_member, write_record, write_replica
from fray._jobs.supervisor.command import supervisor_command
from fray._jobs.supervisor.stopping import stop_family
from fray._values.capabilities import ClusterCapabilities
from fray._values.checks import check_seconds
from fray._values.job_states import JobId, JobInfo
from fray._values.jobs import JobRequest


class DirectoryCluster(RecordedJobs):
    """Derive a cluster from one primitive: run a command somewhere, and do not wait for it.

    The command supervises one job on the host where it runs, and ends with the job. It starts the replicas,
    restarts failed ones, and writes the job's record. Every host that it may run on has this interpreter and
    sees `root`, at the same paths. If the command is killed, the job reads failed with the reason lost, and
    the processes that it started are ended.

    Hooks:
        _start(job_id, command): Let a command run somewhere, in a session of its own, and return without
            waiting for it. `launch`, `launch_many` and `retry` call it on the user's thread. If it raises, a
            launch leaves no record.
        _start_replicas(job_id, replicas): Start a supervisor for each of these replicas of a plan that is
            `apart`; by default by a call of `_start` for each.
        _start_sweep(sweep, draft, record, lock): Start the members of a sweep; by default one coordinator
            starts them. The other hooks of `ClusterBase` are implemented already.

    Args:
        spec: What opens the same cluster again.
        root: The folder of the jobs' records; created if it is missing, for this user only.
        keep_jobs: Records of finished jobs to keep; None for all.
        keep_days: Days to keep them at most; None for ever.
        environments: A folder of environments. A record refers to its environment by a link called
            `environment`. Environments without such a link are deleted with old records.
    """

    _SUPPORTED = frozenset({"snapshot", "log_limit", "labels", "after", "ports", "on_exit"})

    capabilities = ClusterCapabilities(
        gangs=True,
        retries=True,
        tree_kill=TreeKill.CGROUP,
        dependencies=True,
        ports=True,
        endpoints=True,
        sweeps=True,
        retry=True,
        restart=True,
        snapshots=True,
        usage=True,
        log_limit=True,
        shared_between_machines=True,
        removal=True,
        keys=True,
        labels=True,
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
        with self._record_made(plan.job_id) as (draft, record):
            lock = take_lock(draft)  # first: a draft without a lock is deleted once it is old
            try:
                if plan.snapshot_of is not None:
                    copy = draft / Path(plan.workspace).name
                    take_snapshot(Path(plan.snapshot_of), copy, leave_out=self._records.folder)
                start = self._start_apart if plan.apart else self._start_supervisor
                start(plan, draft, record, lock)
            finally:
                lock.close()

    def _start_apart(self, plan: JobPlan, draft: Path, record: Path, lock: SupervisorLock) -> None:
        """Write the record and in it those of its replicas, and let a supervisor be started for each."""
        write_record(draft, plan)
        for replica in plan.numbers:
            write_replica(Path(replica_path(os.fspath(draft), replica)), plan, record)
        draft.rename(record)
        lock.close()
        self._start_replicas(plan.job_id, plan.numbers)

    def _start_replicas(self, job_id: str, replicas: Sequence[int]) -> None:
        """Let a supervisor be started for each of these replicas, which have records of their own.

        By default each by a command of its own; a cluster that has arrays of jobs overrides this.
        """
        record = os.fspath(self._records.path(job_id))
        for replica in replicas:
            self._start(job_id, supervisor_command(replica_path(record, replica), import_paths()))

    def _submit_many(self, sweep: SweepPlan, plans: Sequence[JobPlan]) -> None:
        """Write the record of the sweep and in it those of its members, and start its coordinator."""
        sweep = sweep._replace(keep=self._keep if "/" not in sweep.job_id else None)
        with self._record_made(sweep.job_id) as (draft, record):
            lock = take_lock(draft)
            try:
                copies = SweepCopies(draft, self._records.folder)
                for position, plan in enumerate(plans):
                    write_member(draft / CHILDREN / str(position), plan, copies)
                replace_file(os.fspath(draft / SWEEP), packed_plan(sweep))
                sweep = sweep._replace(secrets=dict(enumerate(map(secrets_of, plans))))
                self._start_sweep(sweep, draft, record, lock)
            finally:
                lock.close()

    def _start_sweep(self, sweep: SweepPlan, draft: Path, record: Path, lock: SupervisorLock) -> None:
        """Let the record of a sweep appear, and its members be started, now or later.

        By default a coordinator starts them on the host where it runs itself; where a cluster starts each
        somewhere else, or has arrays of jobs, it overrides this. A member's record has its plan in it, and
        `supervisor_command` of that record runs it.
        """
        self._start_supervisor(sweep, draft, record, lock)

    @contextlib.contextmanager
    def _record_made(self, job_id: str) -> Iterator[tuple[Path, Path]]:
        """Be around the making of a record, in a draft of it: gives both paths."""
        record, draft = self._records.path(job_id), self._records.draft_of(job_id)
        self._records.make_folder()
        record.parent.mkdir(mode=0o700, exist_ok=True)
        draft.mkdir(mode=0o700, parents=True)
        try:
            yield draft, record
        except BaseException:
            with contextlib.suppress(OSError):  # as a rule it is not there yet
                record.rename(draft)
            remove_tree(os.fspath(draft))
            raise

    def retry(self, job_id: str, /) -> JobId:
        """See `Cluster.retry`."""
        self.capabilities.check("retry", f"{type(self).__name__}: retry", "launch it as a new job")
        record = self._records.find(job_id)
        if record.job_id.sweep is not None:
            self._retry_members(self._records.find(record.job_id.sweep), record)
        elif record.info().is_sweep:
            self._retry_members(record, None)
        else:
            self._retry_job(record)
        return record.job_id

    def restart(self, job_id: str, replica: int | None = None, grace: float = 10.0) -> None:
        """See `Cluster.restart`."""
        self.capabilities.check(
            "restart", f"{type(self).__name__}: restart", "terminate the job and launch it"
        )
        check_seconds("grace", grace, zero=True)
        restart_replicas(self._records.find(job_id), replica, grace)

    def _retry_job(self, record: JobRecord) -> None:
        lock, info, _ = locked_as_judged(record, check_retry)
        with contextlib.closing(lock):
            replicas = replicas_to_retry(record)
            if replicas:
                self._retry_replicas(record, info, replicas, lock)
                return
            plan = numbered(plan_to_run(record), info)
            with undone_if_not_started(lock, [(record, info)]):
                reset(record, info)
                self._start_supervisor(plan, record.path, record.path, lock)

    def _retry_replicas(
        self,
        record: JobRecord,
        info: JobInfo,
        replicas: list[tuple[JobRecord, JobInfo]],
        lock: SupervisorLock,
    ) -> None:
        """Run replicas again that have a supervisor each."""
        plans = [plan_to_run(each) for each, _ in replicas]
        with undone_if_not_started(lock, [*replicas, (record, info)]):
            reset_replicas(replicas, plans)
            reset(record, info)
            lock.close()
            self._start_replicas(record.job_id, [int(each.path.name) for each, _ in replicas])

    def _retry_members(self, sweep: JobRecord, member: JobRecord | None) -> None:
        """Run the members of a sweep again that did not succeed; where one is given, that one."""
        lock, info, members = locked_as_judged(sweep, lambda info: members_to_retry(sweep, info, member))
        with contextlib.closing(lock):
            secrets = {int(each.job_id.leaf): secrets_of(plan_to_run(each)) for each, _ in members}
            with undone_if_not_started(lock, [*members, (sweep, info)]):
                reset_members(members)
                plan = reset_sweep(sweep)._replace(secrets=secrets)
                self._start_sweep(plan, sweep.path, sweep.path, lock)

    def _start_supervisor(
        self, plan: JobPlan | SweepPlan, draft: Path, record: Path, lock: SupervisorLock
    ) -> None:
        """Write the record, let it appear, and its supervisor be started somewhere.

        The launcher holds the lock while the record is a draft; a cluster that starts the supervisor as a
        child of its own hands it on, so that it is never free.
        """
        if draft != record:  # else it is a job that runs again
            write_record(draft, plan)
        replace_file(os.fspath(draft / PLAN), packed_plan(plan))
        if draft != record:
            draft.rename(record)
        else:
            lock.reserve()  # its next supervisor may be far from its start: until that there was none
        lock.close()
        self._start(plan.job_id, supervisor_command(os.fspath(record), import_paths()))

    def _stop(self, job_id: str, grace: float) -> None:
        self._stop_record(self._records.find(job_id), grace)

    def _stop_record(self, record: JobRecord, grace: float) -> None:
        """Stop a job, or one replica that has a supervisor of its own, and all jobs below it."""
        stop_family(record, grace)

    def terminate(self, job_id: str, grace: float = 10.0) -> None:
        """See `Cluster.terminate`. The jobs that it launched are stopped with it."""
        check_seconds("grace", grace, zero=True)
        self._stop_record(self._records.find(job_id), grace)
