"""Ending jobs, and what other processes see."""

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from fray._contracts.cluster import Cluster
from fray._values.environment import create_environment
from fray._values.jobs import ExitReason, JobStatus
from fray.testing.cluster_fixtures import ClusterFixtures, launch, numbers_in, program, running, until

# Writes its id to argv[1], starts what argv[2] says, and sleeps.
TREE = """
    import os, signal, subprocess, sys, time

    def note():
        with open(sys.argv[1], "a") as file:
            file.write(f"{os.getpid()}\\n")

    kinds = sys.argv[2].split(",")
    note()
    if "stubborn" in kinds:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "session" in kinds and os.fork() == 0:
        os.setsid()
        note()
    elif "daemon" in kinds and os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        note()
    elif "bare" in kinds:
        subprocess.Popen(["env", "-i", sys.executable, "-c", "import time; time.sleep(600)"])
    time.sleep(600)
"""


class TerminateContract(ClusterFixtures):
    """SIGTERM, then SIGKILL, on the whole tree; it returns when that is gone."""

    def test_a_job_that_listens_has_time_to_save(self, cluster: Cluster, tmp_path: Path) -> None:
        code = """
            import pathlib, signal, sys, time
            def save(number, frame):
                time.sleep(0.3)
                pathlib.Path(sys.argv[1]).touch()
                sys.exit(0)
            signal.signal(signal.SIGTERM, save)
            print("ready", flush=True)
            time.sleep(600)
        """
        saved = tmp_path / "saved"
        job_id = launch(cluster, program(code, saved))
        assert next(line for line in cluster.monitor(job_id) if line == "ready")
        cluster.terminate(job_id)
        info = cluster.poll(job_id)
        assert saved.exists()
        assert (info.status, info.tasks[0].reason) == (JobStatus.STOPPED, ExitReason.STOPPED)

    @pytest.mark.parametrize("kinds", ["stubborn", "session", "stubborn,daemon"])
    def test_no_process_of_the_tree_is_left(self, cluster: Cluster, tmp_path: Path, kinds: str) -> None:
        pids = tmp_path / "pids"
        job_id = launch(cluster, program(TREE, pids, kinds))
        count = 1 if kinds == "stubborn" else 2
        until(lambda: len(numbers_in(pids)) == count, "the tree grows", self.PATIENCE)
        cluster.terminate(job_id, grace=0.3)
        assert [pid for pid in numbers_in(pids) if running(pid)] == []
        assert cluster.poll(job_id).status is JobStatus.STOPPED

    def test_a_job_can_be_stopped_before_it_has_started(self, cluster: Cluster, tmp_path: Path) -> None:
        started = tmp_path / "started"
        job_id = launch(
            cluster, program("import sys, time; open(sys.argv[1], 'w'); time.sleep(600)", started)
        )
        cluster.terminate(job_id, grace=0.3)
        assert cluster.poll(job_id).status is JobStatus.STOPPED
        assert cluster.wait(job_id, timeout=self.PATIENCE).exit_code == 143

    def test_a_finished_job_stays_as_it_is(self, cluster: Cluster) -> None:
        job_id = launch(cluster, program("pass"))
        info = cluster.wait(job_id, timeout=self.PATIENCE)
        cluster.terminate(job_id)
        assert cluster.poll(job_id) == info
        assert info.status is JobStatus.SUCCEEDED


class FamilyContract(ClusterFixtures):
    """A job launched by a job is under it, and ends with it."""

    PARENT = """
        import sys, time
        from fray.cluster import *
        child = current_cluster().launch(JobRequest("child", Entrypoint.from_binary(
            "python", ["-c", "import os, sys, time; print(os.getpid(), file=open(sys.argv[1], 'w', 1));"
            "time.sleep(600)", sys.argv[1]])))
        print("launched", child, flush=True)
        time.sleep(600)
    """

    def test_a_child_is_under_its_parent_and_stops_with_it(self, cluster: Cluster, tmp_path: Path) -> None:
        pids = tmp_path / "pids"
        parent = launch(cluster, program(self.PARENT, pids), "parent")
        told = next(line for line in cluster.monitor(parent) if line.startswith("launched "))
        child = told.split()[1]
        assert child.startswith(f"{parent}/child-")
        (pid,) = until(lambda: numbers_in(pids), "the child starts", self.PATIENCE)
        assert {parent, child} <= {info.job_id for info in cluster.list_jobs()}
        until(lambda: cluster.poll(child).status is JobStatus.RUNNING, "it reads running", self.PATIENCE)
        cluster.terminate(parent, grace=2.0)
        assert cluster.poll(child).status is JobStatus.STOPPED
        assert not running(pid)


class SharingContract(ClusterFixtures):
    """Other processes see, follow and stop a job, also when its launcher is gone."""

    LAUNCH = """
        request = JobRequest("shared", Entrypoint.from_binary("python", ["-c", sys.argv[1], *sys.argv[2:]]))
        print(cluster.launch(request))
    """

    def test_a_job_outlives_its_launcher_and_is_read_by_another(
        self, cluster: Cluster, elsewhere: Callable[..., str], tmp_path: Path
    ) -> None:
        go = tmp_path / "go"
        code = """
            import os, sys, time
            print("up", flush=True)
            while not os.path.exists(sys.argv[1]):
                time.sleep(0.01)
        """
        job_id = elsewhere(self.LAUNCH, textwrap.dedent(code), str(go)).strip()
        assert next(line for line in cluster.monitor(job_id) if line == "up")
        until(lambda: cluster.poll(job_id).status is JobStatus.RUNNING, "it reads running", self.PATIENCE)
        go.touch()
        assert cluster.wait(job_id, timeout=self.PATIENCE).status is JobStatus.SUCCEEDED
        seen = elsewhere("print(cluster.poll(sys.argv[1]).status, *cluster.monitor(sys.argv[1]))", job_id)
        assert seen.split() == ["succeeded", "up"]
        assert job_id in [info.job_id for info in cluster.list_jobs()]

    def test_another_process_can_stop_a_job(
        self, cluster: Cluster, elsewhere: Callable[..., str], tmp_path: Path
    ) -> None:
        job_id = launch(cluster, program(TREE, tmp_path / "pids", "stubborn"))
        (pid,) = until(lambda: numbers_in(tmp_path / "pids"), "the job starts", self.PATIENCE)
        elsewhere("cluster.terminate(sys.argv[1], grace=0.2)", job_id)
        assert cluster.poll(job_id).status is JobStatus.STOPPED
        assert not running(pid)

    def test_a_job_finds_the_environment_of_its_request_only(self, cluster: Cluster) -> None:
        code = "import os; print('value', os.environ.get('CONTRACT_ONE'))"
        with_it = launch(
            cluster, program(code), environment=create_environment(env_vars={"CONTRACT_ONE": "1"})
        )
        without = launch(cluster, program(code))
        cluster.wait([with_it, without], timeout=self.PATIENCE)
        assert "value 1" in list(cluster.monitor(with_it))
        assert "value None" in list(cluster.monitor(without))
