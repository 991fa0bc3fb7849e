"""Make the record of a job that has ended as it was before its start, but for its earlier attempts."""

import contextlib
import os
import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from fray._jobs.plans.plan import JobPlan
from fray._jobs.plans.sweep_plan import TURN, SweepPlan
from fray._jobs.records.control_pipe import STOP
from fray._jobs.records.files import LOCK, ON_EXIT, PLAN, SWEEP
from fray._jobs.records.kept_plans import kept_plan, restored
from fray._jobs.records.liveness import SupervisorLock
from fray._jobs.records.on_exit import DONE
from fray._jobs.records.packed_plans import packed_plan
from fray._jobs.records.record import JobRecord
from fray._jobs.records.settling import lock_when_free, progress_of, settle_by_members
from fray._jobs.records.status_file import replace_file, reserve_room, write_status
from fray._jobs.supervisor.stopping import settle_stopped
from fray._values.delays import poll_delays, poll_until
from fray._values.errors import ClusterUnavailableError, UnsupportedError
from fray._values.job_states import JobInfo, JobStatus

T = TypeVar("T")

_PATIENCE = 10.0  # seconds in which a supervisor that has written the final status goes
_GOES_WITHIN = 2.0  # seconds in which one goes that gets no plan


def check_retry(info: JobInfo) -> None:
    """Refuse what is not to be run again.

    Raises:
        ValueError: It has not ended, or it has succeeded.
    """
    if not info.finished:
        raise ValueError(f"job {info.job_id} is {info.status}: it can be run again when it has ended")
    if info.status is JobStatus.SUCCEEDED:
        raise ValueError(f"job {info.job_id} has succeeded: there is nothing to run again")


def locked_as_judged(record: JobRecord, judge: Callable[[JobInfo], T]) -> tuple[SupervisorLock, JobInfo, T]:
    """Take the lock of a job that has ended, once its supervisor is gone.

    Returned with it are how the job ended and what `judge` returned, as they are under the lock: another
    call may run the job again until then.

    Args:
        judge: Called with how the job ended; raises where it is not to be run again.

    Raises:
        ClusterUnavailableError: The supervisor does not go.
    """
    deadline = time.monotonic() + _PATIENCE
    for pause in poll_delays(longest=0.05):
        written = record.written()
        info = record.info(written)
        judged = judge(info)
        lock = SupervisorLock.acquire(os.path.join(record.path, LOCK))
        if lock is not None:
            if record.written() == written:
                return lock, info, judged
            lock.close()
        elif time.monotonic() > deadline:
            raise _still_runs(record)
        time.sleep(pause)
    raise AssertionError("the pauses do not end")


def members_to_retry(
    sweep: JobRecord, info: JobInfo, member: JobRecord | None
) -> list[tuple[JobRecord, JobInfo]]:
    """Return the members of a sweep that did not succeed, and how each ended.

    Args:
        info: How the sweep ended.
        member: The one that is to run again; None for all.

    Raises:
        ValueError: There is nothing to run again, or not yet.
    """
    if member is None:
        check_retry(info)
    else:
        check_retry(member.info())
        if not info.finished:
            raise ValueError(
                f"job {member.job_id} is of sweep {info.job_id}, which has not ended: retry it then"
            )
    infos = [(each, each.info()) for each in sweep.children() if member is None or each.path == member.path]
    return [(each, info) for each, info in infos if info.status in (JobStatus.FAILED, JobStatus.STOPPED)]


def taken_lock(record: JobRecord) -> SupervisorLock:
    """Take the lock of a member or a replica that has ended, as soon as its supervisor is gone.

    Raises:
        ClusterUnavailableError: It does not go.
    """
    lock = lock_when_free(record, _PATIENCE)
    if lock is None:
        raise _still_runs(record)
    return lock


def _still_runs(record: JobRecord) -> ClusterUnavailableError:
    return ClusterUnavailableError(
        f"the supervisor of job {record.job_id} still runs, though the job has ended; try again later"
    )


@contextlib.contextmanager
def undone_if_not_started(lock: SupervisorLock, ended: list[tuple[JobRecord, JobInfo]]) -> Iterator[None]:
    """Let jobs read as they had ended, and be run again, where an error keeps them from being started.

    Args:
        lock: The lock that their caller holds.
        ended: The jobs and how each had ended, the parts of a job before it.
    """
    try:
        yield
    except BaseException:
        lock.close()
        until = time.monotonic() + _GOES_WITHIN
        for record, info in ended:
            _undo(record, info, until - time.monotonic())
        raise


def _undo(record: JobRecord, info: JobInfo, patience: float) -> None:
    if record.replicas():
        settle_by_members(record)  # unless some of them were started
        return
    # A supervisor that comes up and gets no plan holds the lock for a moment.
    poll_until(lambda: settle_stopped(record, end=info) or None, patience)


def reset(record: JobRecord, info: JobInfo) -> None:
    """Let a job read pending, with its earlier attempts; its caller holds the lock.

    Args:
        info: How it ended. Of one that was lost the record does not say so.
    """
    path = os.fspath(record.path)
    reserve_room(path, max(1, len(info.tasks)))
    (record.path / STOP).unlink(missing_ok=True)
    if (record.path / DONE).exists():  # each end of the job is reported
        (record.path / DONE).rename(record.path / ON_EXIT)
    tasks = tuple(
        task
        if task.status is JobStatus.SUCCEEDED
        else replace(task, status=JobStatus.PENDING, reason=task.reason if task.attempt else None)
        for task in info.tasks
    )
    pending = replace(
        info,
        status=JobStatus.PENDING,
        tasks=tasks,
        error_message=None,
        pending_reason=info.pending_reason or "starting",
        started_at=None,
        finished_at=None,
        warnings=(),
    )
    if not write_status(path, pending.to_dict(), final=False):
        raise OSError(f"the status of {record.job_id} cannot be written: the disk is full or read-only")


def reset_members(ended: list[tuple[JobRecord, JobInfo]]) -> None:
    """Let members read pending, as they were before a supervisor was started for them."""
    for record, info in ended:
        _reset_part(record, replace(info, pending_reason=TURN), _kept(record))  # no file has its secrets


def replicas_to_retry(record: JobRecord) -> list[tuple[JobRecord, JobInfo]]:
    """Return the replicas with a supervisor each that did not succeed, and how each ended."""
    infos = [(each, each.info()) for each in record.replicas()]
    return [(each, own) for each, own in infos if own.status is not JobStatus.SUCCEEDED]


def reset_replicas(ended: list[tuple[JobRecord, JobInfo]], plans: list[JobPlan]) -> None:
    """Let replicas that have a supervisor each read pending, with what it takes to run them again."""
    for (record, info), plan in zip(ended, plans, strict=True):
        _reset_part(record, info, plan)


def _reset_part(record: JobRecord, info: JobInfo, plan: JobPlan) -> None:
    lock = taken_lock(record)
    try:
        replace_file(os.fspath(record.path / PLAN), packed_plan(numbered(plan, info)))
        reset(record, info)
        lock.reserve()
    finally:
        lock.close()


def plan_to_run(record: JobRecord) -> JobPlan:
    """Return the plan that was kept of a job, with what was withheld.

    It stays in the record, so that the job can be run again where nobody starts it now. Its supervisor
    drops it when the job has succeeded.

    Raises:
        UnsupportedError: None was kept.
        ValueError: A variable that is in no file is not in the environment.
    """
    return restored(_kept(record), os.environ)


def _kept(record: JobRecord) -> JobPlan:
    plan = kept_plan(os.fspath(record.path))
    if plan is None:
        raise UnsupportedError(
            f"job {record.job_id} cannot be run again: its record has no plan. A supervisor keeps it when "
            "its job fails or is stopped, but not when the supervisor is killed; launch it as a new job"
        )
    return plan


def numbered(plan: JobPlan, info: JobInfo) -> JobPlan:
    """Return the plan of a job that runs again, with the number of attempts that it had."""
    return plan._replace(attempts_before=tuple(task.attempt for task in info.tasks))


def reset_sweep(record: JobRecord) -> SweepPlan:
    """Let a sweep read pending, and return the plan by which its coordinator continues; the lock is held."""
    path = os.fspath(record.path)
    plan: SweepPlan = pickle.loads(Path(path, SWEEP).read_bytes())
    plan = plan._replace(resumed=True)
    reserve_room(path, 1)
    (record.path / STOP).unlink(missing_ok=True)
    write_status(path, {**plan.described, "progress": progress_of(record)}, final=False)
    return plan
