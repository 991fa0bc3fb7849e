"""Servers by name: Iris's own registry, in which the endpoints of one family of jobs have one prefix.

Iris calls an endpoint `/USER/ROOT-JOB/NAME`. What it registers itself, or others without Fray, is found too.
"""

import json
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

from fray.backend import FAMILY
from fray.cluster import Endpoint, JobId
from fray_iris._ids import IrisTask, iris_name, job_id_of, root_of
from fray_iris._in_task.words import SAID

_DETAILS = "fray"  # the key of Iris's metadata under which ours is
_INTERNAL = ("fray-meeting", "fray-actor", SAID)  # what we register for ourselves, as the last part of a name


def registration(user: str, endpoint: Endpoint, task: IrisTask) -> dict[str, Any]:
    """Return an endpoint of this replica as Iris's `RegisterEndpointRequest`."""
    details = {
        "metadata": dict(endpoint.metadata),
        "family": os.environ.get(FAMILY),
        "registered_at": endpoint.registered_at,
        "attempt": endpoint.attempt,
    }
    texts = {name: value for name, value in endpoint.metadata.items() if isinstance(value, str)}
    return {
        "name": f"{iris_name(user, root_of(endpoint.job_id))}/{endpoint.name}",
        "address": endpoint.address,
        "task_id": task.name,
        "attempt_id": task.attempt or 0,
        "metadata": texts | {_DETAILS: json.dumps(details)},
    }


def found(
    user: str, registered: Iterable[Mapping[str, Any]], prefix: str, family: str | None, job: str | None
) -> list[Endpoint]:
    """Return the endpoints of one user whose names begin so.

    Args:
        registered: As Iris's `Endpoint` messages.
        family: Only those of this family of jobs, or of the tree of `job`; None for all.
    """
    endpoints = [(_endpoint(user, each), _details(each)) for each in registered]
    chosen = [
        endpoint
        for endpoint, details in endpoints
        if endpoint is not None
        and endpoint.name.startswith(prefix)
        and (family is None or details.get("family") == family or root_of(endpoint.job_id) == job)
    ]
    return sorted(chosen, key=lambda endpoint: endpoint.registered_at)


def _endpoint(user: str, given: Mapping[str, Any]) -> Endpoint | None:
    try:
        task = IrisTask.parse(given.get("task_id", ""))
    except ValueError:
        return None  # of no job: the controller's own
    job_id = job_id_of(user, task.job)
    if job_id is None:
        return None
    name = given.get("name", "")
    inside = name.removeprefix(f"{iris_name(user, root_of(job_id))}/")
    if name.rpartition("/")[2] in _INTERNAL or inside.startswith("fray-actors/") or not inside:
        return None
    details = _details(given)
    metadata = details.get("metadata", dict(given.get("metadata", {})))
    return Endpoint(
        name=inside,
        address=given.get("address", "") or "unknown",
        metadata=metadata,
        job_id=JobId(job_id),
        replica=task.replica,
        attempt=int(details.get("attempt", 1)),
        registered_at=float(details.get("registered_at", time.time())),
    )


def _details(given: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        details = json.loads(given.get("metadata", {}).get(_DETAILS, "{}"))
    except ValueError:
        return {}
    return details if isinstance(details, dict) else {}
