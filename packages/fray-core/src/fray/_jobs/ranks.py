"""What a member of a gang finds in its environment: its place, and where its peers meet in this attempt."""

from __future__ import annotations

from fray._values.light_tuples import NamedTuple

PORTS = 2
"""How many ports a meeting takes."""


class GangLayout(NamedTuple):
    """The shape of a gang.

    Args:
        units: TPU slices, or else replicas.
        hosts: Replicas of one unit.
        slices: Whether the units are TPU slices; else the replicas find what torch reads.
    """

    units: int
    hosts: int = 1
    slices: bool = False

    @property
    def replicas(self) -> int:
        """How many replicas there are."""
        return self.units * self.hosts


class Meeting(NamedTuple):
    """Where rank 0 may listen: the address of its host, and free ports there."""

    address: str
    ports: tuple[int, ...]


def rank_variables(layout: GangLayout, replica: int, meeting: Meeting) -> dict[str, str]:
    """Return the variables of a replica of a gang, for one attempt."""
    found: dict[str, object] = {
        "FRAY_REPLICA_ID": replica,
        "FRAY_REPLICA_COUNT": layout.replicas,
        "FRAY_COORDINATOR_ADDRESS": f"{meeting.address}:{meeting.ports[0]}",
    }
    found |= _of_slices(layout, replica, meeting) if layout.slices else _of_torch(layout, replica, meeting)
    return {name: str(value) for name, value in found.items()}


def rank_variable_names() -> frozenset[str]:
    """Return every variable that a member of a gang may find, which what it launches must not inherit."""
    meeting = Meeting("", (0, 0))
    layouts = GangLayout(2, 1, slices=True), GangLayout(2)
    return frozenset(name for layout in layouts for name in rank_variables(layout, 0, meeting))


def _of_slices(layout: GangLayout, replica: int, meeting: Meeting) -> dict[str, object]:
    slice_, host = divmod(replica, layout.hosts)
    found: dict[str, object] = {
        "FRAY_SLICE_ID": slice_,
        "FRAY_SLICE_COUNT": layout.units,
        "FRAY_HOST_ID": host,
        "FRAY_HOST_COUNT": layout.hosts,
    }
    if layout.units > 1:  # how the slices of a multislice job find each other, by the names that libtpu reads
        found |= {
            "MEGASCALE_COORDINATOR_ADDRESS": meeting.address,
            "MEGASCALE_PORT": meeting.ports[1],
            "MEGASCALE_NUM_SLICES": layout.units,
            "MEGASCALE_SLICE_ID": slice_,
        }
    return found


def _of_torch(layout: GangLayout, replica: int, meeting: Meeting) -> dict[str, object]:
    """What `torch.distributed.init_process_group` reads, and launchers set beside it."""
    return {
        "RANK": replica,
        "WORLD_SIZE": layout.replicas,
        "LOCAL_RANK": 0,
        "LOCAL_WORLD_SIZE": 1,
        "MASTER_ADDR": meeting.address,
        "MASTER_PORT": meeting.ports[0],
    }
