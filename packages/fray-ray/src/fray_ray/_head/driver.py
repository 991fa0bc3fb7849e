"""The driver of a job: `python -m fray_ray._head.driver SUBMISSION`, run by Ray on the head of the cluster.

pending   find room for all replicas at once, build their environment
running   start the replicas, start failed ones again while they have retries left
finished  end what is left, give back the room, write the last word into Ray's table
"""

import logging
import os
import pickle
import signal
import sys
import threading
import time
from dataclasses import replace
from types import FrameType

import ray
from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR

from fray.cluster import ExitReason, JobStatus
from fray_ray import _job_kv
from fray_ray._head.descendants import end_family
from fray_ray._head.gang import Gang
from fray_ray._head.independent_replicas import IndependentReplicas
from fray_ray._head.job_state import Outcome, Progress
from fray_ray._head.placing import STOPPED
from fray_ray._plan import Plan, job_config

_LOOK = 0.2  # seconds between looks into the mailbox
_RAYS_GRACE = 2.0  # seconds: Ray kills a driver three seconds after its SIGTERM
_LAST_GRACE = 10.0  # seconds that a replica has after SIGTERM when its time is up
_HEARD_WITHIN = 5.0  # seconds that the one who stopped the job has to tell Ray so


class StopRequested(Exception):  # noqa: N818 - not an error
    """Somebody wants the job to stop."""

    def __init__(self, grace: float) -> None:
        super().__init__(grace)
        self.grace = grace


class Driver:
    """One job, from its plan to its last word."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._progress = Progress(plan)
        self._told_by_ray = threading.Event()
        self._crew = Gang(plan, self._progress) if plan.gang else IndependentReplicas(plan, self._progress)

    def run(self) -> Outcome:
        """Carry the job through its life; whatever happens, nothing of it is left."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        outcome = Outcome(JobStatus.FAILED, ExitReason.LOST, "its driver failed; see its log in Ray")
        try:
            outcome = self._live()
        except StopRequested as stop:
            outcome = STOPPED
            self._end(stop.grace)
            end_family(self._plan.submission, stop.grace)
        finally:
            self._crew.close()
            self._progress.finish(outcome)
        return outcome

    def _live(self) -> Outcome:
        self._crew.start()
        while self._crew.is_alive():
            self._look()
            if self._plan.timeout is not None and self._progress.seconds_running() > self._plan.timeout:
                self._end(_LAST_GRACE, ExitReason.TIMED_OUT)
                end_family(self._plan.submission, _LAST_GRACE)
                message = f"ran longer than its timeout of {self._plan.timeout:g} s"
                return Outcome(JobStatus.FAILED, ExitReason.TIMED_OUT, message)
        return self._crew.outcome

    def _look(self, seconds: float = _LOOK) -> None:
        """Wait for news, tell them, and read the mailbox."""
        self._progress.publish(seconds)
        if self._told_by_ray.is_set():
            raise StopRequested(_RAYS_GRACE)
        grace = _job_kv.fetch(_job_kv.stop_name(self._plan.submission))
        if grace is not None:
            raise StopRequested(float(grace))

    def _end(self, grace: float, reason: ExitReason = ExitReason.STOPPED) -> None:
        self._crew.stop(grace, reason)
        self._crew.join(grace + _LAST_GRACE)
        self._crew.close()
        self._crew.join(_LAST_GRACE)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        self._told_by_ray.set()


def main(submission: str) -> int:
    """Carry one job; the exit code is what Ray's table shows."""
    ray.init(logging_level=logging.ERROR, log_to_driver=False)
    data = _job_kv.fetch(_job_kv.plan_name(submission))
    if data is None:
        print(f"the plan of {submission} is gone: the head of the cluster was restarted", file=sys.stderr)  # noqa: T201
        return 1
    plan: Plan = pickle.loads(data)
    confidential = {name: plan.environ[name] for name in plan.confidential}
    _job_kv.keep(_job_kv.variables_name(submission), pickle.dumps(confidential))
    handed_on = {
        RAY_JOB_CONFIG_JSON_ENV_VAR: job_config(plan, os.environ[RAY_JOB_CONFIG_JSON_ENV_VAR]),
        "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1",  # what a program itself asks Ray for wins
    }
    outcome = Driver(replace(plan, environ={**plan.environ, **handed_on})).run()
    for name_of in (_job_kv.plan_name, _job_kv.stop_name, _job_kv.variables_name):
        _job_kv.delete(name_of(submission))
    if outcome.status is JobStatus.STOPPED:
        # Whoever stopped it now has Ray stop this process, so that it reads STOPPED in Ray's table too.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(_HEARD_WITHIN)
    return 0 if outcome.status is JobStatus.SUCCEEDED else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
