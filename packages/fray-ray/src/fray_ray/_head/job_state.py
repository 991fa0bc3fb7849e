"""How a job is doing, as its driver knows it: changed by replicas, told to Ray's table."""

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fray.cluster import ExitReason, JobId, JobInfo, JobStatus, TaskStatus
from fray_ray import _job_kv
from fray_ray._head.job_metrics import JobMetrics
from fray_ray._head.record import DriverRecord, HostRecord
from fray_ray._head.usage_file import UsageFile
from fray_ray._job_table import TableEntry, runs, state_metadata, stated
from fray_ray._packed_tasks import PackedTasks, pack
from fray_ray._plan import Plan

_STATUS_OF_EARLIER = {ExitReason.STOPPED: JobStatus.STOPPED}


@dataclass(frozen=True)
class Outcome:
    """How a job ended; what has not ended by itself ends for this reason."""

    status: JobStatus
    reason: ExitReason
    message: str | None

    def as_record(self) -> tuple[str, str, str | None]:
        """Return it as it is stored."""
        return str(self.status), str(self.reason), self.message

    @classmethod
    def from_record(cls, said: tuple[str, str, str | None]) -> "Outcome":
        """Return what was stored."""
        return cls(JobStatus(said[0]), ExitReason(said[1]), said[2])


class Progress:
    """The state of a job; safe to use from the threads of its replicas.

    Args:
        listed: Whether the job is in Ray's table, where its state is then written.
        earlier: How its replicas ended in its run before this one.
        log: Where the job's log is.
        usage: Where what its attempts use over time is written; None for nowhere.
        metrics: Told how the job does, again and again.
        record: What a driver that was killed knew; this one goes on from there.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        listed: bool = True,
        earlier: tuple[TaskStatus, ...] = (),
        log: str | None = None,
        usage: str | None = None,
        metrics: JobMetrics | None = None,
        record: DriverRecord | None = None,
    ) -> None:
        fresh = tuple(TaskStatus(replica=number) for number in range(plan.replicas))
        tasks = tuple(map(_as_pending, earlier)) or fresh
        self._info = JobInfo(
            job_id=JobId(plan.job_id),
            name=plan.name,
            status=JobStatus.PENDING,
            tasks=tasks,
            submitted_at=plan.submitted_at,
            logs=() if log is None else (log,),
        )
        self._usage, self._metrics = UsageFile(usage), metrics
        self.record = record or DriverRecord()
        self._entry = TableEntry(plan.submission) if listed else None
        self._kept_as = _job_kv.state_name(plan.submission) if listed else None
        self._storing = threading.Lock()
        self._version = self._stored = 0  # of what another driver needs to go on
        self._beyond: tuple[TaskStatus, ...] = ()
        self._changed = threading.Condition()
        self._unpublished = False
        self._began: dict[int, float] = {}  # replica -> when its attempt did; of those that run
        if record is not None and record.state:
            self._take_up(record)

    def _take_up(self, record: DriverRecord) -> None:
        """Go on with what a driver that was killed knew."""
        self._info = stated(record.state)
        if self._entry is not None:
            self._info = replace(self._info, tasks=self._entry.with_earlier(self._info.tasks))
        self._beyond = PackedTasks(record.beyond).unpacked() if record.beyond else ()
        for task in self._info.tasks:
            if task.status is JobStatus.RUNNING and task.started_at is not None:
                self._began[task.replica] = time.monotonic() - max(0.0, time.time() - task.started_at)
        self._unpublished = True

    @property
    def kept(self) -> bool:
        """Whether another driver goes on with the job where this one is killed."""
        return self._kept_as is not None

    @contextlib.contextmanager
    def recording(self) -> Iterator[DriverRecord]:
        """Change what another driver needs to go on; it is stored, with all else, before this ends."""
        with self._changed:
            yield self.record
            self._version += 1
            wanted = self._version
        if self._kept_as is None:
            return
        with self._storing:
            if self._stored >= wanted:  # together with a later change
                return
            with self._changed:
                version = self._version
                self.record.state = state_metadata(self._info)
                self.record.beyond = pack(self._beyond) if self._beyond else ""
                data = self.record.to_json()
            _job_kv.keep(self._kept_as, data)
            self._stored = version

    def forget_host(self, replica: int) -> HostRecord | None:
        """Take the actor of a replica out of what another driver needs; return what was known of it."""
        with self._changed:
            return self.record.hosts.pop(replica, None)

    def change(self, replica: int, **fields: Any) -> TaskStatus:
        """Change the state of a replica, and the job's with it; return the new one."""
        with self._changed:
            tasks = list(self._info.tasks)
            task = tasks[replica] = replace(tasks[replica], **fields)
            self._info = replace(self._info, tasks=tuple(tasks))
            if task.status is JobStatus.RUNNING:
                self._info = replace(self._info, pending_reason=None)
                if self._info.status is JobStatus.PENDING:
                    self._info = replace(self._info, status=JobStatus.RUNNING, started_at=time.time())
            if task.status is JobStatus.FAILED and self.record.first_failure is None:
                self.record.first_failure = task.error_message
            if task.status is not JobStatus.RUNNING:
                self._began.pop(replica, None)
            self._unpublished = True
            self._changed.notify_all()
            return task

    def begin(self, replica: int, attempt: int | None = None) -> int:
        """Note that an attempt starts, and return its number: the next, where none is given."""
        before = self._info.tasks[replica]
        number = before.attempt + 1 if attempt is None else attempt
        self.change(
            replica,
            status=JobStatus.RUNNING,
            attempt=number,
            exit_code=None,
            reason=None,
            error_message=None,
            started_at=time.time(),
            finished_at=None,
            peak_memory=None,
            cpu_time=None,
            ports={},
            previous=_attempts_of(before),
        )
        with self._changed:
            self._began[replica] = time.monotonic()
        return number

    def end(
        self,
        replica: int,
        status: JobStatus,
        reason: ExitReason,
        exit_code: int | None,
        message: str | None,
        *,
        again: bool,
        used: tuple[int | None, float | None] = (None, None),
    ) -> None:
        """Note that an attempt has ended; how it did stays to be seen until the next one starts."""
        before = self._info.tasks[replica]
        waited = before.status is JobStatus.PENDING and before.attempt and not again
        self.change(
            replica,
            status=JobStatus.PENDING if again else status,
            reason=reason,
            exit_code=exit_code,
            error_message=message,
            finished_at=time.time(),
            peak_memory=used[0],
            cpu_time=used[1],
            **(_next_of(before) if waited else {}),
        )

    def ports(self, replica: int, ports: dict[str, int]) -> None:
        """Note the ports of an attempt that starts."""
        self.change(replica, ports=ports)

    def used(self, replica: int, samples: str) -> None:
        """Note what the attempt of a replica that runs has used until now, all of it."""
        self._usage.take(replica, self._info.tasks[replica].attempt, samples)

    def add_endpoint(self, endpoint: dict[str, Any]) -> None:
        """Note an endpoint that a replica has registered; it replaces one of that name that it had."""
        with self.recording() as record:
            same = ("name", "replica")
            others = [one for one in record.endpoints if any(one[key] != endpoint[key] for key in same)]
            record.endpoints = [*others, endpoint]
            self._unpublished = True

    @property
    def tasks(self) -> tuple[TaskStatus, ...]:
        """The state of each replica."""
        return self._info.tasks

    @property
    def info(self) -> JobInfo:
        """The state of the job."""
        return self._info

    def resize(self, replicas: int) -> None:
        """Have so many replicas from now on; those left out keep their past, should they return."""
        with self._changed:
            tasks = (*self._info.tasks, *self._beyond)
            self._info, self._beyond = replace(self._info, tasks=tasks[:replicas]), tasks[replicas:]
            self._unpublished = True

    def longest_attempt(self) -> float:
        """Return for how many seconds the oldest of the attempts that run has run; 0 where none does."""
        with self._changed:
            now = time.monotonic()
            return max((now - since for since in self._began.values()), default=0.0)

    def count_preemption(self) -> int:
        """Return how many preemptions the job has had, with this one."""
        with self._changed:
            self.record.preemptions += 1
            return self.record.preemptions

    def wait_for(self, reason: str) -> None:
        """Say what the job waits for before it runs."""
        with self._changed:
            if self._info.pending_reason != reason:
                self._info = replace(self._info, pending_reason=reason)
                self._unpublished = True

    def publish(self, seconds: float) -> None:
        """Wait for changes, at most so long, and write them into the table."""
        self._usage.write()
        if self._metrics is not None:
            self._metrics.look(self._info, self._usage.latest)
        with self._changed:
            if not self._unpublished:
                self._changed.wait(seconds)
            if not self._unpublished:
                return
            self._unpublished, info = False, self._info
            endpoints = [one for one in self.record.endpoints if runs(info, one["replica"], one["attempt"])]
            self.record.endpoints = endpoints
        if self._entry is not None:
            self._entry.write(info, endpoints=endpoints)

    def outcome(self) -> Outcome:
        """Return how the job ended by how its replicas did."""
        failed = [task for task in self._info.tasks if task.status is not JobStatus.SUCCEEDED]
        if not failed:
            return Outcome(JobStatus.SUCCEEDED, ExitReason.EXITED, None)
        others = (
            f"\n({len(failed) - 1} more of {len(self._info.tasks)} replicas failed)"
            if len(failed) > 1
            else ""
        )
        return Outcome(
            JobStatus.FAILED, failed[0].reason or ExitReason.LOST, f"{self.record.first_failure}{others}"
        )

    def finish(self, outcome: Outcome, kept: Mapping[str, Any] | None = None) -> None:
        """Write the last word: replicas that have not ended do so as the job does.

        Args:
            kept: What a retry needs to know; None where the job cannot be run again.
        """
        self._usage.write(last=True)
        if self._metrics is not None:
            self._metrics.end()
        now = time.time()
        with self._changed:
            tasks = tuple(
                task if task.status.finished else _finished(task, outcome, now) for task in self._info.tasks
            )
            self._info = replace(
                self._info,
                status=outcome.status,
                tasks=tasks,
                pending_reason=None,
                error_message=outcome.message,
                finished_at=now,
            )
        if self._entry is not None:
            self._entry.write(self._info, endpoints=[], kept=kept)


def _as_pending(task: TaskStatus) -> TaskStatus:
    """Return a replica as it waits for another run; one that has succeeded has done its part."""
    if task.status is JobStatus.SUCCEEDED:
        return task
    return replace(task, status=JobStatus.PENDING, reason=task.reason if task.attempt else None)


def _attempts_of(task: TaskStatus) -> tuple[TaskStatus, ...]:
    """Return the attempts of a replica that were, the latest of which has ended."""
    if not task.attempt:
        return task.previous
    status = _STATUS_OF_EARLIER.get(task.reason or ExitReason.LOST, JobStatus.FAILED)
    good = task.reason is ExitReason.EXITED and task.exit_code == 0
    return (*task.previous, replace(task, status=JobStatus.SUCCEEDED if good else status, previous=()))


def _next_of(task: TaskStatus) -> dict[str, Any]:
    """Return the fields of an attempt that never started, after those that a replica had."""
    return {
        "attempt": task.attempt + 1,
        "started_at": None,
        "ports": {},
        "previous": _attempts_of(task),
    }


def _finished(task: TaskStatus, outcome: Outcome, now: float) -> TaskStatus:
    """Return how a replica ends with its job: in its attempt, or before it could have another."""
    waits = task.status is JobStatus.PENDING
    if waits and task.attempt:
        task = TaskStatus(replica=task.replica, attempt=task.attempt + 1, previous=_attempts_of(task))
    return replace(
        task,
        status=outcome.status,
        reason=outcome.reason,
        error_message=outcome.message,
        finished_at=None if waits else now,
    )
