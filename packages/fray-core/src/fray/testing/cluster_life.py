"""From launch to end: what is checked, what a replica sees, how failures read."""

import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fray._contracts.cluster import Cluster
from fray._values.entrypoint import Entrypoint
from fray._values.environment import create_environment
from fray._values.errors import SerializationError
from fray._values.jobs import ExitReason, JobInfo, JobRequest, JobStatus
from fray.testing.cluster_fixtures import ClusterFixtures, launch, program, until
from fray_resources import ResourceConfig

TWO = ResourceConfig(replicas=2)


class LaunchContract(ClusterFixtures):
    """`launch` validates, returns at once, and the job does what its entry point says."""

    def test_a_callable_runs_with_its_arguments(self, cluster: Cluster) -> None:
        greeting = "hello"

        def greet(name: str, *, mark: str) -> None:
            print(f"{greeting} {name}{mark}")  # noqa: T201

        job_id = launch(cluster, Entrypoint.from_callable(greet, args=["world"], kwargs={"mark": "!"}))
        assert cluster.wait(job_id, timeout=self.PATIENCE).status is JobStatus.SUCCEEDED
        assert "hello world!" in list(cluster.monitor(job_id))

    def test_a_command_runs_with_its_words_as_they_are(self, cluster: Cluster) -> None:
        words = ["a b", "$HOME", "'quoted'", "*"]
        job_id = launch(cluster, program("import sys; print(sys.argv[1:])", *words))
        assert cluster.wait(job_id, timeout=self.PATIENCE).status is JobStatus.SUCCEEDED
        assert str(words) in list(cluster.monitor(job_id))

    def test_a_module_runs_from_the_workspace(self, cluster: Cluster, tmp_path: Path) -> None:
        (tmp_path / "contract_module.py").write_text("import sys; print('module', *sys.argv[1:])")
        request = JobRequest(
            "module", "contract_module", ["--x", "1"], environment=create_environment(workspace=tmp_path)
        )
        job_id = cluster.launch(request)
        assert cluster.wait(job_id, timeout=self.PATIENCE).status is JobStatus.SUCCEEDED
        assert "module --x 1" in list(cluster.monitor(job_id))

    def test_launch_returns_while_the_job_runs_and_names_it(self, cluster: Cluster) -> None:
        started = time.monotonic()
        ids = [launch(cluster, program("import time; time.sleep(600)"), "long-job_1.x") for _ in range(2)]
        assert time.monotonic() - started < 2 * self.STARTS_WITHIN
        assert len(set(ids)) == 2
        assert all(job_id.startswith("long-job_1.x-") for job_id in ids)
        for job_id in ids:
            info = cluster.poll(job_id)
            assert info.status in (JobStatus.PENDING, JobStatus.RUNNING)
            assert (info.job_id, info.name, len(info.tasks)) == (job_id, "long-job_1.x", 1)
            cluster.terminate(job_id, grace=0.0)

    def test_a_bad_request_starts_nothing(self, cluster: Cluster, tmp_path: Path) -> None:
        before = cluster.list_jobs()
        environment = create_environment(workspace=tmp_path / "nowhere")
        with pytest.raises(ValueError, match="nowhere"):
            cluster.launch(JobRequest("bad", program("pass"), environment=environment))
        with pytest.raises(SerializationError, match="'lock'"):
            cluster.launch(
                JobRequest("bad", Entrypoint.from_callable(print, kwargs={"lock": threading.Lock()}))
            )
        with pytest.raises(ValueError, match="JobRequest"):
            cluster.launch("python train.py")  # type: ignore[arg-type]
        assert cluster.list_jobs() == before


class ReplicaContract(ClusterFixtures):
    """What a replica finds around it."""

    def test_replicas_know_who_they_are_and_find_their_variables(
        self, cluster: Cluster, tmp_path: Path, spec: str
    ) -> None:
        code = """
            import os
            names = "FRAY_JOB_ID", "FRAY_REPLICA_ID", "FRAY_REPLICA_COUNT", "CONTRACT_VALUE"
            print("saw", *(os.environ[name] for name in names), os.environ["FRAY_CLUSTER_SPEC"].split("?")[0])
            print("in", os.getcwd())
        """
        environment = create_environment(workspace=tmp_path, env_vars={"CONTRACT_VALUE": "x=1"})
        job_id = launch(cluster, program(code), resources=TWO, environment=environment)
        assert cluster.wait(job_id, timeout=self.PATIENCE).status is JobStatus.SUCCEEDED
        lines = list(cluster.monitor(job_id))
        for replica in (0, 1):
            kind = spec.split("?")[0]
            assert f"[replica-{replica}] saw {job_id} {replica} 2 x=1 {kind}" in lines
            assert f"[replica-{replica}] in {tmp_path.resolve()}" in lines

    def test_python_is_the_interpreter_of_the_environment(self, cluster: Cluster) -> None:
        code = 'python -c "import sys; print(sys.prefix)"'
        job_id = launch(cluster, Entrypoint.from_binary("/bin/sh", ["-c", code]))
        assert cluster.wait(job_id, timeout=self.PATIENCE).status is JobStatus.SUCCEEDED
        assert sys.prefix in list(cluster.monitor(job_id))


class EnvironmentContract(ClusterFixtures):
    """An environment is built inside the job, and its failure is the job's."""

    def test_packages_that_cannot_be_had_fail_the_job_and_are_named(
        self, cluster: Cluster, tmp_path: Path
    ) -> None:
        missing = tmp_path / "contract-missing-package"
        environment = create_environment(workspace=tmp_path, pip_packages=[f"file://{missing}"])
        if not self.BUILDS_ENVIRONMENTS:
            with self.refuses("contract-missing-package"):
                launch(cluster, program("pass"), environment=environment)
            return
        started = time.monotonic()
        job_id = launch(cluster, program("pass"), environment=environment)
        assert time.monotonic() - started < self.STARTS_WITHIN
        info = cluster.wait(job_id, timeout=self.PATIENCE)
        assert info.status is JobStatus.FAILED
        assert info.error_message is not None
        assert "contract-missing-package" in info.error_message
        assert {task.reason for task in info.tasks} == {ExitReason.COULD_NOT_START}


class FailureContract(ClusterFixtures):
    """A job fails when a replica fails, and says which, how, and what it wrote last."""

    def fail(self, cluster: Cluster, entrypoint: Entrypoint, **fields: Any) -> JobInfo:
        info = cluster.wait(launch(cluster, entrypoint, **fields), timeout=self.PATIENCE)
        assert info.status is JobStatus.FAILED
        return info

    def test_the_message_has_the_replica_the_code_and_the_last_lines(self, cluster: Cluster) -> None:
        code = """
            import os, sys, time
            if os.environ["FRAY_REPLICA_ID"] == "1":
                print("about to fail")
                sys.exit(3)
            time.sleep(0.5)
            print("done in peace")
        """
        info = self.fail(cluster, program(code), resources=TWO)
        assert info.error_message is not None
        for part in ("replica 1", "3", "about to fail"):
            assert part in info.error_message
        assert [task.status for task in info.tasks] == [JobStatus.SUCCEEDED, JobStatus.FAILED]
        assert (info.tasks[1].reason, info.tasks[1].exit_code) == (ExitReason.EXITED, 3)
        assert info.exit_code == 3
        assert "[replica-0] done in peace" in list(cluster.monitor(info.job_id))

    def test_the_exception_of_a_callable_is_in_the_message(self, cluster: Cluster) -> None:
        def fail() -> None:
            raise ValueError("the contract's boom")

        info = self.fail(cluster, Entrypoint.from_callable(fail))
        assert info.error_message is not None
        assert "ValueError: the contract's boom" in info.error_message
        assert f'cluster_life.py", line {fail.__code__.co_firstlineno + 1}, in fail' in info.error_message
        assert info.error_message.splitlines()[0] == "replica 0 exited with code 1"

    def test_a_signal_is_distinguished_from_an_exit(self, cluster: Cluster) -> None:
        info = self.fail(cluster, program("import os; print('bye', flush=True); os.kill(os.getpid(), 9)"))
        assert (info.tasks[0].reason, info.tasks[0].exit_code) == (ExitReason.SIGNALLED, -9)
        assert info.exit_code == 137
        assert "bye" in list(cluster.monitor(info.job_id))

    def test_a_program_that_is_not_there_could_not_start(self, cluster: Cluster) -> None:
        retries = 3 if self.declares(cluster, "retries") else 0
        missing = Entrypoint.from_binary("contract-no-such-program")
        info = self.fail(cluster, missing, max_retries_failure=retries)
        assert info.tasks[0].reason is ExitReason.COULD_NOT_START
        assert info.tasks[0].attempt == 1, "it is not there at another attempt either"
        assert info.error_message is not None
        assert "contract-no-such-program" in info.error_message

    def test_a_replica_is_started_again_while_it_has_retries(self, cluster: Cluster, tmp_path: Path) -> None:
        code = """
            import pathlib, sys
            tries = pathlib.Path(sys.argv[1])
            tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
            print("try", len(tries.read_text()))
            sys.exit(0 if len(tries.read_text()) == 3 else 5)
        """
        if not self.declares(cluster, "retries"):
            with self.refuses("max_retries_failure"):
                launch(cluster, program(code, tmp_path / "tries"), max_retries_failure=2)
            return
        job_id = launch(cluster, program(code, tmp_path / "tries"), max_retries_failure=2)
        info = cluster.wait(job_id, timeout=self.PATIENCE)
        assert info.status is JobStatus.SUCCEEDED
        (task,) = info.tasks
        assert task.attempt == 3
        assert [(earlier.attempt, earlier.exit_code) for earlier in task.previous] == [(1, 5), (2, 5)]
        tried = [line for line in cluster.monitor(job_id) if line.startswith("try")]
        assert tried == ["try 1", "try 2", "try 3"]

    def test_a_job_that_runs_too_long_times_out(self, cluster: Cluster, tmp_path: Path) -> None:
        code = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
        started = tmp_path / "started"
        job_id = launch(cluster, program(code, started), timeout=1.0)
        # On a busy machine its time may be up before the program is.
        until(lambda: started.exists() or cluster.poll(job_id).finished, "the job starts", self.PATIENCE)
        info = cluster.wait(job_id, timeout=self.PATIENCE)
        assert (info.status, info.tasks[0].reason) == (JobStatus.FAILED, ExitReason.TIMED_OUT)
        assert info.exit_code == 124

    def test_each_attempt_has_the_whole_of_its_time(self, cluster: Cluster, tmp_path: Path) -> None:
        code = """
            import pathlib, sys, time
            if (first := pathlib.Path(sys.argv[1])).exists():
                time.sleep(600)
            first.touch()
            time.sleep(1)
            sys.exit(5)
        """
        if not self.declares(cluster, "retries"):
            self.moot("capabilities.retries")
            return
        job_id = launch(cluster, program(code, tmp_path / "first"), timeout=2.0, max_retries_failure=1)
        (task,) = cluster.wait(job_id, timeout=self.PATIENCE).tasks
        # It is the second attempt; or the first, if the machine was so busy that it did not fail in its time.
        assert (task.status, task.reason) == (JobStatus.FAILED, ExitReason.TIMED_OUT)
        assert task.started_at is not None
        assert task.finished_at is not None
        assert task.finished_at - task.started_at > 1.9
