"""The endpoints of a folder of records: a file each, that ends with the attempt which registered it.

The supervisor deletes those of an attempt when it has ended. Where it was killed they stay, and readers pass
over them: they check whether the job's supervisor lives, and which attempt it is at.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterator
from typing import Any

from fray._jobs.records.files import LOCK
from fray._jobs.records.liveness import Liveness, liveness_of
from fray._jobs.records.predecessors import record_of
from fray._jobs.records.replica_records import path_of_replica
from fray._jobs.records.status_file import STATUS, read_json, remove_file, replace_file
from fray._values.job_words import JobStatus

FOLDER = ".endpoints"
_LENGTH = 24
_DRAFTED_WITHIN = 3600.0  # seconds; clocks of hosts may differ


def write_endpoint(folder: str, data: dict[str, Any]) -> None:
    """Make an endpoint known, as `Endpoint.to_dict` gives it, with its family.

    Args:
        folder: Of the records.
    """
    place = os.path.join(folder, FOLDER)
    os.makedirs(place, mode=0o700, exist_ok=True)
    for name, other in _files(place):
        if not _lives(folder, other):
            remove_file(os.path.join(place, name))
    for name in os.listdir(place):
        if not name.endswith(".json") and _is_left(os.path.join(place, name)):
            remove_file(os.path.join(place, name))
    prefix = _prefix(data["job_id"], data["replica"], data["attempt"])
    path = os.path.join(place, f"{prefix}{_short(data['name'])}.json")
    draft = f"{path}.{os.urandom(8).hex()}"  # several processes of a replica may register one name at once
    replace_file(draft, json.dumps(data).encode())
    os.replace(draft, path)


def read_endpoints(folder: str) -> list[dict[str, Any]]:
    """Return the endpoints whose attempts run, in the order in which they were registered."""
    found = [data for _, data in _files(os.path.join(folder, FOLDER)) if _lives(folder, data)]
    return sorted(found, key=lambda data: float(data["registered_at"]))


def clear_endpoints(folder: str, job_id: str, replica: int, attempt: int) -> None:
    """Forget the endpoints of an attempt that has ended."""
    place = os.path.join(folder, FOLDER)
    if not os.path.isdir(place):
        return
    prefix = _prefix(job_id, replica, attempt)
    for name in os.listdir(place):
        if name.startswith(prefix):
            remove_file(os.path.join(place, name))


def _prefix(job_id: str, replica: int, attempt: int) -> str:
    return f"{_short(job_id)}.{replica}.{attempt}."


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]


def _files(place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        names = os.listdir(place)
    except OSError:
        return
    for name in names:
        data = read_json(os.path.join(place, name)) if name.endswith(".json") else None
        if data is not None:
            yield name, data


def _is_left(draft: str) -> bool:
    """Whether a draft is of a process that was killed."""
    try:
        return os.stat(draft).st_mtime < time.time() - _DRAFTED_WITHIN
    except OSError:
        return False


def _lives(folder: str, data: dict[str, Any]) -> bool:
    """Whether the attempt that registered an endpoint runs, as far as anybody knows; no damaged one does."""
    from fray._values.endpoints import Endpoint  # not in a supervisor

    try:
        Endpoint.from_dict(data)
        return float(data["registered_at"]) >= 0 and _runs(folder, data)
    except (ArithmeticError, KeyError, TypeError, ValueError):
        return False


def _runs(folder: str, data: dict[str, Any]) -> bool:
    record = path_of_replica(record_of(folder, data["job_id"]), data["replica"])
    if liveness_of(os.path.join(record, LOCK)) in (Liveness.GONE, Liveness.NOT_STARTED):
        return False
    written = read_json(os.path.join(record, STATUS)) or {}
    task = next((each for each in written.get("tasks", ()) if each["replica"] == data["replica"]), None)
    if task is None:
        return False
    # The state of an attempt is written a moment after it has started: one that is ahead of it runs.
    ended = task["attempt"] == data["attempt"] and task["status"] != JobStatus.RUNNING and task["attempt"] > 0
    return task["attempt"] <= data["attempt"] and not ended
