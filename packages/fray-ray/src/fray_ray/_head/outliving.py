"""The actors and placement groups of jobs, which outlive the scheduler: how they are found, and end."""

import contextlib
import time
from collections.abc import Iterable
from typing import Any

import ray
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group_table,
    remove_placement_group,
)

from fray_ray import _job_kv
from fray_ray._head.record import JobRecord, unpacked
from fray_ray._job_table import TERMINAL, stored_entry

NAMESPACE = "fray"
"""Where the names of the actors and placement groups of jobs are."""
LEASE = 60.0
"""Seconds for which an actor runs on while no scheduler asks it: longer than one takes to start."""
_PREFIX = "fray-room "
_GONE = "REMOVED"
_ENDS_WITHIN = 15.0  # seconds beyond a grace


def group_name(submission: str, generation: int, number: int) -> str:
    """Return the name of a placement group of a job."""
    return f"{_PREFIX}{submission} {generation} {number}"


def group_named(name: str) -> PlacementGroup | None:
    """Return a placement group; None where there is none."""
    try:
        group = get_placement_group(name)
    except ValueError:
        return None
    state = placement_group_table(group).get("state", _GONE)
    return None if state == _GONE else group


def named_actor(name: str) -> Any:
    """Return the actor of a replica; None where it has ended."""
    try:
        return ray.get_actor(name, NAMESPACE)
    except ValueError:
        return None


def end_replica_actors(record: JobRecord, grace: float) -> None:
    """End the replicas of a job that has no scheduler, and return when their processes are gone."""
    actors = [actor for known in record.actors.values() if (actor := named_actor(known.name)) is not None]
    for actor in actors:
        actor.stop.remote(grace)
    deadline = time.monotonic() + grace + _ENDS_WITHIN
    waiting = [actor.ended.remote() for actor in actors]
    with contextlib.suppress(Exception):  # of one that is gone already
        ray.wait(waiting, num_returns=len(waiting), timeout=max(0.0, deadline - time.monotonic()))
    for actor in actors:
        ray.kill(actor)


def end_leftovers(submission: str, grace: float) -> None:
    """End the replicas of a job that has no scheduler, and give back its room."""
    state = _job_kv.fetch(_job_kv.state_name(submission))
    record = None if state is None else unpacked(state)
    if record is not None:
        end_replica_actors(record, grace)
    remove_groups_of(submission)


def remove_groups_of(submission: str) -> None:
    """Give back the room of a job; Ray ends the actors that are in it."""
    _remove(name for name in _living_groups() if _submission_of(name) == submission)


def remove_abandoned_groups() -> None:
    """Give back the room of jobs that have ended, and that no scheduler will carry to their end."""
    names = list(_living_groups())
    carried = {each for each, words in _job_kv.all_names().items() if _job_kv.QUEUED in words}
    ended = {each for each in set(map(_submission_of, names)) - carried if _has_ended(each)}
    _remove(name for name in names if _submission_of(name) in ended)


def _living_groups() -> Iterable[str]:
    groups: Any = placement_group_table().values()
    for group in groups:
        if group["state"] != _GONE and str(group["name"]).startswith(_PREFIX):
            yield str(group["name"])


def _submission_of(name: str) -> str:
    return name.removeprefix(_PREFIX).split(" ")[0]


def _has_ended(submission: str) -> bool:
    entry = stored_entry(submission)
    return entry is None or entry.status in TERMINAL


def _remove(names: Iterable[str]) -> None:
    for name in names:
        if (group := group_named(name)) is not None:
            remove_placement_group(group)
