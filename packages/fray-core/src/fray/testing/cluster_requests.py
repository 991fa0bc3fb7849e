"""What a request says of a job, beside what it runs; what is known of the job afterwards, and until when."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from fray._contracts.cluster import Cluster
from fray._values.entrypoint import Entrypoint
from fray._values.environment import create_environment
from fray._values.errors import JobNotFoundError
from fray._values.jobs import JobRequest, JobStatus
from fray._values.usage import UsageSample
from fray.testing.cluster_fixtures import ClusterFixtures, launch, program, until
from fray_resources import ResourceConfig

SLEEP = "import time; time.sleep(600)"
HOLDS = """
import os, sys, time
data = bytearray(b"x") * (80 << 20)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.1)
"""


class RequestContract(ClusterFixtures):
    """What is asked of a job is done, shown, or refused at launch."""

    def test_a_name_is_any_printable_text(self, cluster: Cluster) -> None:
        name = "executor:tokenized/fineweb, 2nd (日本)"
        job_id = launch(cluster, program("print('ran')"), name)
        assert job_id.startswith("executor-tokenized-fineweb-2nd")
        info = cluster.wait(job_id, timeout=self.PATIENCE)
        assert (info.name, info.status) == (name, JobStatus.SUCCEEDED)
        assert "ran" in list(cluster.monitor(job_id))
        assert name in [each.name for each in cluster.list_jobs()]

    def test_a_launch_with_a_key_happens_once(self, cluster: Cluster, elsewhere: Callable[..., str]) -> None:
        if not self.declares(cluster, "keys"):
            with self.refuses("key"):
                cluster.launch(JobRequest("once", program("pass")), key="contract-key")
            return
        first = cluster.launch(JobRequest("once", program("pass")), key="contract-key")
        assert cluster.launch(JobRequest("again", program("pass")), key="contract-key") == first
        code = """
            request = JobRequest("once", Entrypoint.from_binary("true"))
            print(cluster.launch(request, key="contract-key"))
        """
        assert elsewhere(code).strip() == first
        assert cluster.launch(JobRequest("once", program("pass")), key="another key") != first
        assert cluster.wait(first, timeout=self.PATIENCE).status is JobStatus.SUCCEEDED
        with pytest.raises(ValueError, match="key must be"):
            cluster.launch(JobRequest("once", program("pass")), key="")

    def test_a_snapshot_runs_the_workspace_as_it_was(self, cluster: Cluster, tmp_path: Path) -> None:
        workspace, go = tmp_path / "workspace", tmp_path / "go"
        workspace.mkdir()
        (workspace / "step.py").write_text("VALUE = 'as it was'")
        code = """
            import pathlib, sys, time
            while not pathlib.Path(sys.argv[1]).exists():
                time.sleep(0.01)
            import step
            print(step.VALUE)
        """
        request = JobRequest(
            "copied", program(code, go), environment=create_environment(workspace=workspace), snapshot=True
        )
        if not self.declares(cluster, "snapshots"):
            with self.refuses("snapshot"):
                cluster.launch(request)
            return
        job_id = cluster.launch(request)
        (workspace / "step.py").write_text("VALUE = 'as it is'")
        go.touch()
        assert list(cluster.monitor(job_id))[-1:] == ["as it was"]

    def test_a_log_limit_keeps_the_beginning_and_the_end(self, cluster: Cluster) -> None:
        code = "for number in range(200_000): print('line', number)"
        request = JobRequest("chatty", program(code), log_limit="128k")
        if not self.declares(cluster, "log_limit"):
            with self.refuses("log_limit"):
                cluster.launch(request)
            return
        job_id = cluster.launch(request)
        cluster.wait(job_id, timeout=self.PATIENCE)
        lines = list(cluster.monitor(job_id))
        assert (lines[0], lines[-1]) == ("line 0", "line 199999")
        assert len([line for line in lines if "dropped here: log_limit" in line]) == 1
        assert sum(map(len, lines)) < 140_000

    def test_a_command_given_for_its_end_runs_once(self, cluster: Cluster, tmp_path: Path) -> None:
        said = tmp_path / "said"
        how = "$FRAY_JOB_ID $FRAY_JOB_STATUS $FRAY_JOB_REASON $FRAY_JOB_EXIT_CODE"
        request = JobRequest("ends", program("raise SystemExit(3)"), on_exit=f"echo {how} >> {said}")
        if not self.declares(cluster, "on_exit"):
            with self.refuses("on_exit"):
                cluster.launch(request)
            return
        job_id = cluster.launch(request)
        told = "the command has run, though nobody looked"
        until(lambda: said.exists() and said.read_text(), told, self.PATIENCE)
        cluster.wait(job_id, timeout=self.PATIENCE)
        assert said.read_text() == f"{job_id} failed exited 3\n"

    def test_what_is_known_of_a_job_is_returned_by_poll(self, cluster: Cluster, tmp_path: Path) -> None:
        request = JobRequest(
            "known",
            program("print('x' * 100)"),
            environment=create_environment(workspace=tmp_path),
            resources=ResourceConfig(cpu=0.5),
            labels={"asked": "known"} if self.declares(cluster, "labels") else {},
        )
        info = cluster.wait(cluster.launch(request), timeout=self.PATIENCE)
        if not self.declares(cluster, "usage"):
            self.moot("capabilities.usage")
            return
        assert info.command == str(request.entrypoint)
        assert (info.directory, info.labels) == (os.fspath(tmp_path), {"asked": "known"})
        assert info.resources == request.resources
        assert info.user
        assert any("x" * 100 in Path(path).read_text() for path in info.logs if path.endswith(".log"))
        (task,) = info.tasks
        assert (task.peak_memory or 0) > 1 << 20
        assert (task.cpu_time or 0) > 0

    def test_what_a_job_uses_over_time_is_known_while_it_runs_and_after(
        self, cluster: Cluster, tmp_path: Path
    ) -> None:
        if not self.declares(cluster, "usage"):
            self.moot("capabilities.usage")
            return
        gate = tmp_path / "gate"
        job_id = launch(cluster, program(HOLDS, gate))

        def held() -> list[UsageSample]:
            samples: list[UsageSample] = cast(Any, cluster).usage(job_id)
            return [sample for sample in samples if sample.memory > 60 << 20]

        until(held, "the samples of a job that runs have what it holds", self.PATIENCE)
        gate.touch()
        cluster.wait(job_id, timeout=self.PATIENCE)
        until(held, "they are kept", self.PATIENCE)
        assert {(sample.replica, sample.attempt) for sample in held()} == {(0, 1)}
        times = [sample.time for sample in held()]
        assert times == sorted(times)
        assert held()[-1].cpu_time > 0


class ForgettingContract(ClusterFixtures):
    """`remove` and `prune`: a job is forgotten when it has ended, and not before."""

    def test_a_removed_job_is_forgotten_with_its_children(self, cluster: Cluster) -> None:
        job_id = launch(cluster, program("pass"))
        cluster.wait(job_id, timeout=self.PATIENCE)
        if not self.declares(cluster, "removal"):
            with self.refuses(job_id):
                cluster.remove(job_id)
            return
        until(lambda: _removed(cluster, job_id), "the job is removed")
        assert job_id not in [info.job_id for info in cluster.list_jobs()]
        with pytest.raises(JobNotFoundError):
            cluster.poll(job_id)
        with pytest.raises(JobNotFoundError):
            cluster.remove(job_id)

    def test_a_job_that_runs_is_not_removed(self, cluster: Cluster) -> None:
        if not self.declares(cluster, "removal"):
            self.moot("capabilities.removal")
            return
        job_id = launch(cluster, program(SLEEP))
        for force in (False, True):
            with pytest.raises(ValueError, match="terminate it"):
                cluster.remove(job_id, force=force)
        cluster.prune()
        assert not cluster.poll(job_id).finished
        cluster.terminate(job_id, grace=0.0)
        cluster.remove(job_id)

    def test_old_jobs_are_pruned_and_young_ones_stay(self, cluster: Cluster) -> None:
        if not self.declares(cluster, "removal"):
            with self.refuses("prune"):
                cluster.prune()
            return
        job_id = launch(cluster, Entrypoint.from_binary("true"))
        cluster.wait(job_id, timeout=self.PATIENCE)
        assert job_id not in cluster.prune(older_than=3600.0).jobs
        deadline = time.monotonic() + self.PATIENCE
        while job_id not in cluster.prune().jobs:  # its supervisor may be on its way out
            assert time.monotonic() < deadline
        with pytest.raises(JobNotFoundError):
            cluster.poll(job_id)


def _removed(cluster: Cluster, job_id: str) -> bool:
    """Whether a job that has ended could be removed: its supervisor may be on its way out."""
    try:
        cluster.remove(job_id)
    except ValueError:
        return False
    return True
