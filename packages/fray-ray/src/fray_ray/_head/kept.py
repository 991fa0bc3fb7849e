"""What stays of a job that did not succeed, so that it can be run again: its plan, and its workspace."""

import math
import pickle
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from fray.cluster import JobId, TaskStatus
from fray_ray import _job_kv
from fray_ray._head.outliving import end_leftovers
from fray_ray._job_table import KEPT, TERMINAL, JobEntry, read, stored_entry, submission_of
from fray_ray._plan import Plan, restored, withheld
from fray_ray._ray_internals.kv import table_entry, write_table_entry
from fray_ray._sweep_plan import SweepPlan, restored_sweep, withheld_of_sweep

_MOST = 16 * 2**20  # bytes of the head's memory that a job which has ended keeps
_MOST_OF_ALL = 512 * 2**20  # bytes of it that all of them keep
_GCS = "gcs://"
_GRACE = 5.0  # seconds for replicas of a run that was lost


class PlanError(Exception):
    """A job whose plan cannot be carried out; it ends with this message."""


def for_retry(
    plan: Plan | SweepPlan, submission: str, runtime_env: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Keep the workspace that a job was shipped with; None where that, or its plan, is too large.

    Args:
        runtime_env: What the job was submitted with.

    Returns:
        What a retry needs: names of variables to bring, and the environment.
    """
    kept = _withheld(plan)
    own = _keep_workspace(submission, runtime_env, alone=not _is_member(plan))
    if len(pickle.dumps(kept)) > _MOST or own is None:
        return None
    return {"withheld": list(kept.withheld), "runtime_env": own}


def forget_ended(
    plan: Plan | SweepPlan,
    submission: str,
    runtime_env: Mapping[str, Any],
    kept: Mapping[str, Any] | None,
) -> None:
    """Keep nothing of a job that has ended but its workspace and its plan, without what is withheld.

    Until then the plan is kept as it is: another scheduler may have to end the job.

    Args:
        kept: What `for_retry` returned; None where the job cannot be run again.
    """
    if kept is None or is_forgotten(submission):
        _job_kv.delete_all(submission)
    else:
        names = {_job_kv.plan_name(submission), _job_kv.workspace_name(submission)}
        _job_kv.keep(_job_kv.plan_name(submission), pickle.dumps(_withheld(plan)))
        _job_kv.delete_all(submission, but=names)
    if not _is_member(plan):  # members share that of their sweep
        _forget_workspace(runtime_env)


def _withheld(plan: Plan | SweepPlan) -> Plan | SweepPlan:
    return withheld_of_sweep(plan) if isinstance(plan, SweepPlan) else withheld(plan)


def _is_member(plan: Plan | SweepPlan) -> bool:
    return JobId(plan.job_id).sweep is not None


def _keep_workspace(submission: str, runtime_env: Mapping[str, Any], *, alone: bool) -> dict[str, Any] | None:
    """Keep the workspace that a job was shipped with, which Ray deletes when the job has ended.

    Args:
        alone: Whether it is the job's own; a sweep's is kept by its coordinator.

    Returns:
        The environment of the job's next run; None where it can have none.
    """
    uri = str(runtime_env.get("working_dir", ""))
    if not uri.startswith(_GCS):
        return {}
    name = _job_kv.workspace_name(submission)
    data = _job_kv.fetch(uri.removeprefix(_GCS)) if alone else None
    if data is None and alone:  # Ray has deleted it; a scheduler that was killed may have kept it
        data = _job_kv.fetch(name)
    if data is None or len(data) > _MOST:
        return None
    _job_kv.keep(name, data)
    return {"working_dir": _GCS + name}


def _forget_workspace(runtime_env: Mapping[str, Any]) -> None:
    """Delete the workspace that was kept for a run which has ended."""
    name = str(runtime_env.get("working_dir", "")).removeprefix(_GCS)
    if _job_kv.is_workspace(name):
        _job_kv.delete(name)


def plan_again(plan: Plan | SweepPlan, submission: str) -> Plan | SweepPlan:
    """Return the plan of a job that is run again, with the variables that were brought for it."""
    given, again = _brought(submission, plan.withheld), plan
    if isinstance(plan, SweepPlan):
        again = restored_sweep(plan, given)
    else:
        again = restored(plan, given, submission, plan.tries + 1)
        again = replace(again, submitted_at=time.time())  # it stands in line behind those that wait already
    _job_kv.keep(_job_kv.plan_name(submission), pickle.dumps(again))  # for another scheduler
    return again


def _brought(submission: str, withheld_names: Iterable[str]) -> dict[str, str]:
    """Return the variables that were brought for a job which is run again.

    Raises:
        PlanError: One that was not kept is not among them.
    """
    data = _job_kv.fetch(_job_kv.secrets_name(submission))
    given: dict[str, str] = {} if data is None else pickle.loads(data)
    missing = sorted(set(withheld_names) - given.keys())
    if missing:
        raise PlanError(
            f"it was launched with {', '.join(missing)} in env_vars, and the values of such variables are "
            "neither kept nor given for this run; launch it again"
        )
    return given


def is_forgotten(submission: str) -> bool:
    """Return whether a job was removed before its scheduler had ended it, as one that was lost may be."""
    return _job_kv.FORGET in _job_kv.names_of(submission) or table_entry(submission) is None


def forget_orphans(before: Collection[str]) -> set[str]:
    """Delete what launches have left that ended before they queued their jobs.

    Args:
        before: What seemed to be left when this was called the last time; a launch may be on its way.

    Returns:
        What seems to be left now.
    """
    orphans = {
        submission
        for submission, words in _job_kv.all_names().items()
        if "plan" in words and _job_kv.QUEUED not in words and stored_entry(submission) is None
    }
    for submission in orphans.intersection(before):
        _job_kv.delete_all(submission)
    return orphans


def forget_oldest(known: Mapping[str, int]) -> dict[str, int]:
    """Keep within a bound what jobs that have ended keep: the oldest of them cannot be run again.

    Args:
        known: What this returned the last time.

    Returns:
        Bytes by submission.
    """
    sizes: dict[str, int] = {}
    for submission, words in _job_kv.all_names().items():
        if "plan" in words and _job_kv.QUEUED not in words:
            names = (_job_kv.package_name(submission, word) for word in words)
            sizes[submission] = known.get(submission) or sum(
                len(_job_kv.fetch(name) or b"") for name in names
            )
    excess = sum(sizes.values()) - _MOST_OF_ALL
    if excess > 0:
        for submission in sorted(sizes, key=_ended_at):
            if excess > 0 and _forget_kept(submission):
                excess -= sizes.pop(submission)
    return sizes


def _ended_at(submission: str) -> float:
    entry = table_entry(submission) or {}
    return JobEntry.of(entry).end_time or math.inf


def _forget_kept(submission: str) -> bool:
    """Keep nothing of a job; whether it has ended, and its entry says so."""
    entry = table_entry(submission)
    if entry is None or JobEntry.of(entry).status not in TERMINAL:
        return False
    entry["metadata"] = {**(entry.get("metadata") or {}), KEPT: "null"}
    write_table_entry(submission, entry)
    _job_kv.delete_all(submission)
    return True


def forget_run(submission: str) -> None:
    """End what is left of a run that another follows; keep nothing but the workspace, which that one has."""
    end_leftovers(submission, _GRACE)
    _job_kv.delete_all(submission, but={_job_kv.workspace_name(submission)})


def earlier_tasks(plan: Plan) -> tuple[TaskStatus, ...]:
    """Return how the replicas of a job ended in its run before this one."""
    if plan.tries == 1:
        return ()
    entry = stored_entry(submission_of(plan.job_id, plan.tries - 1))
    info = None if entry is None else read(entry)
    return () if info is None else info.tasks
