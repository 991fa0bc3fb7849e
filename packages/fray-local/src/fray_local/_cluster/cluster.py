"""Jobs on this machine, each a process tree that outlives its launcher."""

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from fray import FrayError, JobId, JobRequest
from fray.backend import (
    JOB_VARIABLE,
    ClusterCapabilities,
    Holder,
    NoThreadError,
    Records,
    Spec,
    SupervisorLock,
    SweepPlan,
    as_last_lines,
    boot_id,
    check_count,
    check_seconds,
    import_paths,
    limits_memory,
    packed_plan,
    start_thread,
    supervisor_command,
    this_host,
    tree_kill,
    write_record,
)
from fray.cluster import DirectoryCluster, JobPlan
from fray_local._cluster.admission import MachineRoom
from fray_local._cluster.planning import Machine, Settings, plan_local
from fray_local._cluster.slices import Slices
from fray_local._cluster_config import LocalClusterConfig
from fray_local._state import state_dir
from fray_resources import format_size, parse_size

# Run by the shell that is gone at once: the supervisor is nobody's child, so that nobody has to reap
# it. In the background a shell gives /dev/null for stdin, unless a descriptor is given by number.
# What is ignored here is ignored by a supervisor from its start on.
_SHELL = 'trap "" USR1 USR2; exec 3<&0; "$@" <&3 3<&- >&2 & echo $!'


class LocalCluster(DirectoryCluster):
    """Run jobs as processes of this machine; spec `local`.

    Jobs continue when their launcher ends, and any process of the same user sees them. Used in a `with`
    statement, the cluster stops the jobs that were launched through it.

    Args:
        config: An older way to say `use_isolated_env`.
        use_isolated_env: Give every job an environment of its own, as `pip_packages` or `extras` do.
        overcommit: Start every job at once, whatever the machine has.
        simulate: `"tpu"` runs the hosts of TPU slices as processes, for tests of training code.
        slices: Simulated slices that there are, of whatever type; None for as many as are requested.
        context: The spec of the context that jobs find as their current one; None for `"process"`.
        cpus: CPUs that jobs may use; None for all that this process may.
        memory: Memory that jobs may use, e.g. `"16g"`, or a number of bytes; None for all there is.
        gpus: GPUs that jobs may use, the first so many; None for all there are.
        enforce_memory: End a job that takes more memory than it requested, all replicas together; refused
            where the machine does not let us. Else what it used is measured and reported.
        keep_jobs: Records of finished jobs to keep; the oldest ones beyond are deleted.
        keep_days: Days to keep them at most.
    """

    capabilities = DirectoryCluster.capabilities.but(
        environments=True,
        python_versions=True,
        gpus=True,
        tpus=True,
        multislice=True,
        admission=True,
        enforced_memory=True,
        shared_between_machines=False,
    )

    def __init__(
        self,
        config: LocalClusterConfig | None = None,
        /,
        *,
        use_isolated_env: bool = False,
        overcommit: bool = False,
        simulate: str | None = None,
        slices: int | None = None,
        context: str | None = None,
        cpus: float | None = None,
        memory: str | int | None = None,
        gpus: int | None = None,
        enforce_memory: bool = False,
        keep_jobs: int = 1000,
        keep_days: float = 30.0,
    ) -> None:
        check_count("keep_jobs", keep_jobs)
        check_seconds("keep_days", keep_days, zero=True)
        use_isolated_env = use_isolated_env or (config is not None and config.use_isolated_env)
        switches = {
            "use_isolated_env": use_isolated_env,
            "overcommit": overcommit,
            "enforce_memory": enforce_memory,
        }
        simulated = {"simulate": simulate, "slices": slices}
        # In a spec a number alone is one of GiB.
        memory = None if memory is None else format_size(parse_size(memory, field="memory"))
        spec = _spec(**switches, **simulated, context=context, cpus=cpus, memory=memory, gpus=gpus)
        self._root = state_dir()
        super().__init__(
            spec,
            self._root / "jobs",
            keep_jobs=keep_jobs,
            keep_days=keep_days,
            environments=self._root / "environments",
        )
        self.capabilities = self._able(simulate == "tpu", not overcommit, enforce_memory)
        variables = {"FRAY_STATE_DIR": os.fspath(self._root)}
        self._settings = Settings(
            state_dir=self._root,
            machine=Machine.of(cpus, memory, gpus),
            counted=not overcommit,
            slices=Slices.of(simulate, slices),
            isolated=use_isolated_env,
            limits_memory=enforce_memory,
            variables=variables | ({"FRAY_CONTEXT_SPEC": context} if context else {}),
        )

    def _able(self, simulates: bool, counts: bool, limits: bool) -> ClusterCapabilities:
        """Return what a cluster with these options can do on this machine."""
        return self.capabilities.but(
            tpus=simulates,
            multislice=simulates,
            admission=counts,
            enforced_memory=limits and limits_memory(),
            tree_kill=tree_kill(),
        )

    def __repr__(self) -> str:
        return f"<LocalCluster {self.spec!r} in {self._root}>"

    def _check_supported(self, request: JobRequest) -> None:
        """Checked by `_plan`, which knows the machine."""

    def _plan(self, request: JobRequest, job_id: JobId, variables: Mapping[str, str]) -> JobPlan:
        settings = replace(self._settings, variables={**self._settings.variables, **variables})
        record = self._records.path(job_id)
        return plan_local(request, job_id, self.spec, record, settings, self._SUPPORTED)

    def _submit(self, plan: JobPlan) -> None:
        Records(self._root).make_folder()
        super()._submit(plan)

    def _start(self, job_id: str, command: list[str]) -> None:
        raise NotImplementedError("a local supervisor is started with its lock in hand")

    def _start_supervisor(
        self, plan: JobPlan | SweepPlan, draft: Path, record: Path, lock: SupervisorLock
    ) -> None:
        lock.say(Holder(host=this_host(), boot=boot_id()))  # the lock is never free from here on
        room = _room_to_enter(plan)
        try:
            with (draft / "supervisor.log").open("a+b") as output, _shell(record, lock, output) as shell:
                if draft != record:  # else it is a job that runs again
                    write_record(draft, plan)  # meanwhile the supervisor comes up; it ends if it gets no plan
                with _saying_why(plan.job_id, output):
                    pid = _pid_from(shell)
                    # Before its claim: a claim is dropped where there is no lock of a living supervisor.
                    if draft != record:
                        draft.rename(record)
                    # Here, so that jobs stand in line as they were launched, not as they came up.
                    granted = room.enter_at_launch() if room else None
                    _send(shell, packed_plan(plan._replace(granted=granted)))
        except BaseException:
            if room:
                room.leave()
            raise
        if os.getpid() == 1:  # of a container: what is nobody's child is ours, and nobody else collects it
            _collect_aside(pid)


def _shell(record: Path, lock: SupervisorLock, output: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the shell that starts a supervisor and writes its process id."""
    command = supervisor_command(os.fspath(record), import_paths(), lock.fileno())
    return subprocess.Popen(
        ["/bin/sh", "-c", _SHELL, "sh", *command],
        bufsize=0,  # what a buffer holds is written when it is closed: a launch that failed would run
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=output,
        env=os.environ | {JOB_VARIABLE: os.fspath(record)},
        cwd="/",
        start_new_session=True,
        pass_fds=[lock.fileno()],
    )


def _pid_from(shell: subprocess.Popen[bytes]) -> int:
    assert shell.stdout is not None
    line = shell.stdout.readline()
    if not line:
        raise BrokenPipeError("the shell could not fork")
    return int(line)


def _send(shell: subprocess.Popen[bytes], data: bytes) -> None:
    assert shell.stdin is not None
    left = memoryview(data)
    while left:
        left = left[shell.stdin.write(left) :]


@contextlib.contextmanager
def _saying_why(job_id: str, output: IO[bytes]) -> Iterator[None]:
    """Where the shell or the supervisor has ended, raise what they wrote."""
    try:
        yield
    except BrokenPipeError as error:
        output.seek(0)
        wrote = as_last_lines(output.read(), ())
        raise FrayError(f"the supervisor of job {job_id!r} could not be started{wrote}") from error


def _room_to_enter(plan: JobPlan | SweepPlan) -> MachineRoom | None:
    """Where a job stands in line from its launch on; one that waits for more does so when it is ready."""
    room = plan.admission
    at_once = plan.preparation is None and not plan.after
    return room if at_once and isinstance(room, MachineRoom) else None


def _collect_aside(pid: int) -> None:
    thread = threading.Thread(target=_collect, args=[pid], name=f"fray-collect-{pid}", daemon=True)
    with contextlib.suppress(NoThreadError):  # the program has ended, and the container with it
        start_thread(thread)


def _collect(pid: int) -> None:
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        return


def _spec(**options: Any) -> str:
    """Write the options that are not left as they are by default."""
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    return str(Spec("local", {name: _text(value) for name, value in given.items()}))


def _text(value: Any) -> str:
    if value is True:
        return "true"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
