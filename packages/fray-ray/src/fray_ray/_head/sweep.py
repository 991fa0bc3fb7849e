"""The coordinator of a sweep: `python -m fray_ray._head.sweep SUBMISSION [FIRST]`, on the head.

It starts the members, each a Ray job of its own, as there is need for them: a member that waits costs a line
in the sweep's entry, and no process. What it knows is in Ray's table: what its members are doing, and, in its
own entry, which of them ended before they were started. So another one goes on where this is killed: it is
started by the sweep's own process (`job_process`).
"""

import json
import logging
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import ray

from fray.backend import TURN, SweepOrder, sweep_info
from fray.cluster import ExitReason, JobId, JobInfo, JobStatus, TaskStatus
from fray_ray import _job_kv
from fray_ray._head.driver import end_with, end_written, leave_to_ray
from fray_ray._head.job_process import PARENT, UNSUCCESSFUL
from fray_ray._head.kept import keep_workspace, workspace_uri
from fray_ray._head.predecessors import failure_of, state_of, unfinished
from fray_ray._job_table import UNSTARTED, TableEntry, describe, read, stored_entry, submission_of
from fray_ray._launcher import entrypoints
from fray_ray._launcher.jobs_client import JobsClient
from fray_ray._launcher.lookup import FoundJob, find, settled
from fray_ray._launcher.stopping import stop_job
from fray_ray._plan import Plan, restored, withheld
from fray_ray._sweep_plan import Member, SweepPlan

_LOOK = 0.3  # seconds between two looks at what is going on
_RAYS_GRACE = 2.0  # seconds: Ray kills a driver three seconds after its SIGTERM
_AT_ONCE = 16  # members that are stopped side by side
_MOST = 16 * 2**20  # bytes of the head's memory that a sweep which has ended keeps


class Coordinator:
    """One run of a sweep."""

    def __init__(self, submission: str, plan: SweepPlan) -> None:
        self._submission, self._plan = submission, plan
        self._client = JobsClient(ray.get_runtime_context().gcs_address)
        self._entry = TableEntry(submission)
        self._order = SweepOrder(len(plan.members), plan.after, plan.max_parallel)
        self._tries = [0] * len(plan.members)  # runs that each member has had
        self._infos = [_waiting(member) for member in plan.members]
        self._unstarted: dict[str, dict[str, str | None]] = {}
        self._told_by_ray = threading.Event()
        self._grace: float | None = None
        own = stored_entry(submission)
        described = None if own is None else read(own)
        if described is None:
            raise RuntimeError(f"Ray's table has no sweep {submission}")
        self._described = replace(described, pending_reason=None)
        self._ended_before = json.loads(own.metadata.get(UNSTARTED, "{}")) if own is not None else {}
        self._written: JobInfo | None = None

    def run(self) -> JobInfo:
        """Coordinate the sweep until every member has ended; return how it did."""
        signal.signal(signal.SIGTERM, lambda *_: self._told_by_ray.set())
        self._take_up()
        while True:
            self._look()
            if self._grace is not None:
                self._stop_all(self._grace)
            else:
                self._start_members()
            if self._order.finished:
                return replace(self._info(), finished_at=time.time())
            self._write()
            self._told_by_ray.wait(_LOOK)

    def finish(self, info: JobInfo) -> None:
        """Write the last word."""
        kept = None if info.status is JobStatus.SUCCEEDED else self._keep()
        self._entry.write(info, unstarted=self._unstarted, kept=kept)

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
        if self._told_by_ray.is_set():
            self._grace = _RAYS_GRACE
        told = _job_kv.fetch(_job_kv.stop_name(self._submission))
        if told is not None:
            self._grace = float(told)
        for position in sorted(self._order.started):
            found = self._found(position)
            if found is None:
                continue
            self._infos[position] = found.info
            if found.info.finished:
                self._end(position, found.info)
            elif found.info.status is JobStatus.RUNNING:
                self._order.runs(position)
        for job_id in self._order.elsewhere:
            info = state_of(job_id)
            if info is None or info.finished:
                self._order.ended_elsewhere(job_id)
        self._look_for_stopped()

    def _look_for_stopped(self) -> None:
        """Settle the members that were stopped before they began."""
        first = submission_of(self._plan.job_id)
        for number, package in _job_kv.stopped_members(first).items():
            position = int(number)
            if position < len(self._infos) and self._waits(position):
                self._settle(position, JobStatus.STOPPED, ExitReason.STOPPED, None)
                _job_kv.delete(package)

    def _waits(self, position: int) -> bool:
        return position not in self._order.started and not self._infos[position].finished

    def _found(self, position: int) -> FoundJob | None:
        """Return the member's own job, where it has been started."""
        found = find(stored_entry, f"{self._plan.job_id}/{position}")
        return found if found is not None and found.runs else None

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
            self._start(position)

    def _failure_before(self, position: int) -> str | None:
        """Say which of the jobs that a member runs after did not succeed; None where all have."""
        for each in self._plan.after.get(position, ()):
            if isinstance(each, int):
                failure = failure_of(self._infos[each])
            else:
                _, failure = unfinished([each])
            if failure is not None:
                return failure
        return None

    def _start(self, position: int) -> None:
        member, tries = self._plan.members[position], self._tries[position] + 1
        submission = submission_of(member.plan.job_id, tries)
        plan = replace(member.plan, submission=submission, tries=tries, submitted_at=time.time())
        metadata = describe(JobId(plan.job_id), plan.name, plan.replicas, member.about, tries=tries)
        uri = workspace_uri()
        self._client.submit_with(
            {_job_kv.plan_name(submission): pickle.dumps(plan)},
            entrypoints.driver(submission, here=True),
            submission,
            metadata,
            {} if uri is None else {"working_dir": uri},
        )
        self._tries[position] = tries

    def _stop_all(self, grace: float) -> None:
        """Stop the members that run, and wait for them; the others never start."""
        for position in self._order.unfinished:
            if self._waits(position):
                self._settle(position, JobStatus.STOPPED, ExitReason.STOPPED, None)
        running = [
            submission_of(self._plan.members[position].plan.job_id, self._tries[position])
            for position in sorted(self._order.started)
        ]
        if running:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                list(pool.map(lambda submission: stop_job(self._client, submission, grace), running))
            self._look()

    # --- the entry ---

    def _info(self) -> JobInfo:
        return sweep_info(self._described, self._infos, stopped=self._grace is not None)

    def _write(self) -> None:
        info = self._info()
        if info != self._written:
            self._entry.write(info, unstarted=self._unstarted)
            self._written = info

    def _keep(self) -> dict[str, object] | None:
        """Keep what the sweep can be run again by."""
        members = tuple(Member(withheld(member.plan), member.about) for member in self._plan.members)
        data = pickle.dumps(replace(self._plan, members=members))
        runtime_env = keep_workspace(self._submission)
        if len(data) > _MOST or runtime_env is None:
            return None
        _job_kv.keep(_job_kv.plan_name(self._submission), data)
        names = sorted({name for member in members for name in member.plan.withheld})
        return {"withheld": names, "runtime_env": runtime_env}


def _waiting(member: Member) -> JobInfo:
    tasks = tuple(TaskStatus(replica=number) for number in range(member.plan.replicas))
    return JobInfo(
        job_id=JobId(member.plan.job_id),
        name=member.plan.name,
        status=JobStatus.PENDING,
        tasks=tasks,
        pending_reason=TURN,
    )


def main(submission: str, first: str | None = None) -> int:
    """Coordinate one sweep; return the exit code by which its process knows how it ended."""
    end_with(os.environ.pop(PARENT, None))
    ray.init(logging_level=logging.ERROR, log_to_driver=False)
    ended = end_written(submission)
    if ended is not None:  # by one that was killed when all was done
        leave_to_ray(ended)
        return 0 if ended is JobStatus.SUCCEEDED else UNSUCCESSFUL
    plan = _plan_of(submission, first)
    if plan is None:
        print(f"the plan of {submission} is gone: the head of the cluster was restarted", file=sys.stderr)  # noqa: T201
        return UNSUCCESSFUL
    coordinator = Coordinator(submission, plan)
    info = coordinator.run()
    coordinator.finish(info)
    ended_well = info.status is JobStatus.SUCCEEDED
    kept = {_job_kv.plan_name(submission), _job_kv.workspace_name(submission)}
    _job_kv.delete_all(submission, but=() if ended_well else kept)
    leave_to_ray(info.status)
    return 0 if ended_well else UNSUCCESSFUL


def _plan_of(submission: str, first: str | None) -> SweepPlan | None:
    """Return the plan of a sweep, as it was submitted or, where another run has it, as it is run again."""
    data = _job_kv.fetch(_job_kv.plan_name(submission))
    if data is not None:
        plan: SweepPlan = pickle.loads(data)
        return plan
    data = None if first is None else _job_kv.fetch(_job_kv.plan_name(first))
    if data is None or first is None:
        return None
    plan = _again(pickle.loads(data), submission)
    _job_kv.keep(_job_kv.plan_name(submission), pickle.dumps(plan))  # for another coordinator
    _job_kv.delete_all(first)
    return plan


def _again(plan: SweepPlan, submission: str) -> SweepPlan:
    """Return the plan of a sweep that is run again, with the variables that were brought for it."""
    brought = _job_kv.fetch(_job_kv.secrets_name(submission))
    given: dict[str, str] = {} if brought is None else pickle.loads(brought)
    return replace(plan, members=tuple(_with(given, plan.members)))


def _with(given: dict[str, str], members: Iterable[Member]) -> Iterable[Member]:
    for member in members:
        own: Plan = member.plan
        wanted = {name: given[name] for name in own.withheld}
        yield Member(restored(own, wanted, own.submission, own.tries), member.about)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
