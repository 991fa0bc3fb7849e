"""What listeners receive of a job: in its launcher, in the job itself, in the processes that wait for it."""

from pathlib import Path

import pytest

from fray._contracts.cluster import Cluster
from fray._values.capabilities import ClusterCapabilities
from fray._values.entrypoint import Entrypoint
from fray._values.environment import create_environment
from fray._values.jobs import JobRequest
from fray.testing.cluster_fixtures import ClusterFixtures, launch, program
from fray.testing.listening import ListeningFixtures, Told
from fray_resources import ResourceConfig

SECRET = "hunter2-4b7e"


def fail_with(secret: str) -> None:
    raise ValueError(secret)


class JobEventsContract(ListeningFixtures, ClusterFixtures):
    """A job and its replicas have one id to be found by."""

    def test_a_job_is_reported_by_launcher_replicas_and_waiter(self, told: Told, cluster: Cluster) -> None:
        job_id = launch(cluster, abs, "told", entrypoint_args=[1], resources=ResourceConfig(replicas=2))
        cluster.wait([job_id], timeout=self.PATIENCE)
        cluster.wait(job_id, timeout=self.PATIENCE)
        kinds = [str(event.kind) for event in told.of("job")]
        assert sorted(kinds) == ["job_ended", "job_launched", "job_submitted"]
        _, launched, ended = sorted(
            told.of("job"), key=lambda event: "submitted launched ended".index(event.kind.phase)
        )
        assert {event.id for event in told.of("job")} == {job_id}
        assert {event.name for event in told.all()} == {"told"}
        assert (launched.outcome, ended.outcome) == ("ok", "ok")
        assert ended.seconds is not None
        replicas = told.of("replica")
        assert {event.parent_id for event in replicas} == {job_id}
        assert sorted(event.id for event in replicas if event.kind == "replica_started") == [
            f"{job_id}:0",
            f"{job_id}:1",
        ]
        assert [event.outcome for event in replicas if event.kind == "replica_ended"] == ["ok", "ok"]

    def test_the_replicas_of_a_sweep_have_its_name(self, told: Told, cluster: Cluster) -> None:
        if not getattr(cluster, "capabilities", ClusterCapabilities()).sweeps:
            self.moot("capabilities.sweeps")
            return
        requests = [JobRequest("told", Entrypoint.from_callable(abs, [number])) for number in range(2)]
        sweep = cluster.launch_many(requests)
        cluster.wait(sweep, timeout=self.PATIENCE)
        assert {event.name for event in told.of("replica")} == {"told"}

    def test_failures_and_stops_are_distinguished_and_no_secret_is_reported(
        self, told: Told, cluster: Cluster
    ) -> None:
        environment = create_environment(env_vars={"PASSWORD": SECRET})
        request = JobRequest("fails", Entrypoint.from_callable(fail_with, [SECRET]), environment=environment)
        failed = cluster.launch(request)
        stopped = launch(cluster, program("import time; time.sleep(600)"), "stopped")
        cluster.terminate(stopped, grace=0.0)
        cluster.wait([failed, stopped], timeout=self.PATIENCE)
        ends = {event.id: event for event in told.all() if event.kind == "job_ended"}
        assert (ends[failed].outcome, ends[failed].error) == ("error", "exited")
        assert ends[stopped].outcome == "cancelled"
        assert told.of("replica")[-1].error == "ValueError"
        assert SECRET not in told.text()

    def test_each_end_of_a_job_that_runs_again_is_reported(
        self, told: Told, cluster: Cluster, tmp_path: Path
    ) -> None:
        if not getattr(cluster, "capabilities", ClusterCapabilities()).retry:
            self.moot("capabilities.retry")
            return
        fixed = tmp_path / "fixed"
        job_id = launch(cluster, program("import os, sys; sys.exit(not os.path.exists(sys.argv[1]))", fixed))
        cluster.wait(job_id, timeout=self.PATIENCE)
        fixed.touch()
        cluster.retry(job_id)
        for _ in range(2):
            cluster.wait(job_id, timeout=self.PATIENCE)
        assert [event.outcome for event in told.all() if event.kind == "job_ended"] == ["error", "ok"]

    def test_a_refused_launch_is_reported(self, told: Told, cluster: Cluster) -> None:
        environment = create_environment(workspace="/nowhere/at/all")
        with pytest.raises(ValueError, match="nowhere"):
            cluster.launch(JobRequest("bad", program("pass"), environment=environment))
        assert told.of("job")[-1].outcome == "error"

    def test_a_listener_that_fails_changes_nothing(self, failing_listener: None, cluster: Cluster) -> None:
        job_id = launch(cluster, abs, entrypoint_args=[1])
        assert cluster.wait(job_id, timeout=self.PATIENCE).status == "succeeded"
