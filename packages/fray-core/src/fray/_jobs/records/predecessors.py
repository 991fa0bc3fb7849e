"""The jobs that a job runs after, as its supervisor sees them: by their records, on whatever host they run.

A job that waits for another notes its own record in that job's; when the job ends, its guardian wakes those
that are noted there. Where no word can come (another host, a guardian that was killed) a look a second finds
it. Imports little, as a supervisor does.
"""

from __future__ import annotations

import os

from fray._jobs.records.control_pipe import WAKE, post_to_supervisor
from fray._jobs.records.files import CHILDREN, LOCK, PLAN
from fray._jobs.records.liveness import Liveness, liveness_of
from fray._jobs.records.replica_records import job_path
from fray._jobs.records.status_file import STATUS, load_json
from fray._values.job_words import JobStatus
from fray._values.light_tuples import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

WAITERS = "waiters"
_PHRASES: dict[str, str] = {JobStatus.FAILED: "failed", JobStatus.STOPPED: "was stopped"}
_AT_ONCE = 16  # jobs that have not ended and are looked at in one look


class Standing(NamedTuple):
    """What has become of the jobs that are waited for.

    Args:
        waits_for: Those that have not ended, as far as anybody knows.
        failure: Why what waits for them cannot start.
    """

    waits_for: tuple[str, ...]
    failure: str | None = None


def folder_of_records(record: str, job_id: str) -> str:
    """Return the folder in which the cluster of a record has its jobs."""
    record = job_path(record)
    for _ in range(2 * job_id.count("/") + 1):
        record = os.path.dirname(record)
    return record


def record_of(folder: str, job_id: str) -> str:
    """Return where the record of a job is."""
    return os.path.join(folder, f"/{CHILDREN}/".join(job_id.split("/")))


def look_at(folder: str, job_ids: Iterable[str]) -> Standing:
    """Look whether jobs have succeeded, at so many of them as it takes to know that one has to wait.

    The next look is to take what is left in the order that is returned.
    """
    unseen = list(job_ids)
    waits_for: list[str] = []
    while unseen and len(waits_for) < _AT_ONCE:
        job_id = unseen.pop(0)
        how = _ended(record_of(folder, job_id))
        if how is None:
            waits_for.append(job_id)
        elif how != JobStatus.SUCCEEDED:
            return Standing((), f"it was to run after job {job_id}, which {_PHRASES.get(how, how)}")
    return Standing((*unseen, *waits_for))


def has_ended(folder: str, job_id: str) -> bool:
    """Whether nothing more will become of a job."""
    return _ended(record_of(folder, job_id)) is not None


def note_waiter(folder: str, job_ids: Iterable[str], waiter: str) -> None:
    """Request a notification when these jobs end; where that cannot be written, the waiting job polls."""
    for job_id in job_ids:
        try:
            file = os.open(
                os.path.join(record_of(folder, job_id), WAITERS),
                os.O_WRONLY | os.O_APPEND | os.O_CREAT,
                0o600,
            )
        except OSError:  # the job is gone, or the disk is full or read-only
            continue
        try:
            os.write(file, os.fsencode(waiter) + b"\n")
        except OSError:
            continue
        finally:
            os.close(file)


def wake_waiters(record: str) -> None:
    """Give word to the supervisors of this host that wait for the end of a job."""
    try:
        with open(os.path.join(record, WAITERS), "rb") as file:
            waiters = file.read().split(b"\n")
    except OSError:  # nobody waits, as a rule
        return
    for waiter in waiters:
        if waiter:
            post_to_supervisor(os.fsdecode(waiter), WAKE)


def tell_of_end(record: str) -> None:
    """Give word of the end of a job to those that wait for it, and of a member to its sweep."""
    wake_waiters(record)
    name = os.path.basename(record)
    if name.isdecimal():
        post_to_supervisor(os.path.dirname(os.path.dirname(record)), f"member {name}")


def tell_of_start(record: str) -> None:
    """Give word to the sweep of a member that a replica has started."""
    name = os.path.basename(record)
    if name.isdecimal():
        post_to_supervisor(os.path.dirname(os.path.dirname(record)), f"running {name}")


def _ended(record: str) -> str | None:
    """How a job ended: "succeeded", or what to say of it; None for one that has not, as far as is known."""
    try:
        return _read_end(record)
    except OSError:  # it cannot be read now: the next look reads it
        return None


def _read_end(record: str) -> str | None:
    how = _written(record)
    if how is not None:
        return how
    gone = liveness_of(os.path.join(record, LOCK)) is Liveness.GONE
    if not gone or os.path.exists(os.path.join(record, PLAN)):  # where its plan is, it may be resumed
        return None
    # It may have ended between the two looks.
    return _written(record) or "was lost: its supervisor was killed before it was finished"


def _written(record: str) -> str | None:
    try:
        written = load_json(os.path.join(record, STATUS))
    except (FileNotFoundError, NotADirectoryError):
        written = None
    if written is None and not os.path.isdir(record):
        return "was removed before it was known to have succeeded"
    if written is None or written.get("status") not in tuple(JobStatus):
        return "has a record that cannot be read"
    status = JobStatus(written["status"])
    return f"{status}" if status.finished else None
