"""A request, checked, as what has to be run."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fray._serialization.values import dumps, dumps_call
from fray._values.entrypoint import Entrypoint
from fray._values.environment import EnvironmentConfig
from fray._values.jobs import JobId, JobInfo, JobRequest, JobStatus, TaskStatus

NO_VARIABLES: Mapping[str, str] = {}
# Runs a payload that it reads from its standard input.
_CALL = (sys.executable, "-P", "-m", "fray._jobs.runner")


@dataclass(frozen=True, kw_only=True)
class JobPlan:
    """What runs a job: the same command `replicas` times, each told its number by `FRAY_REPLICA_ID`.

    Args:
        command: What one replica runs, with the interpreter that launched it for `python`.
        payload: What the command reads from its standard input; None where that is empty.
        environ: All variables of a replica but its number. Some are secrets: show nobody a plan.
        secrets: Values among them that are shown nowhere; see `fray.cluster.last_lines`.
        timeout: Seconds from the start of the first replica.
    """

    job_id: JobId
    name: str
    command: tuple[str, ...]
    payload: bytes | None
    environ: dict[str, str]
    secrets: tuple[str, ...]
    workspace: Path
    replicas: int
    max_retries_failure: int
    timeout: float | None
    submitted_at: float

    @classmethod
    def of(
        cls, request: JobRequest, job_id: JobId, spec: str, variables: Mapping[str, str] = NO_VARIABLES
    ) -> "JobPlan":
        """Plan a job that runs where this interpreter and these paths are.

        Args:
            variables: What its processes have besides, as `fray.cluster.launching` gives it.

        Raises:
            ValueError: The workspace is no directory.
            SerializationError: The callable or an argument cannot be pickled.
        """
        environment = request.environment or EnvironmentConfig()
        entrypoint = Entrypoint.of(request.entrypoint)
        wanted = request.resources.replicas
        replicas = wanted if isinstance(wanted, int) else wanted[0]
        own = {"FRAY_JOB_ID": job_id, "FRAY_REPLICA_COUNT": str(replicas), "FRAY_CLUSTER_SPEC": spec}
        return cls(
            job_id=job_id,
            name=request.name,
            command=command_of(entrypoint, sys.executable, _CALL),
            payload=payload_of(entrypoint, import_paths()),
            environ=_environ(environment) | own | dict(variables),
            secrets=tuple(environment.env_vars.values()),
            workspace=workspace_of(environment),
            replicas=replicas,
            max_retries_failure=request.max_retries_failure,
            timeout=request.timeout,
            submitted_at=time.time(),
        )

    def first_info(self) -> JobInfo:
        """Describe the job before anything of it runs."""
        return JobInfo(
            job_id=self.job_id,
            name=self.name,
            status=JobStatus.PENDING,
            tasks=tuple(TaskStatus(replica=number) for number in range(self.replicas)),
            pending_reason="starting",
            submitted_at=self.submitted_at,
        )


def workspace_of(environment: EnvironmentConfig) -> Path:
    """Return where a job runs: what its environment says, else here.

    Raises:
        ValueError: It is no directory.
    """
    workspace = Path(environment.workspace or Path.cwd())
    if not workspace.is_dir():
        raise ValueError(f"workspace must be a directory, got {os.fspath(workspace)!r}")
    return workspace


def _environ(environment: EnvironmentConfig) -> dict[str, str]:
    environ = {"PYTHONUNBUFFERED": "1", **os.environ}  # who follows a log wants the line now
    folders = [os.fspath(Path(sys.executable).parent), environ.get("PATH") or os.defpath]
    return environ | {"PATH": os.pathsep.join(folders)} | dict(environment.env_vars)


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
