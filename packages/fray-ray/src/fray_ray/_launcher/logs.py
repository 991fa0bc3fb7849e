"""Follow the logs of jobs and sweeps, through the dashboard."""

from collections.abc import Callable, Sequence
from typing import Any

from fray.backend import LogSource, follow_members
from fray.cluster import JobInfo, LogStream, follow_logs
from fray_ray._job_table import submission_of
from fray_ray._jobs_client import JobsClient
from fray_ray._launcher.job_log import JobLog
from fray_ray._lookup import FoundJob

_INTERVAL = 0.3  # seconds between two looks


def of_job(client: JobsClient, find: Callable[[], FoundJob], **choice: Any) -> LogStream:
    """Follow the log of a job; of one that was run again, all runs are one log."""
    found = find()
    log = JobLog(
        lambda lines: _of_runs(client, found.runs, lines), lambda replica: _attempt(found.info, replica)
    )
    known: list[object] = []

    def poll() -> JobInfo:
        nonlocal found
        found = find()
        state = [found.info.finished, [task.attempt for task in found.info.tasks]]
        if state != known:  # what an attempt wrote before it ended is read before the next one is
            known[:] = state
            log.stale()
        return found.info

    return follow_logs(poll, open_log=log.attempt, interval=_INTERVAL, **choice)


def of_sweep(
    client: JobsClient,
    poll: Callable[[str], JobInfo],
    members: Callable[[], list[JobInfo]],
    sweep_id: str,
    **choice: Any,
) -> LogStream:
    """Follow the logs of a sweep's members as one."""
    logs: dict[str, JobLog] = {}
    latest: dict[str, JobInfo] = {}
    ended: set[str] = set()

    def look() -> list[JobInfo]:
        infos = members()
        latest.update((info.job_id, info) for info in infos)
        for info in infos:
            if info.finished and info.job_id not in ended and info.job_id in logs:
                ended.add(info.job_id)
                logs[info.job_id].stale()
        return infos

    def open_log(job_id: str, replica: int | None, attempt: int) -> LogSource:
        if job_id not in logs:
            logs[job_id] = JobLog(
                lambda lines: _of_runs(client, _runs(client, job_id), lines),
                lambda replica: _attempt(latest.get(job_id), replica),
            )
        return logs[job_id].attempt(replica, attempt)

    return follow_members(poll, sweep_id, look, open_log, interval=_INTERVAL, **choice)


def _of_runs(client: JobsClient, runs: Sequence[str], lines: int | None) -> str:
    """Return the last lines of what several runs have written, at least so many where there are."""
    if lines is None:
        return "".join(map(client.log, runs))
    text = ""
    for run in reversed(runs):
        text = client.last_lines(run, lines - text.count("\n")) + text
        if text.count("\n") >= lines:
            break
    return text


def _runs(client: JobsClient, job_id: str) -> list[str]:
    """Return the runs of a member that there are."""
    runs: list[str] = []
    while client.entry(run := submission_of(job_id, len(runs) + 1)) is not None:
        runs.append(run)
    return runs


def _attempt(info: JobInfo | None, replica: int) -> int:
    """Return the latest attempt of a replica that has begun; one that ended while it waited never did."""
    tasks = () if info is None else info.tasks
    if replica >= len(tasks):
        return 1
    return tasks[replica].attempt - (tasks[replica].started_at is None)
