"""Jobs on a Slurm cluster: a record in a folder that its nodes share, and a batch script for each."""

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path

from fray import ClusterUnavailableError, UnsupportedError
from fray.backend import (
    Finding,
    JobRecord,
    Spec,
    SupervisorLock,
    SweepPlan,
    TreeKill,
    check_seconds,
    own_python,
    plan_with_environment,
    poll_delays,
    settle_by_members,
    settle_stopped,
    supervisor_command,
    write_record,
)
from fray.cluster import (
    DirectoryCluster,
    EnvironmentConfig,
    GpuConfig,
    JobId,
    JobPlan,
    JobRequest,
    ResourceConfig,
    TpuConfig,
)
from fray_slurm._after import dependency, failed_before
from fray_slurm._allocation import (
    FOLDER,
    JOB,
    RECORD,
    SCRIPT,
    SECRETS,
    path_of,
    write,
)
from fray_slurm._arrays import Array, arrays_of, in_order
from fray_slurm._client import SlurmClient, SlurmError
from fray_slurm._diagnosis import check_slurm
from fray_slurm._ending import SlurmEnd
from fray_slurm._jobs import ENVIRONMENTS, SlurmJobs
from fray_slurm._own_engine import own_engine, with_engine
from fray_slurm._script import batch_script, directives, gres_of, without_allocation
from fray_slurm._settings import SlurmSettings, native_options
from fray_slurm._shared_folder import check_shared
from fray_slurm._states import ENDED, WAITING

_AT_ONCE = 16  # members of a sweep that are stopped side by side
MEMBERS = "jobs"  # in the record of a sweep
_ENDS_WITHIN = 30.0  # seconds after which a job that does not end is cancelled
_STEP = (sys.executable, "-P", "-m", "fray_slurm._step")
_BATCH = (sys.executable, "-P", "-m", "fray_slurm._batch")


class SlurmCluster(SlurmJobs):
    """Jobs as batch jobs of Slurm: spec `slurm`, e.g. `slurm?partition=gpu&account=lab&qos=high`.

    A request is one allocation, with a task for each replica. The job is supervised in the batch step, on its
    first node; nothing of it runs where it was launched. This interpreter, the workspace and `root` have the
    same paths on all nodes.

    Args:
        root: The folder of the records, on a file system that the nodes share; else `slurm` in the folder of
            Fray's state (FRAY_STATE_DIR, XDG_STATE_HOME, ~/.local/state).
        partition, account, qos, constraint, reservation, time: As sbatch has them, for all jobs;
            `backend={"slurm": {...}}` of a request wins over them, and takes any other option of sbatch.
        preemptible_partition: The partition of jobs with `preemptible=True`, where it is another.
        region_constraint: Whether names of regions are features of nodes, so that `regions` can be asked for.
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
        retry=False,
        restart=False,
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
        grace: int = 60,
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
        self._scripts: dict[str, dict[str, str | None]] = {}  # options of what is being launched
        self._checked = False

    # --- launch ---

    def batch_script(self, request: JobRequest) -> str:
        """Return the script that `launch` would submit, without doing so; its id is made up."""
        self._check_supported(request)
        job_id = JobId.new(request.name)
        record = self._records.path(job_id)
        options = directives(request, job_id, self._settings, os.fspath(record / FOLDER))
        return batch_script(options, [*_BATCH, os.fspath(record), "SUPERVISOR"], os.fspath(record))

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
        own_engine(request)
        super()._check_supported(_portable(request))

    def _plan(self, request: JobRequest, job_id: JobId, variables: Mapping[str, str]) -> JobPlan:
        engine = own_engine(request)
        request = replace(request, gang=True) if engine else request
        record, python = self._records.path(job_id), sys.executable
        if request.environment is not None and request.environment.builds:
            python, kept = os.fspath(own_python(record)), self._records.folder / ENVIRONMENTS
            plan = plan_with_environment(request, job_id, self.spec, variables, record=record, folder=kept)
        else:
            plan = super()._plan(request, job_id, variables)
        program = plan.command if engine is None else with_engine(engine, request, python, plan.command)
        folder = os.fspath(record / FOLDER)
        self._scripts[job_id] = directives(request, job_id, self._settings, folder)
        own = dict((request.environment or EnvironmentConfig()).env_vars)
        environ = without_allocation(plan.environ) | own
        command = (*_STEP, *_gres(request), "--", *program)
        ending = SlurmEnd(may_resume=request.max_retries_preemption > 0)
        return plan._replace(command=command, environ=environ, host_end=ending)

    def _submit(self, plan: JobPlan) -> None:
        try:
            self._check_folder()
            super()._submit(plan)
        finally:
            self._scripts.pop(plan.job_id, None)

    def _check_folder(self) -> None:
        if not self._checked:
            self._records.make_folder()
            check_shared(self._client, self._records.folder, self._settings)
            self._checked = True

    def _start(self, job_id: str, command: list[str]) -> None:
        path = self._records.path(job_id)
        (path / FOLDER).mkdir(mode=0o700)
        self._submit_job(job_id, os.fspath(path), self._scripts[job_id], command)
        self._table.expect_change()

    def _submit_job(
        self, job_id: str, record: str, options: Mapping[str, str | None], command: list[str]
    ) -> str:
        """Submit one job to Slurm, and note its number; "" where it can never start."""
        before = self._predecessors(job_id)
        failed = failed_before(before, self._info)
        if failed is not None:  # Slurm may have forgotten those; and why should it wait in the queue
            write(path_of(record, JOB), {"never": failed.message})
            return ""
        numbers = [number for number in map(self._unfinished_number, before) if number is not None]
        after = {"dependency": dependency(numbers)} if numbers else {}
        script = batch_script({**options, **after}, [*_BATCH, record, *command], record)
        Path(path_of(record, SCRIPT)).write_text(script)
        number, _, cluster = self._client.submit(script, job_id).partition(";")
        write(path_of(record, JOB), {"id": number, "cluster": cluster or None})
        return number

    def _start_sweep(self, sweep: SweepPlan, draft: Path, record: Path, lock: SupervisorLock) -> None:
        self._check_folder()
        late = in_order(sweep)
        options = {position: self._options_of_member(sweep, position) for position in range(sweep.members)}
        early = [position for position in options if position not in set(late)]
        largest = self._client.largest_array()
        arrays = arrays_of(sweep, options, early, largest)
        write_record(draft, sweep)
        draft.rename(record)
        lock.close()
        folder = record / FOLDER
        folder.mkdir(mode=0o700)
        write(path_of(os.fspath(record), JOB), {"sweep": sweep.job_id})
        submitted: list[str] = []
        try:
            for position in options:
                self._prepare_member(record / MEMBERS / str(position), sweep.secrets.get(position, {}))
            for array in arrays:
                submitted += [self._submit_array(sweep, array, record)]
            for position in late:
                submitted += [self._submit_late(sweep, position, options[position], record)]
        except BaseException:
            with contextlib.suppress(SlurmError, ClusterUnavailableError):
                self._client.cancel(*filter(None, submitted))
            raise
        self._table.expect_change()

    def _options_of_member(self, sweep: SweepPlan, position: int) -> dict[str, str | None]:
        return self._scripts.pop(f"{sweep.job_id}/{position}")

    def _prepare_member(self, record: Path, secrets: Mapping[str, str]) -> None:
        (record / FOLDER).mkdir(mode=0o700)
        write(path_of(os.fspath(record), SECRETS), secrets)

    def _submit_array(self, sweep: SweepPlan, array: Array, record: Path) -> str:
        members = record / MEMBERS
        own = {
            "job-name": sweep.job_id,
            "array": array.option,
            "output": f"{record / FOLDER}/slurm-%A_%a.log",
        }
        command = [*_BATCH, "--member", os.fspath(members), str(array.base), *_supervisor(RECORD, sweep)]
        script = batch_script(own | dict(array.options), command, os.fspath(record))
        (record / FOLDER / f"script-{array.members[0]}.sh").write_text(script)
        number, _, cluster = self._client.submit(script, sweep.job_id).partition(";")
        for position in array.members:
            noted = {"id": f"{number}_{array.task(position)}", "cluster": cluster or None}
            write(path_of(os.fspath(members / str(position)), JOB), noted)
        return number

    def _submit_late(
        self, sweep: SweepPlan, position: int, options: Mapping[str, str | None], record: Path
    ) -> str:
        """Submit a member that runs after others: a job of its own, with its own dependency."""
        own = os.fspath(record / MEMBERS / str(position))
        member = f"{sweep.job_id}/{position}"
        return self._submit_job(member, own, options, _supervisor(own, sweep))

    def _unfinished_number(self, job_id: str) -> str | None:
        """Return the number of a job that has not ended; None where it has none yet: the supervisor looks."""
        info = self._info(job_id)
        return None if info is None or info.finished else self._number(self._records.find(job_id))

    # --- the end ---

    def terminate(self, job_id: str, grace: float = 10.0) -> None:
        """See `Cluster.terminate`. The jobs that it launched are stopped with it."""
        check_seconds("grace", grace, zero=True)
        record = self._records.find(job_id)
        if self.poll(job_id).finished:
            return
        if record.written().is_sweep:
            self._terminate_sweep(record, grace)
            return
        family = [each for each in record.with_descendants() if not self.poll(each.job_id).finished]
        with contextlib.suppress(ClusterUnavailableError):  # a supervisor that does not answer: Slurm ends it
            super().terminate(job_id, grace)
        for each in family:
            self._end_in_slurm(each)
            if not each.written().finished:
                settle_stopped(each)

    def _cancel_waiting(self, number: str) -> None:
        """Cancel a job unless it has started: then its supervisor has been told."""
        if "_" not in number:
            self._client.cancel(number, pending=True)
            return
        # For a task, scancel --state would cancel all of its array that has not started.
        job = self._client.details(number)
        if job is not None and job.state in WAITING:
            self._client.cancel(number)

    def remove(self, job_id: str, force: bool = False) -> None:
        """See `Cluster.remove`. Where Slurm says that a job has ended, its record need not say so."""
        for each in self._records.find(job_id).with_descendants():
            info = self._info(each.job_id)
            if info is not None and info.finished and not each.written().finished:
                settle_stopped(each)  # it is about to be deleted
        super().remove(job_id, force=force)

    def _terminate_sweep(self, sweep: JobRecord, grace: float) -> None:
        """Stop all members: those that wait by one call, those that run side by side."""
        numbers = [self._number(member) for member in sweep.children()]
        jobs = dict.fromkeys(number.partition("_")[0] for number in numbers if number)
        if jobs:
            self._client.cancel(*jobs, pending=True)
        left = [each for each in sweep.children() if not each.written().finished and not settle_stopped(each)]
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="fray-terminate") as threads:
            list(threads.map(lambda member: self.terminate(member.job_id, grace), left))
        for member in left:
            if not member.written().finished:
                settle_stopped(member)
        for pause in poll_delays(longest=0.2):
            if settle_by_members(sweep, stopped=True):
                return
            time.sleep(pause)

    def _end_in_slurm(self, record: JobRecord) -> None:
        """Return when Slurm has ended a job; it is cancelled if it has not started, or does not end."""
        number = self._number(record)
        if number is None:
            return
        self._cancel_waiting(number)
        cancelled_at = time.monotonic() + _ENDS_WITHIN
        for pause in poll_delays(longest=0.5):
            job = self._client.details(number)
            if job is None or job.state in ENDED:
                self._table.expect_change()
                return
            if time.monotonic() >= cancelled_at:
                self._client.cancel(number)
                cancelled_at += _ENDS_WITHIN
            time.sleep(pause)


def _supervisor(record: str, sweep: SweepPlan) -> list[str]:
    return supervisor_command(record, list(sweep.paths))


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
