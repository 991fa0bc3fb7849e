"""Follow the logs of jobs and sweeps, through the dashboard."""

from collections.abc import Callable
from functools import partial
from typing import Any

from fray.backend import LogSource, OffsetLog, follow_members
from fray.cluster import JobInfo, LogStream, follow_logs
from fray_ray._job_table import submission_of
from fray_ray._launcher.job_log import JobLog
from fray_ray._launcher.jobs_client import JobsClient
from fray_ray._launcher.lookup import FoundJob

_INTERVAL = 0.3  # seconds; each look fetches the whole log, which is the only way that Ray offers


def of_job(client: JobsClient, find: Callable[[], FoundJob], **choice: Any) -> LogStream:
    """Follow the log of a job; of one that was run again, all runs are one log."""
    runs: list[str] = list(find().runs)
    log = JobLog(lambda: "".join(map(client.log, runs)))
    known: list[object] = []

    def poll() -> JobInfo:
        found = find()
        runs[:] = found.runs
        state = [found.info.finished, [task.attempt for task in found.info.tasks]]
        if state != known:  # what an attempt wrote before it ended is read before the next one is
            known[:] = state
            log.stale()
        return found.info

    return follow_logs(poll, log.read, interval=_INTERVAL, **choice)


def of_sweep(
    client: JobsClient,
    poll: Callable[[str], JobInfo],
    members: Callable[[], list[JobInfo]],
    sweep_id: str,
    **choice: Any,
) -> LogStream:
    """Follow the logs of a sweep's members as one."""
    logs: dict[str, JobLog] = {}
    ended: set[str] = set()

    def look() -> list[JobInfo]:
        infos = members()
        for info in infos:
            if info.finished and info.job_id not in ended and info.job_id in logs:
                ended.add(info.job_id)
                logs[info.job_id].stale()
        return infos

    def open_log(job_id: str, replica: int | None, attempt: int) -> LogSource:
        if job_id not in logs:
            logs[job_id] = JobLog(lambda: _all_runs(client, job_id))
        return OffsetLog(partial(logs[job_id].read, replica, attempt))

    return follow_members(poll, sweep_id, look, open_log, interval=_INTERVAL, **choice)


def _all_runs(client: JobsClient, job_id: str) -> str:
    """Return what all runs of a member have written; one that there is not has written nothing."""
    text, tries = "", 0
    while run := client.log(submission_of(job_id, tries := tries + 1)):
        text += run
    return text
