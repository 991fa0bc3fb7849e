"""Jobs whose supervisors this host cannot ask, as on a login node: what Slurm says of them counts."""

import contextlib
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fray.backend import SupervisorLock
from fray.cluster import Cluster, JobRequest, JobStatus, ResourceConfig, create_cluster
from fray.testing.cluster import launch, program, until
from fray_slurm.testing import RecordedSlurm

Elsewhere = Callable[[Path], None]
MANY = 40


@pytest.fixture
def cluster(recorded: RecordedSlurm, tmp_path: Path) -> Cluster:
    return create_cluster(f"slurm?root={tmp_path}/records&poll_interval=0.05")


def test_the_record_of_a_job_that_runs_is_not_removed_by_force(
    cluster: Cluster, recorded: RecordedSlurm, runs_elsewhere: Elsewhere, tmp_path: Path
) -> None:
    """Nobody could see or stop the job any more."""
    job_id = launch(cluster, program("pass"))
    runs_elsewhere(tmp_path / "records" / job_id)
    recorded.says("squeue", "77|RUNNING|1:00|None\n")
    with pytest.raises(ValueError, match="is Slurm job 77, which is RUNNING: terminate it"):
        cluster.remove(job_id, force=True)
    assert cluster.poll(job_id).status is JobStatus.RUNNING
    recorded.says("squeue", "77|NODE_FAIL|1:00|None\n")
    until(lambda: cluster.poll(job_id).finished, "the queue is asked again", 20)
    cluster.remove(job_id, force=True)
    assert cluster.list_jobs() == []


def test_a_job_is_not_removed_by_force_while_a_replica_runs_and_the_record_of_another_is_held(
    cluster: Cluster, recorded: RecordedSlurm, runs_elsewhere: Elsewhere, tmp_path: Path
) -> None:
    """As on NFS, which keeps the locks of a host that has failed."""
    job_id = launch(cluster, program("pass"), resources=ResourceConfig(cpu=1, ram="100m", replicas=2))
    replicas = [tmp_path / "records" / job_id / "replicas" / str(number) for number in range(2)]
    for replica in replicas:
        runs_elsewhere(replica)
    recorded.says("squeue", "77_0|NODE_FAIL|1:00|None\n77_1|RUNNING|1:00|None\n")
    held = SupervisorLock.acquire(os.fspath(replicas[0] / "lock"))
    assert held is not None
    until(lambda: cluster.poll(job_id).tasks[0].status.finished, "the queue is asked again", 20)
    with contextlib.closing(held), pytest.raises(ValueError, match="is Slurm job 77_1, which is RUNNING"):
        cluster.remove(job_id, force=True)
    assert cluster.poll(job_id).tasks[1].status is JobStatus.RUNNING


def end(record: Path) -> None:
    """Write what the supervisor of a member writes at its end."""
    status = json.loads((record / "status.json").read_text())
    status |= {"status": "stopped", "finished_at": time.time()}
    status["tasks"][0] |= {"status": "stopped", "reason": "stopped"}
    draft = record / "status.new"
    draft.write_text(json.dumps(status))
    draft.rename(record / "status.json")


def test_all_members_of_a_sweep_are_asked_to_end_before_one_is_waited_for(
    cluster: Cluster, recorded: RecordedSlurm, runs_elsewhere: Elsewhere, tmp_path: Path
) -> None:
    """Also on a file system whose locks are each host's own: there a free lock says nothing."""
    sweep = cluster.launch_many([JobRequest("one", program("pass"))] * MANY)
    members = [tmp_path / "records" / sweep / "jobs" / str(position) for position in range(MANY)]
    for member in members:
        runs_elsewhere(member)
    recorded.says("squeue", "".join(f"77_{position}|RUNNING|1:00|None\n" for position in range(MANY)))
    until(lambda: cluster.poll(f"{sweep}/0").status is JobStatus.RUNNING, "the queue is asked again", 20)
    with ThreadPoolExecutor(1) as threads:
        stopped = threads.submit(cluster.terminate, sweep, 600.0)
        try:
            until(lambda: all((member / "stop").exists() for member in members), "all are asked", 60)
            statuses = {json.loads((member / "status.json").read_text())["status"] for member in members}
            assert statuses == {"running"}
        finally:
            for member in members:
                end(member)
            recorded.says("squeue", "")
        stopped.result(120)
    assert cluster.poll(sweep).status is JobStatus.STOPPED
    assert recorded.calls("scancel") == []
