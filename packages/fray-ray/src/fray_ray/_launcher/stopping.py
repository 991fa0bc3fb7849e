"""Stop a job through its driver, or, where that does not listen, through Ray."""

import time

from fray.cluster import poll_delays
from fray_ray import _job_kv
from fray_ray._job_table import read
from fray_ray._launcher.jobs_client import JobsClient

_MARGIN = 20.0  # seconds beyond the grace within which a driver has ended its job
_TERMINAL = ("FAILED", "STOPPED", "SUCCEEDED")


def stop_job(client: JobsClient, submission: str, grace: float) -> None:
    """Stop a job and return when nothing of it is left."""
    client.upload(_job_kv.stop_name(submission), str(grace).encode())
    deadline = time.monotonic() + grace + _MARGIN
    told = False
    for delay in poll_delays(longest=0.2):
        details = client.details(submission)
        info = details and read(details)
        if info is None or str(details.status.value) in _TERMINAL:
            return
        # Once its last word is written the driver waits to be stopped by Ray, whose table then says so too.
        if not told and (info.finished or time.monotonic() > deadline):
            client.stop(submission)
            told = True
        time.sleep(delay)
