"""The placement group that a replica is in: for its contexts, and for libraries of Ray's that it uses."""

import os
from collections.abc import Mapping

import ray
from ray import PlacementGroupID
from ray.util.placement_group import PlacementGroup, get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from fray import UnsupportedError
from fray.backend import did_you_mean

VARIABLE = "FRAY_RAY_PLACEMENT_GROUP"
"""By which a replica finds the group that it is in."""
CURRENT = "current"


def current_placement_group() -> PlacementGroup | None:
    """Return the placement group that this process is in: that of its task or actor, else of its replica.

    A job's replicas are in one placement group; those of a TPU slice are in one for each slice.
    """
    if ray.is_initialized():
        group: PlacementGroup | None = get_current_placement_group()
        if group is not None:
            return group
    named = os.environ.get(VARIABLE)
    return PlacementGroup(PlacementGroupID.from_hex(named)) if named else None


def resources_in_current_group(amounts: Mapping[str, float]) -> dict[str, float]:
    """Return amounts by name, `{"CPU": 1}` say, as Ray names them inside this process's placement group.

    A task that requests them gets a part of what the group reserved: so a library that makes placement groups
    of its own, as Ray Train does, makes them inside of the group.

    Raises:
        UnsupportedError: This process is in no placement group.
    """
    group = _group_or_raise("resources_in_current_group()")
    return {f"{name}_group_{group.id.hex()}": amount for name, amount in amounts.items()}


def check_group(placement_group: str | None) -> None:
    """Raise ValueError for an invalid value of the option `placement_group`."""
    if placement_group not in (None, CURRENT):
        hint = did_you_mean(str(placement_group), [CURRENT])
        raise ValueError(
            f"placement_group={placement_group!r}: the one that this replica is in is 'current'; for another "
            "give scheduling_strategy=PlacementGroupSchedulingStrategy(...)" + (f"; {hint}" if hint else "")
        )


def in_current_group() -> PlacementGroupSchedulingStrategy:
    """Return the strategy that keeps work, and what it starts in turn, in this process's placement group."""
    group = _group_or_raise("ray?placement_group=current")
    return PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)


def _group_or_raise(asked: str) -> PlacementGroup:
    group = current_placement_group()
    if group is None:
        raise UnsupportedError(
            f"{asked}: this process is in no placement group; replicas of a job on a Ray cluster are, "
            "and tasks and actors that were started in one"
        )
    return group
