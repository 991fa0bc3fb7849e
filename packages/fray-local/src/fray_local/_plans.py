"""Turn a request into a plan: what the supervisor does, in plain values. Everything is checked here."""

import os
import sys
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fray import Entrypoint, EnvironmentConfig, JobRequest, UnsupportedError
from fray._jobs import last_lines as _last_lines
from fray.backend import (
    check_count,
    command_of,
    import_paths,
    invalid,
    payload_of,
    refuse_fields,
    workspace_of,
)
from fray_local import _machine
from fray_local._slices import HOST_VARIABLES, Slices
from fray_local._supervisor.ledger import amount
from fray_local._supervisor.processes import COOKIE
from fray_resources import GpuConfig, TpuConfig, parse_size

_RUNNER = Path(__file__).with_name("_runner.py")
_PATH_VARIABLES = ("PYTHONPATH", "PYTHONHOME")  # of the launcher's interpreter, not of an isolated one


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What jobs may use of this machine."""

    cpus: float
    memory: int
    gpus: tuple[str, ...]

    @classmethod
    def of(cls, cpus: float | None, memory: str | None, gpus: int | None) -> "Machine":
        """Describe this machine, or as much of it as is given.

        Raises:
            ValueError: An amount is none.
        """
        if cpus is not None and not cpus > 0:
            raise invalid("cpus", "a number above 0", cpus)
        if gpus is not None:
            check_count("gpus", gpus)
        return cls(
            cpus=_machine.cpu_count() if cpus is None else cpus,
            memory=_machine.memory_bytes() if memory is None else parse_size(memory, field="memory"),
            gpus=tuple(_machine.gpu_ids() if gpus is None else map(str, range(gpus))),
        )

    @property
    def room(self) -> dict[str, float]:
        return {"cpu": self.cpus, "ram": self.memory, "gpu": len(self.gpus)}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a cluster runs every job."""

    state_dir: Path
    machine: Machine
    counted: bool
    slices: Slices | None
    isolated: bool
    variables: dict[str, str]

    def with_variables(self, more: dict[str, str]) -> "Settings":
        """Return these settings with variables of one job added."""
        return replace(self, variables=self.variables | more)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A job that can be started: what the supervisor is told, and what must be in the record by then."""

    values: dict[str, Any]
    payload: bytes | None


def make_plan(request: JobRequest, job_id: str, job_dir: Path, settings: Settings) -> Plan:
    """Check a request against this machine and plan it.

    Raises:
        ValueError: The request is wrong.
        UnsupportedError: This machine cannot do it.
    """
    environment = request.environment or EnvironmentConfig()
    entrypoint = Entrypoint.of(request.entrypoint)
    _check_supported(environment)
    refuse_fields("LocalCluster", request)
    workspace = workspace_of(environment)
    gang = _gang(request, settings)
    replicas = gang["slices"] * gang["hosts"] if gang else _replicas(request, settings)
    isolated = settings.isolated or bool(environment.pip_packages or environment.extras)
    python = job_dir / "environment" / "bin" / "python" if isolated else Path(sys.executable)
    call = (os.fspath(python), os.fspath(_RUNNER), os.fspath(job_dir / "payload.pkl"))
    environ = _environ(environment, isolated, python)
    if gang and "JAX_PLATFORMS" not in environment.env_vars:
        environ["JAX_PLATFORMS"] = "cpu"
    environ.update(settings.variables, FRAY_JOB_ID=job_id, FRAY_REPLICA_COUNT=str(replicas))
    environ.update({COOKIE: os.fspath(job_dir), _machine.GPUS_VARIABLE: ",".join(settings.machine.gpus)})
    values = {
        "dir": os.fspath(job_dir),
        "state_dir": os.fspath(settings.state_dir),
        "cwd": os.fspath(workspace),
        "command": command_of(entrypoint, os.fspath(python), call),
        "environ": environ,
        "secrets": list(environment.env_vars.values()),
        "last_lines": _last_lines.__file__,
        "build": _needs(environment, workspace) if isolated else None,
        "claim": _claim(_counted(request, replicas, gang, settings), job_id, job_dir),
        "gpu_ids": _gpus_uncounted(request, replicas, settings.machine),
        "gpus_per_replica": _gpus(request),
        "gang": gang,
        "max_retries_failure": request.max_retries_failure,
        "timeout": request.timeout,
        "replicas": replicas,
    }
    return Plan(values=values, payload=payload_of(entrypoint, _paths(workspace, isolated)))


def _check_supported(environment: EnvironmentConfig) -> None:
    if environment.docker_image is not None:
        raise UnsupportedError(
            f"LocalCluster runs no containers (docker_image={environment.docker_image!r}); "
            "pip_packages and extras give a job an environment of its own here"
        )


def _gang(request: JobRequest, settings: Settings) -> dict[str, int] | None:
    """The hosts of a TPU job; None where it asks for no TPU."""
    tpu = request.resources.device
    if not isinstance(tpu, TpuConfig):
        return None
    if settings.slices is None:
        raise UnsupportedError(
            f"this machine has no TPU for job {request.name!r} ({tpu.type}); a Ray cluster may have one, "
            "and for tests local?simulate=tpu runs the hosts of a slice as local processes"
        )
    return settings.slices.gang(request, tpu, settings.state_dir)


def _replicas(request: JobRequest, settings: Settings) -> int:
    """The number of replicas to run: of several acceptable ones, the first for which there is room at all."""
    wanted = request.resources.replicas
    acceptable = (wanted,) if isinstance(wanted, int) else wanted
    if not settings.counted:
        return acceptable[0]
    room = settings.machine.room
    for replicas in acceptable:
        need = _need(request, replicas)
        if not (short := [kind for kind in room if need[kind] > room[kind]]):
            return replicas
    needed, there = (" and ".join(amount(kind, of[kind]) for kind in short) for of in (need, room))
    raise UnsupportedError(
        f"job {request.name!r} needs {needed}, this machine has {there}; "
        "ask for less, or use local?overcommit=true"
    )


def _need(request: JobRequest, replicas: int) -> dict[str, float]:
    resources = request.resources
    each = {"cpu": resources.cpu, "ram": resources.ram_bytes, "gpu": _gpus(request)}
    return {kind: value * replicas for kind, value in each.items()}


def _gpus(request: JobRequest) -> int:
    device = request.resources.device
    return device.count if isinstance(device, GpuConfig) else 0


def _gpus_uncounted(request: JobRequest, replicas: int, machine: Machine) -> list[str]:
    """GPUs for a job that reserves none: as many as it asks for, from the first, and around again."""
    ids = machine.gpus or ("0",)
    return [ids[number % len(ids)] for number in range(_gpus(request) * replicas)]


def _counted(
    request: JobRequest, replicas: int, gang: dict[str, int] | None, settings: Settings
) -> dict[str, Any] | None:
    """What the job has of what is counted: of the simulated slices, or of the machine."""
    if gang is not None and settings.slices is not None:
        return settings.slices.claim(gang)
    if not settings.counted:
        return None
    machine = settings.machine
    return {"need": _need(request, replicas), "room": machine.room, "gpu_ids": list(machine.gpus)}


def _claim(counted: dict[str, Any] | None, job_id: str, job_dir: Path) -> dict[str, Any] | None:
    if counted is None:
        return None
    return {"job": job_id, "dir": os.fspath(job_dir), "child": "/" in job_id, **counted}


def _environ(environment: EnvironmentConfig, isolated: bool, python: Path) -> dict[str, str]:
    """The launcher's variables, then those that the job's interpreter needs, then the job's own."""
    environ = {name: value for name, value in os.environ.items() if name not in HOST_VARIABLES}
    if isolated:
        for name in _PATH_VARIABLES:
            environ.pop(name, None)
    environ["PATH"] = os.pathsep.join([os.fspath(python.parent), environ.get("PATH") or os.defpath])
    if isolated or sys.prefix != sys.base_prefix:
        environ["VIRTUAL_ENV"] = os.fspath(python.parent.parent)
    environ.setdefault("PYTHONUNBUFFERED", "1")  # who follows a log wants the line now
    return environ | dict(environment.env_vars)


def _paths(workspace: Path, isolated: bool) -> list[str]:
    """The folders that a callable's modules may be imported from: isolated, of the workspace alone."""
    return [
        path
        for path in import_paths()
        if not isolated or (Path(path).is_relative_to(workspace) and "site-packages" not in path)
    ]


def _needs(environment: EnvironmentConfig, workspace: Path) -> dict[str, Any]:
    """What the environment is made of, and with what."""
    import uv

    cloudpickle = find_spec("cloudpickle")
    assert cloudpickle is not None
    assert cloudpickle.origin is not None
    return {
        "uv": uv.find_uv_bin(),
        "python": sys.executable,
        "cloudpickle": os.fspath(Path(cloudpickle.origin).parent),
        "pip_packages": list(environment.pip_packages),
        "extras": sorted(environment.extras),
        "project": (workspace / "pyproject.toml").is_file(),
        "lock": (workspace / "uv.lock").is_file(),
    }
