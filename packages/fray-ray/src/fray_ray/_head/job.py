"""A job under its scheduler, from its place in the queue to its end.

pending   wait for the jobs that it runs after; wait for room; have Ray start the job's own process
running   `JobRun`
finished  write how it ended into Ray's table, run its `on_exit`, have the process end
"""

import asyncio
import json
import os
import pickle
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fray.backend import (
    CannotRun,
    Policy,
    RestartRequested,
    SourceState,
    StopRequested,
    Supervision,
    change_since,
)
from fray.cluster import Endpoint, ExitReason, JobInfo, JobStatus
from fray_ray import _job_kv
from fray_ray._head.asides import aside, insist
from fray_ray._head.dashboard import Dashboard
from fray_ray._head.descendants import end_family, stop_family
from fray_ray._head.job_board import JobBoard, state_of
from fray_ray._head.job_metrics import JobMetrics
from fray_ray._head.job_run import JobRun
from fray_ray._head.kept import earlier_tasks, for_retry, forget_ended, forget_run
from fray_ray._head.on_exit import run_on_exit
from fray_ray._head.output import LogFile
from fray_ray._head.predecessors import Predecessors
from fray_ray._head.process_link import ProcessLink
from fray_ray._head.ray_job import RayJob
from fray_ray._head.record import JobRecord
from fray_ray._head.replica_log import complete_log
from fray_ray._head.reservation_queue import ReservationQueue
from fray_ray._head.usage_file import usage_file
from fray_ray._job_table import commit_in, state_metadata
from fray_ray._plan import Plan, job_config
from fray_ray._queued_job import QueuedJob
from fray_ray._ray_internals.environment import JOB_CONFIG
from fray_ray._ray_internals.processes import driver_log
from fray_ray._scheduler import GRACE_OF_LOST, RAYS_GRACE

_SHOWN_AFTER = 0.25  # seconds for which a job may find room before it is shown as waiting
_SOON = 1.0  # seconds after the launch in which hardly anybody changes the source


@dataclass(frozen=True)
class Shared:
    """What all jobs of a scheduler have in common.

    Args:
        node: The id of the head's node.
    """

    queue: ReservationQueue
    predecessors: Predecessors
    dashboard: Dashboard
    node: str


class ScheduledJob:
    """One run of a job.

    Args:
        record: What another scheduler knew that was killed; None of a job that is new.
    """

    def __init__(self, plan: Plan, queued: QueuedJob, record: JobRecord | None, shared: Shared) -> None:
        self._plan, self._queued, self._taken_up = plan, queued, record is not None
        self._begun = False  # until then nothing of this run is recorded
        self._output = LogFile(driver_log(plan.submission))
        if record is None:
            record = JobRecord(machine=new_machine(plan))
        self._record, self._predecessors, self._dashboard = record, shared.predecessors, shared.dashboard
        metrics = JobMetrics(plan.job_id, plan.name, plan.hosts if plan.gang else None)
        log = self._output.path
        self._board = JobBoard(plan, record, log=log, usage=usage_file(plan.submission), metrics=metrics)
        self._ray_job = RayJob(
            plan.submission, queued, shared.dashboard, shared.node, submitted=record.submitted
        )
        self._run = JobRun(
            plan,
            self._board,
            shared.queue,
            self._output,
            runtime_env=queued.runtime_env,
            prepare=self._await_others,
            join=self._join,
            stop_family=self._stop_family,
            end_family=self._end_family,
            log_path=log,
        )

    def _stop_family(self, grace: float) -> None:
        if self._record.submitted:  # one that Ray never ran has started nothing
            stop_family(self._plan.job_id, grace)

    def _end_family(self, grace: float) -> None:
        if self._record.submitted:
            end_family(self._plan.job_id, self._plan.submission, grace, self._dashboard)

    # --- what the scheduler passes on ---

    def attach(self, link: ProcessLink) -> None:
        """The job's process has connected."""
        self._ray_job.attach(link)
        self._run.show_again()
        config = link.environ.get(JOB_CONFIG)
        if not self._record.submitted or self._record.config != config:
            self._record.submitted, self._record.config = True, config
            self._board.store()

    def detach(self, link: ProcessLink) -> None:
        """Its process is gone."""
        self._ray_job.detach(link)

    def stop_by_ray(self) -> None:
        """Ray asks the job's process to end."""
        self._run.request(StopRequested(RAYS_GRACE))

    def notice(self, leaving: Mapping[str, float]) -> None:
        """Nodes go, each in so many seconds."""
        self._run.notice(leaving)

    def deliver(self, request: str, data: bytes) -> bool:
        """Do what somebody has requested of the job through the head's store.

        Returns:
            Whether it is recorded, or makes no sense; else it is to be delivered again.
        """
        if not self._begun:
            return False
        word, _, rest = request.partition(".")
        if word == _job_kv.STOP:
            self._run.request(StopRequested(float(data)))
        elif word == _job_kv.ENDPOINT:
            endpoint = json.loads(data)
            Endpoint.from_dict(endpoint)  # which says what is wrong with it
            self._board.add_endpoint(endpoint)
        elif word == _job_kv.RESTART:
            replica, attempt = map(int, rest.split("."))
            self._run.request(RestartRequested(replica, attempt, float(data)))
        return True

    # --- its life ---

    async def live(self) -> None:
        """Carry the job to its end."""
        beside = [
            asyncio.create_task(insist(each))
            for each in (self._look_for_loss, self._show, self._ray_job.keep_workspace)
        ]
        try:
            await self._begin()
            await self._run.run()
            await self._finish()
        except Exception:
            await self._ray_job.leave()
            raise
        finally:
            for task in beside:
                task.cancel()
            self._output.close()

    async def _begin(self) -> None:
        plan = self._plan
        if self._taken_up:
            self._board.know_earlier()
            self._record.takers += 1
            self._board.store()
            if self._record.submitted:
                complete_log(self._output.path)
                self._output.write(b"[fray] the job has another scheduler\n")
        else:
            if self._queued.previous_run is not None:
                await aside(forget_run, self._queued.previous_run)
            tasks = await aside(earlier_tasks, plan)
            if tasks:
                self._record.machine.resize(len(tasks))
                self._record.machine.again(map(state_of, tasks))
            self._board.store()
        confidential = {name: plan.environ[name] for name in plan.confidential if name in plan.environ}
        _job_kv.keep(_job_kv.variables_name(plan.submission), pickle.dumps(confidential))
        self._begun = True

    async def _show(self) -> None:
        """Have the job in Ray's table while it waits."""
        await asyncio.sleep(_SHOWN_AFTER)
        if not self._ray_job.submitted:
            self._ray_job.show_waiting()
            self._run.show_again()

    async def _look_for_loss(self) -> None:
        self._run.lose(await self._ray_job.lost(), GRACE_OF_LOST)

    async def _await_others(self, say: Callable[[str], None]) -> CannotRun | None:
        """Wait for the jobs that this one runs after; return how it ends where one has not succeeded."""
        if not self._plan.after or self._record.preceded:
            return None
        failure = await self._predecessors.succeeded(self._plan.after, say)
        if failure is not None:
            return CannotRun(ExitReason.DEPENDENCY_FAILED, failure)
        self._record.preceded = True
        self._board.store()
        return None

    async def _join(self) -> Mapping[str, str] | CannotRun:
        """Have Ray run the job's process; return what makes the replicas part of the Ray job."""
        if self._record.config is None:
            await self._compare_source()
            self._board.shown = False
            problem = await self._ray_job.begin()
            if problem is not None:
                return CannotRun(ExitReason.COULD_NOT_START, problem)
        config = self._record.config
        if config is None:
            return CannotRun(ExitReason.COULD_NOT_START, "Ray gave its process no configuration")
        return {
            JOB_CONFIG: job_config(self._plan, config),
            "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1",  # what a program itself asks Ray for wins
        }

    async def _compare_source(self) -> None:
        """Warn where the source of a job that has waited is no longer that of its launch.

        A workspace that was not uploaded is on this machine, or in a folder that all machines have. Another
        run of the job is meant to run what is there.
        """
        plan = self._plan
        if plan.cwd is None or plan.tries > 1 or time.time() - plan.submitted_at < _SOON:
            return
        state = SourceState(commit=commit_in(self._queued.metadata))
        try:
            change = await aside(change_since, plan.cwd, state, plan.submitted_at)
        except Exception:  # noqa: BLE001 - the head does not have that folder, say; the job runs all the same
            traceback.print_exc()
            return
        if change is not None:
            self._record.warnings = (change,)
            self._board.store()

    async def _finish(self) -> None:
        plan, info = self._plan, self._board.final()
        good = info.status is JobStatus.SUCCEEDED
        kept = None if good else await aside(for_retry, plan, plan.submission, self._queued.runtime_env)
        await self._ray_job.settle(info.status, info.error_message, state_metadata(info))
        self._board.finish(info, kept)
        try:
            await self._clean_up(info, kept)
        finally:  # its end is written: nothing that fails from here on keeps its process
            self._ray_job.tell(info.status)

    async def _clean_up(self, info: JobInfo, kept: Mapping[str, Any] | None) -> None:
        """Run what was given for the job's end, and delete what nobody needs any more."""
        plan = self._plan
        if plan.on_exit is not None and not self._record.told:
            self._record.told = True
            self._board.store()
            spec = plan.environ.get("FRAY_CLUSTER_SPEC", "ray")
            link = self._ray_job.link
            folder = plan.cwd or (None if link is None else link.cwd)
            environ = self._ray_job.environ or os.environ
            await aside(run_on_exit, plan.on_exit, folder, spec, info, environ, self._output)
        forget_ended(plan, plan.submission, self._queued.runtime_env, kept)


def new_machine(plan: Plan) -> Supervision:
    """Return the supervision of a job that is new."""
    policy = Policy(
        replicas=plan.replicas,
        gang=plan.gang,
        max_retries_failure=plan.max_retries_failure,
        max_retries_preemption=plan.max_retries_preemption,
        timeout=plan.timeout,
        places=True,
    )
    return Supervision(policy, epoch=time.time() - time.monotonic())


def is_request(word: str) -> bool:
    """Whether a package of a job is a request to it."""
    return word.partition(".")[0] in (_job_kv.STOP, _job_kv.RESTART, _job_kv.ENDPOINT)
