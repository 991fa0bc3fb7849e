"""A scheduler that is killed is started again: jobs go on, and nothing of them is lost, or there twice."""

import contextlib
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import ray as typed_ray
import requests
from gang_hosts import left_in_ray, pids_of_replicas
from head_store import stored
from job_processes import (
    alive,
    end_scheduler,
    kill,
    kill_scheduler,
    parent,
    process_of,
    programs_with,
    scheduler,
)
from ray.job_submission import JobSubmissionClient

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
from fray_ray.testing import LocalRayCluster

ray: Any = typed_ray
pytestmark = pytest.mark.timeout(480)
KILLS = int(os.environ.get("FRAY_TEST_KILLS", "5"))  # CONTRIBUTING.md: the long storm

# Counts, notes its process, and ends: well when there is `go`, badly when there is `fail-RANK`.
COUNTING = """
import os, pathlib, signal, sys, time
folder, rank = pathlib.Path(sys.argv[1]), os.environ["FRAY_REPLICA_ID"]
attempt = os.environ["FRAY_ATTEMPT"]
def leave(*_):
    (folder / f"stopping-{rank}").touch()  # what it prints here may be in the middle of a line
    time.sleep(1.5)
    (folder / f"saved-{rank}").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
draft = folder / f"draft-{rank}-{attempt}"
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
print(f"lines of {attempt}: {number}", end="", flush=True)
"""


# Makes placement groups where the scheduler has those of jobs: in its namespace.
MAKES_GROUPS = """
import sys
import ray
ray.init(sys.argv[1], namespace="fray", log_to_driver=False)
for name in sys.argv[2:]:
    ray.util.placement_group([{"CPU": 0.01}], name=name, lifetime="detached")
"""


def counting(folder: Path) -> Entrypoint:
    return Entrypoint.from_binary("python", ["-c", COUNTING, os.fspath(folder)])


def pid_of(folder: Path, rank: int, attempt: int = 1) -> int:
    path = folder / f"up-{rank}-{attempt}"
    until(path.exists, f"attempt {attempt} of replica {rank} runs", 200)
    return int(path.read_text())


def check_output(cluster: RayCluster, job_id: str, rank: int, attempt: int = 1) -> None:
    """Check that what an attempt wrote is there, in order, and once."""
    lines = [line for line in cluster.monitor(job_id, replica=rank) if line.endswith(f"in {attempt}")]
    assert lines == [f"line {number} of {rank} in {attempt}" for number in range(1, len(lines) + 1)]
    monitored, start = cluster.monitor(job_id, replica=rank), f"lines of {attempt}: "
    last = [line for line in monitored if line.startswith(start)]
    assert last == [f"{start}{len(lines)}"]


def test_replicas_run_on_when_the_scheduler_is_killed(joined_cluster: RayCluster, tmp_path: Path) -> None:
    request = JobRequest("lasting", counting(tmp_path), resources=ResourceConfig(replicas=2, cpu=0.5))
    job_id = joined_cluster.launch(request)
    before = [pid_of(tmp_path, rank) for rank in (0, 1)]
    kill_scheduler()
    kill_scheduler()
    until(lambda: joined_cluster.poll(job_id).status is JobStatus.RUNNING, "it reads running")
    await_taken_up(joined_cluster, job_id)
    assert all(map(alive, before))
    (tmp_path / "go").touch()
    info = joined_cluster.wait(job_id, timeout=200)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    assert [(task.attempt, task.reason) for task in info.tasks] == [(1, ExitReason.EXITED)] * 2
    for rank in (0, 1):
        check_output(joined_cluster, job_id, rank)
    assert not pids_of_replicas()


def log_of(cluster: RayCluster, job_id: str) -> str:
    """The log of a job as it lies on the head, whose files this machine has."""
    (path,) = cluster.poll(job_id).logs
    return Path(path).read_text()


def await_taken_up(cluster: RayCluster, job_id: str) -> None:
    """Wait until another scheduler has taken a job up."""
    until(lambda: "has another scheduler" in log_of(cluster, job_id), "the job is taken up", 200)


def test_a_job_goes_on_when_its_own_process_is_killed(joined_cluster: RayCluster, tmp_path: Path) -> None:
    job_id = joined_cluster.launch(JobRequest("lasting", counting(tmp_path)))
    pid = pid_of(tmp_path, 0)
    before = process_of(job_id)
    about = dict(line.split(":\t") for line in Path(f"/proc/{before}/status").read_text().splitlines())
    assert about["Threads"] == "1"
    assert int(about["VmRSS"].removesuffix(" kB")) < 16 * 1024, "it is small: it imports almost nothing"
    kill(before)
    after = process_of(job_id, but=before)
    assert alive(pid)
    (tmp_path / "go").touch()
    info = joined_cluster.wait(job_id, timeout=200)
    assert (info.status, info.tasks[0].attempt) == (JobStatus.SUCCEEDED, 1), info.error_message
    until(lambda: not alive(after), "it ends with the job")


def test_a_replica_that_fails_while_there_is_no_scheduler_has_its_retry(
    joined_cluster: RayCluster, tmp_path: Path
) -> None:
    request = JobRequest("failing", counting(tmp_path), max_retries_failure=1)
    job_id = joined_cluster.launch(request)
    pid = pid_of(tmp_path, 0)
    kill(scheduler())
    (tmp_path / "fail-0").touch()
    until(lambda: not alive(pid), "it has failed")
    second = pid_of(tmp_path, 0, 2)
    kill_scheduler()
    (tmp_path / "fail-0").touch()
    until(lambda: not alive(second), "it has failed again")
    info = joined_cluster.wait(job_id, timeout=200)
    assert (info.status, info.tasks[0].attempt, info.tasks[0].exit_code) == (JobStatus.FAILED, 2, 7)
    (earlier,) = info.tasks[0].previous
    assert (earlier.attempt, earlier.exit_code) == (1, 7)
    assert "its last lines:\n  line" in (info.error_message or "")


def asked_of_ray() -> dict[str, list[float]]:
    """The CPUs of each replica for which jobs wait, by job, as Ray and its autoscaler know of it."""
    groups = [group for group in ray.util.placement_group_table().values() if group["state"] == "PENDING"]
    asked = {group["name"].split()[1]: group["bundles"].values() for group in groups}
    return {job_id: [bundle["CPU"] for bundle in bundles] for job_id, bundles in asked.items()}


def test_a_job_that_waits_for_room_has_no_process_and_keeps_its_place_under_another_scheduler(
    joined_cluster: RayCluster, ray_cluster: LocalRayCluster, tmp_path: Path
) -> None:
    request = JobRequest("waiting", counting(tmp_path), resources=ResourceConfig(cpu=500))
    job_id = joined_cluster.launch(request)
    until(lambda: "500" in (joined_cluster.poll(job_id).pending_reason or ""), "it waits")
    table = JobSubmissionClient(ray_cluster.dashboard)
    assert (table.get_job_status(job_id), table.get_job_info(job_id).driver_info) == ("PENDING", None)
    assert not programs_with(job_id)
    behind = joined_cluster.launch(request)
    until(lambda: "500" in (joined_cluster.poll(behind).pending_reason or ""), "the next one waits")
    assert asked_of_ray() == {job_id: [500.0]}, "an autoscaler sees the first of them"
    joined_cluster.terminate(behind, grace=0.0)
    kill_scheduler()
    assert joined_cluster.poll(job_id).status is JobStatus.PENDING
    joined_cluster.terminate(job_id, grace=0.0)
    assert joined_cluster.poll(job_id).status is JobStatus.STOPPED
    assert table.get_job_status(job_id) == "STOPPED"
    joined_cluster.remove(job_id)
    assert job_id not in [each.job_id for each in joined_cluster.list_jobs()]


def test_a_replica_that_is_being_stopped_has_its_grace(joined_cluster: RayCluster, tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    job_id = joined_cluster.launch(JobRequest("stopped", counting(tmp_path)))
    pid = pid_of(tmp_path, 0)
    with ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(joined_cluster.terminate, job_id, 60.0)
        until((tmp_path / "stopping-0").exists, "it has SIGTERM")
        kill(scheduler())
        stopping.result(200)
    assert not alive(pid)
    assert (tmp_path / "saved-0").exists()
    info = joined_cluster.poll(job_id)
    assert (info.status, info.tasks[0].reason) == (JobStatus.STOPPED, ExitReason.STOPPED)


def test_a_sweep_goes_on_when_the_scheduler_is_killed(joined_cluster: RayCluster, tmp_path: Path) -> None:
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
    kill_scheduler()
    assert alive(pid)
    (tmp_path / "long" / "go").touch()
    info = joined_cluster.wait(sweep, timeout=200)
    assert info.progress == {"succeeded": 3, "failed": 1}, info.error_message
    assert [joined_cluster.poll(sweep.member(n)).tasks[0].attempt for n in range(4)] == [1] * 4
    check_output(joined_cluster, sweep.member(1), 0)
    assert joined_cluster.retry(sweep) == sweep
    until(lambda: joined_cluster.poll(sweep).finished, "the member that failed has run again", 200)
    assert joined_cluster.poll(sweep).progress == {"succeeded": 3, "failed": 1}


# Notes its process, and ends some time after SIGTERM: when there is `go`.
LEAVING = """
trap 'touch "$0/told"; until test -e "$0/go"; do sleep 0.05; done; exit 0' TERM
echo $$ > "$0/draft-$$"; mv "$0/draft-$$" "$0/up-$$"; while :; do sleep 0.05; done
"""


def test_a_sweep_that_is_being_stopped_starts_nothing_under_another_scheduler(
    joined_cluster: RayCluster, ray_cluster: LocalRayCluster, tmp_path: Path
) -> None:
    entrypoint = Entrypoint.from_binary("sh", ["-c", LEAVING, os.fspath(tmp_path)])
    sweep = joined_cluster.launch_many([JobRequest("member", entrypoint)] * 2, max_parallel=1)
    until(lambda: list(tmp_path.glob("up-*")), "the first member runs", 200)
    url = f"{ray_cluster.dashboard}/api/packages/gcs/fray-{sweep}.stop"
    requests.put(url, data=b"100.0", timeout=30).raise_for_status()  # as by a program that is gone since
    until((tmp_path / "told").exists, "it has SIGTERM")
    kill_scheduler()
    (tmp_path / "go").touch()
    info = joined_cluster.wait(sweep, timeout=200)
    assert (info.status, info.progress) == (JobStatus.STOPPED, {"stopped": 2})
    assert len(list(tmp_path.glob("up-*"))) == 1


def test_a_shorter_grace_ends_a_sweep_that_is_being_stopped(
    joined_cluster: RayCluster, tmp_path: Path
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    entrypoint = Entrypoint.from_binary("sh", ["-c", LEAVING, os.fspath(tmp_path)])
    sweep = joined_cluster.launch_many([JobRequest("member", entrypoint)] * 2)
    until(lambda: len(list(tmp_path.glob("up-*"))) == 2, "both members run", 200)
    with ThreadPoolExecutor(1) as pool:
        patient = pool.submit(joined_cluster.terminate, sweep, 600.0)
        until((tmp_path / "told").exists, "it has SIGTERM", 60)
        joined_cluster.terminate(sweep, grace=0.5)
        patient.result(200)
    assert joined_cluster.poll(sweep).progress == {"stopped": 2}
    assert not any(alive(int(path.name.removeprefix("up-"))) for path in tmp_path.glob("up-*"))


def test_a_scheduler_that_was_ended_for_good_is_started_by_the_next_launch(
    joined_cluster: RayCluster, tmp_path: Path
) -> None:
    job_id = joined_cluster.launch(JobRequest("lasting", counting(tmp_path)))
    pid = pid_of(tmp_path, 0)
    end_scheduler()
    later = joined_cluster.launch(JobRequest("later", Entrypoint.from_binary("true")))
    assert joined_cluster.wait(later, timeout=200).status is JobStatus.SUCCEEDED
    assert alive(pid)
    (tmp_path / "go").touch()
    info = joined_cluster.wait(job_id, timeout=200)
    assert (info.status, info.tasks[0].attempt) == (JobStatus.SUCCEEDED, 1), info.error_message


def test_the_process_of_a_job_starts_a_scheduler_where_ray_starts_none(
    joined_cluster: RayCluster, tmp_path: Path
) -> None:
    job_id = joined_cluster.launch(JobRequest("lasting", counting(tmp_path)))
    pid, before = pid_of(tmp_path, 0), scheduler()
    end_scheduler()
    (tmp_path / "go").touch()
    until(lambda: not alive(pid), "its program has ended")
    assert joined_cluster.poll(job_id).status is JobStatus.RUNNING
    scheduler(but=before)  # nothing is launched
    info = joined_cluster.wait(job_id, timeout=200)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    assert [(task.attempt, task.reason) for task in info.tasks] == [(1, ExitReason.EXITED)]
    check_output(joined_cluster, job_id, 0)


def test_a_scheduler_that_starts_removes_the_placement_groups_of_jobs_that_are_gone(
    joined_cluster: RayCluster, ray_cluster: LocalRayCluster, tmp_path: Path
) -> None:
    def living() -> set[str]:
        groups = ray.util.placement_group_table().values()
        return {group["name"] for group in groups if group["state"] != "REMOVED"}

    ended = joined_cluster.launch(JobRequest("ended", Entrypoint.from_binary("true")))
    job_id = joined_cluster.launch(JobRequest("lasting", counting(tmp_path)))
    pid = pid_of(tmp_path, 0)
    table = JobSubmissionClient(ray_cluster.dashboard)
    until(lambda: table.get_job_status(ended).is_terminal(), "it has ended", 200)
    until(lambda: not stored(ray_cluster, ended), "nothing is kept of it")
    (own,) = [name for name in living() if job_id in name]
    left = {own.replace(job_id, gone) for gone in (ended, "gone-0a1b2c")}
    command = [sys.executable, "-c", MAKES_GROUPS, ray_cluster.address, *left]
    subprocess.run(command, check=True, timeout=120)
    assert left < living()
    kill_scheduler()
    until(lambda: not left & living(), "those of jobs that are gone are removed")
    assert own in living()
    assert alive(pid)
    (tmp_path / "go").touch()
    info = joined_cluster.wait(job_id, timeout=200)
    assert (info.status, info.tasks[0].attempt) == (JobStatus.SUCCEEDED, 1), info.error_message


def test_a_gang_is_not_overtaken_by_later_jobs_that_want_what_it_lacks(
    joined_cluster: RayCluster, tmp_path: Path
) -> None:
    def launch(name: str, cpus: int, **more: Any) -> str:
        (tmp_path / name).mkdir()
        resources = ResourceConfig(cpu=1, ram="64m", replicas=cpus)
        return joined_cluster.launch(JobRequest(name, counting(tmp_path / name), resources=resources, **more))

    def status(job_id: str) -> JobStatus:
        return joined_cluster.poll(job_id).status

    free = int(ray.available_resources()["CPU"])
    first = launch("first", free - 2)
    until(lambda: status(first) is JobStatus.RUNNING, "the first one runs", 200)
    large = launch("large", 4, gang=True)
    until(lambda: "waiting for room" in (joined_cluster.poll(large).pending_reason or ""), "it waits")
    small = launch("small", 1)  # two CPUs are free
    until(lambda: "waiting for room" in (joined_cluster.poll(small).pending_reason or ""), "and the other")
    assert (status(large), status(small)) == (JobStatus.PENDING, JobStatus.PENDING)
    assert asked_of_ray() == {large: [1.0] * 4}, "an autoscaler sees what the first of them asks for"
    (tmp_path / "first" / "go").touch()
    until(lambda: status(large) is JobStatus.RUNNING, "the large one runs", 200)
    until(lambda: status(small) is JobStatus.RUNNING, "then there is room for the small one", 200)
    for name in ("large", "small"):
        (tmp_path / name / "go").touch()
    for each in (large, small):
        assert joined_cluster.wait(each, timeout=200).status is JobStatus.SUCCEEDED


def test_a_job_takes_room_that_was_kept_for_an_earlier_one_when_that_has_ended(
    joined_cluster: RayCluster, tmp_path: Path
) -> None:
    def launch(name: str, cpus: int, entrypoint: Entrypoint | None = None) -> str:
        (tmp_path / name).mkdir()
        resources = ResourceConfig(cpu=cpus, ram="64m")
        request = JobRequest(name, entrypoint or counting(tmp_path / name), resources=resources)
        return joined_cluster.launch(request)

    def waits(job_id: str) -> bool:
        return "waiting for room" in (joined_cluster.poll(job_id).pending_reason or "")

    holders = {
        name: launch(name, cpus) for name, cpus in (("of three", 3), ("of two", 2), ("of two more", 2))
    }
    for name in holders:
        pid_of(tmp_path / name, 0)
    early = launch("early", 3, Entrypoint.from_binary("true"))  # the node with three CPUs is kept for it
    until(lambda: waits(early), "it waits")
    late = launch("late", 2, Entrypoint.from_binary("true"))  # it waits for a node with two
    until(lambda: waits(late), "and the other")
    (tmp_path / "of three" / "go").touch()
    assert joined_cluster.wait(early, timeout=200).status is JobStatus.SUCCEEDED
    assert joined_cluster.wait(late, timeout=200).status is JobStatus.SUCCEEDED
    for name, job_id in holders.items():
        (tmp_path / name / "go").touch()
        assert joined_cluster.wait(job_id, timeout=200).status is JobStatus.SUCCEEDED


def gang(cluster: RayCluster, folder: Path, **more: Any) -> str:
    resources = ResourceConfig(device=TpuConfig("v4-16"))
    return cluster.launch(JobRequest("train", counting(folder), resources=resources, **more))


def test_a_gang_runs_on_when_the_scheduler_is_killed(gangs: RayCluster, tmp_path: Path) -> None:
    job_id = gang(gangs, tmp_path)
    before = [pid_of(tmp_path, rank) for rank in (0, 1)]
    kill_scheduler()
    await_taken_up(gangs, job_id)
    assert all(map(alive, before))
    (tmp_path / "go").touch()
    info = gangs.wait(job_id, timeout=200)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    assert [task.attempt for task in info.tasks] == [1, 1]
    for rank in (0, 1):
        check_output(gangs, job_id, rank)


def test_a_gang_that_fails_while_there_is_no_scheduler_starts_again_as_a_whole(
    gangs: RayCluster, tmp_path: Path
) -> None:
    job_id = gang(gangs, tmp_path, max_retries_failure=1)
    before = [pid_of(tmp_path, rank) for rank in (0, 1)]
    kill(scheduler())
    (tmp_path / "fail-1").touch()
    until(lambda: not alive(before[1]), "a host has failed")
    for rank in (0, 1):
        pid_of(tmp_path, rank, 2)
    (tmp_path / "go").touch()
    info = gangs.wait(job_id, timeout=200)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    assert [task.previous[0].reason for task in info.tasks] == [ExitReason.STOPPED, ExitReason.EXITED]


def programs_in(folder: Path) -> list[int]:
    """The processes of a job's replicas that run now."""
    return [pid for path in folder.glob("*/up-*") if alive(pid := int(path.read_text() or 0))]


@pytest.mark.timeout(900)
def test_random_kills_lose_no_job(
    joined_cluster: RayCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of every kind of process of three jobs, at any phase; `FRAY_TEST_KILLS` says how many in all."""
    chance, started = random.Random(9), time.monotonic()
    folders: dict[str, Path] = {}
    for name, gang, replicas in (("pair", True, 2), ("two", False, 2), ("one", False, 1)):
        (tmp_path / name).mkdir()
        resources = ResourceConfig(cpu=1, replicas=replicas)
        request = JobRequest(
            name, counting(tmp_path / name), resources=resources, gang=gang, max_retries_failure=3 * KILLS
        )
        folders[joined_cluster.launch(request)] = tmp_path / name
    find: dict[str, Any] = {
        "scheduler": lambda: [scheduler()],
        "process of a job": lambda: [process_of(chance.choice(list(folders)))],
        "actor": pids_of_replicas,
        "process supervisor": lambda: [parent(pid) for pid in programs_in(tmp_path)],
        "guardian": lambda: [parent(parent(pid)) for pid in programs_in(tmp_path)],
        "program": lambda: programs_in(tmp_path),
    }
    killed: Counter[str] = Counter()
    while killed.total() < KILLS:
        time.sleep(chance.uniform(0.0, 3.0))  # any phase is to be met
        what = chance.choice(list(find))
        found = [pid for pid in find[what]() if pid > 1]
        if found:
            with contextlib.suppress(ProcessLookupError):  # it has ended just now
                kill(chance.choice(found))
                killed[what] += 1
    for folder in folders.values():
        (folder / "go").touch()
    for job_id in folders:
        info = joined_cluster.wait(job_id, timeout=200)
        assert info.status is JobStatus.SUCCEEDED, info.error_message
        for task in info.tasks:
            check_output(joined_cluster, job_id, task.replica, task.attempt)
    until(lambda: not left_in_ray(), "nothing is left")
    with capsys.disabled():
        print(f"\n{dict(killed)}: {time.monotonic() - started:.0f} s")
