"""Derived from a backend's primitives: waiting by polling.

Nothing here knows a backend. A cluster whose `poll` is a request over a network passes a longer
`interval`, and a longer shortest one; everything else is the same.
"""

import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from fray._telemetry import listeners as _listeners
from fray._values.delays import poll_delays
from fray._values.errors import GetTimeoutError, JobFailedError
from fray._values.job_states import LastSeen
from fray._values.jobs import JobId, JobInfo, JobStatus

if TYPE_CHECKING:
    from fray._contracts.cluster import Cluster


_UNSEEN = 60.0  # seconds after which `wait` warns; a supervisor shows itself every ten


def parent_job() -> JobId | None:
    """Return the id of the job that this process is part of: the parent of a job launched from here."""
    job_id = os.environ.get("FRAY_JOB_ID")
    return JobId(job_id) if job_id else None


def wait_for_jobs(
    cluster: "Cluster",
    job_id: str | Iterable[str],
    *,
    timeout: float | None = None,
    raise_on_failure: bool = False,
    stream_logs: bool = False,
    interval: float = 0.1,
    shortest: float = 0.001,
) -> JobInfo | list[JobInfo]:
    """Implement a backend's `wait`: poll the jobs until each is finished.

    Args:
        interval: The longest pause between two polls, in seconds.
        shortest: The shortest one.
    """
    single = isinstance(job_id, str)
    ids = [job_id] if isinstance(job_id, str) else list(job_id)
    if any(not isinstance(each, str) for each in ids):
        raise ValueError(f"wait takes job ids, got {ids!r}")
    found = {each: cluster.poll(each) for each in ids}
    printers = {each: _print_logs(cluster, each, several=not single) for each in found} if stream_logs else {}
    try:
        _poll_until_finished(cluster, found, timeout, raise_on_failure, (shortest, interval))
    finally:
        # Also before a failure is raised: why a job failed is in its last lines, often.
        for each, printer in printers.items():
            if found[each].finished:
                printer.join()
    return found[ids[0]] if single else [found[each] for each in ids]


def final_info(poll: Callable[[], JobInfo]) -> JobInfo:
    """Wait for a job's last state."""
    info = poll()
    for delay in poll_delays():
        if info.finished:
            break
        time.sleep(delay)
        info = poll()
    _seen(info)
    return info


def _seen(info: JobInfo) -> None:
    if info.finished and _listeners.watching and _listeners.listening():
        from fray._telemetry.job_instrumentation import job_ended  # for listeners only

        job_ended(info)


def _poll_until_finished(
    cluster: "Cluster",
    found: dict[str, JobInfo],
    timeout: float | None,
    raise_on_failure: bool,
    intervals: tuple[float, float],
) -> None:
    deadline = None if timeout is None else time.monotonic() + timeout
    warned: set[str] = set()
    for delay in poll_delays(*intervals):
        for info in found.values():
            _seen(info)
            if info.last_seen is not None and info.job_id not in warned:
                _warn_of_unseen(info, info.last_seen, warned)
            if raise_on_failure and info.finished and info.status is not JobStatus.SUCCEEDED:
                raise JobFailedError(info)
        unfinished = [job_id for job_id, info in found.items() if not info.finished]
        if not unfinished:
            return
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                states = ", ".join(f"{job_id} ({found[job_id].status})" for job_id in unfinished)
                raise GetTimeoutError(f"not finished after {timeout:g} s: {states}; they go on")
            delay = min(delay, left)
        time.sleep(delay)
        found.update((job_id, cluster.poll(job_id)) for job_id in unfinished)


def _warn_of_unseen(info: JobInfo, seen: LastSeen, warned: set[str]) -> None:
    """Warn that this host cannot determine whether a job still runs, when it was not seen for a while."""
    ago = time.time() - seen.time
    if ago > _UNSEEN:
        warned.add(info.job_id)
        warnings.warn(
            f"job {info.job_id} was last seen on host {seen.host} {ago:.0f} s ago, and this host cannot "
            "check whether it still runs; look there, or settle it with remove(force=True)",
            RuntimeWarning,
            stacklevel=4,
        )


def _print_logs(cluster: "Cluster", job_id: str, several: bool) -> threading.Thread:
    prefix = f"[{job_id}] " if several else ""

    def copy() -> None:
        for line in cluster.monitor(job_id):
            _print(f"{prefix}{line}\n")

    # A daemon: after a timeout or another's failure the caller continues, and the job may never end.
    thread = threading.Thread(target=copy, name=f"fray-logs-{job_id}", daemon=True)
    thread.start()
    return thread


def _print(text: str) -> None:
    # One write per line: lines of several jobs do not run into each other.
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError as error:  # not even a part of it was written
        sys.stdout.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
    sys.stdout.flush()
