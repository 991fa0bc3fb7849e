"""Iris's states of jobs, tasks and attempts, as Fray's states, reasons and exit codes.

Iris's side is the JSON form of its messages, with the names of its `job.proto`: nothing here needs Iris.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fray.cluster import ExitReason, JobId, JobInfo, JobStatus, TaskStatus
from fray_iris._ids import IrisTask
from fray_iris._reports import end_of, state_of

# Of a job that has ended; the others change.
ENDED_JOBS = {
    "JOB_STATE_SUCCEEDED": JobStatus.SUCCEEDED,
    "JOB_STATE_FAILED": JobStatus.FAILED,
    "JOB_STATE_KILLED": JobStatus.STOPPED,
    "JOB_STATE_WORKER_FAILED": JobStatus.FAILED,
    "JOB_STATE_UNSCHEDULABLE": JobStatus.FAILED,
}
_UNENDED_JOBS = frozenset(f"JOB_STATE_{word}" for word in ("UNSPECIFIED", "PENDING", "BUILDING", "RUNNING"))
_WAITING = frozenset({"TASK_STATE_PENDING", "TASK_STATE_ASSIGNED", "TASK_STATE_BUILDING"})
_BEGUN = frozenset({"", "TASK_STATE_UNSPECIFIED", "TASK_STATE_RUNNING"})
_LOST = frozenset({"TASK_STATE_WORKER_FAILED", "TASK_STATE_PREEMPTED"})
_SUCCEEDED = "TASK_STATE_SUCCEEDED"
_PEER = "Coscheduled sibling"  # how Iris begins the error of a task that it ended with another of its gang
_OWN_EXIT = "Exit code"  # how Iris begins the error of a container that ended by itself
_CONFIRMED_WITHIN = 45.0  # seconds after which an end is taken for one, though no worker has confirmed it
_BEGINS_WITHIN = 2.0  # seconds in which a worker that was given an attempt says that it has begun
_FIRST_SIGNAL = 128


class Ended(NamedTuple):
    """How an attempt ended."""

    status: JobStatus
    reason: ExitReason | None = None
    exit_code: int | None = None
    message: str | None = None


def how_it_ended(
    state: str, error: str, exit_code: int, report: Mapping[str, Any], *, over: bool = False
) -> Ended:
    """Translate the end of an attempt; the replica's own report wins over Iris's state.

    Args:
        over: Whether it has ended, by other words of Iris than its state, which a later Iris may have added.
    """
    ended = _as_iris_says(state, error, exit_code, over=over)
    told = ("TASK_STATE_FAILED", "TASK_STATE_KILLED")
    if not report or (state not in told and ended.reason is not ExitReason.LOST):
        return ended
    message = _text(report.get("message"))
    return _reported(report, message) or ended._replace(message=message or ended.message)


def _as_iris_says(state: str, error: str, exit_code: int, *, over: bool) -> Ended:
    if state == "TASK_STATE_SUCCEEDED":
        return Ended(JobStatus.SUCCEEDED, ExitReason.EXITED, 0)
    if state == "TASK_STATE_FAILED":
        return _failed(error, exit_code)
    if state == "TASK_STATE_COSCHED_FAILED":
        return Ended(JobStatus.STOPPED, ExitReason.STOPPED, None, error or "another of its gang failed")
    if state == "TASK_STATE_KILLED" or error.startswith(_PEER):
        return Ended(JobStatus.STOPPED, ExitReason.STOPPED, None, error or None)
    if state in ("TASK_STATE_WORKER_FAILED", "TASK_STATE_PREEMPTED"):
        return Ended(JobStatus.FAILED, ExitReason.PREEMPTED, None, error or "its worker was taken away")
    if state == "TASK_STATE_UNSCHEDULABLE":
        return Ended(JobStatus.FAILED, ExitReason.COULD_NOT_START, None, error or "no worker could run it")
    if over and state not in _WAITING | _BEGUN:
        unknown = f"it ended with Iris's state {state}, which this version of fray-iris does not know"
        return Ended(JobStatus.FAILED, ExitReason.LOST, None, f"{unknown}: {error}" if error else unknown)
    return Ended(JobStatus.PENDING if state in _WAITING else JobStatus.RUNNING)


def _reported(report: Mapping[str, Any], message: str | None) -> Ended | None:
    """Read a replica's own report; None if its reason is missing, or that of a later version of Fray."""
    try:
        reason = ExitReason(report.get("reason", ""))
    except ValueError:
        return None
    status = JobStatus.STOPPED if reason is ExitReason.STOPPED else JobStatus.FAILED
    code = report.get("exit_code")
    return Ended(status, reason, code if _is_int(code) else None, message)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _failed(error: str, exit_code: int) -> Ended:
    """Translate a failure of which the replica itself said nothing: it was killed, or never ran."""
    if "OOM" in error and "killed" in error and "possibly" not in error:
        return Ended(JobStatus.FAILED, ExitReason.OUT_OF_MEMORY, -9, error)
    if exit_code > _FIRST_SIGNAL:
        return Ended(JobStatus.FAILED, ExitReason.SIGNALLED, _FIRST_SIGNAL - exit_code, error)
    if exit_code < 0 and error.startswith(_OWN_EXIT):
        return Ended(JobStatus.FAILED, ExitReason.SIGNALLED, exit_code, error)
    if error.startswith(_OWN_EXIT):
        return Ended(JobStatus.FAILED, ExitReason.EXITED, exit_code, error)
    return Ended(JobStatus.FAILED, ExitReason.COULD_NOT_START, None, error or "it could not be started")


def task_status(task: Mapping[str, Any], *, over: bool = False) -> TaskStatus:
    """Translate a task with its attempts.

    Args:
        over: Whether its job has ended.
    """
    replica = IrisTask.parse(task["task_id"]).replica
    said = state_of(task.get("status_text_summary_md", ""))
    attempts = list(task.get("attempts", ()))
    earlier = [_attempt(replica, attempt, said, over=True) for attempt in attempts[:-1]]
    shown = [*earlier, *(_attempt(replica, attempt, said, over=over) for attempt in attempts[-1:])]
    if not shown:
        over = over or seconds_of(task.get("finished_at")) is not None
        code = int(task.get("exit_code", 0))
        ended = how_it_ended(task.get("state", ""), task.get("error", ""), code, {}, over=over)
        return TaskStatus(
            replica=replica, status=ended.status, reason=ended.reason, error_message=ended.message
        )
    *previous, latest = shown
    if task.get("state") in _WAITING and latest.status not in (JobStatus.PENDING, JobStatus.RUNNING):
        # Between two attempts: the replica waits for its next, and the last one is how it ended.
        return _with(latest, status=JobStatus.PENDING, previous=previous)
    return _with(latest, previous=previous)


def _attempt(replica: int, attempt: Mapping[str, Any], said: Mapping[str, Any], *, over: bool) -> TaskStatus:
    number = int(attempt.get("attempt_id", 0))
    of_this = said if said.get("attempt") == number else {}
    error = attempt.get("error", "")
    said_end = of_this.get("ended")
    report = end_of(error) or (said_end if isinstance(said_end, Mapping) else {})
    ports = of_this.get("ports")
    known_ports = ports.items() if isinstance(ports, Mapping) else ()
    finished_at, code = seconds_of(attempt.get("finished_at")), int(attempt.get("exit_code", 0))
    over = over or finished_at is not None
    ended = how_it_ended(attempt.get("state", ""), error, code, report, over=over)
    return TaskStatus(
        replica=replica,
        status=ended.status,
        attempt=number + 1,
        exit_code=ended.exit_code,
        reason=ended.reason,
        error_message=ended.message,
        started_at=seconds_of(attempt.get("started_at")),
        finished_at=finished_at,
        ports={name: port for name, port in known_ports if _is_int(port)},
    )


def _with(task: TaskStatus, **changes: Any) -> TaskStatus:
    return TaskStatus(**{name: getattr(task, name) for name in task.__dataclass_fields__} | changes)


def end_of_job(job: Mapping[str, Any]) -> JobStatus | None:
    """Return how a job ended; None while it has not.

    A state that a later Iris has added is one of a failure, where the job has a time of its end.
    """
    state = job.get("state") or "JOB_STATE_UNSPECIFIED"
    if state in ENDED_JOBS or state in _UNENDED_JOBS or seconds_of(job.get("finished_at")) is None:
        return ENDED_JOBS.get(state)
    return JobStatus.FAILED


def is_settled(job: Mapping[str, Any], tasks: Sequence[Mapping[str, Any]], now: float | None = None) -> bool:
    """Whether a job has ended, and its workers have confirmed the end of the latest attempts.

    Iris writes the end of a job down before its workers have ended the processes.
    """
    if end_of_job(job) is None:
        return False
    unconfirmed = [
        attempt
        for task in tasks
        for attempt in list(task.get("attempts", ()))[-1:]
        if attempt.get("worker_id")
        and seconds_of(attempt.get("finished_at")) is None
        and not _says_ended(task, attempt)
    ]
    finished = seconds_of(job.get("finished_at"))
    if not unconfirmed or finished is None:
        return not unconfirmed
    # One that its worker never began is confirmed by nobody, if it was ended before the worker received it.
    begun = any(seconds_of(attempt.get("started_at")) for attempt in unconfirmed)
    return (time.time() if now is None else now) - finished > (_CONFIRMED_WITHIN if begun else _BEGINS_WITHIN)


def _says_ended(task: Mapping[str, Any], attempt: Mapping[str, Any]) -> bool:
    """Whether the replica itself has said that it ended: workers do not report all ends."""
    said = state_of(task.get("status_text_summary_md", ""))
    return "ended" in said and said.get("attempt") == int(attempt.get("attempt_id", 0))


def _as_it_ended(job: Mapping[str, Any], tasks: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return a job with the state that its tasks give it by Iris's own rule.

    Of a gang that lost a worker and may not start again Iris ends the last tasks, and leaves the job running.
    """
    states = {task.get("state", "") for task in tasks}
    if end_of_job(job) is not None or not states & _LOST or not states <= _LOST | {_SUCCEEDED}:
        return job
    times = [attempt.get("finished_at") for task in tasks for attempt in task.get("attempts", ())]
    last = max(filter(seconds_of, times), key=lambda time_: seconds_of(time_) or 0.0, default=None)
    return {**job, "state": "JOB_STATE_WORKER_FAILED", "finished_at": last}


def attempts_that_said_their_end(tasks: Sequence[Mapping[str, Any]]) -> set[tuple[int, int]]:
    """Return the replicas and attempts (from 1) that said how they ended, of a job that Fray launched.

    That is the last line of their logs, and it comes, however late; others were killed, or never ran.
    """
    return {
        (IrisTask.parse(task["task_id"]).replica, int(attempt.get("attempt_id", 0)) + 1)
        for task in tasks
        for attempt in task.get("attempts", ())
        if attempt.get("state") == "TASK_STATE_SUCCEEDED" or end_of(attempt.get("error", ""))
    }


def job_info(
    job_id: JobId,
    job: Mapping[str, Any],
    tasks: Sequence[Mapping[str, Any]],
    about: Mapping[str, Any],
    now: float | None = None,
) -> JobInfo:
    """Translate a job.

    Args:
        about: What was noted of the request at its launch; nothing for jobs that Fray did not launch.
        now: Seconds since the epoch.
    """
    job = _as_it_ended(job, tasks)
    over = end_of_job(job) is not None
    shown = sorted((task_status(task, over=over) for task in tasks), key=lambda task: task.replica)
    status = _status(job, shown, settled=is_settled(job, tasks, now))
    pending = job.get("pending_reason") or "a worker" if status is JobStatus.PENDING else None
    started = [task.started_at for each in shown for task in (*each.previous, each) if task.started_at]
    return JobInfo(
        job_id=job_id,
        name=about.get("name") or job_id.leaf,
        status=status,
        tasks=tuple(shown),
        error_message=_message(job, shown) if status is JobStatus.FAILED else None,
        pending_reason=pending,
        submitted_at=about.get("submitted_at") or seconds_of(job.get("submitted_at")),
        started_at=seconds_of(job.get("started_at")) or min(started, default=None),
        finished_at=seconds_of(job.get("finished_at")) if status.finished else None,
        labels=about.get("labels", {}),
    )


def _status(job: Mapping[str, Any], tasks: Sequence[TaskStatus], *, settled: bool) -> JobStatus:
    end = end_of_job(job)
    if settled and end is not None:
        stopped = any(task.status is JobStatus.STOPPED for task in tasks)
        if stopped and not any(task.status is JobStatus.FAILED for task in tasks):
            return JobStatus.STOPPED  # what was asked to end ends with a code, and Iris calls that a failure
        return end
    begun = any(task.attempt > 1 or task.status is not JobStatus.PENDING for task in tasks)
    return JobStatus.RUNNING if begun or (end is not None and tasks) else JobStatus.PENDING


def _message(job: Mapping[str, Any], tasks: Sequence[TaskStatus]) -> str:
    """Why a job failed: its first replica that did, or what Iris says where none ran."""
    for task in tasks:
        if task.status is JobStatus.FAILED and task.error_message:
            message = task.error_message
            return message if message.startswith("replica ") else f"replica {task.replica}: {message}"
    return str(job.get("error") or f"Iris says {job.get('state')}, and no more")


def seconds_of(time_: Any) -> float | None:
    """Return a time of Iris, `{"epoch_ms": "1700000000000"}`, as seconds since the epoch."""
    if isinstance(time_, Mapping):
        found = int(time_.get("epoch_ms", 0))
        return found / 1000 if found else None
    return None
