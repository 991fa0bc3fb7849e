"""A sweep under its scheduler: its members are started as there is need for them.

A member that waits costs a line in the sweep's entry.
"""

import asyncio
import contextlib
import traceback
from collections.abc import Mapping
from typing import Any

from fray import FrayError
from fray.cluster import JobInfo, JobStatus
from fray_ray import _job_kv
from fray_ray._entry_text import to_text
from fray_ray._head.asides import aside, insist
from fray_ray._head.job import Shared
from fray_ray._head.kept import for_retry, forget_ended, forget_run
from fray_ray._head.process_link import ProcessLink
from fray_ray._head.ray_job import RayJob, is_nobodys
from fray_ray._head.sweep_coordinator import Coordinator
from fray_ray._job_table import (
    KEPT,
    is_settled,
    is_waiting,
    kept_in,
    read,
    stored_entry,
    submission_of,
)
from fray_ray._queued_job import QueuedJob
from fray_ray._ray_internals.kv import table_entry
from fray_ray._scheduler import GRACE_OF_LOST, RAYS_GRACE
from fray_ray._sweep_plan import SweepPlan

_LOOK = 0.3  # seconds between two looks at what is going on


class Sweep:
    """One run of a sweep; it has the same methods as `ScheduledJob`."""

    def __init__(self, submission: str, plan: SweepPlan, queued: QueuedJob, shared: Shared) -> None:
        self._submission, self._plan, self._queued, self._shared = submission, plan, queued, shared
        entry = table_entry(submission)
        self._taken_up = entry is not None and not is_waiting(entry) and not is_nobodys(entry)
        self._ray_job = RayJob(submission, queued, shared.dashboard, shared.node, submitted=self._taken_up)
        self._stopping = _job_kv.stopping_name(submission)
        asked = _job_kv.fetch(self._stopping)
        # The grace with which somebody wants it to end; under another scheduler, too.
        self._asked = None if asked is None else float(asked)
        self._wakes = asyncio.Event()
        self._coordinator: Coordinator | None = None
        # The jobs outside of the sweep that have ended, each with why members cannot run after it.
        self._elsewhere: dict[str, str | None] = {}

    def attach(self, link: ProcessLink) -> None:
        """The sweep's process has connected."""
        self._ray_job.attach(link)

    def detach(self, link: ProcessLink) -> None:
        """Its process is gone."""
        self._ray_job.detach(link)

    def stop_by_ray(self) -> None:
        """Ray asks the sweep's process to end."""
        self._stop(RAYS_GRACE)

    def notice(self, leaving: Mapping[str, float]) -> None:
        """Nodes go: that is its members' business."""

    def deliver(self, request: str, data: bytes) -> bool:
        """Do what somebody has requested of the sweep; see `ScheduledJob.deliver`."""
        if request == _job_kv.STOP:
            self._stop(float(data))
        return True

    def _stop(self, grace: float) -> None:
        if self._coordinator is not None and self._asked is not None and grace < self._asked:
            self._coordinator.hasten(grace)
        self._asked = grace
        self._wakes.set()
        _job_kv.keep(self._stopping, str(grace).encode())

    async def live(self) -> None:
        """Coordinate the sweep until every member has ended."""
        entry = stored_entry(self._submission)
        if entry is not None and is_settled(entry) and (info := read(entry)) is not None:
            # Its end was written, and what is left of it could not be deleted then.
            self._forget(info.status, kept_in(entry))
            return
        if self._queued.previous_run is not None:
            await aside(forget_run, self._queued.previous_run)
            if not self._taken_up:  # requests that came when the run before had ended
                await aside(self._forget_stops)
        problem = await self._ray_job.begin()
        if problem is not None and not self._taken_up:
            kept = await aside(for_retry, self._plan, self._submission, self._queued.runtime_env)
            await self._ray_job.settle(JobStatus.FAILED, problem, {KEPT: to_text(kept)})
            self._forget(JobStatus.FAILED, kept)
            return
        if problem is not None and self._asked is None:  # Ray lost it while there was no scheduler
            self._stop(GRACE_OF_LOST)
        beside = [asyncio.create_task(insist(self._look_for_loss))]
        try:
            coordinator = self._coordinator = await aside(self._new_coordinator)
            beside += [asyncio.create_task(self._await_end_of(job_id)) for job_id in coordinator.elsewhere]
            info = await self._coordinate(coordinator)
        finally:
            for task in beside:
                task.cancel()
        self._forget(info.status, await aside(coordinator.finish, info))

    async def _coordinate(self, coordinator: Coordinator) -> JobInfo:
        """Have every member come to its end; return how the sweep has ended."""
        while True:
            try:
                info = await aside(coordinator.step, self._asked, dict(self._elsewhere))
            except (FrayError, OSError, RuntimeError):  # the head, or its dashboard, is away for a while
                traceback.print_exc()
            else:
                if info is not None:
                    return info
            await self._rest()

    async def _await_end_of(self, job_id: str) -> None:
        """Wait for a job outside of the sweep that members run after."""
        self._elsewhere[job_id] = await self._shared.predecessors.succeeded([job_id])
        self._wakes.set()

    def _forget(self, status: JobStatus, kept: Mapping[str, Any] | None) -> None:
        """Keep nothing of the sweep, which has ended, but what another run of it needs."""
        try:
            forget_ended(self._plan, self._submission, self._queued.runtime_env, kept)
        finally:
            self._ray_job.tell(status)

    def _forget_stops(self) -> None:
        for package in _job_kv.stopped_members(submission_of(self._plan.job_id)).values():
            _job_kv.delete(package)

    def _new_coordinator(self) -> Coordinator:
        return Coordinator(self._submission, self._plan, self._queued, self._shared.dashboard)

    async def _rest(self) -> None:
        self._wakes.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK):
                await self._wakes.wait()

    async def _look_for_loss(self) -> None:
        await self._ray_job.lost()
        self._stop(GRACE_OF_LOST)
