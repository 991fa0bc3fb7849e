"""What is known of a job: kept in the head's store for another scheduler, and shown in Ray's table."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fray.backend import ReplicaState, Supervision
from fray.cluster import ExitReason, JobId, JobInfo, JobStatus, TaskStatus
from fray_ray import _job_kv
from fray_ray._head.job_metrics import JobMetrics
from fray_ray._head.record import JobRecord
from fray_ray._head.usage_file import UsageFile
from fray_ray._job_table import TableEntry, runs
from fray_ray._plan import Plan

_BETWEEN = 0.1  # seconds between two times that the entry is written
_LOST = JobStatus.FAILED, ExitReason.LOST, "the job was not carried to its end"


class JobBoard:
    """The state of one job, as its scheduler knows it.

    Args:
        listed: Whether the job is in Ray's table, and goes on under another scheduler.
        log: Where the job's log is.
        usage: Where what its attempts use over time is written; None for nowhere.
        metrics: Shown how the job does, again and again.
    """

    def __init__(
        self,
        plan: Plan,
        record: JobRecord,
        *,
        listed: bool = True,
        log: str | None = None,
        usage: str | None = None,
        metrics: JobMetrics | None = None,
    ) -> None:
        self.record = record
        self.usage = UsageFile(usage)
        self._metrics = metrics
        self._entry = TableEntry(plan.submission) if listed else None
        self._kept_as = _job_kv.state_name(plan.submission) if listed else None
        self._info = JobInfo(
            job_id=JobId(plan.job_id),
            name=plan.name,
            status=JobStatus.PENDING,
            tasks=(),
            submitted_at=plan.submitted_at,
            logs=() if log is None else (log,),
        )
        self.waits_for: str | None = None
        """Why the job does not run yet."""
        # What the latest `info` was made of, and it: of most jobs nothing changes between two looks.
        self._made: tuple[tuple[Any, ...], JobInfo] | None = None
        self._written: tuple[JobInfo, list[dict[str, Any]]] | None = None
        self._next_write = 0.0
        # By replica: its state and its ports, and what users get of these.
        self._tasks: dict[int, tuple[ReplicaState, Mapping[str, int], TaskStatus]] = {}
        self.shown = not listed
        """Whether the entry may be written now: not before there is one, and not while Ray makes it."""

    @property
    def machine(self) -> Supervision:
        """The job's supervision."""
        return self.record.machine

    @property
    def listed(self) -> bool:
        """Whether the job goes on under another scheduler where this one is killed."""
        return self._kept_as is not None

    @property
    def info(self) -> JobInfo:
        """The state of the job now; the same object as long as it is the same."""
        machine = self.machine
        record = self.record
        made_of = machine.tasks, machine.started_at, self.waits_for, dict(record.ports), record.warnings
        if self._made is None or self._made[0] != made_of:
            self._made = made_of, self._make_info()
        return self._made[1]

    def _make_info(self) -> JobInfo:
        machine = self.machine
        tasks = tuple(map(self._task, machine.tasks))
        info = replace(self._info, tasks=tasks, started_at=machine.started_at, warnings=self.record.warnings)
        if machine.started_at is not None:
            info = replace(info, status=JobStatus.RUNNING)
        runs_now = any(task.status is JobStatus.RUNNING for task in tasks)
        return replace(info, pending_reason=None if runs_now else self.waits_for)

    def _task(self, state: ReplicaState) -> TaskStatus:
        """Return the state of a replica as users get it; what has not changed since is not made again."""
        ports = self._ports_of(state)
        known = self._tasks.get(state.replica)
        if known is None or known[0] is not state or known[1] is not ports:
            task = _task_of(state, ports, self._earlier(state))
            known = self._tasks[state.replica] = state, ports, task
        return known[2]

    def _earlier(self, state: ReplicaState) -> tuple[TaskStatus, ...]:
        known = self._tasks.get(state.replica)
        before, made = ((), ()) if known is None else (known[0].previous, known[2].previous)
        if state.previous[: len(before)] != before:
            before, made = (), ()
        new = state.previous[len(before) :]
        return (*made, *(_task_of(each, self._ports_of(each), ()) for each in new))

    def _ports_of(self, state: ReplicaState) -> Mapping[str, int]:
        return self.record.ports.get((state.replica, state.attempt), state.ports)

    def know_earlier(self) -> None:
        """Read the earlier attempts that another scheduler has written into a file."""
        if self._entry is not None:
            tasks = self._entry.with_earlier(tuple(map(task_of, self.machine.tasks)))
            self.machine.complete({task.replica: state_of(task).previous for task in tasks})

    def store(self) -> None:
        """Keep what another scheduler needs to go on."""
        if self._kept_as is not None:
            _job_kv.keep(self._kept_as, self.record.packed())

    def show_again(self) -> None:
        """Write all into the entry: it is a new one."""
        self.shown, self._written, self._next_write = True, None, 0.0

    def add_endpoint(self, endpoint: dict[str, Any]) -> None:
        """Note an endpoint that a replica has registered; it replaces one of that name that it had."""
        same = ("name", "replica")
        record = self.record
        others = [one for one in record.endpoints if any(one[key] != endpoint[key] for key in same)]
        record.endpoints = [*others, endpoint]
        self.store()

    def publish_start(self) -> None:
        """Write that the job runs, before it does: where all is lost then, it was lost and could start."""
        if self._written is None or self._written[0].status is not JobStatus.RUNNING:
            self._next_write = 0.0
            self.publish()

    def publish(self) -> None:
        """Write what has changed into the table, unless that was done a moment ago."""
        self.usage.write()
        now = time.monotonic()
        if now < self._next_write or not self.shown:
            return
        info = self.info
        if self._metrics is not None:
            self._metrics.look(info, self.usage.latest)
        if self._entry is None:
            return
        record = self.record
        record.endpoints = [one for one in record.endpoints if runs(info, one["replica"], one["attempt"])]
        if (info, record.endpoints) != self._written:
            self._next_write = now + _BETWEEN
            self._entry.write(info, endpoints=record.endpoints)
            self._written = info, record.endpoints

    def final(self) -> JobInfo:
        """Return the state of the job that has ended."""
        status, _, message = self.machine.verdict or _LOST
        return replace(
            self.info, status=status, error_message=message, pending_reason=None, finished_at=time.time()
        )

    def finish(self, info: JobInfo, kept: Mapping[str, Any] | None = None) -> None:
        """Write how the job has ended.

        Args:
            kept: What a retry needs to know; None where the job cannot be run again.
        """
        self.usage.write(last=True)
        if self._metrics is not None:
            self._metrics.end()
        if self._entry is not None:
            self._entry.write(info, endpoints=[], kept=kept)


def task_of(state: ReplicaState) -> TaskStatus:
    """Return the state of a replica as users get it."""
    return _task_of(state, state.ports, tuple(map(task_of, state.previous)))


def _task_of(state: ReplicaState, ports: Mapping[str, int], previous: tuple[TaskStatus, ...]) -> TaskStatus:
    return TaskStatus(**{**state._asdict(), "ports": ports, "previous": previous})


def state_of(task: TaskStatus) -> ReplicaState:
    """Return the state of a replica as supervision takes it."""
    names = [name for name in ReplicaState._fields if name != "previous"]
    values = {name: getattr(task, name) for name in names}
    return ReplicaState(**values, previous=tuple(map(state_of, task.previous)))
