"""Launch a sweep: one Ray job; the scheduler starts its members as there is need for them."""

import pickle
from collections.abc import Callable, Iterable
from typing import Any

from fray import UnsupportedError
from fray.backend import as_members, checked_requests, sweep_name
from fray.cluster import JobId, JobRequest, SweepId, launching
from fray_ray import _entrypoints as entrypoints
from fray_ray import _job_kv
from fray_ray._job_table import describe, submission_of
from fray_ray._jobs_client import JobsClient
from fray_ray._launcher.planning import Planner, about, check_supported, workspace_of
from fray_ray._launcher.queueing import SchedulerClient
from fray_ray._queued_job import QueuedJob
from fray_ray._sweep_entry import described_members
from fray_ray._sweep_plan import Member, SweepPlan


def submit_sweep(
    client: JobsClient,
    scheduler: SchedulerClient,
    planner: Planner,
    requests: Iterable[JobRequest],
    max_parallel: int | None,
    *,
    name: str | None,
    parent: JobId | None,
    key: str | None,
    check: Callable[[JobRequest], None],
) -> SweepId:
    """Start a sweep: all of it, or, where this raises, nothing."""
    asked = checked_requests(requests, max_parallel)
    for request in asked:
        check_supported(request)
        check(request)
    _check_one_workspace(planner, asked)
    called = sweep_name(asked) if name is None else name
    sweep_id = SweepId.new(called, parent)
    members = []
    for position, request in enumerate(as_members(asked, sweep_id)):
        member = sweep_id.member(position)
        with launching(request, member) as variables:
            plan = planner.plan(request, member, variables)
        shown = about(request)
        describe(member, plan.name, plan.replicas, shown)  # refuses what Ray would not take when it begins
        members.append(Member(plan, shown))
    submission = submission_of(sweep_id)
    after = {position: tuple(each.after) for position, each in enumerate(asked) if each.after}
    data = pickle.dumps(SweepPlan(str(sweep_id), tuple(members), after, max_parallel))
    if len(data) >= _job_kv.LIMIT:
        raise ValueError(
            f"sweep {called!r}: its entry points and arguments are {len(data) >> 20} MiB pickled, and Ray "
            f"takes less than {_job_kv.LIMIT >> 20} MiB; read large data in the jobs, where it lies"
        )
    common = _common(members, asked)
    metadata = describe(sweep_id, called, 0, common, key=key)
    metadata |= described_members([_shown(member) for member in members])
    with planner.runtime_env(asked[0]) as runtime_env:
        uploaded = client.with_workspace(runtime_env)
    program = common.get("entrypoint") or f"{len(members)} jobs"
    command = entrypoints.job_process(submission, here=not planner.remote, shown=program, name=called)
    queued = QueuedJob(command=command, metadata=metadata, runtime_env=uploaded)
    scheduler.put(submission, {_job_kv.plan_name(submission): data}, queued)
    return sweep_id


def _check_one_workspace(planner: Planner, requests: tuple[JobRequest, ...]) -> None:
    shipped = {(workspace_of(each), each.snapshot) for each in requests if planner.ships_for(each)}
    if len(shipped) > 1 or (shipped and not all(map(planner.ships_for, requests))):
        raise UnsupportedError(
            "RayCluster ships one workspace for a sweep, or none, and these requests have several: "
            "launch a sweep for each, or the jobs one by one"
        )


def _shown(member: Member) -> dict[str, Any]:
    """What is known of a member before it has an entry of its own."""
    labels, after = member.about["labels"], member.about["after"]
    return {"name": member.plan.name, "replicas": member.plan.replicas, "labels": labels, "after": after}


def _common(members: list[Member], requests: tuple[JobRequest, ...]) -> dict[str, Any]:
    """What may be shown of the sweep: what its members have in common, and the jobs that it runs after."""
    first = members[0].about
    shown = {
        name: value for name, value in first.items() if all(each.about[name] == value for each in members)
    }
    labels = {
        key: value
        for key, value in first["labels"].items()
        if all(each.about["labels"].get(key) == value for each in members)
    }
    outside = sorted({each for request in requests for each in request.after if isinstance(each, str)})
    return {**shown, "labels": labels, "after": outside}
