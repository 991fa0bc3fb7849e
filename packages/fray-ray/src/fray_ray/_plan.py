"""A request in Ray's words: resources, labels, and the plan that the scheduler carries out. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fray.backend import is_secret_name
from fray.cluster import GpuConfig, JobRequest, ResourceConfig, TpuConfig
from fray_ray import _job_kv
from fray_ray._installing import with_packages
from fray_ray._options import A_LITTLE, stable_node

REGION = "ray.io/availability-region"
"""The label with the region of a node."""
# What Ray calls a node's GPUs, by what their driver says, where that is not our name of the type. Every A100
# is "A100": nodes of one size are distinguished only where they are started with that size's resource.
_GPU_NAMES = {
    "A100-40G": "A100",
    "RTX-3090": "GeForce-RTX-3090",
    "RTX-4090": "GeForce-RTX-4090",
    "RTX-5090": "GeForce-RTX-5090",
    "RTX-6000-ADA": "RTX-6000",
}
_MARKED_BY_HAND = ("A100-80G",)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the scheduler needs to know of a job; pickled, it travels apart from what Ray lists.

    Args:
        choices: The acceptable numbers of units: TPU slices, or else replicas.
        hosts: Replicas of one unit.
        gang: Whether the replicas start, end and are retried together.
        returns: Whether what the entry point returns, or raises, is wanted.
        confidential: The names in `environ` whose values the job alone may see.
        tries: 1 for the first run of the job, 2 for its first retry.
        withheld: The names of variables whose values a plan that is kept has not.
    """

    job_id: str
    submission: str
    submitted_at: float
    name: str
    choices: tuple[int, ...]
    hosts: int
    gang: bool
    resources: ResourceConfig
    labels: Mapping[str, str]
    command: tuple[str, ...] | None
    payload: bytes | None = field(repr=False)
    environ: Mapping[str, str] = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)
    cwd: str | None
    pip: tuple[str, ...]
    max_retries_failure: int
    max_retries_preemption: int
    timeout: float | None
    placement_timeout: float | None
    returns: bool = False
    confidential: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    on_exit: str | None = None
    tries: int = 1
    withheld: tuple[str, ...] = ()

    @property
    def replicas(self) -> int:
        """How many replicas there may be at the most."""
        return max(self.choices) * self.hosts


def withheld(plan: Plan) -> Plan:
    """Return a plan as it is kept for a retry: without the variables that are named like secrets."""
    secret = {name: value for name, value in plan.environ.items() if is_secret_name(name)}
    return replace(
        plan,
        environ={name: value for name, value in plan.environ.items() if name not in secret},
        secrets=tuple(value for value in plan.secrets if value not in secret.values()),
        withheld=tuple(sorted({*plan.withheld, *secret.keys() & set(plan.confidential)})),
    )


def restored(plan: Plan, given: Mapping[str, str], submission: str, tries: int) -> Plan:
    """Return a plan that was kept as it is run again, with the variables that were withheld."""
    return replace(
        plan,
        environ={**plan.environ, **given},
        secrets=(*plan.secrets, *given.values()),
        withheld=(),
        submission=submission,
        tries=tries,
    )


def bundle_of(resources: ResourceConfig, cluster_resources: Mapping[str, float]) -> dict[str, float]:
    """Return what one replica reserves, by Ray's names of resources."""
    bundle = {"CPU": float(resources.cpu), "memory": float(resources.ram_bytes)}
    device = resources.device
    if isinstance(device, GpuConfig):
        bundle["GPU"] = float(device.count)
        if device.type != "any":
            bundle[f"accelerator_type:{gpu_name(device)}"] = A_LITTLE
    elif isinstance(device, TpuConfig):
        bundle["TPU"] = float(device.chips_per_host)
    if not resources.preemptible and not isinstance(device, TpuConfig):  # no TPU is where the head is
        bundle |= stable_node(cluster_resources)
    return bundle


def gpu_name(device: GpuConfig) -> str:
    """Return what Ray calls a type of GPU."""
    return _GPU_NAMES.get(device.type, device.type)


def marked_by_hand(bundle: Mapping[str, float]) -> str | None:
    """Return the resource of a GPU type that Ray gives no node by itself, where a bundle requests one."""
    names = (f"accelerator_type:{name}" for name in _MARKED_BY_HAND)
    return next((name for name in names if name in bundle), None)


def labels_of(resources: ResourceConfig) -> dict[str, str]:
    """Return the labels that a replica's node must have."""
    return {} if resources.regions is None else {REGION: f"in({','.join(resources.regions)})"}


def is_cpu_only(request: JobRequest) -> bool:
    """Whether a request has no accelerator."""
    return request.resources.device.chips == 0


def unit_counts(resources: ResourceConfig, *, gang: bool) -> tuple[int, ...]:
    """Return the acceptable numbers of slices or replicas; if they are not a gang, the preferred one."""
    replicas = resources.replicas
    if isinstance(replicas, int):
        return (replicas,)
    return tuple(replicas) if gang else (replicas[0],)


def hosts_of(resources: ResourceConfig) -> int:
    """Return the replicas of one unit."""
    return resources.device.hosts if isinstance(resources.device, TpuConfig) else 1


def job_config(plan: Plan, config: str) -> str:
    """Return what a replica passes to Ray when it connects: its tasks are the job's and find its packages.

    Confidential variables are not in it: Ray writes it into its logs, and onto its workers' command lines.

    Args:
        config: What Ray gave the job's process about the job, as JSON.
    """
    told = json.loads(config)
    runtime_env = told.get("runtime_env") or {}
    shown = {name: value for name, value in plan.environ.items() if name not in plan.confidential}
    shown[_job_kv.SUBMISSION_VARIABLE] = plan.submission
    runtime_env["env_vars"] = {**runtime_env.get("env_vars", {}), **shown}
    runtime_env = with_packages(runtime_env, plan.pip)
    # A node builds it for the first task that it runs; else every node of the cluster would at once.
    runtime_env["config"] = {**runtime_env.get("config", {}), "eager_install": False}
    return json.dumps({**told, "runtime_env": runtime_env})
