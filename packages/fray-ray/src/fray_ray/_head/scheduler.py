"""The scheduler of a cluster: one actor on the head for all jobs. Ray restarts it when it is killed.

It takes the jobs that launchers have put into the head's store, keeps there what another scheduler needs to
go on with each, and writes how they do into Ray's table. One event loop serves all of them.
"""

import asyncio
import contextlib
import os
import pickle
import sys
import threading
import time
import traceback
from typing import Any

import ray

from fray_ray import _job_kv
from fray_ray._head.asides import aside
from fray_ray._head.dashboard import Dashboard
from fray_ray._head.job import ScheduledJob, Shared, is_request
from fray_ray._head.job_metrics import shared_gauges
from fray_ray._head.kept import PlanError, forget_oldest, forget_orphans, plan_again
from fray_ray._head.launch_keys import LaunchKeys, is_listed
from fray_ray._head.nodes import watch_draining
from fray_ray._head.outliving import remove_abandoned_groups, remove_groups_of
from fray_ray._head.output import LogFile
from fray_ray._head.predecessors import Predecessors
from fray_ray._head.process_link import ProcessLink, serve_links
from fray_ray._head.record import JobRecord, unpacked
from fray_ray._head.reservation_queue import ReservationQueue
from fray_ray._head.sweep import Sweep
from fray_ray._job_table import KEPT, STARTS, TERMINAL, JobEntry, end_written, is_waiting
from fray_ray._jobs_client import JobsClient
from fray_ray._plan import Plan
from fray_ray._queued_job import QueuedJob
from fray_ray._ray_internals.kv import (
    delete_table_entry,
    settled_table_entry,
    table_entry,
    waiting_table_entry,
    write_table_entry,
)
from fray_ray._ray_internals.processes import driver_log
from fray_ray._scheduler import socket_path
from fray_ray._sweep_plan import SweepPlan

_LOOK = 0.1  # seconds between looks into the head's store
_LOOK_AFTER_ERROR = 1.0  # seconds
_SAID_WITHIN = 2.0  # seconds in which a process that ends has said why, to those that wait for it
# The pause after a look is `_COST` times its duration, because listing many names is slow. It is at most
# `_LONGEST` seconds, because a look may also be slow while the head is away for a moment.
_COST, _LONGEST = 10, 2.0
_AT_ONCE = 0.2  # seconds in which jobs are taken in one look; those that came with a thousand others wait
_LOOK_FOR_NOTICES = 0.5  # seconds
_LAUNCHED_WITHIN = 600.0  # seconds between the upload of a plan and that of the job that is queued with it
_TRIES_FOR = 60.0  # seconds for which a job that cannot be carried is tried again: the head may be away
_CARRIED_AFTER = 10.0  # seconds without an error after which a job was carried: errors before do not count
_NO_PLAN = "the scheduler has no plan of this job (the head may have lost its memory): launch it again"


class SchedulerActor:
    """What Ray keeps: a thread of it runs the loop."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._failure: str | None = None
        threading.Thread(target=self._run, name="jobs", daemon=True).start()

    def ready(self) -> None:
        """Return when it takes jobs.

        Raises:
            RuntimeError: It cannot. Only the log of this process would say why, which users do not look into.
        """
        self._ready.wait()
        if self._failure is not None:
            raise RuntimeError(f"the scheduler cannot start:\n{self._failure}")

    def _run(self) -> None:
        try:
            asyncio.run(Scheduler().run(self._ready.set))
        except BaseException:  # noqa: BLE001 - the process ends, whatever it is
            traceback.print_exc()
            if not self._ready.is_set():
                self._failure = traceback.format_exc()
                self._ready.set()
                time.sleep(_SAID_WITHIN)
        finally:
            sys.stderr.flush()
            _end_process()


def _end_process() -> None:
    """Have Ray start another one: this one can carry no job."""
    os._exit(1)


class Scheduler:
    """All jobs of one cluster."""

    def __init__(self) -> None:
        self._jobs: dict[str, ScheduledJob | Sweep] = {}
        self._refused: set[str] = set()  # submissions whose packages are none of this version
        self._troubled: dict[str, float] = {}  # by submission: when reading it raised an error
        # By submission: when it could not be carried, for the first time and for the last.
        self._failures: dict[str, tuple[float, float]] = {}
        self._links: dict[str, ProcessLink] = {}
        self._keys = LaunchKeys()
        self._look_again = False  # although nothing in the head's store has changed
        self._lives: set[asyncio.Task[None]] = set()
        node = ray.get_runtime_context().get_node_id()
        self._shared = Shared(ReservationQueue(), Predecessors(), Dashboard(_client), node)
        shared_gauges()

    async def run(self, ready: Any) -> None:
        """Serve, for ever."""
        await aside(remove_abandoned_groups)
        path = socket_path(ray.get_runtime_context().gcs_address)
        server = await serve_links(path, self._attach, self._detach, self._stop)
        async with server:
            loops = [
                asyncio.create_task(each)
                for each in (
                    self._shared.queue.run(),
                    self._shared.predecessors.run(),
                    watch_draining(self._jobs.values, _LOOK_FOR_NOTICES),
                    self._read_requests(),
                    self._forget_now_and_then(),
                )
            ]
            ready()
            await asyncio.gather(*loops)

    # --- the processes of jobs ---

    def _attach(self, link: ProcessLink) -> None:
        self._links[link.submission] = link
        job = self._jobs.get(link.submission)
        if job is not None:
            job.attach(link)
            return
        if self._take(link.submission) is not None:
            return
        ended = end_written(link.submission)
        if ended is not None:  # by a scheduler that was killed when all was done
            link.tell(0 if ended == "succeeded" else 1, stopped=ended == "stopped")
            return
        print_into(link.submission, _NO_PLAN)
        link.tell(1)

    def _detach(self, link: ProcessLink) -> None:
        if self._links.get(link.submission) is link:
            del self._links[link.submission]
        job = self._jobs.get(link.submission)
        if job is not None:
            job.detach(link)

    def _stop(self, link: ProcessLink) -> None:
        job = self._jobs.get(link.submission)
        if job is not None:
            job.stop_by_ray()

    # --- the head's store ---

    async def _read_requests(self) -> None:
        """Take new jobs, and what is requested of those that there are."""
        read: dict[str, list[str]] = {}
        while True:
            begin = time.monotonic()
            try:
                names = _job_kv.all_names()
                pause = min(_LONGEST, max(_LOOK, _COST * (time.monotonic() - begin)))
                if names != read or self._look_again:
                    self._look_again = False
                    read = {} if self._read_all(names) else names  # the same may be requested again
            except Exception:  # noqa: BLE001 - the head's store is away for a moment
                traceback.print_exc()
                self._look_again = True  # what was not read is read next
                pause = _LOOK_AFTER_ERROR
            await asyncio.sleep(pause)

    def _read_all(self, names: dict[str, list[str]]) -> bool:
        """Read what there is of each job; return whether anything was requested.

        One that raised an error comes last from then on, behind those that raised one before, so that it
        keeps no other waiting. Where taking jobs takes too long, the others are taken in the next look, after
        what happens meanwhile.
        """
        told, until = False, time.monotonic() + _AT_ONCE
        for submission in sorted(names, key=lambda each: self._troubled.get(each, 0.0)):
            if submission not in self._jobs and time.monotonic() > until:
                self._look_again = True
                continue
            self._troubled[submission] = time.monotonic()
            told |= self._read(submission, names[submission])
            del self._troubled[submission]
        return told

    def _read(self, submission: str, words: list[str]) -> bool:
        """Take a job that is new, and what is requested of it; return whether anything was."""
        job = self._jobs.get(submission)
        if job is None and _job_kv.FORGET in words:
            _job_kv.delete_all(submission)
            self._refused.discard(submission)
            return True
        if job is None and _job_kv.QUEUED in words and submission not in self._refused:
            job = self._take(submission)
        requests = list(filter(is_request, words))
        if job is None:
            requests = requests if self._has_ended(submission, words) else []
        for word in requests:
            name = _job_kv.package_name(submission, word)
            data = _job_kv.fetch(name)
            done = job is None or data is None or _deliver(job, word, data)
            if done and _job_kv.fetch(name) == data:  # else there is another one, which is read next
                _job_kv.delete(name)
        return bool(requests)

    @staticmethod
    def _has_ended(submission: str, words: list[str]) -> bool:
        """Whether requests of a job that is not carried came too late for it."""
        if _job_kv.QUEUED in words:
            return False
        entry = table_entry(submission)  # a member that waits in its sweep has none
        return entry is not None and JobEntry.of(entry).status in TERMINAL

    def _take(self, submission: str) -> "ScheduledJob | Sweep | None":
        """Take a job that was queued, or that another scheduler has carried until now."""
        data = _job_kv.fetch(_job_kv.queued_name(submission))
        queued = None if data is None else QueuedJob.from_json(data)
        if queued is not None and queued.previous_run in self._jobs:
            self._look_again = True  # the run before it has ended for users, and not quite for its scheduler
            return None
        if queued is not None and self._is_second(submission, queued):
            return None
        job = None if queued is None else self._made(submission, queued)
        if job is None:
            self._refused.add(submission)
            return None
        self._jobs[submission] = job
        task = asyncio.create_task(self._live(submission, job))
        self._lives.add(task)
        task.add_done_callback(self._lives.discard)
        if submission in self._links:
            job.attach(self._links[submission])
        return job

    def _is_second(self, submission: str, queued: QueuedJob) -> bool:
        """Whether another job has the launch key of this one: then nothing of this one is kept.

        Its launcher finds the other one in Ray's table then, so that one has to be there.
        """
        holder = self._keys.holder(submission, queued)
        if holder is None:
            return False
        if is_listed(holder):
            _job_kv.delete_all(submission)
        else:
            self._look_again = True
        return True

    def _made(self, submission: str, queued: QueuedJob) -> "ScheduledJob | Sweep | None":
        """Return the job; None where its plan cannot be carried out, which its entry says then."""
        first, last = self._failures.get(submission, (0.0, 0.0))
        if last - first > _TRIES_FOR:  # not by now: where the head was away nothing was tried
            tried = f"for {_TRIES_FOR:g} s"
            message = f"the scheduler could not carry it {tried}; the traceback is in this job's log"
            self._fail(submission, queued, message)
            return None
        try:
            plan = self._plan(submission, queued)
            if isinstance(plan, SweepPlan):
                return Sweep(submission, plan, queued, self._shared)
            return ScheduledJob(plan, queued, _record(submission), self._shared)
        except PlanError as error:
            traceback.print_exc()
            self._fail(submission, queued, str(error))
            return None
        except Exception:
            self._note_failure(submission)
            raise

    def _note_failure(self, submission: str) -> None:
        """Note that a job cannot be carried now; it is tried again."""
        now = time.monotonic()
        if submission not in self._failures:
            print_into(submission, f"the scheduler failed:\n{traceback.format_exc()}")
        self._failures[submission] = self._failures.get(submission, (now, now))[0], now

    def _fail(self, submission: str, queued: QueuedJob, message: str) -> None:
        """End a job that nobody can carry, and give back its room."""
        remove_groups_of(submission)
        entry = table_entry(submission)
        if entry is None or is_waiting(entry):
            entry = waiting_table_entry(queued.command, dict(queued.metadata), self._shared.node)
        else:
            print_into(submission, message)
        entry["metadata"] = {**(entry.get("metadata") or {}), KEPT: "null"}
        write_table_entry(submission, settled_table_entry(entry, "FAILED", message))
        delete_table_entry(submission + STARTS)  # of one that Ray was just asked to run
        _job_kv.delete_all(submission)
        self._failures.pop(submission, None)
        if submission in self._links:  # else its process is notified when it connects
            self._links[submission].tell(1)

    @staticmethod
    def _plan(submission: str, queued: QueuedJob) -> Any:
        data = _job_kv.fetch(_job_kv.plan_name(submission))
        if data is not None:
            return _loaded(data)
        before = queued.previous_run
        data = None if before is None else _job_kv.fetch(_job_kv.plan_name(before))
        if data is None:
            raise PlanError("its plan is no longer in the memory of the head: launch it again")
        return plan_again(_loaded(data), submission)

    async def _live(self, submission: str, job: ScheduledJob | Sweep) -> None:
        begun = time.monotonic()
        try:
            await job.live()
            self._failures.pop(submission, None)
        except Exception:  # noqa: BLE001 - one job that cannot be carried must not end the others
            if time.monotonic() - begun >= _CARRIED_AFTER:
                self._failures.pop(submission, None)
            self._note_failure(submission)
            traceback.print_exc()
            await asyncio.sleep(_LOOK_AFTER_ERROR)
            self._look_again = True  # it is taken again
        finally:
            self._jobs.pop(submission, None)

    async def _forget_now_and_then(self) -> None:
        seen: set[str] = set()
        sizes: dict[str, int] = {}
        while True:
            await asyncio.sleep(_LAUNCHED_WITHIN)
            with contextlib.suppress(Exception):  # the head is away for a moment
                seen = await aside(forget_orphans, seen)
                sizes = await aside(forget_oldest, sizes)


def _deliver(job: ScheduledJob | Sweep, word: str, data: bytes) -> bool:
    """Request something of a job; return whether the request has been dealt with."""
    try:
        return job.deliver(word, data)
    except (KeyError, TypeError, ValueError):  # anybody may upload anything
        traceback.print_exc()
        return True


def print_into(submission: str, text: str) -> None:
    """Write a line into the log of a job that is not carried."""
    output = LogFile(driver_log(submission))
    output.write(f"[fray] {text}\n".encode())
    output.close()


def _unreadable(what: str, error: Exception) -> PlanError:
    """Say that what is stored of a job cannot be read, as when it names what is not there."""
    return PlanError(f"the scheduler of the cluster cannot read the job's {what}: {error!r}")


def _loaded(data: bytes) -> Any:
    try:
        plan = pickle.loads(data)
        if not isinstance(plan, Plan | SweepPlan):
            raise TypeError(f"it is a {type(plan).__name__}")  # noqa: TRY301 - it cannot be read either
    except Exception as error:
        raise _unreadable("plan", error) from error
    return plan


def _record(submission: str) -> JobRecord | None:
    data = _job_kv.fetch(_job_kv.state_name(submission))
    try:
        return None if data is None else unpacked(data)
    except Exception as error:
        raise _unreadable("state", error) from error


def _client() -> JobsClient:
    # Who submits a job tries again, and has it in Ray's table meanwhile.
    return JobsClient(ray.get_runtime_context().gcs_address, agent_timeout=0.0)
