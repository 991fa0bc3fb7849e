"""A cluster of made-up jobs, which answers as it is told to."""

import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fray import JobNotFoundError
from fray.cluster import (
    Endpoint,
    JobId,
    JobInfo,
    JobRequest,
    JobStatus,
    LogStream,
    Pruned,
    ResourceConfig,
    SweepId,
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


class StubCluster:
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

    def list_jobs(
        self,
        *,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        status: JobStatus | str | Iterable[JobStatus | str] | None = None,
        since: float | None = None,
        parent: str | None = None,
        limit: int | None = None,
        sort: str = "submitted",
    ) -> list[JobInfo]:
        assert (name, labels, status, since, limit, sort) == (None, None, None, None, None, "submitted")
        self._answer()
        return [info for info in list(self.jobs.values()) if info.job_id.parent == parent or parent is None]

    def poll(self, job_id: str, /) -> JobInfo:
        self._answer()
        if job_id not in self.jobs:
            raise JobNotFoundError(job_id, "the stub")
        return self.jobs[job_id]

    def usage(self, job_id: str) -> list[UsageSample]:
        self.poll(job_id)
        return self.samples

    def monitor(
        self,
        job_id: str,
        /,
        *,
        replica: int | None = None,
        tail: int | None = None,
        since: float | None = None,
        grep: str | None = None,
        follow: bool = True,
    ) -> LogStream:
        info = self.poll(job_id)
        assert (follow, since, replica) == (False, None, None)
        found = [line for line in self.lines if grep is None or re.search(grep, line)]
        lines: Iterator[str] = iter(found[-(tail or 0) :])
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

    # What no page asks for.

    def launch(self, request: JobRequest, /, *, key: str | None = None) -> JobId:
        raise NotImplementedError

    def launch_many(
        self,
        requests: Iterable[JobRequest],
        max_parallel: int | None = None,
        *,
        key: str | None = None,
        name: str | None = None,
    ) -> SweepId:
        raise NotImplementedError

    def restart(self, job_id: str, replica: int | None = None, grace: float = 10.0) -> None:
        raise NotImplementedError

    def endpoints(self, prefix: str = "", *, everywhere: bool | None = None) -> list[Endpoint]:
        raise NotImplementedError

    def wait(self, job_id: Any, /, **options: Any) -> Any:
        raise NotImplementedError

    def remove(self, job_id: str, force: bool = False) -> None:
        raise NotImplementedError

    def prune(self, older_than: float = 0.0, *, dry_run: bool = False) -> Pruned:
        raise NotImplementedError
