"""What a job started beside its replicas, and ends with it: jobs, drivers of Ray, detached actors."""

import time
from concurrent.futures import ThreadPoolExecutor

import ray

from fray import ClusterUnavailableError
from fray.cluster import poll_delays, retrying
from fray_ray import _job_kv
from fray_ray._head.dashboard import Dashboard
from fray_ray._job_kv import QUEUED
from fray_ray._job_table import submission_of
from fray_ray._lookup import latest
from fray_ray._ray_internals.family import drivers_of, kill_actors, living_actors_of
from fray_ray._ray_internals.kv import table_submissions
from fray_ray._stopping import await_stopped

_GONE_WITHIN = 10.0  # seconds
_TRIES_FOR = 60.0  # seconds for which a dashboard that does not answer is asked again
_AT_ONCE = 16  # jobs that are stopped side by side


def stop_family(job_id: str, grace: float) -> list[str]:
    """Request the end of the jobs below a job, without waiting for it; return what Ray calls them.

    A job is queued until it has ended, also one that was launched a moment ago and is in no table yet.
    """
    below = submission_of(f"{job_id}/")
    queued = [
        child for child, words in _job_kv.all_names().items() if child.startswith(below) and QUEUED in words
    ]
    _job_kv.request_stops(queued, grace)
    return queued


def end_family(job_id: str, submission: str, grace: float, dashboard: Dashboard) -> None:
    """Stop the jobs below a job, end its detached actors, and wait until Ray has ended its workers.

    Args:
        submission: What Ray calls this run of the job.
    """

    def stop() -> None:
        try:
            _stop_jobs_below(job_id, queued, grace, dashboard)
        except ClusterUnavailableError:
            dashboard.forget()
            raise

    queued = stop_family(job_id, grace)
    try:
        if queued or table_submissions(submission_of(f"{job_id}/")):  # few jobs launch others
            retrying(stop, (ClusterUnavailableError,), _TRIES_FOR)
    finally:  # also where no dashboard is left
        _end_detached_actors(submission)
        _await_workers(submission)


def _stop_jobs_below(job_id: str, queued: list[str], grace: float, dashboard: Dashboard) -> None:
    client = dashboard.client()
    known = [
        (info, entry.submission)
        for info, entry in latest(client.entries()).values()
        if info.job_id.startswith(f"{job_id}/")
    ]
    ended = {submission for info, submission in known if info.finished}
    running = ({submission for _, submission in known} | set(queued)) - ended
    _job_kv.request_stops(running, grace)
    if running:
        with ThreadPoolExecutor(min(len(running), _AT_ONCE)) as pool:
            list(pool.map(lambda child: await_stopped(client, child, grace), running))


def _drivers(submission: str) -> dict[str, bool]:
    """The ids of the drivers that ran as part of a job, this one left out, and whether each has ended."""
    own = ray.get_runtime_context().get_job_id()
    return {driver: ended for driver, ended in drivers_of(submission).items() if driver != own}


def _end_detached_actors(submission: str) -> None:
    """End the actors that drivers of the job made."""
    kill_actors(living_actors_of(_drivers(submission)), _GONE_WITHIN)


def _await_workers(submission: str) -> None:
    deadline = time.monotonic() + _GONE_WITHIN
    for delay in poll_delays():
        if all(_drivers(submission).values()) or time.monotonic() > deadline:
            return
        time.sleep(delay)
