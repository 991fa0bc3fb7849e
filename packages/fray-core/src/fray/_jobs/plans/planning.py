"""Make plans of requests, where they are launched."""

import functools
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from fray._discovery.current import JOB_CONTEXT
from fray._jobs import runner
from fray._jobs.plans.about_request import about_request
from fray._jobs.plans.plan import JobPlan
from fray._jobs.plans.port_variables import HOST_ADDRESS, PORT_VARIABLE
from fray._jobs.process_tree import JOB_VARIABLE
from fray._jobs.ranks import GangLayout, rank_variable_names
from fray._serialization.values import dumps, dumps_call
from fray._values.entrypoint import Entrypoint
from fray._values.environment import EnvironmentConfig
from fray._values.job_states import JobInfo, TaskStatus
from fray._values.jobs import JobId, JobRequest, JobStatus
from fray_resources import TpuConfig

NO_VARIABLES: Mapping[str, str] = {}
# Of the launcher, when it is a replica itself: a job that it launches finds its own.
_OF_THE_LAUNCHER = rank_variable_names() | {
    JOB_VARIABLE,
    HOST_ADDRESS,
    "FRAY_PREEMPTION_NOTICE",
    "FRAY_SWEEP_ID",
    "FRAY_SWEEP_INDEX",
}
PAYLOAD = "payload.pkl"
COPY = "workspace"  # in a record
FAMILY = "FRAY_JOB_FAMILY"
"""The variable that names the family of a job: jobs launched by one program, and all below them."""


def plan_of(
    request: JobRequest,
    job_id: JobId,
    spec: str,
    variables: Mapping[str, str] = NO_VARIABLES,
    *,
    record: str | None = None,
    python: str = sys.executable,
    units: int | None = None,
    inherit: bool = True,
) -> JobPlan:
    """Plan a job that runs where these paths are, with an interpreter of this version.

    Args:
        variables: What its processes have besides; these win over the launcher's.
        inherit: Whether the job has the launcher's variables: not where it runs in an image of its own.
        record: The directory of its record; None where the payload is handed over by standard input.
        python: The interpreter of the job.
        units: How many replicas, or slices, of several acceptable numbers; None for the first.

    Raises:
        ValueError: The workspace is not a directory.
        SerializationError: The callable or an argument cannot be pickled.
    """
    environment = request.environment or EnvironmentConfig()
    entrypoint = Entrypoint.of(request.entrypoint)
    layout = layout_of(request, units)
    workspace = workspace_of(environment)
    about = about_request(request, workspace)
    copied = request.snapshot and record is not None
    runs_in = Path(str(record)) / COPY if copied else workspace
    call = (python, os.fspath(runner.__file__), "-" if record is None else os.path.join(record, PAYLOAD))
    inherited = launcher_variables() | _path_of(python) if inherit else {}
    environ = inherited | dict(environment.env_vars) | dict(variables)
    submitted_at = time.time()
    return JobPlan(
        job_id=str(job_id),
        command=command_of(entrypoint, python, call),
        environ={JOB_CONTEXT: "process", FAMILY: own_family()}
        | environ
        | _own_variables(job_id, layout.replicas, spec, record)
        | _copied_paths(workspace, runs_in, environ),
        secrets=tuple(environment.env_vars.values()),
        workspace=os.fspath(runs_in),
        replicas=layout.replicas,
        gang=layout if request.is_gang else None,
        max_retries_failure=request.max_retries_failure,
        max_retries_preemption=request.max_retries_preemption,
        timeout=request.timeout,
        submitted_at=submitted_at,
        described=_pending(request, job_id, layout.replicas, submitted_at).to_dict(),
        payload=payload_of(entrypoint, [path_in_copy(path, workspace, runs_in) for path in import_paths()]),
        shown=about,
        log_limit=request.log_limit if isinstance(request.log_limit, int) else None,
        memory=request.resources.ram_bytes,
        snapshot_of=os.fspath(workspace) if copied else None,
        commit=about["commit"],
        after=tuple(str(each) for each in request.after),
        ports=tuple(request.ports),
        on_exit=request.on_exit,
    )


def _pending(request: JobRequest, job_id: JobId, replicas: int, submitted_at: float) -> JobInfo:
    """Return how a job reads before anything of it has started."""
    return JobInfo(
        job_id=job_id,
        name=request.name,
        status=JobStatus.PENDING,
        tasks=tuple(TaskStatus(replica=number) for number in range(replicas)),
        pending_reason="starting",
        submitted_at=submitted_at,
        labels=request.labels,
    )


def _own_variables(job_id: JobId, replicas: int, spec: str, record: str | None) -> dict[str, str]:
    """Return the variables by which a job knows itself, whatever its request or its launcher has of them."""
    own = {"FRAY_JOB_ID": str(job_id), "FRAY_REPLICA_COUNT": str(replicas), "FRAY_CLUSTER_SPEC": spec}
    if job_id.sweep is not None:
        own |= {"FRAY_SWEEP_ID": job_id.sweep, "FRAY_SWEEP_INDEX": job_id.leaf}
    if record is not None:
        own[JOB_VARIABLE] = record
    return own


def path_in_copy(path: str, workspace: Path, copy: Path) -> str:
    """Return where a folder of the workspace is in its copy; any other, and what is installed, stays."""
    inner = None if workspace == copy or "site-packages" in path else path_inside(path, workspace)
    return path if inner is None else os.fspath(copy / inner)


def path_inside(path: str, workspace: Path) -> str | None:
    """Return where a path is in the workspace, whatever links lead to either; None where it is not.

    A relative path is one from where the job runs, and stays what it is.
    """
    if not os.path.isabs(path):
        return None
    for real in (os.path.abspath, os.path.realpath):  # texts: the members of a sweep are many
        inner, outer = f"{real(path)}/", f"{real(workspace)}/"
        if inner.startswith(outer):
            return inner.removeprefix(outer)
    return None


def _copied_paths(workspace: Path, copy: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The variable by which a job imports from the copy what its launcher imports from the workspace."""
    if workspace == copy:
        return {}
    here = [path for path in import_paths() if path_in_copy(path, workspace, copy) != path]
    given = environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [path_in_copy(path, workspace, copy) for path in [*here, *given] if path]
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))} if paths else {}


def layout_of(request: JobRequest, units: int | None = None) -> GangLayout:
    """Return how many replicas a request has, and how they belong together."""
    wanted, device = request.resources.replicas, request.resources.device
    count = units or (wanted if isinstance(wanted, int) else wanted[0])
    if isinstance(device, TpuConfig):
        return GangLayout(count, device.hosts, slices=True)
    return GangLayout(count)


@functools.cache
def own_family() -> str:
    """Return the family of the jobs that this program launches, for as long as it lives."""
    return f"program-{os.urandom(6).hex()}"


def workspace_of(environment: EnvironmentConfig) -> Path:
    """Return where a job runs: the workspace of its environment, else the current directory.

    Raises:
        ValueError: It is not a directory.
    """
    workspace = Path(environment.workspace or Path.cwd())
    if not workspace.is_dir():
        raise ValueError(f"workspace must be a directory, got {os.fspath(workspace)!r}")
    return workspace


def launcher_variables() -> dict[str, str]:
    """Return the variables of this process that a job which it launches inherits."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in _OF_THE_LAUNCHER and not name.startswith(PORT_VARIABLE)
    }
    return {"PYTHONUNBUFFERED": "1", **inherited}  # a user who follows a log wants the line now


def _path_of(python: str) -> dict[str, str]:
    folders = [os.fspath(Path(python).parent), os.environ.get("PATH") or os.defpath]
    return {"PATH": os.pathsep.join(folders)}


def command_of(entrypoint: Entrypoint, python: str, call: Sequence[str]) -> tuple[str, ...]:
    """Return what one replica runs: `call` where it is a callable, and that interpreter for `python`."""
    if entrypoint.callable is not None:
        return tuple(call)
    program, *args = entrypoint.command
    return (python if program in ("python", "python3") else program, *args)


def payload_of(entrypoint: Entrypoint, paths: list[str]) -> bytes | None:
    """Return the call of a callable, behind the folders that its modules may be imported from.

    Raises:
        SerializationError: The callable or an argument cannot be pickled.
    """
    if entrypoint.callable is None:
        return None
    call = dumps_call(entrypoint.callable, tuple(entrypoint.args), dict(entrypoint.function_args))
    return dumps(paths, "sys.path") + call


def import_paths() -> list[str]:
    """Return the folders that this process imports from."""
    return [os.path.abspath(path) for path in sys.path]
