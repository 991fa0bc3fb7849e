"""What reaches a job apart from what Ray lists: its plan, its variables, and requests to it.

All go through the store of packages that the dashboard takes uploads for: memory of the head, behind
the same authentication as the jobs, never a file. What is there of a job has its submission for a prefix.
"""

import hashlib
import re
from collections.abc import Collection, Iterable

from fray_ray._ray_internals.kv import kv_delete, kv_get, kv_list, kv_put

SUBMISSION_VARIABLE = "FRAY_RAY_SUBMISSION"
"""What Ray calls the run of a job, in the workers that run its tasks and actors."""
LIMIT = 100 * 2**20  # bytes, of the dashboard
STOP, RESTART, ENDPOINT, QUEUED, FORGET = "stop", "restart", "endpoint", "queued", "forget"
# In this order, after all else: without the first nobody carries the job; the last is a request for this.
_DELETED_LAST = {QUEUED: 1, "plan": 2, "state": 3, FORGET: 4}
_PACKAGES, _OURS = "gcs://", "fray-"
_NAME = re.compile(
    r"(.+?)\.((?:plan|state|waiting|queued|stop|stopping|forget|environ|secrets|workspace\.zip)|restart\.\d+\.\d+|endpoint\.\d+\.\d+\.\w+)"
)


def package_name(submission: str, *parts: object) -> str:
    """Return the name of a package of a job."""
    return ".".join([f"{_OURS}{submission}", *map(str, parts)])


def plan_name(submission: str) -> str:
    """Return the name of the package that holds a job's plan."""
    return package_name(submission, "plan")


def state_name(submission: str) -> str:
    """Return the name of the package with what another scheduler of a job needs to go on."""
    return package_name(submission, "state")


def queued_name(submission: str) -> str:
    """Return the name of the package by which a job comes to the scheduler: `QueuedJob`, as JSON."""
    return package_name(submission, QUEUED)


def waiting_name(submission: str) -> str:
    """Return the name of the package by which a launcher sees, over HTTP, that a job is with the scheduler.

    It is there before the job is queued, and goes before that does. Ray deletes a package ten minutes after
    a look at it over HTTP, so nothing else may be looked at. This one is only needed while the
    job has no entry in Ray's table: for a moment, at the launch and when Ray begins to run the job.
    """
    return package_name(submission, "waiting")


def stop_name(submission: str) -> str:
    """Return the name of the package that requests the end of a job; it holds the grace in seconds."""
    return package_name(submission, STOP)


def stopping_name(submission: str) -> str:
    """Return the name of the package with the grace in seconds of a sweep that is being stopped."""
    return package_name(submission, "stopping")


def forget_name(submission: str) -> str:
    """Return the name of the package that requests that nothing of a job which has ended is kept."""
    return package_name(submission, FORGET)


def variables_name(submission: str) -> str:
    """Return the name of the package that holds the variables which the job's tasks find, pickled."""
    return package_name(submission, "environ")


def secrets_name(submission: str) -> str:
    """Return the name of the package with the variables that a retry brings along, pickled."""
    return package_name(submission, "secrets")


def restart_name(submission: str, replica: int, attempt: int) -> str:
    """Return the name of the package that requests another attempt of a replica; it holds the grace."""
    return package_name(submission, RESTART, replica, attempt)


def endpoint_name(submission: str, replica: int, attempt: int, name: str) -> str:
    """Return the name of the package in which a replica registers an endpoint."""
    short = hashlib.sha256(name.encode()).hexdigest()[:24]
    return package_name(submission, ENDPOINT, replica, attempt, short)


def workspace_name(submission: str) -> str:
    """Return the name of the package with the workspace of a job that may be run again."""
    return package_name(submission, "workspace.zip")


def is_workspace(name: str) -> bool:
    """Return whether a name is one of `workspace_name`."""
    return name.startswith(_OURS) and name.endswith(".workspace.zip")


def keep(name: str, data: bytes) -> None:
    """Store a package, inside the cluster."""
    kv_put(_PACKAGES + name, data)


def fetch(name: str) -> bytes | None:
    """Return a package, inside the cluster; None where there is none."""
    return kv_get(_PACKAGES + name)


def delete(name: str) -> None:
    """Delete a package, inside the cluster."""
    kv_delete(_PACKAGES + name)


def delete_all(submission: str, *, but: Collection[str] = ()) -> None:
    """Delete the packages of a job, inside the cluster; a scheduler that is killed meanwhile harms nothing.

    The next one carries every job that is queued, and begins it again where there is no state of it.
    """
    for name in sorted(names_of(submission), key=lambda name: _DELETED_LAST.get(name, 0)):
        if (whole := package_name(submission, name)) not in but:
            delete(whole)


def request_stops(submissions: Iterable[str], grace: float) -> None:
    """Request the end of jobs, inside the cluster: all have their grace at the same time."""
    for each in submissions:
        keep(stop_name(each), str(grace).encode())


def names_of(submission: str) -> list[str]:
    """Return what there is of a job, without the prefix: `stop`, `restart.0.1`."""
    prefix = _PACKAGES + package_name(submission, "")
    return [name.removeprefix(prefix) for name in kv_list(prefix)]


def all_names() -> dict[str, list[str]]:
    """Return what there is of all jobs, by submission: as `names_of` does."""
    prefix = f"{_PACKAGES}{_OURS}"
    found: dict[str, list[str]] = {}
    for name in kv_list(prefix):
        # A submission may have dots, and so may a name: no submission ends in one of these words.
        match = _NAME.fullmatch(name.removeprefix(prefix))
        if match is not None:
            found.setdefault(match[1], []).append(match[2])
    return found


def stopped_members(sweep: str) -> dict[str, str]:
    """Return the members of a sweep that are to be stopped: number -> the package with the request."""
    prefix = f"{_PACKAGES}fray-{sweep}~"
    found = {}
    for name in kv_list(prefix):
        number, _, rest = name.removeprefix(prefix).partition(".")
        if rest == STOP and number.isdecimal():
            found[number] = name.removeprefix(_PACKAGES)
    return found
