"""Jobs on a Slurm cluster: a record in a folder that its nodes share, and a batch script for each."""

import contextlib
import math
import os
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

from fray import ClusterUnavailableError, JobNotFoundError, UnsupportedError
from fray.backend import (
    REPLICAS,
    Finding,
    JobRecord,
    Liveness,
    Spec,
    TreeKill,
    bare_command,
    check_seconds,
    import_paths,
    map_in_threads,
    own_python,
    plan_with_environment,
    poll_delays,
    poll_until,
    request_stop,
    settle_by_members,
)
from fray.cluster import (
    DirectoryCluster,
    Endpoint,
    EnvironmentConfig,
    GpuConfig,
    JobId,
    JobPlan,
    JobRequest,
    JobStatus,
    Pruned,
    ResourceConfig,
    TpuConfig,
)
from fray_slurm._allocation import FOLDER
from fray_slurm._arrays import arrays_of_replicas
from fray_slurm._client import SlurmClient, SlurmError
from fray_slurm._diagnosis import check_slurm
from fray_slurm._ending import SlurmEnd
from fray_slurm._jobs import ENVIRONMENTS, has_run, members_of
from fray_slurm._launches import SlurmLaunches, array_script, batch_command, write_end
from fray_slurm._ray_in_allocation import runtime_of, with_runtime
from fray_slurm._readings import SlurmJob
from fray_slurm._script import batch_script, directives, gres_of, replica_count, without_allocation
from fray_slurm._settings import SlurmSettings, native_options
from fray_slurm._signalling import DEFAULT_GRACE, GRACE_WORD
from fray_slurm._states import WAITING

_AT_ONCE = 16  # members of a sweep that are stopped side by side
_AWAY_WITHIN = 120.0  # seconds for which slurmctld may be away while jobs are stopped, or a node may hang
_SETTLES_WITHIN = 30.0  # seconds in which the members of a sweep that is stopped write their ends
_ENDS_WITHIN = 30.0  # seconds after which a job that does not end is cancelled


class SlurmCluster(SlurmLaunches):
    """Jobs as batch jobs of Slurm: spec `slurm`, e.g. `slurm?partition=gpu&account=lab&qos=high`.

    A gang is one allocation, with a task for each replica. Replicas that are independent are an array: a task
    each, which starts when there is room for it. The supervisor is in the batch step, on the first node of an
    allocation; nothing of a job runs where it was launched. This interpreter, the workspace and `root` have
    the same paths on all nodes.

    Args:
        root: The folder of the records, on a file system that the nodes share; else `slurm` in the folder of
            Fray's state (FRAY_STATE_DIR, XDG_STATE_HOME, ~/.local/state).
        partition, account, qos, constraint, reservation, time: As sbatch has them, for all jobs;
            `backend={"slurm": {...}}` of a request wins over them, and takes any other option of sbatch.
        preemptible_partition: The partition of jobs with `preemptible=True`, where it is another.
        region_constraint: Whether names of regions are features of nodes, so that `regions` can be requested.
        cluster: Which cluster, where Slurm has several (`--clusters`).
        grace: Seconds before the time limit at which replicas get SIGTERM.
        poll_interval: Seconds between two questions to Slurm while something changes, for all jobs together;
            the pause grows to thirty seconds while nothing does.
    """

    capabilities = DirectoryCluster.capabilities.but(
        environments=True,
        python_versions=True,
        gpus=True,
        sweeps=True,
        preemptible=True,
        admission=True,
        tree_kill=TreeKill.SUBREAPER,  # a site with proctrack/cgroup is stricter
    )

    def __init__(
        self,
        *,
        root: str | os.PathLike[str] | None = None,
        partition: str | None = None,
        preemptible_partition: str | None = None,
        account: str | None = None,
        qos: str | None = None,
        constraint: str | None = None,
        reservation: str | None = None,
        time: str | None = None,
        cluster: str | None = None,
        region_constraint: bool = False,
        grace: int = DEFAULT_GRACE,
        poll_interval: float = 2.0,
    ) -> None:
        self._settings = SlurmSettings(
            partition=partition,
            preemptible_partition=preemptible_partition,
            account=account,
            qos=qos,
            constraint=constraint,
            reservation=reservation,
            time=time,
            cluster=cluster,
            region_constraint=region_constraint,
            grace=grace,
        )
        check_seconds("poll_interval", poll_interval)
        folder = Path(root).expanduser().absolute() if root is not None else _state_dir() / "slurm"
        spec = _spec_of(self._settings, folder, poll_interval)
        super().__init__(spec, folder, SlurmClient(cluster), poll_interval)

    # --- launch ---

    def batch_script(self, request: JobRequest) -> str:
        """Return the script that `launch` would submit, without doing so; its id is made up."""
        self._check_supported(request)
        job_id = JobId.new(request.name)
        record = self._records.path(job_id)
        apart = _apart(request, job_id)
        asked = _of_one(request) if apart else request
        options = directives(asked, job_id, self._settings, os.fspath(record / FOLDER))
        if apart:
            (array,) = arrays_of_replicas(options, range(replica_count(request.resources)), sys.maxsize)
            return array_script(job_id, array, record / REPLICAS)
        return batch_script(options, [*batch_command(), os.fspath(record), "SUPERVISOR"], os.fspath(record))

    def diagnose(self) -> list[Finding]:
        """Check Slurm's commands and its controller too, for `fray doctor`."""
        return [*super().diagnose(), *check_slurm(self._client)]

    def _check_supported(self, request: JobRequest) -> None:
        device = request.resources.device
        if isinstance(device, TpuConfig):
            raise UnsupportedError(
                f"SlurmCluster has no TPU for job {request.name!r} ({device}); 'ray' may have one"
            )
        if request.resources.regions and not self._settings.region_constraint:
            raise UnsupportedError(
                f"SlurmCluster does not know the regions of job {request.name!r} "
                f"({', '.join(request.resources.regions)}): where they are features of the nodes, open it as "
                "'slurm?region_constraint=true'; else say a partition or a constraint"
            )
        native_options(request.backend.get("slurm", {}))
        runtime_of(request)
        super()._check_supported(_portable(request))

    def _plan(self, request: JobRequest, job_id: JobId, variables: Mapping[str, str]) -> JobPlan:
        runtime = runtime_of(request)
        request = replace(request, gang=True) if runtime else request
        record, python = self._records.path(job_id), sys.executable
        if request.environment is not None and request.environment.builds:
            python, kept = os.fspath(own_python(record)), self._records.folder / ENVIRONMENTS
            plan = plan_with_environment(request, job_id, self.spec, variables, record=record, folder=kept)
        else:
            plan = super()._plan(request, job_id, variables)
        program = plan.command if runtime is None else with_runtime(runtime, request, python, plan.command)
        apart = _apart(request, job_id)
        asked, folder = _of_one(request) if apart else request, os.fspath(record / FOLDER)
        self._options[job_id] = directives(asked, job_id, self._settings, folder)
        own = dict((request.environment or EnvironmentConfig()).env_vars)
        environ = without_allocation(plan.environ) | own
        step = bare_command("fray_slurm._step", import_paths())
        command = (*step, f"{GRACE_WORD}{self._settings.grace}", *_gres(request), "--", *program)
        ending = SlurmEnd(may_resume=request.max_retries_preemption > 0)
        return plan._replace(
            command=command, environ=environ, host_end=ending, apart=apart, measured_elsewhere=True
        )

    def _submit(self, plan: JobPlan) -> None:
        try:
            self._check_folder()
            super()._submit(plan)
        finally:
            self._options.pop(plan.job_id, None)

    def endpoints(self, prefix: str = "", *, everywhere: bool | None = None) -> list[Endpoint]:
        """See `Cluster.endpoints`. A supervisor that Slurm ended with its host could not delete its own."""
        return [each for each in super().endpoints(prefix, everywhere=everywhere) if self._serves(each)]

    def _serves(self, endpoint: Endpoint) -> bool:
        """Whether Slurm still runs what registered an endpoint, by its last answer."""
        try:
            info = self._state(self._records.find(endpoint.job_id).of_replica(endpoint.replica))
        except JobNotFoundError:  # removed meanwhile
            return False
        # The record says that it runs, Slurm that it waits again. An attempt that is not written yet runs.
        requeued = info.status is JobStatus.PENDING and any(
            task.status is JobStatus.RUNNING for task in info.tasks
        )
        return not info.finished and not requeued

    # --- the end ---

    def terminate(self, job_id: str, grace: float = 10.0) -> None:
        """See `Cluster.terminate`. The jobs that it launched are stopped with it."""
        check_seconds("grace", grace, zero=True)
        record = self._records.find(job_id)
        if self.poll(job_id).finished:
            return
        self._scans.pop(record.path, None)
        self._table.expect_change()  # what has no number yet may have one by now
        members = members_of(record)
        if members:
            self._terminate_members(record, members, grace)
            return
        self._withdraw_requeued(record)
        family = self._stop_family(record, grace)
        self._end_in_slurm(family)
        for each in family:
            if not each.written().finished:
                write_end(each)

    def _withdraw_requeued(self, record: JobRecord) -> None:
        """Stop what has run and waits in the queue again: no supervisor is there that could be asked."""
        unseen = [each for each in record.with_descendants() if each.liveness() is Liveness.UNKNOWN]
        with contextlib.suppress(ClusterUnavailableError):  # then they are asked, and cancelled later
            numbers = [(each, self._names_by_number([each])) for each in unseen]
            left = self._unfinished({number: name for _, own in numbers for number, name in own.items()})
            waiting = {number for number, job in left.items() if job.state in WAITING}
            if waiting:
                self._client.cancel(*sorted(waiting), pending=True)
            for each, own in numbers:
                if waiting & set(own):
                    write_end(each)

    def _stop_family(self, record: JobRecord, grace: float) -> list[JobRecord]:
        """Request the end of a job and of those that it launched; return which had not ended."""
        jobs = [each for job in record.with_descendants() for each in job.replicas() or [job]]
        family = [each for each in jobs if not self._state(each).finished]
        with contextlib.suppress(ClusterUnavailableError):  # a supervisor that does not answer: Slurm ends it
            self._stop_record(record, grace)
        return family

    def remove(self, job_id: str, force: bool = False) -> None:
        """See `Cluster.remove`. Where Slurm says that a job has ended, its record need not say so.

        Raises:
            ValueError: It has not ended; with `force` too, where Slurm says that it has not.
        """
        for each in self._records.find(job_id).with_descendants():
            for check in (self._settle, self._refuse_unfinished):  # a replica may run whose peer is held
                with contextlib.suppress(*(ClusterUnavailableError,) if force else ()):
                    check(each)
        super().remove(job_id, force=force)

    def _refuse_unfinished(self, record: JobRecord) -> None:
        unfinished = [each for each in members_of(record) or [record] if not each.written().finished]
        for job in self._unfinished(self._names_by_number(unfinished)).values():
            raise ValueError(
                f"job {record.job_id} is Slurm job {job.job_id}, which is {job.state}: terminate it before "
                "it is removed"
            )

    def prune(self, older_than: float = 0.0, *, dry_run: bool = False) -> Pruned:
        """See `Cluster.prune`. Jobs whose end Slurm alone knows are settled before."""
        for each in () if dry_run else self._records.with_descendants():
            # Removed meanwhile, or held by a host that is down.
            with contextlib.suppress(JobNotFoundError, ClusterUnavailableError):
                self._settle(each)
        return super().prune(older_than, dry_run=dry_run)

    def _terminate_members(self, record: JobRecord, members: list[JobRecord], grace: float) -> None:
        """Stop members of a sweep, or replicas: those that wait by one call, those that run side by side."""
        own: Mapping[str, SlurmJob] = {}
        with contextlib.suppress(ClusterUnavailableError):  # then they are cancelled below
            unfinished = (each for each in members if not each.written().finished)
            own = self._unfinished(self._names_by_number(unfinished))
            arrays = {number.partition("_")[0] for number, job in own.items() if job.state in WAITING}
            if arrays:
                self._client.cancel(*sorted(arrays), pending=True)
        left: list[JobRecord] = []
        never: list[JobRecord] = []
        started = {number for number, job in own.items() if job.state not in WAITING}
        for member in members:
            if not member.written().finished:
                # Of one that runs the lock says nothing on a file system whose locks are each host's own.
                runs = self._noted(member).get("id") in started
                (never if not runs and write_end(member) else left).append(member)
        for member in left:
            request_stop(member, grace)
        with contextlib.suppress(ClusterUnavailableError):
            unsupervised = [number for number in self._names_by_number(never) if number in own]
            if unsupervised:  # also one whose batch step is just starting
                self._client.cancel(*unsupervised)
        families = map_in_threads(
            lambda member: self._stop_family(member, grace), left, _AT_ONCE, "fray-terminate"
        )
        ended = [each for family in families for each in family]
        self._end_in_slurm([*ended, *never])
        for member in [*ended, *left]:
            if not member.written().finished:
                write_end(member)
        for job in record.replicas() and record.children():  # what replicas have launched
            self.terminate(job.job_id, grace)
        # A member that a host holds which is down reads as Slurm says that it has ended.
        poll_until(lambda: settle_by_members(record, stopped=True) or None, _SETTLES_WITHIN)

    def _end_in_slurm(self, records: list[JobRecord]) -> None:
        """Return when Slurm has ended these; what has not started, or does not end, is cancelled.

        One question to Slurm for all of them. A number that another job has by now is left alone.
        """
        names: dict[str, str | None] | None = None
        started, first_cancelled_at = time.monotonic(), math.inf
        cancelled_at = started + _ENDS_WITHIN
        for pause in poll_delays(shortest=0.05, longest=5.0):
            try:
                names = self._names_by_number(records) if names is None else names
                left = list(self._unfinished(names).values())
            except ClusterUnavailableError as error:
                if not self._check_away(records, error, started):
                    return
                time.sleep(pause)
                continue
            if not left:
                self._table.expect_change()
                return
            if time.monotonic() - first_cancelled_at > _AWAY_WITHIN:
                self._leave_to_slurm(records, left)
                return
            late = time.monotonic() >= cancelled_at
            cancelled = sorted({job.job_id for job in left if late or job.state in WAITING})
            if cancelled:
                first_cancelled_at = min(first_cancelled_at, time.monotonic())
                with contextlib.suppress(ClusterUnavailableError):  # the next question says so
                    self._client.cancel(*cancelled)
            if late:
                cancelled_at += _ENDS_WITHIN
            time.sleep(pause)

    def _leave_to_slurm(self, records: list[JobRecord], left: list[SlurmJob]) -> None:
        """Warn of jobs that Slurm has cancelled and cannot end, as on a node that hangs.

        Raises:
            ClusterUnavailableError: A record does not say how its job ended, or Slurm does not even try.
        """
        job = left[0]
        with contextlib.suppress(ClusterUnavailableError, SlurmError):
            job = self._client.details(job.job_id) or job
        more = f" (and {len(left) - 1} more)" if left[1:] else ""
        text = (
            f"Slurm shows job {job.job_id} on {job.nodes or 'no node'}{more} as {job.state} "
            f"{_AWAY_WITHIN:g} s after scancel: processes may be left there; Slurm ends them when the node "
            "answers, or is set down"
        )
        if any(each.state != "COMPLETING" for each in left) or not all(
            each.written().finished for each in records
        ):
            raise ClusterUnavailableError(text)
        warnings.warn(text, RuntimeWarning, stacklevel=4)

    def _check_away(self, records: list[JobRecord], error: ClusterUnavailableError, since: float) -> bool:
        """Return whether to continue while slurmctld is away: for what waits in the queue, and for so long.

        Raises:
            ClusterUnavailableError: It has been away for too long.
        """
        ended = [each for each in records if each.written().finished and has_run(each)]
        if len(ended) < len(records) and time.monotonic() - since > _AWAY_WITHIN:
            raise ClusterUnavailableError(
                f"{error}; what runs was stopped, and what waits in Slurm's queue ends when it starts"
            )
        return len(ended) < len(records)


def _apart(request: JobRequest, job_id: JobId) -> bool:
    """Whether each replica is a task of an array, which starts when there is room for it alone.

    A member of a sweep is a task itself: its replicas share that allocation.
    """
    together = request.is_gang or runtime_of(request) is not None or job_id.sweep is not None
    return not together and replica_count(request.resources) > 1


def _of_one(request: JobRequest) -> JobRequest:
    """Return the request of one replica."""
    return replace(request, resources=replace(request.resources, replicas=1))


def _portable(request: JobRequest) -> JobRequest:
    """Return a request without what the base class would refuse, and this one has: GPUs, environments."""
    resources, environment = request.resources, request.environment or EnvironmentConfig()
    return replace(
        request,
        resources=ResourceConfig(cpu=resources.cpu, ram=resources.ram, replicas=resources.replicas),
        environment=EnvironmentConfig(docker_image=environment.docker_image),
    )


def _gres(request: JobRequest) -> list[str]:
    """Return srun's option for the GPUs of one replica."""
    native, _ = native_options(request.backend.get("slurm", {}))
    if native.get("gres"):
        return [f"--gres={native['gres']}"]
    device = request.resources.device
    if isinstance(device, GpuConfig) and not {"gpus", "gpus-per-node"} & set(native):
        return [f"--gres={gres_of(device)}"]
    return []


def _spec_of(settings: SlurmSettings, folder: Path, poll_interval: float) -> str:
    options = {"root": os.fspath(folder), "poll_interval": f"{poll_interval:g}"}
    for item in fields(settings):
        value = getattr(settings, item.name)
        if value != item.default:
            options[item.name] = str(value)
    return str(Spec("slurm", options))


def _state_dir() -> Path:
    given = os.environ.get("FRAY_STATE_DIR")
    if given:
        return Path(given).absolute()
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "fray"
