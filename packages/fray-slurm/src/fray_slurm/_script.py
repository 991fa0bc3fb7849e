"""Turn a request into the batch script that Slurm runs. Nothing here calls Slurm."""

import math
import shlex
from collections.abc import Mapping, Sequence

from fray.cluster import GpuConfig, JobRequest, ResourceConfig
from fray_slurm._allocation import MISSING_FOLDER
from fray_slurm._settings import SlurmSettings, native_options

_MIB = 1 << 20
_ANY_GPU = "any"
_LONGEST_COMMENT = 1024
_OF_A_NODE = frozenset({"gres", "gpus", "gpus-per-node", "mem-per-gpu"})
"""Options of sbatch that are for a node, not for a replica."""


def directives(
    request: JobRequest, job_id: str, settings: SlurmSettings, folder: str
) -> dict[str, str | None]:
    """Return sbatch's options for a request, long names without dashes; None for one that has no value.

    Args:
        folder: Where the batch step's own output goes.

    Raises:
        ValueError: `backend={"slurm": {...}}` has what cannot be.
    """
    native, per_node = native_options(request.backend.get("slurm", {}))
    _check_shares(request, native, per_node)
    preempted = "requeue" if request.max_retries_preemption else "no-requeue"
    options: dict[str, str | None] = {
        "job-name": job_id,
        "output": log_path(folder, "slurm.log"),
        "open-mode": "append",  # a requeued job would else truncate what it wrote before
        preempted: None,
        "kill-on-invalid-dep": "yes",
        # To the steps, not to the batch shell: replicas save, the supervisor lives on to say what happened.
        "signal": f"TERM@{settings.grace}",
    }
    options |= _places(request.resources, settings) | _sizes(request.resources, per_node)
    if request.labels:
        options["comment"] = _comment(request.labels)
    if native.get("gres") or native.get("gpus") or native.get("gpus-per-node"):
        options.pop("gres", None)
    if "mem" in native or "mem-per-gpu" in native:
        options.pop("mem-per-cpu", None)
    return options | native


def _check_shares(request: JobRequest, native: Mapping[str, str | None], per_node: int) -> None:
    """Refuse what each of several replicas on one node would ask for as a whole, so that one of them runs."""
    resources = request.resources
    one = replica_count(resources) == 1 or (isinstance(resources.device, GpuConfig) and per_node == 1)
    whole = sorted(_OF_A_NODE & set(native))
    if whole and not one:
        raise ValueError(
            f"backend['slurm'] cannot set {whole[0]!r} for job {request.name!r}, of whose replicas several "
            "may be on one node: Slurm gives the first of them all of it; use "
            "ResourceConfig(device=GpuConfig(...), ram=...), of which each replica gets its own share"
        )


def batch_script(options: Mapping[str, str | None], command: Sequence[str], folder: str) -> str:
    """Return the script: the options, and the command that supervises the job on the first node."""
    lines = [
        f"#SBATCH --{name}{'' if value is None else f'={_quoted(value)}'}" for name, value in options.items()
    ]
    here = shlex.quote(folder)
    complaint = f"does not see {folder}: the folder of records must be shared by all nodes"
    complain = f'echo "fray: $(hostname)" {shlex.quote(complaint)} >&2'
    return "\n".join(
        [
            "#!/bin/sh",
            *lines,
            "export SLURM_EXPORT_ENV=ALL",  # srun would else give its steps no environment at all
            f"[ -d {here} ] || {{ {complain}; exit {MISSING_FOLDER}; }}",
            f"exec {shlex.join(command)}",
            "",
        ]
    )


def log_path(folder: str, name: str) -> str:
    """Return the path of a batch step's own output.

    Args:
        name: May have Slurm's patterns, such as `%A`; a `%` in the folder is none.
    """
    return f"{folder.replace('%', '%%')}/{name}"


def submit_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what sbatch, and by it the batch step, has of the launcher's environment.

    Slurm keeps a job's environment where administrators see it, so only what finds programs goes; replicas
    have their variables from the job's record. SLURM_*, SBATCH_* and PMIX_* of an allocation that the
    launcher is in would change what is requested, and bind the job's steps to its CPUs.
    """
    kept = {"HOME", "LANG", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "PYTHONHOME", "PYTHONPATH", "SHELL", "USER"}
    kept |= {"SLURM_CONF", "SLURM_JWT", "KRB5CCNAME", "TZ"}
    return {name: value for name, value in environ.items() if name in kept or name.startswith("LC_")}


def without_allocation(environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables without those that an allocation sets; SLURM_CONF names a cluster, and stays."""
    prefixes = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "PMIX_", "PMI_")
    return {
        name: value
        for name, value in environ.items()
        if name in ("SLURM_CONF", "SLURM_JWT") or not name.startswith(prefixes)
    }


def _places(resources: ResourceConfig, settings: SlurmSettings) -> dict[str, str | None]:
    partition = settings.partition
    if resources.preemptible and settings.preemptible_partition:
        partition = settings.preemptible_partition
    constraint = settings.constraint
    if resources.regions and settings.region_constraint:
        regions = "|".join(resources.regions)
        constraint = f"{constraint}&({regions})" if constraint else regions
    found = {
        "partition": partition,
        "account": settings.account,
        "qos": settings.qos,
        "constraint": constraint,
        "reservation": settings.reservation,
        "time": settings.time,
    }
    return {name: value for name, value in found.items() if value is not None}


def _sizes(resources: ResourceConfig, per_node: int) -> dict[str, str | None]:
    """One task for each replica. Replicas with GPUs have nodes of their own, `per_node` on each."""
    replicas = replica_count(resources)
    cpus = math.ceil(resources.cpu)
    found: dict[str, str | None] = {"ntasks": str(replicas), "cpus-per-task": str(cpus)}
    # By CPU, not by node: how many replicas a node gets is Slurm's choice.
    found["mem-per-cpu"] = f"{math.ceil(resources.ram_bytes / _MIB / cpus)}M"
    device = resources.device
    if isinstance(device, GpuConfig):
        there = min(per_node, replicas)
        found |= {"nodes": str(math.ceil(replicas / there)), "ntasks-per-node": str(there)}
        # All GPUs of a node are visible to its tasks: --gpus-per-task binds one each, and breaks NCCL.
        found["gres"] = gres_of(device, there)
    elif replicas == 1:
        found["nodes"] = "1"
    return found


def gres_of(device: GpuConfig, replicas: int = 1) -> str:
    """Return the generic resource that so many replicas need on one node."""
    kind = "" if device.type.lower() in (_ANY_GPU, "") else f"{device.type.lower()}:"
    return f"gpu:{kind}{device.count * replicas}"


def replica_count(resources: ResourceConfig) -> int:
    """Return how many replicas run: the preferred number, where several are acceptable."""
    wanted = resources.replicas
    return wanted if isinstance(wanted, int) else wanted[0]


def _comment(labels: Mapping[str, str]) -> str:
    text = ",".join(f"{key}={value}" for key, value in labels.items()).replace("'", "")
    return text[:_LONGEST_COMMENT]


def _quoted(text: str) -> str:
    """Quote as sbatch reads its directives, which is not as a shell does: `\\` counts inside quotes, too."""
    if not set(text) & set(" \t\"'#;\\"):
        return text
    inside = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{inside}'"
