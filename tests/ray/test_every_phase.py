"""Every process of a job is killed while the job starts, is being stopped, or runs its `on_exit`.

Jobs run side by side: in each, another process is killed. `test_scheduler`, `test_lost_jobs` and
`test_process_supervisor` kill them while replicas run. `test_head_restart` kills the GCS in these phases.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from gang_hosts import left_in_ray, pids_of_replicas
from job_processes import (
    alive,
    dashboard,
    kill,
    kill_scheduler,
    parent,
    paused,
    process_of,
    process_supervisors,
    shell_of,
    supervisor_of,
)
from ray.job_submission import JobSubmissionClient
from ray.util import placement_group_table

from fray.cluster import (
    Entrypoint,
    ExitReason,
    JobInfo,
    JobRequest,
    JobStatus,
    ResourceConfig,
    TaskStatus,
)
from fray.testing.gates import until
from fray_ray import RayCluster
from fray_ray.testing import LocalRayCluster

pytestmark = pytest.mark.timeout(480)
SMALL = ResourceConfig(cpu=0.1, ram="32m")
ON_THE_HEAD: dict[str, Callable[[str], int]] = {
    "process": process_of,
    "shell": shell_of,
    "supervisor": supervisor_of,
}
RAY_LOSES_IT = ("shell", "supervisor")

# Notes its process; ends well when there is `go`, and after SIGTERM, of which it makes a note, too.
LASTING = """
trap 'touch "$0/told"' TERM
echo $$ > "$0/draft"; mv "$0/draft" "$0/up"; until test -e "$0/go"; do sleep 0.05; done
"""


def launch(cluster: RayCluster, folder: Path, on_exit: str | None = None) -> str:
    folder.mkdir()
    entrypoint = Entrypoint.from_binary("sh", ["-c", LASTING, os.fspath(folder)])
    return cluster.launch(JobRequest("phase", entrypoint, resources=SMALL, on_exit=on_exit))


def ended_for_ray(table: JobSubmissionClient, job_id: str) -> bool:
    return table.get_job_status(job_id).is_terminal()


def how(info: JobInfo) -> tuple[JobStatus, ExitReason | None]:
    return info.status, info.tasks[0].reason if info.tasks else None


def test_while_a_job_starts(joined_cluster: RayCluster, tmp_path: Path) -> None:
    jobs = {}
    for victim, pid_of in ON_THE_HEAD.items():  # at once: its replica is on its way
        jobs[victim] = launch(joined_cluster, tmp_path / victim)
        kill(pid_of(jobs[victim]))
    jobs["scheduler"] = launch(joined_cluster, tmp_path / "scheduler")
    kill_scheduler()
    for victim, job_id in jobs.items():
        if victim not in RAY_LOSES_IT:
            (tmp_path / victim / "go").touch()
        info = joined_cluster.wait(job_id, timeout=200)
        if victim in RAY_LOSES_IT:
            joined_cluster.terminate(job_id)  # returns when nothing of it is left
            assert info.status is JobStatus.FAILED, victim
            assert info.tasks[0].reason in (ExitReason.LOST, ExitReason.COULD_NOT_START), victim
        else:
            assert how(info) == (JobStatus.SUCCEEDED, ExitReason.EXITED), (victim, info.error_message)
            assert info.tasks[0].attempt == 1, victim
    until(lambda: not left_in_ray(), "no actor and no room of them is left")


def is_placed(job_id: str) -> bool:
    """Whether Ray has given a job its room."""
    groups = placement_group_table().values()
    return any(job_id in group["name"] and group["state"] == "CREATED" for group in groups)


def earlier(task: TaskStatus) -> list[ExitReason | None]:
    return [each.reason for each in task.previous]


def test_an_actor_is_killed_before_its_attempt_begins(
    joined_cluster: RayCluster, ray_cluster: LocalRayCluster, tmp_path: Path
) -> None:
    """An attempt begins when Ray has started the job's process; its dashboard, which does that, is away."""
    half = ResourceConfig(cpu=30)
    requests = {
        "again": JobRequest("again", Entrypoint.from_binary("true"), resources=half, max_retries_failure=1),
        "never": JobRequest("never", Entrypoint.from_binary("true"), resources=half),
    }
    jobs = {name: joined_cluster.launch(request) for name, request in requests.items()}
    for job_id in jobs.values():
        until(lambda: "30" in (joined_cluster.poll(job_id).pending_reason or ""), "it waits")  # noqa: B023
    with paused(dashboard()):
        node = ray_cluster.add_node(num_cpus=60)
        until(lambda: all(map(is_placed, jobs.values())), "they have room", 200)
        actors = until(lambda: pids if len(pids := pids_of_replicas()) == 2 else [], "both are up", 200)
        kill(*actors)
    again, never = (joined_cluster.wait(jobs[name], timeout=200) for name in ("again", "never"))
    assert how(again) == (JobStatus.SUCCEEDED, ExitReason.EXITED), again.error_message
    assert (again.tasks[0].attempt, earlier(again.tasks[0])) == (2, [ExitReason.LOST])
    assert how(never) == (JobStatus.FAILED, ExitReason.LOST), never.error_message
    assert "replica 0 was lost" in (never.error_message or "")
    until(lambda: not left_in_ray(), "no actor and no room of them is left")
    ray_cluster.kill_node(node)


def test_what_keeps_a_replica_is_killed_as_soon_as_it_is_there(
    joined_cluster: RayCluster, ray_cluster: LocalRayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = tmp_path / "folders"  # of attempts, on this node
    folders.mkdir()
    monkeypatch.setenv("TMPDIR", os.fspath(folders))
    node = ray_cluster.add_node(num_cpus=30)
    monkeypatch.undo()
    for victim in ("starter", "guardian", "process supervisor"):
        folder = tmp_path / victim
        folder.mkdir()
        entrypoint = Entrypoint.from_binary("sh", ["-c", LASTING, os.fspath(folder)])
        request = JobRequest("phase", entrypoint, resources=ResourceConfig(cpu=30), max_retries_failure=1)
        job_id = joined_cluster.launch(request)
        while (pid := process_supervisors().get(victim)) is None:  # no pause: they start within milliseconds
            continue
        kill(pid)
        folder.joinpath("go").touch()  # a program that runs ends well, and that of the next attempt
        info = joined_cluster.wait(job_id, timeout=200)
        assert how(info) == (JobStatus.SUCCEEDED, ExitReason.EXITED), (victim, info.error_message)
        (task,) = info.tasks
        # The program may have been so far that it has ended well.
        assert (task.attempt, earlier(task)) in ((1, []), (2, [ExitReason.LOST])), (victim, info)
        for each in task.previous:
            assert "the process" in (each.error_message or ""), (victim, each)
        until(lambda: not process_supervisors(), "no process is left of what kept it")
    until(lambda: not left_in_ray(), "no actor and no room of them is left")
    until(lambda: not list(folders.glob("fray-*")), "nor a folder of an attempt")
    ray_cluster.kill_node(node)


def test_while_a_job_is_being_stopped(joined_cluster: RayCluster, tmp_path: Path) -> None:
    jobs = {}
    for victim in (*ON_THE_HEAD, "process supervisor", "guardian", "scheduler"):
        jobs[victim] = launch(joined_cluster, tmp_path / victim)
    until(lambda: all((tmp_path / victim / "up").exists() for victim in jobs), "all run", 200)
    others = pids_of_replicas()
    jobs["actor"] = launch(joined_cluster, tmp_path / "actor")
    until((tmp_path / "actor" / "up").exists, "the last one runs, too", 200)
    (actor,) = set(pids_of_replicas()).difference(others)
    programs = {victim: int((tmp_path / victim / "up").read_text()) for victim in jobs}
    with ThreadPoolExecutor(len(jobs)) as pool:
        stops = {
            victim: pool.submit(joined_cluster.terminate, job_id, 120.0) for victim, job_id in jobs.items()
        }
        until(lambda: all((tmp_path / victim / "told").exists() for victim in jobs), "all have SIGTERM", 120)
        supervisor = parent(programs["process supervisor"])
        guardian = parent(parent(programs["guardian"]))
        in_ray = [pid_of(jobs[victim]) for victim, pid_of in ON_THE_HEAD.items()]
        kill(supervisor, guardian, actor, *in_ray)
        kill_scheduler()
        for victim in jobs:
            (tmp_path / victim / "go").touch()
        for victim, stop in stops.items():
            stop.result(200)
            assert not alive(programs[victim]), victim
    for victim, job_id in jobs.items():
        status, reason = how(joined_cluster.poll(job_id))
        lost = victim in RAY_LOSES_IT and (status, reason) == (JobStatus.FAILED, ExitReason.LOST)
        assert lost or status is JobStatus.STOPPED, (victim, status, reason)
    until(lambda: not left_in_ray(), "no actor and no room of them is left")


def test_while_a_job_runs_what_was_given_for_its_end(
    joined_cluster: RayCluster, ray_cluster: LocalRayCluster, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    waits = f"timeout 300 sh -c 'until test -e {gate}; do sleep 0.1; done'"
    jobs = {}
    for victim in (*ON_THE_HEAD, "scheduler"):
        folder = tmp_path / victim
        jobs[victim] = launch(joined_cluster, folder, f"echo x >> {folder}/ended; {waits}")
        (folder / "go").touch()
    until(
        lambda: all((tmp_path / victim / "ended").exists() for victim in jobs),
        "all run what was given for their end",
        200,
    )
    kill(*(pid_of(jobs[victim]) for victim, pid_of in ON_THE_HEAD.items()))
    kill_scheduler()
    gate.touch()
    table = JobSubmissionClient(ray_cluster.dashboard)
    for victim, job_id in jobs.items():
        until(partial(ended_for_ray, table, job_id), f"Ray sees the end: {victim}", 200)
        assert how(joined_cluster.poll(job_id)) == (JobStatus.SUCCEEDED, ExitReason.EXITED), victim
        assert (tmp_path / victim / "ended").read_text() == "x\n", victim
    until(lambda: not left_in_ray(), "no actor and no room of them is left")
