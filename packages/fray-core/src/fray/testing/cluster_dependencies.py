"""Jobs that run after others: `after=`."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fray._contracts.cluster import Cluster
from fray._values.capabilities import ClusterCapabilities
from fray._values.errors import JobNotFoundError
from fray._values.jobs import ExitReason, JobId, JobStatus
from fray.testing.cluster_fixtures import ClusterFixtures, launch, program, until

WAITS_FOR_FILE = """
    import pathlib, sys, time
    while not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.01)
    print("first", file=open(sys.argv[2], "a", 1))
"""
SLEEP = "import time; time.sleep(600)"


class DependencyContract(ClusterFixtures):
    """`after=`: a job starts when others have succeeded, and fails when one has not."""

    def has_dependencies(self, cluster: Cluster) -> bool:
        """Whether `after=` is taken."""
        return getattr(cluster, "capabilities", ClusterCapabilities()).dependencies

    @pytest.fixture
    def first(self, cluster: Cluster, tmp_path: Path) -> JobId:
        """A job that runs until the file `go` is there."""
        return launch(cluster, program(WAITS_FOR_FILE, tmp_path / "go", tmp_path / "said"), "first")

    def test_a_job_starts_when_the_jobs_before_it_have_succeeded(
        self, cluster: Cluster, first: JobId, tmp_path: Path
    ) -> None:
        code = "import sys; print('second', file=open(sys.argv[1], 'a'))"
        second = program(code, tmp_path / "said")
        if not self.has_dependencies(cluster):
            with self.refuses("after"):
                launch(cluster, second, after=[first])
            return
        done = launch(cluster, program("pass"))
        cluster.wait(done, timeout=self.PATIENCE)
        waiting = launch(cluster, second, after=[done, first])
        until(lambda: first in (cluster.poll(waiting).pending_reason or ""), "it says what it waits for")
        info = cluster.poll(waiting)
        assert (info.status, info.after) == (JobStatus.PENDING, (done, first))
        (tmp_path / "go").touch()
        assert cluster.wait(waiting, timeout=self.PATIENCE).status is JobStatus.SUCCEEDED
        assert (tmp_path / "said").read_text().split() == ["first", "second"]

    @pytest.mark.parametrize("ends", ["fails", "is stopped"])
    def test_a_job_fails_with_the_reason_when_one_before_it_has_not_succeeded(
        self, cluster: Cluster, ends: str, tmp_path: Path
    ) -> None:
        if not self.has_dependencies(cluster):
            self.moot("capabilities.dependencies")
            return
        first = launch(cluster, program("raise SystemExit(3)" if ends == "fails" else SLEEP), "first")
        ran = tmp_path / "ran"
        second = launch(cluster, program("import sys; open(sys.argv[1], 'w')", ran), "second", after=[first])
        third = launch(cluster, program("import sys; open(sys.argv[1], 'w')", ran), "third", after=[second])
        if ends == "is stopped":
            cluster.terminate(first, grace=0.0)
        for job_id, before in ((second, first), (third, second)):
            info = cluster.wait(job_id, timeout=self.PATIENCE)
            assert (info.status, info.tasks[0].reason) == (JobStatus.FAILED, ExitReason.DEPENDENCY_FAILED)
            assert f"run after job {before}" in str(info.error_message)
            assert info.tasks[0].attempt == 0
        assert not ran.exists()

    def test_a_job_that_is_seen_to_have_ended_says_at_once_how(
        self, cluster: Cluster, tmp_path: Path
    ) -> None:
        if not self.has_dependencies(cluster):
            self.moot("capabilities.dependencies")
            return
        code = f"{WAITS_FOR_FILE}\n    raise SystemExit(3)"
        first = launch(cluster, program(code, tmp_path / "go", tmp_path / "said"), "first")
        waiting = {launch(cluster, program("pass"), after=[first]) for _ in range(10)}
        (tmp_path / "go").touch()
        ended: dict[JobId, set[ExitReason | None]] = {}
        deadline = time.monotonic() + self.PATIENCE
        while set(ended) != waiting and time.monotonic() < deadline:
            # Without a pause: what is wrong between two writes stands for a millisecond.
            infos = [info for info in cluster.list_jobs() if info.job_id in waiting and info.finished]
            for info in infos:
                ended.setdefault(info.job_id, set()).add(info.tasks[0].reason)
        assert ended == {job_id: {ExitReason.DEPENDENCY_FAILED} for job_id in waiting}

    def test_a_job_after_one_that_is_unknown_is_refused(self, cluster: Cluster) -> None:
        if not self.has_dependencies(cluster):
            self.moot("capabilities.dependencies")
            return
        before = cluster.list_jobs()
        with pytest.raises(JobNotFoundError, match="never-was-000000"):
            launch(cluster, program("pass"), after=["never-was-000000"])
        with pytest.raises(ValueError, match="launch_many"):
            launch(cluster, program("pass"), after=[0])
        assert cluster.list_jobs() == before

    def test_a_job_that_waits_for_another_can_be_stopped(
        self, cluster: Cluster, first: JobId, tmp_path: Path
    ) -> None:
        if not self.has_dependencies(cluster):
            self.moot("capabilities.dependencies")
            return
        ran = tmp_path / "ran"
        waiting = launch(cluster, program("import sys; open(sys.argv[1], 'w')", ran), after=[first])
        cluster.terminate(waiting)
        assert cluster.poll(waiting).status is JobStatus.STOPPED
        (tmp_path / "go").touch()
        assert cluster.wait(first, timeout=self.PATIENCE).status is JobStatus.SUCCEEDED
        assert not ran.exists()

    def test_waiting_goes_on_when_the_launcher_has_ended(
        self, cluster: Cluster, first: JobId, elsewhere: Callable[..., str], tmp_path: Path
    ) -> None:
        if not self.has_dependencies(cluster):
            self.moot("capabilities.dependencies")
            return
        code = """
            request = JobRequest("second", Entrypoint.from_binary("true"), after=[sys.argv[1]])
            print(cluster.launch(request))
        """
        second = elsewhere(code, first).strip()
        (tmp_path / "go").touch()
        assert cluster.wait(second, timeout=self.PATIENCE).status is JobStatus.SUCCEEDED
