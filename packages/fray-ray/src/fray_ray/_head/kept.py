"""What stays of a job that did not succeed, so that it can be run again: its plan, and its workspace."""

import pickle
from collections.abc import Mapping
from typing import Any

from fray.cluster import JobId, TaskStatus
from fray_ray import _job_kv
from fray_ray._head.outliving import end_leftovers
from fray_ray._job_table import read, stored_entry, submission_of
from fray_ray._plan import Plan, restored, withheld

_MOST = 16 * 2**20  # bytes of the head's memory that a job which has ended keeps
_GCS = "gcs://"
_GRACE = 5.0  # seconds for replicas of a run that was lost


def keep_plan(plan: Plan, runtime_env: Mapping[str, Any]) -> dict[str, Any] | None:
    """Keep a plan, and the workspace that the job was shipped with; None where they are too large.

    Args:
        runtime_env: What the job was submitted with.

    Returns:
        What who runs the job again needs to know: the names of variables to bring, the environment.
    """
    kept = withheld(plan)
    data = pickle.dumps(kept)
    own = keep_workspace(plan.submission, runtime_env, alone=JobId(plan.job_id).sweep is None)
    if len(data) > _MOST or own is None:
        _job_kv.delete(_job_kv.plan_name(plan.submission))
        return None
    _job_kv.keep(_job_kv.plan_name(plan.submission), data)
    return {"withheld": list(kept.withheld), "runtime_env": own}


def keep_workspace(
    submission: str, runtime_env: Mapping[str, Any], *, alone: bool = True
) -> dict[str, Any] | None:
    """Keep the workspace that a job was shipped with, which Ray deletes when the job has ended.

    Args:
        alone: Whether it is the job's own; a sweep's is kept by its coordinator.

    Returns:
        The environment of the job's next run; None where it can have none.
    """
    uri = str(runtime_env.get("working_dir", ""))
    if not uri.startswith(_GCS):
        return {}
    data = _job_kv.fetch(uri.removeprefix(_GCS)) if alone else None
    if data is None or len(data) > _MOST:
        return None
    name = _job_kv.workspace_name(submission)
    _job_kv.keep(name, data)
    return {"working_dir": _GCS + name}


def plan_again(first: str, submission: str) -> Plan | None:
    """Return the plan of a job that is run again, with the variables that were brought for it."""
    data = _job_kv.fetch(_job_kv.plan_name(first))
    if data is None:
        return None
    plan: Plan = pickle.loads(data)
    brought = _job_kv.fetch(_job_kv.secrets_name(submission))
    given: dict[str, str] = {} if brought is None else pickle.loads(brought)
    again = restored(plan, given, submission, plan.tries + 1)
    _job_kv.keep(_job_kv.plan_name(submission), pickle.dumps(again))  # for another scheduler
    end_leftovers(first, _GRACE)
    _job_kv.delete_all(first)
    return again


def earlier_tasks(plan: Plan) -> tuple[TaskStatus, ...]:
    """Return how the replicas of a job ended in its run before this one."""
    if plan.tries == 1:
        return ()
    entry = stored_entry(submission_of(plan.job_id, plan.tries - 1))
    info = None if entry is None else read(entry)
    return () if info is None else info.tasks
