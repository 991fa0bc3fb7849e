"""Turn a request into a plan for this machine. Everything is checked here."""

import os
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from fray import EnvironmentConfig, JobRequest, UnsupportedError
from fray.backend import (
    check_count,
    invalid,
    limits_memory,
    memory_bytes,
    plan_of,
    plan_with_environment,
    refuse_fields,
    refuse_native_options,
    warn_of_another_python,
    workspace_of,
)
from fray.cluster import JobId, JobPlan
from fray_local import _machine
from fray_local._cluster.admission import Amounts, Claim, MachineRoom, amount
from fray_local._cluster.slices import Slices
from fray_resources import GpuConfig, TpuConfig, parse_size

_FITTING = "python= or local?use_isolated_env=true"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What jobs may use of this machine."""

    cpus: float
    memory: int
    gpus: tuple[str, ...]

    @classmethod
    def of(cls, cpus: float | None, memory: str | int | None, gpus: int | None) -> "Machine":
        """Describe this machine, or as much of it as is given.

        Raises:
            ValueError: An amount is none, or the machine has GPUs, but not so many.
        """
        if cpus is not None and not cpus > 0:
            raise invalid("cpus", "a number above 0", cpus)
        return cls(
            cpus=_machine.cpu_count() if cpus is None else cpus,
            memory=memory_bytes() if memory is None else parse_size(memory, field="memory"),
            gpus=_first_gpus(gpus),
        )

    @property
    def room(self) -> Amounts:
        return Amounts(cpu=self.cpus, ram=self.memory, gpu=len(self.gpus))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a cluster runs every job."""

    state_dir: Path
    machine: Machine
    counted: bool
    slices: Slices | None
    isolated: bool
    variables: dict[str, str]
    limits_memory: bool = False


def plan_local(
    request: JobRequest,
    job_id: JobId,
    spec: str,
    record: Path,
    settings: Settings,
    supported: Collection[str],
) -> JobPlan:
    """Check a request against this machine and plan it.

    Args:
        supported: The fields of a request that the cluster can do something with; see `refuse_fields`.

    Raises:
        ValueError: The request is wrong.
        UnsupportedError: This machine cannot do it.
    """
    environment = request.environment or EnvironmentConfig()
    _check_supported(request, environment, settings)
    refuse_fields("LocalCluster", request, supported)
    refuse_native_options("LocalCluster", "local", request)
    isolated = settings.isolated or environment.builds
    units = _units(request, settings)
    if isolated:
        plan = plan_with_environment(
            request,
            job_id,
            spec,
            settings.variables,
            record=record,
            folder=settings.state_dir / "environments",
            units=units,
        )
    else:
        plan = plan_of(request, job_id, spec, settings.variables, record=os.fspath(record), units=units)
    claim = _claim(request, plan, record, settings)
    return plan._replace(
        environ=_environ(plan, environment, isolated, settings),
        warnings=() if isolated else warn_of_another_python(workspace_of(environment), _FITTING),
        admission=MachineRoom(state_dir=os.fspath(settings.state_dir), claim=claim) if claim else None,
        gpus=_gpus_uncounted(request, plan.replicas, settings.machine),
        gpus_per_replica=_gpus(request),
        address="127.0.0.1",
        memory_limit=request.resources.ram_bytes * plan.replicas if settings.limits_memory else None,
    )


def _first_gpus(wanted: int | None) -> tuple[str, ...]:
    """Return the ids of so many GPUs, from the first; of a machine without any, ids for tests."""
    there = _machine.gpu_ids()
    if wanted is None:
        return tuple(there)
    check_count("gpus", wanted)
    if there and wanted > len(there):
        raise invalid("gpus", f"at most {len(there)}, because there are the GPUs {','.join(there)}", wanted)
    return tuple((there or list(map(str, range(wanted))))[:wanted])


def _check_supported(request: JobRequest, environment: EnvironmentConfig, settings: Settings) -> None:
    if environment.docker_image is not None:
        raise UnsupportedError(
            f"LocalCluster runs no containers (docker_image={environment.docker_image!r}); "
            "pip_packages and extras give a job an environment of its own here"
        )
    if settings.limits_memory and not limits_memory():
        raise UnsupportedError(
            f"this machine does not let the memory of job {request.name!r} be limited: there is no control "
            "group with the memory controller that it may make groups in; without enforce_memory it is "
            "measured, and the job says where it used more"
        )
    tpu = request.resources.device
    if isinstance(tpu, TpuConfig) and settings.slices is None:
        raise UnsupportedError(
            f"this machine has no TPU for job {request.name!r} ({tpu.type}); a Ray cluster may have one, "
            "and for tests local?simulate=tpu runs the hosts of a slice as local processes"
        )


def _units(request: JobRequest, settings: Settings) -> int:
    """How many replicas or slices run: of several acceptable numbers, the first that there is room for."""
    wanted = request.resources.replicas
    if isinstance(request.resources.device, TpuConfig):
        assert settings.slices is not None
        return settings.slices.choose(wanted, settings.state_dir)
    acceptable = (wanted,) if isinstance(wanted, int) else wanted
    if not settings.counted:
        return acceptable[0]
    room = settings.machine.room
    for replicas in acceptable:
        need = _need(request, replicas)
        if not (short := [kind for kind in ("cpu", "ram", "gpu") if need.of(kind) > room.of(kind)]):
            return replicas
    needed, there = (" and ".join(amount(kind, of.of(kind)) for kind in short) for of in (need, room))
    raise UnsupportedError(
        f"job {request.name!r} needs {needed}, this machine has {there}; "
        "ask for less, or use local?overcommit=true"
    )


def _need(request: JobRequest, replicas: int) -> Amounts:
    resources = request.resources
    return Amounts(resources.cpu * replicas, resources.ram_bytes * replicas, _gpus(request) * replicas)


def _gpus(request: JobRequest) -> int:
    device = request.resources.device
    return device.count if isinstance(device, GpuConfig) else 0


def _gpus_uncounted(request: JobRequest, replicas: int, machine: Machine) -> tuple[str, ...]:
    """GPUs for a job that reserves none: as many as it requests, from the first, and around again."""
    ids = machine.gpus or ("0",)
    return tuple(ids[number % len(ids)] for number in range(_gpus(request) * replicas))


def _claim(request: JobRequest, plan: JobPlan, record: Path, settings: Settings) -> Claim | None:
    """What the job has of what is counted: of the simulated slices, or of the machine."""
    gpu_ids: tuple[str, ...] = ()
    if plan.gang is not None and plan.gang.slices:
        room = settings.slices.room if settings.slices else None
        need = Amounts(slice=plan.gang.units)
    else:
        room = settings.machine.room if settings.counted else None
        need, gpu_ids = _need(request, plan.replicas), settings.machine.gpus
    if room is None:
        return None
    return Claim(
        job=plan.job_id,
        record=os.fspath(record),
        child="/" in (JobId(plan.job_id).sweep or plan.job_id),
        ticket=plan.submitted_at,
        need=need,
        room=room,
        gpu_ids=gpu_ids,
    )


def _environ(
    plan: JobPlan, environment: EnvironmentConfig, isolated: bool, settings: Settings
) -> dict[str, str]:
    environ = dict(plan.environ)
    given = environment.env_vars
    if not isolated and sys.prefix != sys.base_prefix and "VIRTUAL_ENV" not in given:
        environ["VIRTUAL_ENV"] = os.fspath(Path(sys.executable).parent.parent)
    if plan.gang is not None and plan.gang.slices and "JAX_PLATFORMS" not in given:
        environ["JAX_PLATFORMS"] = "cpu"
    return environ | {_machine.GPUS_VARIABLE: ",".join(settings.machine.gpus)}
