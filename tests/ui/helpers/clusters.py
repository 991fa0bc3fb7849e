"""Clusters of made-up jobs, which answer as a test says."""

import re
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from fray import JobNotFoundError
from fray.cluster import (
    ClusterCalls,
    JobId,
    JobInfo,
    JobRequest,
    JobStatus,
    LogStream,
    ResourceConfig,
    TaskStatus,
    UsageSample,
)

NOW = 1_790_000_000.0


def job(job_id: str, status: str = "running", **more: Any) -> JobInfo:
    """Return a job of one replica."""
    finished = status in ("succeeded", "failed", "stopped")
    started = None if status == "pending" else NOW
    reason = {"failed": "exited", "stopped": "stopped", "succeeded": "exited"}.get(status)
    task = TaskStatus(
        replica=0,
        status=JobStatus(status),
        attempt=0 if started is None else 1,
        exit_code=1 if status == "failed" else None,
        reason=reason,  # type: ignore[arg-type]  # it takes the word as well
        started_at=started,
        finished_at=NOW + 60 if finished else None,
    )
    given: dict[str, Any] = {
        "name": job_id.rpartition("-")[0] or job_id,
        "tasks": (task,),
        "submitted_at": NOW,
        "started_at": started,
        "finished_at": NOW + 60 if finished else None,
        "resources": ResourceConfig(ram="1g"),
    }
    return JobInfo(job_id=JobId(job_id), status=JobStatus(status), **(given | more))


class StubCluster(ClusterCalls):
    """Jobs by id; what is asked of it waits for `answers`, and fails with `problem`."""

    spec = "stub"

    def __init__(self) -> None:
        self.jobs: dict[str, JobInfo] = {}
        self.lines: list[str] = []
        self.samples: list[UsageSample] = []
        self.answers = threading.Event()
        self.answers.set()
        self.problem: Exception | None = None
        self.asked: list[tuple[str, str]] = []
        """What was to change something."""

    def add(self, *infos: JobInfo) -> None:
        self.jobs |= {info.job_id: info for info in infos}

    def _answer(self) -> None:
        assert self.answers.wait(60)
        if self.problem is not None:
            raise self.problem

    def _all_jobs(self, parent: str | None) -> list[JobInfo]:
        self._answer()
        return [info for info in list(self.jobs.values()) if parent in (None, info.job_id.parent)]

    def poll(self, job_id: str, /) -> JobInfo:
        self._answer()
        if job_id not in self.jobs:
            raise JobNotFoundError(job_id, "the stub")
        return self.jobs[job_id]

    def usage(self, job_id: str) -> list[UsageSample]:
        self.poll(job_id)
        return self.samples

    def monitor(self, job_id: str, /, **choice: Any) -> LogStream:
        info = self.poll(job_id)
        tail, grep = choice.pop("tail"), choice.pop("grep", None)
        assert choice == {"follow": False}
        found = [line for line in self.lines if grep is None or re.search(grep, line)]
        lines: Iterator[str] = iter(found[-tail:])
        return LogStream(lines, lambda: info)

    def terminate(self, job_id: str, grace: float = 10.0) -> None:
        self.asked.append(("stop", job_id))
        self._answer()
        self.jobs[job_id] = job(job_id, "stopped")

    def retry(self, job_id: str, /) -> JobId:
        self.asked.append(("retry", job_id))
        self._answer()
        self.jobs[job_id] = job(job_id, "running")
        return JobId(job_id)

    def launch(self, request: JobRequest, /, *, key: str | None = None) -> JobId:
        raise NotImplementedError("no page asks for it")


class Part(NamedTuple):
    """What is known of a list, and how many more there are."""

    infos: list[JobInfo]
    unread: int


class SteppingCluster(StubCluster):
    """Its jobs are read in steps: the latest hundred, and the others once `rest` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.rest = threading.Event()

    def watch_jobs(self, parent: str | None = None) -> "SteppingCluster":
        return self

    def renew(self) -> None:
        """Everything is looked at each time."""

    def look(self) -> Part:
        latest = sorted(self.jobs.values(), key=lambda info: info.submitted_at or 0.0, reverse=True)
        known = latest if self.rest.is_set() else latest[:100]
        return Part(known, len(latest) - len(known))
