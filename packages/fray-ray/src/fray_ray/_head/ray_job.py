"""A job in Ray's own table: its entry while it waits, and the process that Ray runs for it.

waiting     an entry of ours, without a process
submitted   Ray has the job; its process comes up, and connects
attached    the process is there
"""

import asyncio
import contextlib
import time
import traceback
from collections.abc import Mapping
from typing import Any

from ray.exceptions import RayError

from fray import ClusterUnavailableError, FrayError
from fray.cluster import JobStatus
from fray_ray import _job_kv
from fray_ray._head.asides import aside
from fray_ray._head.dashboard import Dashboard
from fray_ray._head.process_link import ProcessLink
from fray_ray._job_table import SINCE, STARTS, TERMINAL, WAITS, JobEntry, is_waiting, process_ended, taken_at
from fray_ray._jobs_client import JobsClient
from fray_ray._queued_job import QueuedJob
from fray_ray._ray_internals.dashboard import is_known
from fray_ray._ray_internals.family import supervisor_is_gone
from fray_ray._ray_internals.kv import (
    delete_table_entry,
    settled_table_entry,
    table_entry,
    waiting_table_entry,
    write_table_entry,
)
from fray_ray._ray_internals.pins import pin_package
from fray_ray._sweep_entry import for_ray

_LOOK = 0.5  # seconds between looks at what Ray says of the job
_GONE_AFTER = 3.0  # seconds without its process after which Ray is asked about it
_FORGOTTEN_AFTER = 10.0  # seconds without its process after which Ray may not know that it has ended
_PINNED, _PINS_EVERY = 900, 300.0  # seconds
_DASHBOARD_WITHIN = 300.0  # seconds for a dashboard that is started again, with its head say
# What is raised where the dashboard, or the head's store, is away for a moment.
_AWAY = RuntimeError, OSError, RayError
_RAYS = {JobStatus.STOPPED: "STOPPED", JobStatus.FAILED: "FAILED"}


class RayJob:
    """That of one run of a job.

    Args:
        node: The id of the head's node.
        submitted: Whether another scheduler has submitted it.
    """

    def __init__(
        self,
        submission: str,
        queued: QueuedJob,
        dashboard: Dashboard,
        node: str,
        *,
        submitted: bool,
    ) -> None:
        self._submission, self._queued, self._node = submission, queued, node
        self._dashboard = dashboard
        self.submitted = submitted
        self.link: ProcessLink | None = None
        self._attached = asyncio.Event()
        self._detached_at = time.monotonic()
        self._submitting: asyncio.Task[str | None] | None = None
        self._left = False
        self._waited: dict[str, Any] | None = None  # the entry that it had while it waited

    def attach(self, link: ProcessLink) -> None:
        """The job's process is there."""
        self.link, self.submitted = link, True
        self._attached.set()

    def detach(self, link: ProcessLink) -> None:
        """That process is gone."""
        if self.link is link:
            self.link, self._detached_at = None, time.monotonic()
            self._attached.clear()

    def show_waiting(self) -> None:
        """Have an entry in the table while the job waits."""
        if self.submitted:
            return
        entry = table_entry(self._submission)
        if entry is None:
            metadata = {**self._queued.metadata, WAITS: "1"}
            waiting = waiting_table_entry(self._queued.command, metadata, self._node)
            write_table_entry(self._submission, waiting)
        elif not is_waiting(entry):  # another scheduler has submitted it
            self.submitted = True

    async def keep_workspace(self) -> None:
        """Have the head keep the job's workspace while the job waits: Ray deletes one that no job uses."""
        uri = str(self._queued.runtime_env.get("working_dir", ""))
        while uri.startswith("gcs://") and not self.submitted:
            pin_package(uri, _PINNED)
            await asyncio.sleep(_PINS_EVERY)

    async def begin(self) -> str | None:
        """Have Ray run the job's process, and wait until it is there; return why it will not be."""
        if not self.submitted:
            self.submitted = True
            self._submitting = asyncio.create_task(self._submit())
        if self._submitting is not None:
            # Shielded: if the caller is cancelled, `settle` must still learn whether Ray took the job.
            problem = await asyncio.shield(self._submitting)
            if problem is not None:
                return problem
        while not self._attached.is_set():
            try:
                async with asyncio.timeout(_LOOK):
                    await self._attached.wait()
            except TimeoutError:
                ended = await aside(self._ended)
                if ended is not None:
                    return ended
        return None

    async def leave(self) -> None:
        """Return when Ray is not asked to run the process any more: another one of this asks it next."""
        self._left = True
        if self._submitting is not None:
            await asyncio.wait([self._submitting])

    async def _submit(self) -> str | None:
        try:
            await self._post_until_it_is_answered()
        except Exception as error:  # noqa: BLE001 - whatever it was: `settle` must not wait for its process
            self.submitted = False
            return f"Ray does not take the job: {error}"
        finally:
            self._submitting = None
            self._detached_at = time.monotonic()
        return None

    async def _post_until_it_is_answered(self) -> None:
        """Have Ray take the job; where the dashboard is away, or the head's store, it is tried again.

        Raises:
            Exception: Ray refuses it, or something was away all the time.
        """
        deadline = time.monotonic() + _DASHBOARD_WITHIN
        while True:
            try:
                await aside(self._post)
            except _AWAY:
                if self._left or time.monotonic() > deadline:
                    raise
                traceback.print_exc()
                self._dashboard.forget()
                await asyncio.sleep(_LOOK)
            else:
                return

    def _post(self) -> None:
        try:
            self._give_to_ray()
        finally:
            # Where the head is away `settle` deletes it.
            with contextlib.suppress(*_AWAY):
                delete_table_entry(self._submission + STARTS)

    def _give_to_ray(self) -> None:
        client = self._dashboard.client()
        for last in (False, False, True):
            self._make_way()
            try:
                self._ask(client)
            except ClusterUnavailableError:
                if self._waited is not None and table_entry(self._submission) is None:
                    write_table_entry(self._submission, self._waited)
                raise
            except _ExistsError:
                found = table_entry(self._submission)
                if last or found is None or not is_nobodys(found):  # the answer to another try was lost
                    return
            else:
                return

    def _make_way(self) -> None:
        """Have no entry in the table that is not Ray's: it refuses a job whose id is there."""
        entry = table_entry(self._submission)
        waits = entry is not None and is_waiting(entry)
        self._waited = entry if waits else self._waited
        if self._waited is not None and (waits or entry is None):
            write_table_entry(self._submission + STARTS, self._waited)  # or no list would have it meanwhile
        if waits:  # Ray may have deleted it, and it is all that readers of one job find meanwhile
            _job_kv.keep(_job_kv.waiting_name(self._submission), b"-")
        if entry is not None and (waits or is_nobodys(entry)):
            delete_table_entry(self._submission)

    def _ask(self, client: JobsClient) -> None:
        """Ask Ray to run the process.

        Raises:
            ClusterUnavailableError: It may have taken the job, or not.
            _ExistsError: It has a job of that id.
            _RefusedError: It does not take the job.
        """
        queued, metadata = self._queued, for_ray(self._queued.metadata)
        if self._waited is not None:
            # Of launches with one key the first stays: Ray's own entry must not make the job a later one.
            metadata[SINCE] = str(taken_at(JobEntry.of(self._waited)))
        try:
            client.submit(queued.command, self._submission, metadata, dict(queued.runtime_env))
        except ClusterUnavailableError:
            raise
        except (FrayError, RuntimeError, ValueError) as error:
            raise (_ExistsError if is_known(error) else _RefusedError)(str(error)) from error

    async def lost(self) -> str:
        """Return when Ray says that the job has ended, and its process is gone: what Ray says."""
        while True:
            await asyncio.sleep(_LOOK)
            gone_for = time.monotonic() - self._detached_at if self.link is None else 0.0
            if self.submitted and gone_for > _GONE_AFTER and self._submitting is None:
                ended = await aside(self._ended)
                if ended is not None:
                    return ended
                if gone_for > _FORGOTTEN_AFTER:
                    await aside(self._settle_forgotten)

    def _ended(self) -> str | None:
        """Return what Ray says of a job that has ended for it; None of one that has not."""
        found = table_entry(self._submission)
        if found is None:
            return "its entry was removed from Ray's job table"
        entry = JobEntry.of(found)
        return process_ended(entry) if entry.status in TERMINAL else None

    def _settle_forgotten(self) -> None:
        """Write that the job has ended, where Ray has written it and a state of ours has replaced that.

        Each reads the entry and writes the whole of it, and Ray writes the end once.
        """
        try:
            gone = supervisor_is_gone(self._submission)
        except _AWAY:
            return
        entry = table_entry(self._submission)
        if gone and entry is not None and JobEntry.of(entry).status not in TERMINAL:
            settled = settled_table_entry(entry, "FAILED", "Ray's supervisor of the job is gone.")
            write_table_entry(self._submission, settled)

    async def settle(
        self, status: JobStatus, message: str | None, metadata: Mapping[str, str] | None = None
    ) -> None:
        """Have the entry of a job that Ray never ran say how it ended, and wait for one that Ray runs.

        Args:
            metadata: Goes into the entry of one whose process never was there, in the same write: who reads
                that the job has ended wants to know how.
        """
        if self._submitting is not None:
            await self._submitting
        delete_table_entry(self._submission + STARTS)  # of a scheduler that was killed just then
        self.show_waiting()
        if self.submitted and (self.link is not None or await self.begin() is None):
            return
        entry: dict[str, Any] | None = table_entry(self._submission)
        if entry is None:
            return
        entry["metadata"] = {**self._queued.metadata, **(entry.get("metadata") or {}), **(metadata or {})}
        entry["metadata"].pop(WAITS, None)
        if self.submitted:  # Ray has ended it, and says how
            write_table_entry(self._submission, entry)
        else:
            settled = settled_table_entry(entry, _RAYS.get(status, "FAILED"), message or "")
            write_table_entry(self._submission, settled)

    def tell(self, status: JobStatus) -> None:
        """Have the process end as the job did."""
        if self.link is not None:
            code = 0 if status is JobStatus.SUCCEEDED else 1
            self.link.tell(code, stopped=status is JobStatus.STOPPED)

    @property
    def environ(self) -> Mapping[str, str] | None:
        """The variables of the process; None where it is not there."""
        return None if self.link is None else self.link.environ


class _RefusedError(Exception):
    """Ray does not take the job."""


class _ExistsError(Exception):
    """Ray has a job of that id."""


def is_nobodys(entry: Mapping[str, Any]) -> bool:
    """Whether an entry is of no job: a head that was started again writes it for one that it misses."""
    known = JobEntry.of(entry)
    return known.status in TERMINAL and not known.metadata
