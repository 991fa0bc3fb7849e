"""Make the plan of a sweep from its requests."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from typing import Any

from fray._jobs.plans.plan import JobPlan
from fray._jobs.plans.planning import import_paths
from fray._jobs.plans.sweep_plan import SweepPlan
from fray._values.checks import check_count, invalid
from fray._values.job_states import JobInfo, JobStatus, SweepId
from fray._values.jobs import JobRequest

_SEPARATORS = " -_.:/=,0123456789"


def checked_requests(requests: Iterable[JobRequest], max_parallel: int | None) -> tuple[JobRequest, ...]:
    """Check what `launch_many` was given.

    Raises:
        ValueError: There is no request, one is not a request, `max_parallel` is not 1 or more, or positions
            in `after` are none, or lead round in a circle.
    """
    asked = tuple(requests)
    if not asked:
        raise invalid("requests", "one JobRequest or more", asked)
    for request in asked:
        if not isinstance(request, JobRequest):
            raise invalid("each of requests", "a JobRequest", request)
    if max_parallel is not None:
        check_count("max_parallel", max_parallel, least=1)
    graph = {position: _positions(request, len(asked)) for position, request in enumerate(asked)}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = " after ".join(f"{position} ({asked[position].name!r})" for position in error.args[1][::-1])
        raise ValueError(
            f"after of requests leads round in a circle, so that none could start: {circle}"
        ) from None
    return asked


def sweep_name(requests: Sequence[JobRequest]) -> str:
    """Return what the names of the requests have in common, or the first one's."""
    first, last = min(each.name for each in requests), max(each.name for each in requests)
    common = next((first[:end] for end in range(len(first), 0, -1) if last.startswith(first[:end])), "")
    return common if first == last else common.rstrip(_SEPARATORS) or requests[0].name


def as_members(requests: Sequence[JobRequest], sweep_id: SweepId) -> list[JobRequest]:
    """Return the requests with the ids of members for positions."""

    def member(each: str | int) -> str:
        return sweep_id.member(each) if isinstance(each, int) else each

    return [replace(request, after=[member(each) for each in request.after]) for request in requests]


def sweep_plan(
    sweep_id: SweepId,
    name: str,
    requests: Sequence[JobRequest],
    plans: Sequence[JobPlan],
    max_parallel: int | None,
) -> SweepPlan:
    """Plan a sweep of these requests, as `launch_many` had them."""
    submitted_at = time.time()
    labels = dict.items(dict(requests[0].labels))
    common = {key: value for key, value in labels if all(each.labels.get(key) == value for each in requests)}
    described = JobInfo(
        job_id=sweep_id,
        name=name,
        status=JobStatus.PENDING,
        tasks=(),
        pending_reason="starting",
        submitted_at=submitted_at,
        labels=common,
        progress={JobStatus.PENDING.value: len(requests)},
    )
    shown: dict[str, Any] = {
        key: plans[0].shown.get(key)
        if all(plan.shown.get(key) == plans[0].shown.get(key) for plan in plans)
        else None
        for key in ("entrypoint", "directory", "resources", "user", "commit", "dirty")
    }
    outside = sorted({each for request in requests for each in request.after if isinstance(each, str)})
    own = {"name": name, "labels": common, "after": outside}
    return SweepPlan(
        job_id=str(sweep_id),
        members=len(requests),
        max_parallel=max_parallel,
        runs_after={position: tuple(each.after) for position, each in enumerate(requests) if each.after},
        paths=tuple(import_paths()),
        shown={**shown, **own, "sweep": {"members": len(requests), "max_parallel": max_parallel}},
        described=described.to_dict(),
        submitted_at=submitted_at,
    )


def _positions(request: JobRequest, count: int) -> list[int]:
    positions = [each for each in request.after if isinstance(each, int)]
    for each in positions:
        if not 0 <= each < count:
            raise invalid("each of after", f"a job id, or a position from 0 to {count - 1}", each)
    return positions
