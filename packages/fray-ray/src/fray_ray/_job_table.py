"""Jobs in Ray's own job table: their identity at submission, and their state from then on.

The state is in the metadata of the job's entry, so that all readers of the table (another process,
`ray job list`, the dashboard) see the same. The scheduler is the only one that writes there
between Ray's own note that it runs and Ray's own note that it ended. Each run of a job that is retried
has an entry of its own; a member of a sweep has one as soon as it is started. Ray answers a list with
all metadata of all entries, so an entry is small, however many replicas and attempts there are.
"""

import getpass
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fray.backend import defer_tasks, with_request
from fray.cluster import Endpoint, ExitReason, JobId, JobInfo, JobStatus, TaskStatus
from fray_ray import _job_kv
from fray_ray._attempts_file import AttemptsFile, earlier_attempts
from fray_ray._entry_text import from_text, to_text
from fray_ray._log_names import attempts_name
from fray_ray._packed_tasks import PackedTasks, pack, shortened
from fray_ray._queued_job import metadata_of
from fray_ray._ray_internals.kv import table_entry, write_table_entry
from fray_ray._ray_internals.processes import log_folder
from fray_ray._reading import (
    UNREADABLE,
    check_values,
    checked,
    count_in,
    number_in,
    waiting_replicas,
)
from fray_ray._sweep_entry import COUNT, MEMBERS, count_of_members, is_of_a_sweep

_ID, _NAME, _OWNER, _REPLICAS, _INFO = (
    f"fray.{name}" for name in ("job_id", "name", "owner", "replicas", "info")
)
_TASKS, _EARLIER = "fray.tasks", "fray.earlier"
_ABOUT, _TRIES, KEY, ENDPOINTS, KEPT = (
    f"fray.{name}" for name in ("about", "tries", "key", "endpoints", "kept")
)
WAITS = "fray.waits"
"""In an entry that the scheduler wrote: Ray has not been given the job yet, and it has not ended."""
STARTS = ".starting"
"""Follows the submission, for the entry of a job that has waited, while Ray makes an entry of its own."""
SINCE = "fray.since"
"""In an entry of Ray's own: when that of the job as one that waited was made, in milliseconds."""
_LARGEST = 100_000  # bytes of metadata in JSON: Ray passes them on in one variable, and Linux takes 128 KiB
_PARENTS = "~"  # stands for the slashes of an id, which no URL takes
# SUCCEEDED: the process ended well without a final state from the scheduler, so the job was not carried to
# its end.
_ENDED = {"FAILED": JobStatus.FAILED, "STOPPED": JobStatus.STOPPED, "SUCCEEDED": JobStatus.FAILED}
TERMINAL = frozenset(_ENDED)
PENDING = "PENDING"


@dataclass(frozen=True, kw_only=True)
class JobEntry:
    """An entry of Ray's job table, read as input from outside: what is not as it should be is left out.

    Args:
        status: Ray's own status of the job; empty where there is none.
        start_time: In milliseconds, as `end_time`.
        node: That of its process; empty while it has none.
    """

    submission: str
    status: str
    metadata: Mapping[str, str]
    message: str
    start_time: int | None
    end_time: int | None
    runtime_env: Mapping[str, Any]
    node: str = ""

    @property
    def waits(self) -> bool:
        """Whether it is that of a job that waits, and not Ray's own: see `is_waiting`."""
        return WAITS in self.metadata

    @classmethod
    def of(cls, data: Any) -> "JobEntry":
        """Read Ray's entry of a job: over HTTP, or in the head's store.

        One that waits is pending, whatever Ray says: a head that was started again takes it for its own,
        and for failed when it has waited for 15 minutes.
        """
        said = data if isinstance(data, dict) else {}
        metadata, environment = said.get("metadata"), said.get("runtime_env")
        pairs = metadata.items() if isinstance(metadata, dict) else ()
        return cls(
            submission=_text(said.get("submission_id")).removesuffix(STARTS),
            status=PENDING if is_waiting(said) else _text(said.get("status")),
            metadata={key: value for key, value in pairs if isinstance(value, str)},
            message=_text(said.get("message")),
            start_time=count_in(said.get("start_time")),
            end_time=count_in(said.get("end_time")),
            runtime_env=environment if isinstance(environment, dict) else {},
            node=_text(said.get("driver_node_id")),
        )


def is_waiting(entry: Mapping[str, Any]) -> bool:
    """Whether an entry of Ray's table is that of a job that waits, and not Ray's own."""
    metadata = entry.get("metadata")
    return isinstance(metadata, dict) and WAITS in metadata


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def submission_of(job_id: str, tries: int = 1) -> str:
    """Return the id that Ray knows a run of a job by: the job's, with `~` between it and its parents."""
    again = "" if tries == 1 else f"-r{tries}"
    return job_id.replace("/", _PARENTS) + again


def describe(
    job_id: JobId,
    name: str,
    replicas: int,
    about: Mapping[str, Any],
    *,
    tries: int = 1,
    key: str | None = None,
) -> dict[str, str]:
    """Return the metadata that a job is submitted with.

    Args:
        about: What may be shown of its request.
        key: Of its launch.
    """
    own = {_ID: str(job_id), _NAME: name, _OWNER: _user(), _REPLICAS: str(replicas), _TRIES: str(tries)}
    described = own | {_ABOUT: to_text(about)} | ({} if key is None else {KEY: key})
    size = len(json.dumps(described))
    if size > _LARGEST:
        raise ValueError(
            f"job {name!r}: what Ray's job table would hold of it (labels, names of variables and "
            f"packages, and the jobs that it runs after) is {size} bytes, and Ray takes {_LARGEST}"
        )
    return described


def again(metadata: Mapping[str, str], tries: int) -> dict[str, str]:
    """Return the metadata of another run of a job."""
    names = (_ID, _NAME, _OWNER, _REPLICAS, _ABOUT, KEY, COUNT, MEMBERS)
    return {name: metadata[name] for name in names if name in metadata} | {_TRIES: str(tries)}


def key_of(key: str, parent: str | None) -> str:
    """Return what stands for the key of a launch; those of a job are its own."""
    return hashlib.sha256(f"{parent or ''}\0{key}".encode()).hexdigest()


def keyed_job(metadata: Any) -> tuple[str, str] | None:
    """Return the key of a job's launch, and what Ray calls its first run; None where it has no key."""
    said = metadata if isinstance(metadata, Mapping) else {}
    key, job_id = said.get(KEY), said.get(_ID)
    return (key, submission_of(job_id)) if isinstance(key, str) and isinstance(job_id, str) else None


def runs(info: JobInfo, replica: int, attempt: int) -> bool:
    """Whether an attempt of a replica runs."""
    tasks = [task for task in info.tasks if task.replica == replica and task.attempt == attempt]
    return any(task.status is JobStatus.RUNNING for task in tasks)


def taken_at(entry: JobEntry) -> int:
    """Return since when Ray's table has a job: in milliseconds, by the clock of the head alone."""
    return number_in(entry.metadata.get(SINCE, ""), entry.start_time or 0)


def commit_in(metadata: Mapping[str, str]) -> str | None:
    """Return the commit of the workspace of a job when it was launched, where that is known."""
    try:
        commit = from_text(metadata.get(_ABOUT, "{}")).get("commit")
    except UNREADABLE:
        return None
    return commit if isinstance(commit, str) else None


def tries_of(entry: JobEntry) -> int:
    """Return which run of its job an entry is: 1 for the first run, 2 for its first retry."""
    return number_in(entry.metadata.get(_TRIES, "1"), 1)


def read(entry: JobEntry) -> JobInfo | None:
    """Return the state of a job by its entry; None for a job that Fray did not launch."""
    metadata = entry.metadata
    if _ID not in metadata:
        return None
    status = entry.status
    try:
        info = _written(metadata) if _INFO in metadata else _before_the_process(entry)
        info = _with_tasks(checked(with_request(info, from_text(metadata.get(_ABOUT, "{}")))), metadata)
        if info.finished or status not in _ENDED:
            return info
        return _after_the_process(info, _ENDED[status], entry)
    except UNREADABLE as error:
        return unreadable(metadata[_ID], status, error)


def earlier_in(entry: JobEntry) -> int:
    """Return how many earlier attempts a job has had, whether its entry holds them or not."""
    return number_in(entry.metadata.get(_EARLIER, "0"), 0)


def endpoints_in(entry: JobEntry) -> list[tuple[Endpoint, str | None]]:
    """Return the endpoints that replicas have registered, each with its family; none that cannot be read."""
    try:
        said = from_text(entry.metadata.get(ENDPOINTS, "[]"))
        found = [(Endpoint.from_dict(each), each.get("family")) for each in said]
        check_values("registered_at", (endpoint.registered_at for endpoint, _ in found), float)
    except UNREADABLE:
        return []
    return found


def kept_in(entry: JobEntry) -> Mapping[str, Any] | None:
    """Return what another run of a job needs; None where it is not kept, or cannot be read."""
    try:
        kept = from_text(entry.metadata.get(KEPT, "null"))
        if kept is None:
            return None
        check_values("withheld", kept["withheld"], str)
        return {"withheld": list(kept["withheld"]), "runtime_env": dict(kept["runtime_env"])}
    except UNREADABLE:
        return None


def _written(metadata: Mapping[str, str]) -> JobInfo:
    """Return what the scheduler wrote of a job; the replicas only where an earlier version wrote it."""
    return JobInfo.from_dict({"tasks": (), **from_text(metadata[_INFO])})


def _with_tasks(info: JobInfo, metadata: Mapping[str, str]) -> JobInfo:
    return defer_tasks(info, PackedTasks(metadata[_TASKS]).unpacked) if _TASKS in metadata else info


def stored_entry(submission: str) -> JobEntry | None:
    """Return an entry, inside the cluster; None where there is no such job.

    A queued job has none until it has waited a moment, and none while Ray makes its own: then this says that
    it is pending.
    """
    entry = table_entry(submission)
    if entry is None:
        metadata = metadata_of(_job_kv.fetch(_job_kv.queued_name(submission)))
        if metadata is None:
            return None
        entry = {"status": PENDING, "metadata": metadata}
    return JobEntry.of({**entry, "submission_id": submission})


def end_written(submission: str) -> JobStatus | None:
    """Return how a job ended where its entry says so, inside the cluster."""
    entry = stored_entry(submission)
    info = None if entry is None else read(entry)
    return info.status if info is not None and info.finished else None


def is_lost(entry: JobEntry) -> bool:
    """Whether a job has ended for Ray, without the final state from a scheduler that had begun."""
    if entry.status not in TERMINAL or _INFO not in entry.metadata:
        return False
    try:
        return not _written(entry.metadata).finished
    except UNREADABLE:  # `read` says that it cannot be read
        return False


def is_settled(entry: JobEntry) -> bool:
    """Whether the scheduler has written how a job has ended, and what another run of it needs."""
    return KEPT in entry.metadata


class TableEntry:
    """The entry of one job, as the scheduler keeps it.

    Args:
        described: What the job was submitted with: Ray's own entry may have a part of it.
    """

    def __init__(self, submission: str, described: Mapping[str, str] | None = None) -> None:
        self._submission, self._described = submission, described or {}
        self._attempts = AttemptsFile(lambda: f"{log_folder()}/{attempts_name(submission)}")

    def with_earlier(self, tasks: tuple[TaskStatus, ...]) -> tuple[TaskStatus, ...]:
        """Return replicas with those earlier attempts that were written beside the log only."""
        return self._attempts.read_into(tasks)

    def write(self, info: JobInfo, **beside: Any) -> None:
        """Replace the state, and what there is beside it (`endpoints=`, `unstarted=`), fit for JSON."""
        entry = table_entry(self._submission)
        if entry is None:  # the job was removed while it ran
            return
        self._attempts.note(info.tasks)
        more = {f"fray.{name}": to_text(value) for name, value in beside.items()}
        if is_waiting(entry):
            entry["status"] = PENDING  # see `JobEntry.of`
        before = {**self._described, **(entry.get("metadata") or {})}
        entry["metadata"] = {**before, **state_metadata(info), **more}
        write_table_entry(self._submission, entry)


def state_metadata(info: JobInfo) -> dict[str, str]:
    """Return the metadata that holds a job's state, small however many replicas and attempts it has."""
    own = replace(info, tasks=(), error_message=shortened(info.error_message)).to_dict()
    stated = {name: value for name, value in own.items() if value not in (None, []) and name != "tasks"}
    earlier = str(earlier_attempts(info.tasks))
    return {_INFO: to_text(stated), _TASKS: pack(info.tasks), _EARLIER: earlier}


def unreadable(job_id: str, status: str, error: Exception) -> JobInfo:
    """Return a row for an entry that holds no readable state: Ray's own status of the job is all there is."""
    known = {**_ENDED, "SUCCEEDED": JobStatus.SUCCEEDED, PENDING: JobStatus.PENDING}
    return JobInfo(
        job_id=JobId(job_id),
        name=job_id,
        status=known.get(status, JobStatus.RUNNING),
        tasks=(),
        error_message=f"the job's entry in Ray's job table cannot be read: {error!r}",
    )


def _before_the_process(entry: JobEntry) -> JobInfo:
    metadata = entry.metadata
    members = count_of_members(metadata) if is_of_a_sweep(metadata) else None
    return JobInfo(
        job_id=JobId(metadata[_ID]),
        name=metadata[_NAME],
        status=JobStatus.PENDING,
        tasks=waiting_replicas(number_in(metadata[_REPLICAS], -1)),
        pending_reason="its process on the head is starting",
        submitted_at=_seconds(taken_at(entry)),  # Ray's own entry is younger than a job that has waited
        progress=None if members is None else {str(JobStatus.PENDING): members},
    )


def process_ended(entry: JobEntry) -> str:
    """Return the message of a job whose process has ended while the job had not."""
    return f"the process of the job on the head ended: {entry.message}"


def _after_the_process(info: JobInfo, status: JobStatus, entry: JobEntry) -> JobInfo:
    """Settle a job whose process ended without a final state: stopped through Ray, or lost."""
    ended = _seconds(entry.end_time)
    started = info.status is JobStatus.RUNNING
    reason = ExitReason.LOST if started else ExitReason.COULD_NOT_START
    if status is JobStatus.STOPPED:
        reason = ExitReason.STOPPED
    message = None if status is JobStatus.STOPPED else process_ended(entry)
    return replace(
        info,
        status=status,
        tasks=tuple(
            task if task.status.finished else replace(task, status=status, reason=reason, finished_at=ended)
            for task in info.tasks
        ),
        error_message=message,
        pending_reason=None,
        finished_at=ended,
    )


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without a user database
        return "unknown"
