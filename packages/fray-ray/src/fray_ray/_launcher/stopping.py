"""Stop a job through its driver, or, where that does not listen, through Ray."""

import contextlib
import secrets
import time
from collections.abc import Callable

from fray import ClusterUnavailableError
from fray.cluster import poll_delays
from fray_ray import _job_kv
from fray_ray._job_table import TERMINAL, is_lost, read
from fray_ray._launcher.jobs_client import JobsClient
from fray_ray._launcher.lookup import FoundJob

_ENDS_WITHIN = 90.0  # seconds for what is left of a job that Ray has lost
_MARGIN = 20.0  # seconds beyond the grace within which a driver has ended its job


def stop_found(
    client: JobsClient, find: Callable[[], FoundJob], grace: float, command: Callable[[str], str]
) -> None:
    """Stop a job and return when nothing of it is left; one that has ended stays as it is.

    Args:
        command: Returns what ends, on the head, what is left of a submission that Ray has lost.
    """
    told = False
    for delay in poll_delays(longest=0.2):
        found = find()
        if found.info.finished:
            if found.runs and is_lost(found.entry):
                _end_lost(client, found.submission, command(found.submission))
            return
        if found.runs:
            stop_job(client, found.submission, grace)
            return
        if not told:  # a member that waits: its sweep gets a request, unless it starts it now
            client.upload(_job_kv.stop_name(found.submission), str(grace).encode())
            told = True
        time.sleep(delay)


def _end_lost(client: JobsClient, submission: str, command: str) -> None:
    """Have the head end what is left of a job, and return when it has."""
    end = f"fray-end-{secrets.token_hex(3)}-{submission}"
    client.submit(command, end, {}, {})
    deadline = time.monotonic() + _ENDS_WITHIN
    for delay in poll_delays(longest=0.2):
        entry = client.entry(end)
        if entry is None or entry.status in TERMINAL:
            break
        if time.monotonic() > deadline:
            raise ClusterUnavailableError(
                f"what is left of job {submission}, which Ray lost, was not ended within {_ENDS_WITHIN:g} s; "
                f"see `ray job logs {end}`"
            )
        time.sleep(delay)
    with contextlib.suppress(ValueError):  # Ray says of it a little longer that it runs
        client.remove(end)


def stop_job(client: JobsClient, submission: str, grace: float) -> None:
    """Stop a run of a job and return when nothing of it is left."""
    client.upload(_job_kv.stop_name(submission), str(grace).encode())
    deadline = time.monotonic() + grace + _MARGIN
    told = False
    for delay in poll_delays(longest=0.2):
        entry = client.entry(submission)
        info = None if entry is None else read(entry)
        if entry is None or info is None or entry.status in TERMINAL:
            return
        # Once its last word is written the driver waits to be stopped by Ray, whose table then says so too.
        if not told and (info.finished or time.monotonic() > deadline):
            client.stop(submission)
            told = True
        time.sleep(delay)
