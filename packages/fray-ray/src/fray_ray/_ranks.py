"""What a member of a gang finds in its environment: its place, and where its peers meet in this attempt."""

from dataclasses import dataclass

from fray.cluster import GpuConfig, TpuConfig
from fray_ray._requests import Plan

PORTS = 2
"""How many ports a meeting takes."""


@dataclass(frozen=True)
class Meeting:
    """Where rank 0 may listen: the address of its node, and free ports there."""

    address: str
    ports: list[int]


def rank_variables(plan: Plan, number: int, units: int, meeting: Meeting) -> dict[str, str]:
    """Return the variables of a replica in a gang of so many units."""
    count = units * plan.hosts
    found: dict[str, object] = {
        "FRAY_REPLICA_ID": number,
        "FRAY_REPLICA_COUNT": count,
        "FRAY_COORDINATOR_ADDRESS": f"{meeting.address}:{meeting.ports[0]}",
    }
    if isinstance(plan.resources.device, TpuConfig):
        found |= _of_slices(number, units, plan.hosts, meeting)
    if isinstance(plan.resources.device, GpuConfig):
        found |= _of_torch(number, count, meeting)
    return {name: str(value) for name, value in found.items()}


def _of_slices(number: int, slices: int, hosts: int, meeting: Meeting) -> dict[str, object]:
    slice_, host = divmod(number, hosts)
    found: dict[str, object] = {
        "FRAY_SLICE_ID": slice_,
        "FRAY_SLICE_COUNT": slices,
        "FRAY_HOST_ID": host,
        "FRAY_HOST_COUNT": hosts,
    }
    if slices > 1:  # how the slices of a multislice job find each other, by the names that libtpu reads
        found |= {
            "MEGASCALE_COORDINATOR_ADDRESS": meeting.address,
            "MEGASCALE_PORT": meeting.ports[1],
            "MEGASCALE_NUM_SLICES": slices,
            "MEGASCALE_SLICE_ID": slice_,
        }
    return found


def _of_torch(number: int, count: int, meeting: Meeting) -> dict[str, object]:
    """What `torch.distributed.init_process_group("nccl")` reads, and launchers set beside it."""
    return {
        "RANK": number,
        "WORLD_SIZE": count,
        "LOCAL_RANK": 0,
        "LOCAL_WORLD_SIZE": 1,
        "MASTER_ADDR": meeting.address,
        "MASTER_PORT": meeting.ports[0],
    }
