"""Gangs: replicas that are one program: the same on every cluster that runs them, ranks included."""

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fray._contracts.cluster import Cluster
from fray._values.jobs import ExitReason, JobInfo, JobRequest, JobStatus
from fray.testing.cluster_fixtures import ClusterFixtures, numbers_in, program, running, until
from fray_resources import ResourceConfig, TpuConfig

SHOW = """
    import json, os
    known = "FRAY_", "RANK", "WORLD_", "LOCAL_", "MASTER_"
    print(json.dumps({name: value for name, value in os.environ.items() if name.startswith(known)}))
"""
# The last replica fails as often as argv[2] says, once all are up; the others run until they are ended.
FAILING = """
    import os, pathlib, sys, time
    folder, rank = pathlib.Path(sys.argv[1]), int(os.environ["FRAY_REPLICA_ID"])
    count = int(os.environ["FRAY_REPLICA_COUNT"])
    with (folder / f"addresses-{rank}").open("a") as file:
        file.write(os.environ["FRAY_COORDINATOR_ADDRESS"] + "\\n")
    with (folder / "pids").open("a") as file:  # the last thing that the one that fails waits for
        file.write(f"{os.getpid()}\\n")
    attempt = len((folder / f"addresses-{rank}").read_text().split())
    while len((folder / "pids").read_text().split()) < attempt * count:
        time.sleep(0.01)
    if attempt > int(sys.argv[2]):
        sys.exit(0)
    if rank == count - 1:
        print("out of luck")
        sys.exit(5)
    time.sleep(600)
"""


class GangContract(ClusterFixtures):
    """Replicas that start, end and are retried together."""

    GANGS: ClassVar[dict[str, ResourceConfig]] = {"cpus": ResourceConfig(replicas=2)}
    """The requests for gangs of several replicas, by what the tests call them."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run a test for each kind of gang."""
        if "gang" in metafunc.fixturenames:
            metafunc.parametrize("gang", self.GANGS.values(), ids=self.GANGS.keys())

    def launch_gang(
        self, cluster: Cluster, gang: ResourceConfig, code: str, *args: Any, **fields: Any
    ) -> str:
        request = JobRequest("gang", program(code, *args), resources=gang, gang=True, **fields)
        return cluster.launch(request)

    def finish(self, cluster: Cluster, job_id: str) -> JobInfo:
        return cluster.wait(job_id, timeout=self.PATIENCE)

    def test_every_replica_finds_its_rank_and_where_all_meet(
        self, cluster: Cluster, gang: ResourceConfig
    ) -> None:
        job_id = self.launch_gang(cluster, gang, SHOW)
        info = self.finish(cluster, job_id)
        assert info.status is JobStatus.SUCCEEDED, info.error_message
        count = len(info.tasks)
        found = [json.loads(list(cluster.monitor(job_id, replica=rank))[-1]) for rank in range(count)]
        assert count > 1
        assert [one["FRAY_REPLICA_ID"] for one in found] == [str(rank) for rank in range(count)]
        assert {one["FRAY_REPLICA_COUNT"] for one in found} == {str(count)}
        (meeting,) = {one["FRAY_COORDINATOR_ADDRESS"] for one in found}
        if isinstance(gang.device, TpuConfig):
            assert not any("RANK" in one for one in found)
            assert {one["FRAY_HOST_COUNT"] for one in found} == {str(gang.device.hosts)}
            return
        assert [one["RANK"] for one in found] == [str(rank) for rank in range(count)]
        assert {one["WORLD_SIZE"] for one in found} == {str(count)}
        assert {f"{one['MASTER_ADDR']}:{one['MASTER_PORT']}" for one in found} == {meeting}
        assert {(one["LOCAL_RANK"], one["LOCAL_WORLD_SIZE"]) for one in found} == {("0", "1")}

    def test_one_failure_ends_all(self, cluster: Cluster, gang: ResourceConfig, tmp_path: Path) -> None:
        info = self.finish(cluster, self.launch_gang(cluster, gang, FAILING, tmp_path, 9))
        assert info.status is JobStatus.FAILED
        *peers, failed = info.tasks
        assert (failed.reason, failed.exit_code, info.exit_code) == (ExitReason.EXITED, 5, 5)
        assert {(task.status, task.reason) for task in peers} == {(JobStatus.STOPPED, ExitReason.STOPPED)}
        assert "out of luck" in str(info.error_message)
        assert f"replica {failed.replica}" in str(info.error_message)
        assert not any(map(running, numbers_in(tmp_path / "pids")))

    def test_all_start_again_together_and_meet_again(
        self, cluster: Cluster, gang: ResourceConfig, tmp_path: Path
    ) -> None:
        info = self.finish(
            cluster, self.launch_gang(cluster, gang, FAILING, tmp_path, 1, max_retries_failure=1)
        )
        assert info.status is JobStatus.SUCCEEDED, info.error_message
        assert {task.attempt for task in info.tasks} == {2}
        meetings = [(tmp_path / f"addresses-{task.replica}").read_text().split() for task in info.tasks]
        assert len({tuple(each) for each in meetings}) == 1
        assert [task.previous[0].reason for task in info.tasks][-1] is ExitReason.EXITED

    def test_a_gang_is_stopped_as_one(self, cluster: Cluster, gang: ResourceConfig, tmp_path: Path) -> None:
        code = """
            import os, sys, time
            with open(sys.argv[1], "a") as file:
                file.write(f"{os.getpid()}\\n")
            time.sleep(600)
        """
        pids = tmp_path / "pids"
        job_id = self.launch_gang(cluster, gang, code, pids)
        count = len(cluster.poll(job_id).tasks)
        until(lambda: len(numbers_in(pids)) == count, "all are up", self.PATIENCE)
        cluster.terminate(job_id, grace=0.2)
        info = cluster.poll(job_id)
        assert info.status is JobStatus.STOPPED
        assert {task.reason for task in info.tasks} == {ExitReason.STOPPED}
        assert not any(map(running, numbers_in(pids)))

    def test_replicas_are_a_gang_only_when_they_are_asked_to_be(
        self, cluster: Cluster, tmp_path: Path
    ) -> None:
        code = """
            import os, sys, time
            if os.environ["FRAY_REPLICA_ID"] == "1":
                sys.exit(5)
            time.sleep(0.5)
            print("rank", os.environ.get("RANK"))
        """
        request = JobRequest("apart", program(code), resources=ResourceConfig(replicas=2))
        info = self.finish(cluster, cluster.launch(request))
        assert [task.status for task in info.tasks] == [JobStatus.SUCCEEDED, JobStatus.FAILED]
        assert "rank None" in list(cluster.monitor(info.job_id, replica=0))
