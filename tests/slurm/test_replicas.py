"""Replicas that are no gang: an array of jobs, a task with a supervisor of its own for each."""

import json
import os
import sys
from pathlib import Path

import pytest

from fray.cluster import (
    Cluster,
    ExitReason,
    JobRequest,
    JobStatus,
    ResourceConfig,
    SlurmCluster,
    create_cluster,
    create_environment,
)
from fray.testing.cluster import launch, program, until
from fray_slurm import SlurmError
from fray_slurm.testing import LocalSlurm, RecordedSlurm

PATIENCE = 90.0
WHOLE_NODES = ResourceConfig(cpu=4, ram="500m", replicas=4)  # of three nodes
# Ends when a file with its number is there.
WAITS = """
    import os, pathlib, sys, time
    number, attempt = os.environ["FRAY_REPLICA_ID"], os.environ["FRAY_ATTEMPT"]
    print("attempt", attempt, "on", os.environ["SLURMD_NODENAME"], flush=True)
    while not pathlib.Path(sys.argv[1], number).exists():
        time.sleep(0.05)
"""


@pytest.fixture
def printed(recorded: RecordedSlurm, tmp_path: Path) -> Cluster:
    """A cluster whose jobs only seem to be submitted."""
    recorded.says("scontrol", "MaxArraySize            = 1001\n")
    return create_cluster(f"slurm?root={tmp_path}/records&poll_interval=0.05")


def numbers(tmp_path: Path, job_id: str, replicas: int) -> list[str]:
    folder = tmp_path / "records" / job_id / "replicas"
    return [
        str(json.loads((folder / str(replica) / "slurm" / "job.json").read_text())["id"])
        for replica in range(replicas)
    ]


def let_go(folder: Path, *replicas: int) -> None:
    for replica in replicas:
        (folder / str(replica)).touch()


def test_they_start_as_room_comes_and_one_is_preempted_alone(
    slurm: LocalSlurm, cluster: Cluster, tmp_path: Path
) -> None:
    job_id = launch(cluster, program(WAITS, tmp_path), resources=WHOLE_NODES)
    until(lambda: [task.attempt for task in cluster.poll(job_id).tasks].count(1) == 3, "three run", PATIENCE)
    until(lambda: "1 of 4 replicas wait: waiting" in str(cluster.poll(job_id).warnings), "it says so", 30)
    info = cluster.poll(job_id)
    assert info.status is JobStatus.RUNNING
    (late,) = (task.replica for task in info.tasks if not task.attempt)
    first, second, third = sorted({0, 1, 2, 3} - {late})
    let_go(tmp_path, first)
    until(lambda: cluster.poll(job_id).tasks[late].attempt == 1, "there is room for it", PATIENCE)

    node = next(iter(cluster.monitor(job_id, replica=second))).rpartition(" ")[2]
    slurm.preempt(node)
    slurm.end_hold(numbers(tmp_path, job_id, 4)[second])
    until(lambda: cluster.poll(job_id).tasks[second].attempt == 2, "it goes on", PATIENCE)
    let_go(tmp_path, second, third, late)
    info = cluster.wait(job_id, timeout=PATIENCE)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    assert [task.attempt for task in info.tasks] == [1 + (replica == second) for replica in range(4)]
    assert info.tasks[second].previous[0].reason is ExitReason.PREEMPTED


def test_one_that_somebody_cancels_leaves_the_others(
    slurm: LocalSlurm, cluster: Cluster, tmp_path: Path
) -> None:
    two = ResourceConfig(cpu=1, ram="200m", replicas=3)
    job_id = launch(cluster, program(WAITS, tmp_path), resources=two)
    until(lambda: all(task.attempt for task in cluster.poll(job_id).tasks), "all run", PATIENCE)
    slurm.run("scancel", numbers(tmp_path, job_id, 3)[1])
    until(lambda: cluster.poll(job_id).tasks[1].status is JobStatus.STOPPED, "it is stopped", PATIENCE)
    assert [task.status for task in cluster.poll(job_id).tasks].count(JobStatus.RUNNING) == 2
    let_go(tmp_path, 0, 2)
    info = cluster.wait(job_id, timeout=PATIENCE)
    assert [str(task.status) for task in info.tasks] == ["succeeded", "stopped", "succeeded"]
    assert info.status is JobStatus.STOPPED
    let_go(tmp_path, 1)
    assert cluster.retry(job_id) == job_id
    info = cluster.wait(job_id, timeout=PATIENCE)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    assert [task.attempt for task in info.tasks] == [1, 2, 1]
    cluster.remove(job_id)
    assert cluster.list_jobs() == []


def test_they_share_the_environment_of_the_job(cluster: Cluster, tmp_path: Path) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    environment = create_environment(python=version)
    two = ResourceConfig(ram="200m", replicas=2)
    job_id = launch(cluster, program("import sys; print(sys.prefix)"), resources=two, environment=environment)
    info = cluster.wait(job_id, timeout=PATIENCE)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    own = tmp_path / "records" / job_id / "environment"
    assert [list(cluster.monitor(job_id, replica=replica))[-1:] for replica in range(2)] == [
        [os.fspath(own)]
    ] * 2


def test_they_are_one_array_of_tasks_of_one_replica(printed: Cluster, recorded: RecordedSlurm) -> None:
    before = launch(printed, program("pass"), "before")
    recorded.says("sbatch", "78\n")
    recorded.says("squeue", "77|RUNNING|UNLIMITED|None\n")
    job_id = launch(printed, program("pass"), resources=WHOLE_NODES, after=[before], labels={"run": "7"})
    for line in (
        "--array=0-3",
        "--ntasks=1",
        "--nodes=1",
        "--cpus-per-task=4",
        "--comment=run=7",
        "--dependency=afterok:77",
        f"--job-name={job_id}",
    ):
        assert f"#SBATCH {line}\n" in recorded.script
    assert len(recorded.calls("sbatch")) == 2
    recorded.says("squeue", "".join(f"78_{task}|PENDING|1:00|Resources\n" for task in range(4)))
    until(lambda: "for nodes" in str(printed.poll(job_id).pending_reason), "it is asked", 10)
    third = launch(printed, program("pass"), "third", after=[job_id])
    assert "#SBATCH --dependency=afterok:78\n" in recorded.script
    assert printed.poll(third).status is JobStatus.PENDING


def test_more_than_an_array_may_have_are_several(
    printed: Cluster, recorded: RecordedSlurm, tmp_path: Path
) -> None:
    recorded.says("scontrol", "MaxArraySize            = 3\n")
    job_id = launch(printed, program("pass"), resources=WHOLE_NODES)
    folder = tmp_path / "records" / job_id / "slurm"
    assert "#SBATCH --array=0-2\n" in (folder / "script-0.sh").read_text()
    assert "#SBATCH --array=0\n" in (folder / "script-3.sh").read_text()


def test_what_slurm_refuses_leaves_nothing(printed: Cluster, recorded: RecordedSlurm) -> None:
    recorded.says("sbatch", "", error="sbatch: error: invalid partition specified: nope", code=1)
    with pytest.raises(SlurmError, match="invalid partition"):
        launch(printed, program("pass"), resources=WHOLE_NODES)
    assert printed.list_jobs() == []


def test_they_never_start_after_a_job_that_failed(printed: Cluster, recorded: RecordedSlurm) -> None:
    before = launch(printed, program("pass"), "before")
    recorded.says("squeue", "77|TIMEOUT|1:00|TimeLimit\n")
    until(lambda: printed.poll(before).finished, "it has failed", 10)
    info = printed.poll(launch(printed, program("pass"), resources=WHOLE_NODES, after=[before]))
    assert info.status is JobStatus.FAILED
    assert {task.reason for task in info.tasks} == {ExitReason.DEPENDENCY_FAILED}
    assert len(recorded.calls("sbatch")) == 1


def test_the_script_that_would_be_submitted_is_that_of_the_array(tmp_path: Path) -> None:
    cluster = SlurmCluster(root=tmp_path)
    request = JobRequest("many", program("pass"), resources=WHOLE_NODES)
    assert "#SBATCH --array=0-3\n" in cluster.batch_script(request)
    together = JobRequest("gang", program("pass"), resources=WHOLE_NODES, gang=True)
    assert "#SBATCH --ntasks=4\n" in cluster.batch_script(together)
    assert list(tmp_path.iterdir()) == []
