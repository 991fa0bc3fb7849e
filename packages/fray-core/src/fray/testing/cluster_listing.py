"""`list_jobs`: which jobs, and in which order."""

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import pytest

from fray._contracts.cluster import Cluster
from fray._values.errors import JobNotFoundError
from fray._values.jobs import JobId, JobStatus
from fray.testing.cluster_fixtures import ClusterFixtures, launch, program

LAUNCHES = """
    import sys
    from fray.cluster import Entrypoint, JobRequest, ResourceConfig, current_cluster
    cluster, small = current_cluster(), ResourceConfig(cpu=0.5, ram="256m")
    cluster.wait(cluster.launch(JobRequest(sys.argv[1], Entrypoint.from_binary("true"), resources=small)))
"""


class ListContract(ClusterFixtures):
    """`list_jobs`: by name, label, status, time and parent; sorted, and the last so many"""

    @pytest.fixture
    def tag(self) -> str:
        """What the names of a test's jobs begin with: the cluster may have others."""
        return f"list-{os.urandom(4).hex()}"

    _listed: ClassVar[dict[str, tuple[str, dict[str, JobId]]]] = {}  # by spec

    @pytest.fixture
    def listed(self, cluster: Cluster, spec: str, tag: str) -> tuple[str, dict[str, JobId]]:
        """A tag, and three jobs with it that have ended, one of them failed, in this order.

        Tests that share a cluster look at the same ones: nothing changes them.
        """
        before = self._listed.get(spec)
        if before is not None and len(cluster.list_jobs(name=f"{before[0]}:*")) == len(before[1]):
            return before
        names = {"step:tokenize": "pass", "step:train": "raise SystemExit(3)", "report": "pass"}
        jobs = {}
        for name, code in names.items():
            jobs[name] = launch(cluster, program(code), f"{tag}:{name}")
            cluster.wait(jobs[name], timeout=self.PATIENCE)
        self._listed[spec] = tag, jobs
        return tag, jobs

    def names(self, cluster: Cluster, tag: str, name: str = "*", **wanted: Any) -> list[str]:
        """Return the names of what is found, without the tag."""
        found = cluster.list_jobs(name=f"{tag}:{name}", **wanted)
        return [info.name.removeprefix(f"{tag}:") for info in found]

    def test_jobs_are_listed_by_name_and_status(
        self, cluster: Cluster, listed: tuple[str, dict[str, JobId]]
    ) -> None:
        tag, jobs = listed
        names = partial(self.names, cluster, tag)
        assert names() == list(jobs)
        assert names("step:*") == ["step:tokenize", "step:train"]
        assert [info.job_id for info in cluster.list_jobs(name=jobs["report"])] == [jobs["report"]]
        assert names(status="failed") == ["step:train"]
        assert names(status=[JobStatus.SUCCEEDED, "running"]) == ["step:tokenize", "report"]
        assert names("step:*", status="succeeded") == ["step:tokenize"]
        assert names("nothing") == []

    def test_a_list_is_sorted_and_cut(self, cluster: Cluster, listed: tuple[str, dict[str, JobId]]) -> None:
        tag, jobs = listed
        names = partial(self.names, cluster, tag)
        assert len(jobs) == 3
        assert names(limit=2) == ["step:train", "report"]
        assert names(sort="-submitted") == ["report", "step:train", "step:tokenize"]
        assert names(sort="name") == ["report", "step:tokenize", "step:train"]
        assert names(sort="status") == ["step:tokenize", "report", "step:train"]
        assert names(sort="-finished", limit=1) == ["step:tokenize"]
        assert names(limit=0) == []

    def test_jobs_are_listed_since_a_time(
        self, cluster: Cluster, listed: tuple[str, dict[str, JobId]]
    ) -> None:
        tag, jobs = listed
        since = cluster.poll(jobs["report"]).submitted_at
        assert self.names(cluster, tag, since=since) == ["report"]
        assert cluster.list_jobs(since=time.time() + 600) == []

    def test_jobs_are_listed_by_label(self, cluster: Cluster, tag: str) -> None:
        if not self.declares(cluster, "labels"):
            self.moot("capabilities.labels")
            return
        jobs = [launch(cluster, program("pass"), f"{tag}:bare")]
        for lr, team in (("0.1", "a"), ("0.2", "a"), ("0.1", "b")):
            labels = {"lr": lr, "team": team}
            jobs.append(launch(cluster, program("pass"), f"{tag}:{lr}-{team}", labels=labels))
        for job_id in jobs:
            cluster.wait(job_id, timeout=self.PATIENCE)

        def names(**labels: str) -> list[str]:
            return self.names(cluster, tag, labels=labels)

        assert names(lr="0.1") == ["0.1-a", "0.1-b"]
        assert names(lr="0.1", team="a") == ["0.1-a"]
        assert names(lr="0.*") == names(team="*") == ["0.1-a", "0.2-a", "0.1-b"]
        assert names(other="*") == []
        assert [info.labels for info in cluster.list_jobs(name=f"{tag}:bare")] == [{}]

    def test_the_children_of_a_job_are_listed_by_it(self, cluster: Cluster, tag: str) -> None:
        parent = launch(cluster, program(LAUNCHES, f"{tag}:child"), f"{tag}:parent")
        assert cluster.wait(parent, timeout=self.PATIENCE).status is JobStatus.SUCCEEDED
        (child,) = cluster.list_jobs(parent=parent)
        assert (child.name, child.job_id.parent) == (f"{tag}:child", parent)
        assert self.names(cluster, tag) == ["parent", "child"]
        with pytest.raises(JobNotFoundError):
            cluster.list_jobs(parent="never-was-000000")

    def test_an_invalid_filter_is_refused(self, cluster: Cluster) -> None:
        wrong: list[tuple[Callable[[], object], str]] = [
            (lambda: cluster.list_jobs(status="done"), "status must be one of pending"),
            (lambda: cluster.list_jobs(sort="age"), "sort must be one of submitted"),
            (lambda: cluster.list_jobs(limit=-1), "limit must be"),
            (lambda: cluster.list_jobs(since=-1.0), "since must be"),
            (lambda: cluster.list_jobs(labels="lr=1"), "labels must be"),  # type: ignore[arg-type]
        ]
        for call, message in wrong:
            with pytest.raises(ValueError, match=message):
                call()
