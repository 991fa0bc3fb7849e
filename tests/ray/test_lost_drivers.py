"""A driver that is killed is started again: the job goes on, and nothing of it is lost, or there twice."""

import os
from pathlib import Path
from typing import Any

import pytest
from gang_hosts import pids_of_replicas
from job_processes import alive, driver_of, kill

from fray.cluster import (
    Entrypoint,
    ExitReason,
    JobRequest,
    JobStatus,
    ResourceConfig,
    TpuConfig,
)
from fray.testing.cluster import until
from fray_ray import RayCluster

pytestmark = pytest.mark.timeout(480)

# Counts, notes its process, and ends: well when there is `go`, badly when there is `fail-RANK`.
COUNTING = """
import os, pathlib, signal, sys, time
folder, rank = pathlib.Path(sys.argv[1]), os.environ["FRAY_REPLICA_ID"]
attempt = os.environ["FRAY_ATTEMPT"]
def leave(*_):
    print("told", flush=True)
    time.sleep(1.5)
    (folder / f"saved-{rank}").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
draft = folder / f"draft-{rank}"
draft.write_text(str(os.getpid()))
draft.rename(folder / f"up-{rank}-{attempt}")
number = 0
while not (folder / "go").exists():
    number += 1
    print(f"line {number} of {rank} in {attempt}", flush=True)
    if (folder / f"fail-{rank}").exists():
        (folder / f"fail-{rank}").unlink()
        sys.exit(7)
    time.sleep(0.005)
print(f"lines: {number}", end="", flush=True)
"""


def counting(folder: Path) -> Entrypoint:
    return Entrypoint.from_binary("python", ["-c", COUNTING, os.fspath(folder)])


def pid_of(folder: Path, rank: int, attempt: int = 1) -> int:
    path = folder / f"up-{rank}-{attempt}"
    until(path.exists, f"attempt {attempt} of replica {rank} runs", 200)
    return int(path.read_text())


def kill_driver(job_id: str) -> int:
    """Kill the driver of a job, and return the next one."""
    driver = driver_of(job_id)
    kill(driver)
    return driver_of(job_id, but=driver)


def check_output(cluster: RayCluster, job_id: str, rank: int, attempt: int = 1) -> None:
    """Check that what an attempt wrote is there, in order, and once."""
    lines = [line for line in cluster.monitor(job_id, replica=rank) if line.endswith(f"in {attempt}")]
    assert lines == [f"line {number} of {rank} in {attempt}" for number in range(1, len(lines) + 1)]
    last = [line for line in cluster.monitor(job_id, replica=rank) if line.startswith("lines: ")]
    assert last == [f"lines: {len(lines)}"]


def test_replicas_run_on_when_the_driver_is_killed(joined_cluster: RayCluster, tmp_path: Path) -> None:
    request = JobRequest("lasting", counting(tmp_path), resources=ResourceConfig(replicas=2, cpu=0.5))
    job_id = joined_cluster.launch(request)
    before = [pid_of(tmp_path, rank) for rank in (0, 1)]
    kill_driver(job_id)
    second = kill_driver(job_id)
    until(lambda: joined_cluster.poll(job_id).status is JobStatus.RUNNING, "it reads running")
    until(lambda: "has another driver" in log_of(joined_cluster, job_id), "the driver has begun")
    assert all(map(alive, before))
    (tmp_path / "go").touch()
    info = joined_cluster.wait(job_id, timeout=200)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    assert [(task.attempt, task.reason) for task in info.tasks] == [(1, ExitReason.EXITED)] * 2
    for rank in (0, 1):
        check_output(joined_cluster, job_id, rank)
    until(lambda: not alive(second), "the driver has ended")
    assert not pids_of_replicas()


def log_of(cluster: RayCluster, job_id: str) -> str:
    """The log of a job as it lies on the head, whose files this machine has."""
    (path,) = cluster.poll(job_id).logs
    return Path(path).read_text()


def test_a_replica_that_fails_while_there_is_no_driver_has_its_retry(
    joined_cluster: RayCluster, tmp_path: Path
) -> None:
    request = JobRequest("failing", counting(tmp_path), max_retries_failure=1)
    job_id = joined_cluster.launch(request)
    pid = pid_of(tmp_path, 0)
    driver = driver_of(job_id)
    kill(driver)
    (tmp_path / "fail-0").touch()
    until(lambda: not alive(pid), "it has failed")
    second = pid_of(tmp_path, 0, 2)
    kill_driver(job_id)
    (tmp_path / "fail-0").touch()
    until(lambda: not alive(second), "it has failed again")
    info = joined_cluster.wait(job_id, timeout=200)
    assert (info.status, info.tasks[0].attempt, info.tasks[0].exit_code) == (JobStatus.FAILED, 2, 7)
    (earlier,) = info.tasks[0].previous
    assert (earlier.attempt, earlier.exit_code) == (1, 7)
    assert "its last lines:\n  line" in (info.error_message or "")


def test_a_job_that_waits_for_room_keeps_its_place_without_its_driver(
    joined_cluster: RayCluster, tmp_path: Path
) -> None:
    request = JobRequest("waiting", counting(tmp_path), resources=ResourceConfig(cpu=500))
    job_id = joined_cluster.launch(request)
    until(lambda: "500" in (joined_cluster.poll(job_id).pending_reason or ""), "it waits")
    kill_driver(job_id)
    until(lambda: "has another driver" in log_of(joined_cluster, job_id), "the driver has begun")
    assert joined_cluster.poll(job_id).status is JobStatus.PENDING
    joined_cluster.terminate(job_id, grace=0.0)
    assert joined_cluster.poll(job_id).status is JobStatus.STOPPED


def test_a_replica_that_is_being_stopped_has_its_grace(joined_cluster: RayCluster, tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    job_id = joined_cluster.launch(JobRequest("stopped", counting(tmp_path)))
    pid = pid_of(tmp_path, 0)
    with ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(joined_cluster.terminate, job_id, 60.0)
        until(lambda: "told" in log_of(joined_cluster, job_id), "it has SIGTERM")
        kill(driver_of(job_id))
        stopping.result(200)
    assert not alive(pid)
    assert (tmp_path / "saved-0").exists()
    info = joined_cluster.poll(job_id)
    assert (info.status, info.tasks[0].reason) == (JobStatus.STOPPED, ExitReason.STOPPED)


def test_a_sweep_goes_on_when_its_coordinator_is_killed(joined_cluster: RayCluster, tmp_path: Path) -> None:
    (tmp_path / "long").mkdir()
    entrypoints = [
        Entrypoint.from_binary("true"),
        counting(tmp_path / "long"),
        Entrypoint.from_binary("sh", ["-c", "exit 3"]),
        Entrypoint.from_binary("true"),
    ]
    requests = [JobRequest(f"member-{n}", each) for n, each in enumerate(entrypoints)]
    sweep = joined_cluster.launch_many(requests, max_parallel=1)
    pid = pid_of(tmp_path / "long", 0)
    kill_driver(sweep)
    assert alive(pid)
    (tmp_path / "long" / "go").touch()
    info = joined_cluster.wait(sweep, timeout=200)
    assert info.progress == {"succeeded": 3, "failed": 1}, info.error_message
    assert [joined_cluster.poll(sweep.member(n)).tasks[0].attempt for n in range(4)] == [1] * 4
    check_output(joined_cluster, sweep.member(1), 0)
    assert joined_cluster.retry(sweep) == sweep
    until(lambda: joined_cluster.poll(sweep).finished, "the member that failed has run again", 200)
    assert joined_cluster.poll(sweep).progress == {"succeeded": 3, "failed": 1}


def gang(cluster: RayCluster, folder: Path, **more: Any) -> str:
    resources = ResourceConfig(device=TpuConfig("v4-16"))
    return cluster.launch(JobRequest("train", counting(folder), resources=resources, **more))


def test_a_gang_runs_on_when_the_driver_is_killed(gangs: RayCluster, tmp_path: Path) -> None:
    job_id = gang(gangs, tmp_path)
    before = [pid_of(tmp_path, rank) for rank in (0, 1)]
    kill_driver(job_id)
    until(lambda: "has another driver" in log_of(gangs, job_id), "the driver has begun")
    assert all(map(alive, before))
    (tmp_path / "go").touch()
    info = gangs.wait(job_id, timeout=200)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    assert [task.attempt for task in info.tasks] == [1, 1]
    for rank in (0, 1):
        check_output(gangs, job_id, rank)


def test_a_gang_that_fails_while_there_is_no_driver_starts_again_as_a_whole(
    gangs: RayCluster, tmp_path: Path
) -> None:
    job_id = gang(gangs, tmp_path, max_retries_failure=1)
    before = [pid_of(tmp_path, rank) for rank in (0, 1)]
    kill(driver_of(job_id))
    (tmp_path / "fail-1").touch()
    until(lambda: not alive(before[1]), "a host has failed")
    for rank in (0, 1):
        pid_of(tmp_path, rank, 2)
    (tmp_path / "go").touch()
    info = gangs.wait(job_id, timeout=200)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    assert [task.previous[0].reason for task in info.tasks] == [ExitReason.STOPPED, ExitReason.EXITED]
