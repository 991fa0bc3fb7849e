"""Stop a job through the scheduler, or, where that does not answer, through Ray."""

import time
from collections.abc import Callable

from fray import ClusterUnavailableError
from fray.cluster import poll_delays
from fray_ray import _job_kv
from fray_ray._job_table import TERMINAL, is_lost, is_settled, read
from fray_ray._jobs_client import JobsClient
from fray_ray._lookup import FoundJob
from fray_ray._scheduler import GRACE_OF_LOST, SUBMISSION

_ENDS_WITHIN = 90.0  # seconds for what is left of a job that Ray has lost, or is to stop
_DOUBTED_AFTER = 15.0  # seconds in which a scheduler that lives has noticed
_MARGIN = 20.0  # seconds beyond the grace within which the scheduler has ended a job


def stop_found(
    client: JobsClient, find: Callable[[], FoundJob], grace: float, doubt: Callable[[], None]
) -> None:
    """Stop a job and return when nothing of it is left; one that has ended stays as it is.

    Args:
        doubt: Called where the scheduler does not seem to take notice.
    """
    told = doubted = False
    begun = time.monotonic()
    for delay in poll_delays(longest=0.2):
        found = find()
        if found.info.finished:
            if found.runs and is_lost(found.entry):
                await_settled(client, found.submission, GRACE_OF_LOST, doubt)
            return
        if found.runs:
            stop_job(client, found.submission, grace, doubt)
            return
        if not told:  # a member that waits: its sweep gets a request, unless it starts it now
            client.upload(_job_kv.stop_name(found.submission), str(grace).encode())
            told = True
        waited = time.monotonic() - begun
        if waited > _DOUBTED_AFTER and not doubted:
            doubted = True
            doubt()
        if waited > _DOUBTED_AFTER + _ENDS_WITHIN:
            raise ClusterUnavailableError(_unanswered(found.submission, _DOUBTED_AFTER + _ENDS_WITHIN))
        time.sleep(delay)


def await_settled(client: JobsClient, submission: str, grace: float, doubt: Callable[[], None]) -> None:
    """Return when the scheduler has ended what is left of a job that has ended for Ray, and has noted so.

    Raises:
        ClusterUnavailableError: It has not for a long time.
    """
    within = grace + _ENDS_WITHIN
    deadline = time.monotonic() + within
    doubted_at = time.monotonic() + _DOUBTED_AFTER
    for delay in poll_delays(longest=0.2):
        entry = client.entry(submission)
        if entry is None or is_settled(entry):
            return
        if time.monotonic() > doubted_at:
            doubted_at = deadline
            doubt()
        if time.monotonic() > deadline:
            raise ClusterUnavailableError(
                f"what is left of job {submission}, which Ray has ended, was not ended within {within:g} s"
            )
        time.sleep(delay)


def stop_job(
    client: JobsClient, submission: str, grace: float, doubt: Callable[[], None] = lambda: None
) -> None:
    """Stop a run of a job and return when nothing of it is left; see `await_stopped`."""
    client.upload(_job_kv.stop_name(submission), str(grace).encode())
    await_stopped(client, submission, grace, doubt)


def await_stopped(
    client: JobsClient, submission: str, grace: float, doubt: Callable[[], None] = lambda: None
) -> None:
    """Return when nothing is left of a run of a job, whose scheduler has been requested to stop it.

    Args:
        doubt: Called where the scheduler does not seem to take notice.

    Raises:
        ClusterUnavailableError: Neither the scheduler nor Ray has ended it.
    """
    deadline = time.monotonic() + grace + _MARGIN
    told = doubted = False
    for delay in poll_delays(longest=0.2):
        entry = client.entry(submission)
        if entry is None and time.monotonic() < deadline and client.holds(_job_kv.waiting_name(submission)):
            time.sleep(delay)  # Ray makes its entry now
            continue
        info = None if entry is None else read(entry)
        if entry is None or info is None:
            return
        if entry.status in TERMINAL:
            if is_lost(entry):  # by Ray alone: its replicas have their grace
                await_settled(client, submission, grace, doubt)
            return
        if not doubted and time.monotonic() > deadline:
            doubted = True
            doubt()
        # A job that has ended waits for Ray to stop its process, so that Ray's table says so too.
        if not told and (info.finished or time.monotonic() > deadline):
            client.stop(submission)
            told = True
        if time.monotonic() > deadline + _ENDS_WITHIN:  # it waits, so Ray has no process of it to stop
            raise ClusterUnavailableError(_unanswered(submission, grace + _MARGIN + _ENDS_WITHIN))
        time.sleep(delay)


def _unanswered(submission: str, within: float) -> str:
    return (
        f"job {submission} was not ended within {within:g} s: the cluster's scheduler does not answer; "
        f"`ray job logs {SUBMISSION}` says whether it could start"
    )
