"""A job's figures among Ray's metrics, by `ray.util.metrics`: the head exports them, as every node its own.

All are gauges, set again and again while the job lives: Ray drops one that nobody has set for twice its
report interval. So a cluster exports the figures of the jobs that it has, and not those of all it has had.
"""

import functools
import math
import time
from collections.abc import Callable, Mapping

from ray.util.metrics import Gauge

from fray.cluster import ExitReason, JobInfo, JobStatus, TaskStatus

Latest = Mapping[tuple[int, int], tuple[int, float]]
"""By replica and attempt: its memory now, and the CPU time that it has used."""
_EVERY = 2.0  # seconds between two times that a job's figures are set; Ray sends them each ten
_STATUS = "status"
_DESCRIPTIONS = {
    "replicas": "Replicas of a job, by their status.",
    "attempts": "Attempts of replicas that a job has started.",
    "failures": "Attempts of a job's replicas that failed.",
    "preemptions": "Attempts of a job's replicas that lost their machine.",
    "pending_seconds": "For how long no replica of a job has run: it waits for room, or to start again.",
    "memory_bytes": "Memory of the attempts of a job that run.",
    "cpu_seconds": "CPU time that all attempts of a job have used.",
    "gang_size": "TPU slices of a gang, or replicas of one without TPUs, that run now.",
    "gang_restarts": "How often a gang has started again.",
}
_OF_GANGS = ("gang_size", "gang_restarts")


@functools.cache
def shared_gauges() -> dict[str, Gauge]:
    """Return the metrics that all jobs of this process share, by name."""
    tags = ("job_id", "job_name")
    return {
        name: Gauge(f"fray_job_{name}", text, (*tags, _STATUS) if name == "replicas" else tags)
        for name, text in _DESCRIPTIONS.items()
    }


class JobMetrics:
    """The figures of one job, as Ray's metrics `ray_fray_job_NAME` with the tags `job_id` and `job_name`.

    Args:
        hosts: Of a gang, how many replicas are a unit of it: the hosts of a slice. None for replicas that
            know nothing of each other, which have no figures of a gang.
    """

    def __init__(self, job_id: str, name: str, hosts: int | None = None) -> None:
        shown = name.encode("ascii", "backslashreplace").decode()  # Ray 2.60 takes no other tag
        self._tags = {"job_id": job_id, "job_name": shown}
        self._gauges, self._hosts = shared_gauges(), hosts
        self._next = 0.0
        self._waits_since: float | None = None
        # What was counted last, and of what: of a job that waits nothing changes between two times.
        self._counted: tuple[JobInfo, Latest, dict[JobStatus, int], dict[str, float]] | None = None

    def look(self, info: JobInfo, latest: Callable[[], Latest]) -> None:
        """Set the figures by what is known of the job, where it was not done a moment ago.

        Args:
            latest: Returns what the attempts of the job use.
        """
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _EVERY
        used, known = latest(), self._counted
        if known is None or known[0] is not info or known[1] != used:
            known = self._counted = info, used, replicas_of(info), self._figures(info, used)
        self._set(known[2], known[3] | {"pending_seconds": self._pending(info, known[2])})

    def end(self) -> None:
        """Set all to zero: the job has ended."""
        others = ("replicas",) if self._hosts is not None else ("replicas", *_OF_GANGS)
        self._set(dict.fromkeys(JobStatus, 0), {name: 0.0 for name in _DESCRIPTIONS if name not in others})

    def _figures(self, info: JobInfo, used: Latest) -> dict[str, float]:
        gang = {} if self._hosts is None else figures_of_gang(info, self._hosts)
        return figures_of(info, used) | gang

    def _set(self, replicas: Mapping[JobStatus, int], figures: Mapping[str, float]) -> None:
        for status, count in replicas.items():
            self._gauges["replicas"].set(count, {**self._tags, _STATUS: status.value})
        for name, figure in figures.items():
            self._gauges[name].set(figure, self._tags)

    def _pending(self, info: JobInfo, replicas: Mapping[JobStatus, int]) -> float:
        if info.finished or replicas[JobStatus.RUNNING]:
            self._waits_since = None
            return 0.0
        if self._waits_since is None:
            ran = any(task.attempt for task in info.tasks)
            self._waits_since = time.time() if ran else info.submitted_at or time.time()
        return max(0.0, time.time() - self._waits_since)


def replicas_of(info: JobInfo) -> dict[JobStatus, int]:
    """Return how many replicas have each status."""
    return {status: sum(task.status is status for task in info.tasks) for status in JobStatus}


def figures_of(info: JobInfo, latest: Latest) -> dict[str, float]:
    """Return the figures of a job's attempts, from its first."""
    attempts = [attempt for task in info.tasks for attempt in (*task.previous, task)]
    runs = [(task.replica, task.attempt) for task in info.tasks if task.status is JobStatus.RUNNING]
    return {
        "attempts": sum(task.attempt for task in info.tasks),
        "failures": sum(map(_failed, attempts)),
        "preemptions": sum(attempt.reason is ExitReason.PREEMPTED for attempt in attempts),
        "memory_bytes": sum(latest[attempt][0] for attempt in runs if attempt in latest),
        "cpu_seconds": sum(cpu_time for _, cpu_time in latest.values()),
    }


def figures_of_gang(info: JobInfo, hosts: int) -> dict[str, float]:
    """Return the figures of a job that is a gang; `hosts` of its replicas are one unit of it."""
    running = sum(task.status is JobStatus.RUNNING for task in info.tasks)
    return {
        "gang_size": math.ceil(running / hosts),  # hosts of a slice may end before the others
        "gang_restarts": max([0, *(task.attempt - 1 for task in info.tasks)]),
    }


def _failed(attempt: TaskStatus) -> bool:
    others = (None, ExitReason.PREEMPTED, ExitReason.STOPPED)
    return attempt.reason not in others and attempt.exit_code != 0
