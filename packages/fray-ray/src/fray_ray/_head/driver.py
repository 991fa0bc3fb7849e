"""The driver of a job: `python -m fray_ray._head.driver SUBMISSION [FIRST]`, on the head.

It is started by the job's own process (`job_process`), which starts another where this one is killed. What
that needs to go on is in the head's store at each change (`record`); the replicas run on meanwhile.

pending   wait for the jobs that it runs after; find room for all replicas at once, build their environment
running   start the replicas, start failed ones again while they have retries left
finished  end what is left, give back the room, write the last word into Ray's table

Where another run of the job, FIRST, is named, this one has its plan.
"""

import json
import logging
import os
import pickle
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import ray

from fray.backend import die_with_parent
from fray.cluster import ExitReason, JobStatus
from fray_ray import _job_kv
from fray_ray._head.descendants import end_family
from fray_ray._head.gang import Gang
from fray_ray._head.independent_replicas import IndependentReplicas
from fray_ray._head.job_metrics import JobMetrics
from fray_ray._head.job_process import PARENT, UNSUCCESSFUL
from fray_ray._head.job_state import Outcome, Progress
from fray_ray._head.kept import earlier_tasks, keep_plan, plan_again
from fray_ray._head.on_exit import run_on_exit
from fray_ray._head.outliving import NAMESPACE, remove_abandoned_groups
from fray_ray._head.placing import STOPPED
from fray_ray._head.predecessors import unfinished
from fray_ray._head.record import DriverRecord
from fray_ray._head.replica_log import complete_log
from fray_ray._head.usage_file import usage_file
from fray_ray._job_table import read, stored_entry
from fray_ray._plan import Plan, job_config
from fray_ray._ray_internals.environment import JOB_CONFIG
from fray_ray._ray_internals.processes import driver_log

_LOOK = 0.2  # seconds between looks at what the job is asked to do
_LOOK_AT_OTHERS = 1.0  # seconds between looks at the jobs that it runs after
_RAYS_GRACE = 2.0  # seconds: Ray kills a driver three seconds after its SIGTERM
_LAST_GRACE = 10.0  # seconds that a replica has after SIGTERM when its time is up
_STOPPED_BY_RAY_WITHIN = 5.0  # seconds in which the caller of `terminate` has Ray stop this process


class StopRequested(Exception):  # noqa: N818 - not an error
    """Somebody wants the job to stop."""

    def __init__(self, grace: float) -> None:
        super().__init__(grace)
        self.grace = grace


class Driver:
    """One run of a job, from its plan to its last word.

    Args:
        submitted: The plan without what the driver itself adds to it: what is kept for another run.
        record: What a driver of the same run knew that was killed.
    """

    def __init__(self, plan: Plan, submitted: Plan, record: DriverRecord | None = None) -> None:
        self._plan, self._submitted = plan, submitted
        self._progress = Progress(
            plan,
            earlier=earlier_tasks(plan),
            log=driver_log(plan.submission),
            usage=usage_file(plan.submission),
            record=record,
            metrics=JobMetrics(plan.job_id, plan.name),
        )
        self._told_by_ray = threading.Event()
        self._replicas = (
            Gang(plan, self._progress) if plan.gang else IndependentReplicas(plan, self._progress)
        )

    def run(self) -> Outcome:
        """Carry the job through its life; nothing of it is left when this returns."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        try:
            outcome = self._known_outcome() or self._await_others() or self._live()
        except StopRequested as stop:
            outcome = STOPPED
            self._end(stop.grace)
            end_family(self._plan.job_id, self._plan.submission, stop.grace)
        with self._progress.recording() as record:
            record.outcome = outcome.as_record()
        self._replicas.close()
        kept = None if outcome.status is JobStatus.SUCCEEDED else keep_plan(self._submitted)
        self._progress.finish(outcome, kept)
        return outcome

    def tell_of_end(self) -> None:
        """Run what was given for the end of the job, once."""
        if self._plan.on_exit is None or self._progress.record.told:
            return
        with self._progress.recording() as record:
            record.told = True
        spec = self._plan.environ.get("FRAY_CLUSTER_SPEC", "ray")
        run_on_exit(self._plan.on_exit, self._plan.cwd, spec, self._progress.info)

    def _known_outcome(self) -> Outcome | None:
        """Return how the job ended where a driver that was killed knew it."""
        known = self._progress.record.outcome
        return None if known is None else Outcome.from_record(known)

    def _await_others(self) -> Outcome | None:
        """Wait for the jobs that this one runs after; return how it ends where one has not succeeded."""
        while True:
            waits_for, failure = unfinished(self._plan.after)
            if failure is not None:
                return Outcome(JobStatus.FAILED, ExitReason.DEPENDENCY_FAILED, failure)
            if not waits_for:
                return None
            self._progress.wait_for(f"it runs after {', '.join(waits_for)}")
            self._look(_LOOK_AT_OTHERS)

    def _live(self) -> Outcome:
        self._replicas.start()
        while self._replicas.is_alive():
            self._look()
            if self._plan.timeout is not None and self._progress.longest_attempt() > self._plan.timeout:
                self._end(_LAST_GRACE, ExitReason.TIMED_OUT)
                end_family(self._plan.job_id, self._plan.submission, _LAST_GRACE)
                message = f"ran longer than its timeout of {self._plan.timeout:g} s"
                return Outcome(JobStatus.FAILED, ExitReason.TIMED_OUT, message)
        return self._replicas.outcome

    def _look(self, seconds: float = _LOOK) -> None:
        """Wait for changes, publish them, and do what the job is asked to do."""
        self._progress.publish(seconds)
        if self._told_by_ray.is_set():
            raise StopRequested(_RAYS_GRACE)
        for name in _job_kv.names_of(self._plan.submission):
            word, _, rest = name.partition(".")
            if word not in (_job_kv.STOP, _job_kv.RESTART, _job_kv.ENDPOINT):
                continue
            package = _job_kv.package_name(self._plan.submission, name)
            data = _job_kv.fetch(package)
            if data is None:
                continue
            if word == _job_kv.STOP:
                raise StopRequested(float(data))
            if word == _job_kv.ENDPOINT:
                self._progress.add_endpoint(json.loads(data))
            else:
                replica, attempt = map(int, rest.split("."))
                self._replicas.restart(replica, attempt, float(data))
            _job_kv.delete(package)

    def _end(self, grace: float, reason: ExitReason = ExitReason.STOPPED) -> None:
        self._replicas.stop(grace, reason)
        if self._replicas.ident is not None:  # it was started
            self._replicas.join(grace + _LAST_GRACE)
            self._replicas.close()
            self._replicas.join(_LAST_GRACE)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        self._told_by_ray.set()


def main(submission: str, first: str | None = None) -> int:
    """Carry one job; return the exit code by which its process knows how it ended."""
    end_with(os.environ.pop(PARENT, None))
    ray.init(namespace=NAMESPACE, logging_level=logging.ERROR, log_to_driver=False)
    status = _carry(submission, first)
    if status is None:
        print(f"the plan of {submission} is gone: the head of the cluster was restarted", file=sys.stderr)  # noqa: T201
        return UNSUCCESSFUL
    leave_to_ray(status)
    return 0 if status is JobStatus.SUCCEEDED else UNSUCCESSFUL


def _carry(submission: str, first: str | None) -> JobStatus | None:
    """Carry a job to its end, from where a driver was killed; return how it ended; None without its plan."""
    state = _job_kv.fetch(_job_kv.state_name(submission))
    if state is None and (ended := end_written(submission)) is not None:
        return ended  # it was killed when all was done
    plan = _plan_of(submission)
    if plan is None and first is not None:
        plan = plan_again(first, submission)
    if plan is None:
        return None
    if state is not None:
        complete_log(Path(driver_log(submission)))
        print("[fray] the job has another driver", flush=True)  # noqa: T201 - the job's log
    remove_abandoned_groups()
    confidential = {name: plan.environ[name] for name in plan.confidential}
    _job_kv.keep(_job_kv.variables_name(submission), pickle.dumps(confidential))
    whole = replace(plan, environ={**plan.environ, **_handed_on(plan)})
    driver = Driver(whole, plan, None if state is None else DriverRecord.from_json(state))
    outcome = driver.run()
    driver.tell_of_end()
    kept = {_job_kv.plan_name(submission), _job_kv.workspace_name(submission)}
    _job_kv.delete_all(submission, but=kept if outcome.status is not JobStatus.SUCCEEDED else ())
    return outcome.status


def end_with(parent: str | None) -> None:
    """End when the job's own process does, which may be gone already."""
    if parent is not None:
        die_with_parent()
        if os.getppid() != int(parent):
            os._exit(1)


def end_written(submission: str) -> JobStatus | None:
    """Return how a job ended where its entry says so."""
    entry = stored_entry(submission)
    info = None if entry is None else read(entry)
    return info.status if info is not None and info.finished else None


def leave_to_ray(status: JobStatus) -> None:
    """Wait for Ray to stop this process of a stopped job, which makes it STOPPED in Ray's table, too."""
    if status is JobStatus.STOPPED:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(_STOPPED_BY_RAY_WITHIN)


def _plan_of(submission: str) -> Plan | None:
    data = _job_kv.fetch(_job_kv.plan_name(submission))
    plan: Plan | None = None if data is None else pickle.loads(data)
    return plan


def _handed_on(plan: Plan) -> dict[str, Any]:
    """The variables by which the job's own programs join Ray as part of it."""
    return {
        JOB_CONFIG: job_config(plan, os.environ[JOB_CONFIG]),
        "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1",  # what a program itself asks Ray for wins
    }


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
