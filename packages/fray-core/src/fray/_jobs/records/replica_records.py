"""Replicas that know nothing of each other, each under a supervisor of its own, wherever there is room.

RECORD/replicas/N     the record of one: all that its supervisor writes, logs too

What was requested, the payload, the copy of the workspace and the environment are in RECORD. So is the end of
the job, which the guardian of the last replica writes. Until then readers derive the state of the job from
those of its replicas (`replica_endings`). Imports little, as a supervisor does.
"""

from __future__ import annotations

import os

from fray._jobs.plans.values import NO_VALUES
from fray._jobs.process_tree import JOB_VARIABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fray._jobs.plans.plan import JobPlan

REPLICAS = "replicas"
"""The folder of the records of a job's replicas, where each has a supervisor of its own."""


def replica_path(record: str, replica: int) -> str:
    """Return where the record of a replica is, in a job whose replicas have one each."""
    return os.path.join(record, REPLICAS, str(replica))


def replica_paths(record: str) -> list[str]:
    """Return the records of a job's replicas, in order; none where one supervisor has them all."""
    try:
        names = os.listdir(os.path.join(record, REPLICAS))
    except OSError:
        return []
    return [replica_path(record, number) for number in sorted(map(int, filter(str.isdecimal, names)))]


def path_of_replica(record: str, replica: int | None) -> str:
    """Return the record in which a supervisor writes about a replica; for None, of what comes before."""
    own = replica_path(record, replica or 0)
    return own if os.path.isdir(own) else record


def job_path(record: str) -> str:
    """Return the record of the job that a supervisor's record is of: itself, unless it is of a replica."""
    folder, name = os.path.split(record)
    return os.path.dirname(folder) if os.path.basename(folder) == REPLICAS and name.isdecimal() else record


def plan_of_replica(plan: JobPlan, record: str, replica: int) -> JobPlan:
    """Return the plan of the supervisor of one replica.

    Args:
        record: Of the job.
    """
    described = {**plan.described, "tasks": [plan.described["tasks"][replica]]}
    return plan._replace(
        environ={**plan.environ, JOB_VARIABLE: replica_path(record, replica)},
        replicas=1,
        first_replica=replica,
        apart=False,
        described=described,
        shown=NO_VALUES,
        payload=None,
        keep=None,
        on_exit=None,
    )
