"""What a replica needs, in Fray's words and in Iris's, both ways and without loss.

Iris's side is the JSON form of its messages, so that nothing here needs Iris: `ResourceSpecProto`,
`Constraint` and `CoschedulingConfig` of its `job.proto`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fray import UnsupportedError
from fray.cluster import CpuConfig, DeviceConfig, GpuConfig, ResourceConfig, TpuConfig

_OTHER_WORDS = {"any": "auto"}  # a GPU of whatever type
TPU_NAME = "tpu-name"  # the attribute that the hosts of one slice share
POOL = "pool"  # the attribute by which Iris's own program groups the hosts of other gangs
_PREEMPTIBLE, _REGION = "preemptible", "region"
_EQUAL, _ONE_OF = "CONSTRAINT_OP_EQ", "CONSTRAINT_OP_IN"


def resources_to_iris(resources: ResourceConfig) -> dict[str, Any]:
    """Return the resources of one replica as a `ResourceSpecProto`."""
    found: dict[str, Any] = {
        "cpu_millicores": math.ceil(resources.cpu * 1000),
        "memory_bytes": resources.ram_bytes,
        "disk_bytes": resources.disk_bytes,
    }
    device = resources.device
    if isinstance(device, GpuConfig):
        found["device"] = {
            "gpu": {"variant": _OTHER_WORDS.get(device.type, device.type), "count": device.count}
        }
    elif isinstance(device, TpuConfig):
        tpu: dict[str, Any] = {"variant": device.type, "count": device.count, "topology": device.topology}
        found["device"] = {"tpu": tpu}
    return found


def constraints_to_iris(resources: ResourceConfig) -> list[dict[str, Any]]:
    """Return where a replica may run, as Iris's constraints."""
    found: list[dict[str, Any]] = []
    if not resources.preemptible:
        found.append({"key": _PREEMPTIBLE, "op": _EQUAL, "value": {"string_value": "false"}})
    regions = list(resources.regions or ())
    if len(regions) == 1:
        found.append({"key": _REGION, "op": _EQUAL, "value": {"string_value": regions[0]}})
    elif regions:
        values = [{"string_value": region} for region in regions]
        found.append({"key": _REGION, "op": _ONE_OF, "values": values})
    return found


def coscheduling_to_iris(resources: ResourceConfig, *, gang: bool, hosts: int) -> dict[str, str] | None:
    """Return the attribute that the workers of a gang share; None where a single task needs no company.

    Raises:
        UnsupportedError: Several slices are to be one gang: Iris places a gang on workers that share one
            value.
    """
    if not gang or hosts < 2:
        return None
    device = resources.device
    if not isinstance(device, TpuConfig):
        return {"group_by": POOL}
    if hosts > device.hosts:
        raise UnsupportedError(
            f"IrisCluster has no jobs of several TPU slices ({hosts // device.hosts} of {device.type}): Iris "
            f"starts "
            "the tasks of a job together on workers of one slice; launch a job for each slice, or use 'ray'"
        )
    return {"group_by": TPU_NAME}


def resources_from_iris(
    spec: Mapping[str, Any], constraints: Sequence[Mapping[str, Any]] = (), replicas: int = 1
) -> ResourceConfig:
    """Read what Iris says a job requested; the inverse of the functions above.

    Args:
        replicas: How many there are; of TPUs, how many slices.
    """
    by_key = {each["key"]: each for each in constraints}
    preemptible = by_key.get(_PREEMPTIBLE)
    return ResourceConfig(
        cpu=int(spec.get("cpu_millicores", 0)) / 1000 or 1,
        ram=int(spec.get("memory_bytes", 0)) or "1g",
        disk=int(spec.get("disk_bytes", 0)) or "16g",
        device=_device(spec.get("device") or {}),
        replicas=replicas,
        preemptible=preemptible is None or _texts(preemptible) != ["false"],
        regions=_texts(by_key[_REGION]) if _REGION in by_key else None,
    )


def _device(device: Mapping[str, Any]) -> DeviceConfig:
    if "gpu" in device:
        gpu = device["gpu"]
        words = {theirs: ours for ours, theirs in _OTHER_WORDS.items()}
        variant = gpu.get("variant") or "auto"
        return GpuConfig(words.get(variant, variant), int(gpu.get("count", 1)))
    if "tpu" in device:
        tpu = device["tpu"]
        return TpuConfig(tpu["variant"], int(tpu.get("count", 0)) or None, tpu.get("topology") or None)
    return CpuConfig()


def _texts(constraint: Mapping[str, Any]) -> list[str]:
    given = constraint.get("values") or [constraint.get("value") or {}]
    return [str(value.get("string_value", "")) for value in given]
