"""Sweeps: many jobs that are launched, followed, waited for, stopped and retried as one."""

import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fray._contracts.cluster import Cluster
from fray._values.capabilities import ClusterCapabilities
from fray._values.environment import create_environment
from fray._values.errors import JobFailedError, JobNotFoundError
from fray._values.jobs import ExitReason, JobRequest, JobStatus, SweepId
from fray.testing.cluster_fixtures import ClusterFixtures, launch, numbers_in, program, until
from fray_resources import ResourceConfig

SAY = "import os, sys; print(sys.argv[1], os.environ['FRAY_SWEEP_ID'], os.environ['FRAY_SWEEP_INDEX'])"
SLEEP = "import time; time.sleep(600)"
# Counts itself in a folder for as long as it runs, and writes how many there were.
COUNT = """
    import os, pathlib, sys, time
    folder = pathlib.Path(sys.argv[1])
    own = folder / str(os.getpid())
    own.touch()
    time.sleep(0.2)
    print(len(list(folder.iterdir())), file=open(sys.argv[2], "a"))
    own.unlink()
"""
WHEN_THERE = """
    import pathlib, sys, time
    while not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.01)
"""


class SweepContract(ClusterFixtures):
    """`launch_many`: many jobs are one, by one id, in every process"""

    def has_sweeps(self, cluster: Cluster) -> bool:
        """Whether there are sweeps; where not, `launch_many` refuses."""
        if getattr(cluster, "capabilities", ClusterCapabilities()).sweeps:
            return True
        self.moot("capabilities.sweeps")
        return False

    def sweep(self, cluster: Cluster, *entrypoints: Any, **options: Any) -> SweepId:
        """Launch a sweep of small jobs."""
        small = ResourceConfig(cpu=0.5, ram="256m")
        requests = [
            JobRequest(f"try-{position}", entrypoint, resources=small)
            for position, entrypoint in enumerate(entrypoints)
        ]
        return cluster.launch_many(requests, **options)

    def test_a_sweep_is_one_job_with_the_progress_of_its_members(self, cluster: Cluster) -> None:
        entrypoints = [program(SAY, f"hello-{position}") for position in range(3)]
        if not getattr(cluster, "capabilities", ClusterCapabilities()).sweeps:
            with self.refuses("launch_many|sweeps"):
                self.sweep(cluster, *entrypoints)
            return
        started = time.monotonic()
        sweep = self.sweep(cluster, *entrypoints)
        assert time.monotonic() - started < self.STARTS_WITHIN
        assert sweep.startswith("try-")
        info = cluster.wait(sweep, timeout=self.PATIENCE, raise_on_failure=True)
        assert (info.job_id, info.name, info.is_sweep) == (sweep, "try", True)
        assert (info.status, info.progress, info.exit_code) == (JobStatus.SUCCEEDED, {"succeeded": 3}, 0)
        for position in range(3):
            member = cluster.poll(sweep.member(position))
            assert (member.name, member.status) == (f"try-{position}", JobStatus.SUCCEEDED)
            assert member.sweep == sweep
            assert list(cluster.monitor(member.job_id)) == [f"hello-{position} {sweep} {position}"]
        lines = [f"[{position}] hello-{position} {sweep} {position}" for position in range(3)]
        assert sorted(cluster.monitor(sweep)) == lines
        assert sorted(cluster.monitor(sweep, tail=2, follow=False, grep="hello-[01]")) == lines[:2]

    def test_a_sweep_is_one_row_and_its_members_are_listed_below_it(self, cluster: Cluster) -> None:
        if not self.has_sweeps(cluster):
            return
        alone = launch(cluster, program("pass"), "alone")
        requests = [
            JobRequest(f"lr={lr}", program("pass"), labels={"lr": str(lr), "team": "contract"})
            for lr in (0.1, 0.2)
        ]
        sweep = cluster.launch_many(requests, name="rates")
        cluster.wait([alone, sweep], timeout=self.PATIENCE)
        assert [info.job_id for info in cluster.list_jobs() if info.job_id.startswith(sweep)] == [sweep]
        members = cluster.list_jobs(parent=sweep)
        assert [info.job_id for info in members] == [sweep.member(0), sweep.member(1)]
        assert [info.labels["lr"] for info in members] == ["0.1", "0.2"]
        assert [info.name for info in cluster.list_jobs(labels={"team": "contract"})] == ["rates"]
        assert [info.job_id for info in cluster.list_jobs(parent=sweep, labels={"lr": "0.2"})] == [
            sweep.member(1)
        ]
        with pytest.raises(JobNotFoundError):
            cluster.poll(f"{sweep}/2")

    def test_no_more_members_run_than_max_parallel_though_the_launcher_has_ended(
        self, cluster: Cluster, elsewhere: Callable[..., str], tmp_path: Path
    ) -> None:
        if not self.has_sweeps(cluster):
            return
        folder, counts = tmp_path / "running", tmp_path / "counts"
        folder.mkdir()
        code = """
            small = ResourceConfig(cpu=0.1, ram="64m")
            command = Entrypoint.from_binary("python", ["-c", *sys.argv[1:]])
            print(cluster.launch_many([JobRequest("one", command, resources=small)] * 6, max_parallel=2))
        """
        sweep = elsewhere(code, textwrap.dedent(COUNT), str(folder), str(counts)).strip()
        assert cluster.wait(sweep, timeout=self.PATIENCE).progress == {"succeeded": 6}
        found = numbers_in(counts)
        assert len(found) == 6
        assert max(found) <= 2

    def test_members_run_after_others_by_position(self, cluster: Cluster, tmp_path: Path) -> None:
        if not self.has_sweeps(cluster):
            return
        said = tmp_path / "said"
        code = "import sys; print(sys.argv[2], file=open(sys.argv[1], 'a'))"
        first = launch(cluster, program(WHEN_THERE, tmp_path / "go"))
        requests = [
            JobRequest("last", program(code, said, 0), after=[1, 2]),
            JobRequest("middle", program(code, said, 1), after=[2]),
            JobRequest("first", program(code, said, 2), after=[first]),
        ]
        sweep = cluster.launch_many(requests)
        assert not said.exists()
        (tmp_path / "go").touch()
        assert cluster.wait(sweep, timeout=self.PATIENCE).progress == {"succeeded": 3}
        assert numbers_in(said) == [2, 1, 0]
        assert cluster.poll(sweep.member(0)).after == (sweep.member(1), sweep.member(2))

    def test_a_circle_of_members_and_other_bad_sweeps_start_nothing(self, cluster: Cluster) -> None:
        if not self.has_sweeps(cluster):
            return
        before = cluster.list_jobs()
        ok = JobRequest("ok", program("pass"))
        circle = [
            JobRequest("a", program("pass"), after=[1]),
            JobRequest("b", program("pass"), after=[0]),
        ]
        bad: list[tuple[list[Any], dict[str, Any], str]] = [
            (circle, {}, "circle"),
            ([JobRequest("a", program("pass"), after=[0])], {}, "circle"),
            ([JobRequest("a", program("pass"), after=[7])], {}, "after"),
            ([], {}, "requests"),
            ([ok, "no request"], {}, "requests"),
            ([ok], {"max_parallel": 0}, "max_parallel"),
        ]
        for requests, options, match in bad:
            with pytest.raises(ValueError, match=match):
                cluster.launch_many(requests, **options)
        with pytest.raises(JobNotFoundError, match="never-was"):
            cluster.launch_many([ok, JobRequest("b", program("pass"), after=["never-was-000000"])])
        assert cluster.list_jobs() == before

    def test_a_sweep_is_stopped_with_members_that_run_and_that_wait(
        self, cluster: Cluster, tmp_path: Path
    ) -> None:
        if not self.has_sweeps(cluster):
            return
        pids = tmp_path / "pids"
        code = "import os, sys, time; print(os.getpid(), file=open(sys.argv[1], 'a', 1)); time.sleep(600)"
        sweep = self.sweep(cluster, *[program(code, pids)] * 4, max_parallel=2)
        until(lambda: len(numbers_in(pids)) == 2, "two members run", self.PATIENCE)
        until(lambda: cluster.poll(sweep).status is JobStatus.RUNNING, "it reads running", self.PATIENCE)
        cluster.terminate(sweep)
        info = cluster.wait(sweep, timeout=self.PATIENCE)
        assert (info.status, info.progress) == (JobStatus.STOPPED, {"stopped": 4})
        assert len(numbers_in(pids)) == 2
        assert {each.status for each in cluster.list_jobs(parent=sweep)} == {JobStatus.STOPPED}

    def test_one_member_is_stopped_alone(self, cluster: Cluster, tmp_path: Path) -> None:
        if not self.has_sweeps(cluster):
            return
        sweep = self.sweep(cluster, *[program(WHEN_THERE, tmp_path / "go")] * 3, max_parallel=1)
        cluster.terminate(sweep.member(1))
        assert cluster.poll(sweep.member(1)).status is JobStatus.STOPPED
        (tmp_path / "go").touch()
        info = cluster.wait(sweep, timeout=self.PATIENCE)
        assert info.progress == {"succeeded": 2, "stopped": 1}
        assert info.status is JobStatus.STOPPED

    def test_a_sweep_fails_with_its_members_and_what_failed_runs_again(
        self, cluster: Cluster, tmp_path: Path
    ) -> None:
        if not self.has_sweeps(cluster):
            return
        fails = "import os, sys; sys.exit(0 if os.path.exists(sys.argv[1]) else 3)"
        ran = "import sys; print(1, file=open(sys.argv[1], 'a'))"
        fixed, count = tmp_path / "fixed", tmp_path / "count"
        requests = [
            JobRequest("fails", program(fails, fixed)),
            JobRequest("works", program(ran, count)),
            JobRequest("after", program(ran, count), after=[0]),
        ]
        sweep = cluster.launch_many(requests)
        with pytest.raises(JobFailedError, match=r"2 of 3 members failed"):
            cluster.wait(sweep, timeout=self.PATIENCE, raise_on_failure=True)
        info = cluster.poll(sweep)
        assert (info.status, info.progress) == (JobStatus.FAILED, {"succeeded": 1, "failed": 2})
        assert f"{sweep}/0: replica 0 exited with code 3" in str(info.error_message)
        assert cluster.poll(sweep.member(2)).tasks[0].reason is ExitReason.DEPENDENCY_FAILED
        if not getattr(cluster, "capabilities", ClusterCapabilities()).retry:
            with self.refuses("retry"):
                cluster.retry(sweep)
            return
        fixed.touch()
        assert cluster.retry(sweep) == sweep
        info = cluster.wait(sweep, timeout=self.PATIENCE)
        assert (info.status, info.progress) == (JobStatus.SUCCEEDED, {"succeeded": 3})
        (task,) = cluster.poll(sweep.member(0)).tasks
        assert (task.attempt, [each.exit_code for each in task.previous]) == (2, [3])
        assert numbers_in(count) == [1, 1]
        with pytest.raises(ValueError, match="succeeded"):
            cluster.retry(sweep)

    def test_a_launch_of_a_sweep_with_a_key_happens_once(self, cluster: Cluster) -> None:
        if not self.has_sweeps(cluster):
            return
        first = self.sweep(cluster, program("pass"), program("pass"), key="contract-sweep")
        assert self.sweep(cluster, program("pass"), key="contract-sweep") == first
        cluster.wait(first, timeout=self.PATIENCE)

    def test_a_sweep_is_forgotten_with_its_members(self, cluster: Cluster) -> None:
        if not self.has_sweeps(cluster):
            return
        sweep = self.sweep(cluster, program("pass"), program(SLEEP))
        with pytest.raises(ValueError, match="terminate it"):
            cluster.remove(sweep)
        assert cluster.wait(sweep.member(0), timeout=self.PATIENCE).status is JobStatus.SUCCEEDED
        with pytest.raises(ValueError, match="removed with its sweep"):
            cluster.remove(sweep.member(0))
        cluster.terminate(sweep, grace=0.0)
        assert cluster.poll(sweep).progress == {"succeeded": 1, "stopped": 1}

        def removed() -> bool:
            try:
                cluster.remove(sweep)
            except ValueError:  # the end is written a moment before its processes are gone
                return False
            return True

        until(removed, "the sweep is removed", self.PATIENCE)
        for job_id in (sweep, sweep.member(0)):
            with pytest.raises(JobNotFoundError):
                cluster.poll(job_id)


class RetryContract(ClusterFixtures):
    """`retry` and `restart`: a job runs again under its id, and keeps what is known of before"""

    def test_a_job_that_failed_runs_again(
        self, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fixed = tmp_path / "fixed"
        code = """
            import os, sys
            print("run at", os.environ["CONTRACT_RATE"], len(os.environ["CONTRACT_TOKEN"]))
            sys.exit(0 if os.path.exists(sys.argv[1]) else 3)
        """
        environment = create_environment(
            env_vars={"CONTRACT_RATE": "0.1", "CONTRACT_TOKEN": "contract-token"}
        )
        job_id = launch(cluster, program(code, fixed), environment=environment)
        cluster.wait(job_id, timeout=self.PATIENCE)
        if not getattr(cluster, "capabilities", ClusterCapabilities()).retry:
            with self.refuses("again|retry"):
                cluster.retry(job_id)
            return
        fixed.touch()
        monkeypatch.delenv("CONTRACT_TOKEN", raising=False)
        with pytest.raises(ValueError, match="CONTRACT_TOKEN in env_vars"):  # no secret is kept for it
            cluster.retry(job_id)
        monkeypatch.setenv("CONTRACT_TOKEN", "another")
        assert cluster.retry(job_id) == job_id
        info = cluster.wait(job_id, timeout=self.PATIENCE)
        (task,) = info.tasks
        assert (info.status, task.attempt, len(task.previous)) == (JobStatus.SUCCEEDED, 2, 1)
        assert list(cluster.monitor(job_id)) == ["run at 0.1 14", "run at 0.1 7"]
        with pytest.raises(ValueError, match="succeeded"):
            cluster.retry(job_id)

    def test_a_job_that_runs_is_not_retried(self, cluster: Cluster) -> None:
        if not getattr(cluster, "capabilities", ClusterCapabilities()).retry:
            self.moot("capabilities.retry")
            return
        job_id = launch(cluster, program(SLEEP))
        with pytest.raises(ValueError, match="when it has ended"):
            cluster.retry(job_id)
        cluster.terminate(job_id, grace=0.0)
        assert cluster.retry(job_id) == job_id
        until(lambda: cluster.poll(job_id).status is JobStatus.RUNNING, "it runs again", self.PATIENCE)
        cluster.terminate(job_id, grace=0.0)
        assert cluster.poll(job_id).status is JobStatus.STOPPED
        with pytest.raises(JobNotFoundError):
            cluster.retry("never-was-000000")

    def test_a_replica_that_runs_is_started_again(self, cluster: Cluster, tmp_path: Path) -> None:
        pids = tmp_path / "pids"
        code = "import os, sys, time; print(os.getpid(), file=open(sys.argv[1], 'a', 1)); time.sleep(600)"
        two = ResourceConfig(cpu=0.5, ram="256m", replicas=2)
        job_id = launch(cluster, program(code, pids), resources=two)
        if not getattr(cluster, "capabilities", ClusterCapabilities()).restart:
            with self.refuses("restart|again"):
                cluster.restart(job_id, 1)
            return

        def attempts() -> list[int]:
            return [task.attempt for task in cluster.poll(job_id).tasks if task.status is JobStatus.RUNNING]

        until(lambda: attempts() == [1, 1], "both run", self.PATIENCE)
        cluster.restart(job_id, 1)
        until(lambda: attempts() == [1, 2], "one was started again", self.PATIENCE)
        cluster.restart(job_id)
        until(lambda: attempts() == [2, 3], "both were", self.PATIENCE)
        reasons = [each.reason for task in cluster.poll(job_id).tasks for each in task.previous]
        assert reasons == [ExitReason.STOPPED] * 3
        with pytest.raises(ValueError, match="replica must be"):
            cluster.restart(job_id, 2)
        cluster.terminate(job_id, grace=0.0)
        with pytest.raises(ValueError, match="retry runs it again"):
            cluster.restart(job_id)
