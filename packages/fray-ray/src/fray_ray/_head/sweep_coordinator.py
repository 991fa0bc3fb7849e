"""Which members of a sweep are started, and how they are stopped; its methods run on threads.

What is known of a sweep is in Ray's table: what its members are doing, and, in its own entry, which of them
ended before they were started. So another scheduler goes on with it.
"""

import json
import math
import pickle
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from fray.backend import TURN, SweepOrder, sweep_info
from fray.cluster import ExitReason, JobId, JobInfo, JobStatus, TaskStatus
from fray_ray import _entrypoints as entrypoints
from fray_ray import _job_kv
from fray_ray._entry_text import from_text
from fray_ray._head.dashboard import Dashboard
from fray_ray._head.kept import for_retry
from fray_ray._head.predecessors import failure_of
from fray_ray._job_table import TableEntry, describe, read, stored_entry, submission_of
from fray_ray._lookup import FoundJob, find_started, settled
from fray_ray._queued_job import QueuedJob
from fray_ray._stopping import await_stopped
from fray_ray._sweep_entry import UNSTARTED
from fray_ray._sweep_plan import Member, SweepPlan

_AT_ONCE = 16  # members that are stopped side by side


class Coordinator:
    """Starts and stops the members of one sweep; but for `hasten`, a thread at a time."""

    def __init__(self, submission: str, plan: SweepPlan, queued: QueuedJob, dashboard: Dashboard) -> None:
        self._submission, self._plan, self._queued = submission, plan, queued
        self._dashboard = dashboard
        self._entry = TableEntry(submission, queued.metadata)
        self._order = SweepOrder(len(plan.members), plan.after, plan.max_parallel)
        self._tries = [0] * len(plan.members)  # runs that each member has had
        self._infos = [_waiting(member) for member in plan.members]
        self._unstarted: dict[str, dict[str, str | None]] = {}
        self._settled_stops: list[str] = []  # requests to stop members that waited
        self._grace: float | None = None
        self._elsewhere: Mapping[str, str | None] = {}
        self._ending: tuple[str, ...] = ()  # runs of members that are being stopped
        self._shortest = math.inf  # grace that was requested for these
        own = stored_entry(submission)
        described = None if own is None else read(own)
        if described is None:
            raise RuntimeError(f"Ray's table has no sweep {submission}")
        self._described = replace(described, pending_reason=None)
        self._ended_before = from_text(own.metadata.get(UNSTARTED, "{}")) if own is not None else {}
        self._written: JobInfo | None = None
        self._take_up()

    @property
    def elsewhere(self) -> list[str]:
        """The jobs outside of the sweep that its members wait for."""
        return self._order.elsewhere

    def step(self, grace: float | None, elsewhere: Mapping[str, str | None]) -> JobInfo | None:
        """Do what is to be done now; return how the sweep has ended, where it has.

        Args:
            grace: With which the sweep is to end; None where it is not.
            elsewhere: The jobs outside of the sweep that have ended, each with the reason why members that
                run after it cannot start; None where it has succeeded.
        """
        self._grace, self._elsewhere = grace, elsewhere
        self._look()
        if self._grace is not None:
            self._stop_all(self._grace)
        else:
            self._start_members()
        if self._order.finished:
            return replace(self._info(), finished_at=time.time())
        self._write()
        while self._settled_stops:  # now the entry has them
            _job_kv.delete(self._settled_stops.pop())
        return None

    def finish(self, info: JobInfo) -> Mapping[str, Any] | None:
        """Write the last word; return what another run of the sweep needs, None where it can have none."""
        good = info.status is JobStatus.SUCCEEDED
        kept = None if good else for_retry(self._plan, self._submission, self._queued.runtime_env)
        self._entry.write(info, unstarted=self._unstarted, kept=kept)
        for package in self._stops().values():  # others came too late, and are not for the sweep's next run
            _job_kv.delete(package)
        return kept

    # --- what happens ---

    def _take_up(self) -> None:
        """Begin with what the members did in runs of the sweep before, or under a coordinator before this."""
        all_found = {position: self._found(position) for position in range(len(self._plan.members))}
        self._tries = [0 if found is None else len(found.runs) for found in all_found.values()]
        before = self._tries_before()
        for position, found in all_found.items():
            if found is None:
                continue
            if found.info.status is JobStatus.SUCCEEDED or (
                found.info.finished and self._tries[position] > before[position]
            ):
                self._end(position, found.info)
            elif not found.info.finished:
                self._infos[position] = found.info
                self._order.started_before(position)
        for position, ended in self._ended_before.items():
            self._settle(
                int(position), JobStatus(ended["status"]), ExitReason(ended["reason"]), ended["message"]
            )

    def _tries_before(self) -> list[int]:
        """Return how many runs each member had before this run of the sweep."""
        name = _job_kv.state_name(self._submission)
        state = _job_kv.fetch(name)
        if state is None:
            state = json.dumps(self._tries).encode()
            _job_kv.keep(name, state)
        before: list[int] = json.loads(state)
        return before

    def _look(self) -> None:
        for position in sorted(self._order.started):
            found = self._found(position)
            if found is None:
                continue
            self._infos[position] = found.info
            if found.info.finished:
                self._end(position, found.info)
            elif found.info.status is JobStatus.RUNNING:
                self._order.runs(position)
        for job_id in self._elsewhere:
            self._order.ended_elsewhere(job_id)
        self._look_for_stopped()

    def _look_for_stopped(self) -> None:
        """Settle the members that were stopped before they began."""
        for number, package in self._stops().items():
            position = int(number)
            if position < len(self._infos) and self._waits(position):
                self._settle(position, JobStatus.STOPPED, ExitReason.STOPPED, None)
                self._settled_stops.append(package)

    def _stops(self) -> dict[str, str]:
        return _job_kv.stopped_members(submission_of(self._plan.job_id))

    def _waits(self, position: int) -> bool:
        return position not in self._order.started and not self._infos[position].finished

    def _found(self, position: int) -> FoundJob | None:
        """Return the member's own job, where it has been started."""
        return find_started(stored_entry, f"{self._plan.job_id}/{position}")

    def _end(self, position: int, info: JobInfo) -> None:
        self._infos[position] = info
        self._order.ended(position, info.status)

    def _settle(self, position: int, status: JobStatus, reason: ExitReason, message: str | None) -> None:
        """End a member that is not to be started."""
        ended = {"status": str(status), "reason": str(reason), "message": message}
        self._unstarted[str(position)] = ended
        self._end(position, settled(self._infos[position], str(status), str(reason), message))

    # --- members ---

    def _start_members(self) -> None:
        while (position := self._order.next_to_start()) is not None:
            if self._infos[position].finished:
                self._order.ended(position, self._infos[position].status)
                continue
            failure = self._failure_before(position)
            if failure is not None:
                self._settle(position, JobStatus.FAILED, ExitReason.DEPENDENCY_FAILED, failure)
                continue
            try:
                self._start(position)
            except BaseException:  # the head's store is away
                self._order.put_back(position)
                raise

    def _failure_before(self, position: int) -> str | None:
        """Say which of the jobs that a member runs after did not succeed; None where all have."""
        for each in self._plan.after.get(position, ()):
            failure = failure_of(self._infos[each]) if isinstance(each, int) else self._elsewhere[each]
            if failure is not None:
                return failure
        return None

    def _start(self, position: int) -> None:
        member, tries = self._plan.members[position], self._tries[position] + 1
        submission = submission_of(member.plan.job_id, tries)
        plan = replace(member.plan, submission=submission, tries=tries, submitted_at=time.time())
        metadata = describe(JobId(plan.job_id), plan.name, plan.replicas, member.about, tries=tries)
        uri = self._queued.runtime_env.get("working_dir")
        queued = QueuedJob(
            command=entrypoints.job_process(submission, here=True, command=plan.command, name=plan.name),
            metadata=metadata,
            runtime_env={} if uri is None else {"working_dir": uri},
        )
        _job_kv.keep(_job_kv.plan_name(submission), pickle.dumps(plan))
        _job_kv.keep(_job_kv.waiting_name(submission), b"-")
        _job_kv.keep(_job_kv.queued_name(submission), queued.to_json())
        self._tries[position] = tries

    def _stop_all(self, grace: float) -> None:
        """Stop the members that run, and wait for them; the others never start."""
        for position in self._order.unfinished:
            if self._waits(position):
                self._settle(position, JobStatus.STOPPED, ExitReason.STOPPED, None)
        self._write()
        running = self._ending = tuple(
            submission_of(self._plan.members[position].plan.job_id, self._tries[position])
            for position in sorted(self._order.started)
        )
        if running:
            self.hasten(grace)
            client = self._dashboard.client()
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                list(pool.map(lambda submission: await_stopped(client, submission, grace), running))
            self._look()

    def hasten(self, grace: float) -> None:
        """Have the members that are being stopped end within this grace, or a shorter one of before."""
        self._shortest = min(grace, self._shortest)
        _job_kv.request_stops(self._ending, self._shortest)

    # --- the entry ---

    def _info(self) -> JobInfo:
        return sweep_info(self._described, self._infos, stopped=self._grace is not None)

    def _write(self) -> None:
        info = self._info()
        if info != self._written:
            self._entry.write(info, unstarted=self._unstarted)
            self._written = info


def _waiting(member: Member) -> JobInfo:
    tasks = tuple(TaskStatus(replica=number) for number in range(member.plan.replicas))
    return JobInfo(
        job_id=JobId(member.plan.job_id),
        name=member.plan.name,
        status=JobStatus.PENDING,
        tasks=tasks,
        pending_reason=TURN,
    )
