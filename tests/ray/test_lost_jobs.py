"""Jobs that Ray has lost, or whose process has not ended yet: what becomes of them, and what the calls do."""

import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import ray as typed_ray
from gang_hosts import left_in_ray
from head_store import entries_with, package, restoring_entry, stored
from job_processes import (
    alive,
    end_scheduler,
    kill,
    paused,
    process_of,
    scheduler,
    shell_of,
    supervisor_of,
)
from ray.job_submission import JobSubmissionClient

from fray import ClusterUnavailableError
from fray.cluster import Entrypoint, ExitReason, JobRequest, JobStatus, ResourceConfig, create_environment
from fray.testing.gates import Gate, until
from fray_ray import RayCluster
from fray_ray.testing import LocalRayCluster

ray: Any = typed_ray
pytestmark = pytest.mark.timeout(400)

# Notes its process; ends when there is `go`, or, having noted that, a while after SIGTERM.
LASTING = """
trap 'sleep 0.5; touch "$0/saved"; exit 1' TERM
echo $$ > "$0/draft"; mv "$0/draft" "$0/up"; until test -e "$0/go"; do sleep 0.05; done
"""


def lasting(folder: Path) -> Entrypoint:
    return Entrypoint.from_binary("sh", ["-c", LASTING, str(folder)])


def lose_without_a_scheduler(ray_cluster: LocalRayCluster, job_id: str) -> None:
    """Have Ray lose a job while there is no scheduler; the next one finds it so."""
    table, before = JobSubmissionClient(ray_cluster.dashboard), scheduler()
    with paused(before):
        kill(supervisor_of(job_id))
        until(lambda: table.get_job_status(job_id).is_terminal(), "Ray has lost it", 120)
        kill(before)


def test_terminating_a_job_that_ray_lost_ends_what_is_left_of_it(
    joined_cluster: RayCluster, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    entrypoint = Entrypoint.from_binary(
        "sh", ["-c", "echo $$ > $0.draft; mv $0.draft $0; sleep 600", str(started)]
    )
    environment = create_environment(env_vars={"PLAIN": "value"})
    job_id = joined_cluster.launch(JobRequest("lost", entrypoint, environment=environment))
    until(started.exists, "it runs", 200)
    kill(shell_of(job_id))
    info = joined_cluster.wait(job_id, timeout=120)
    assert (info.status, info.tasks[0].reason) == (JobStatus.FAILED, ExitReason.LOST)
    joined_cluster.terminate(job_id)
    until(lambda: not alive(int(started.read_text())), "its program is gone")
    assert joined_cluster.poll(job_id).status is JobStatus.FAILED
    joined_cluster.terminate(job_id)  # once more, and nothing happens


def test_terminating_a_job_that_ray_loses_meanwhile_returns_when_its_program_is_gone(
    joined_cluster: RayCluster, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    script = "trap '' TERM; echo $$ > $0.draft; mv $0.draft $0; sleep 600"
    job_id = joined_cluster.launch(
        JobRequest("deaf", Entrypoint.from_binary("sh", ["-c", script, str(started)]))
    )
    until(started.exists, "it runs", 200)
    program = int(started.read_text())
    kill(shell_of(job_id))
    joined_cluster.terminate(job_id, grace=4.0)
    assert not alive(program)
    assert joined_cluster.poll(job_id).finished


def test_all_that_a_job_started_ends_when_rays_supervisor_of_it_is_killed(
    joined_cluster: RayCluster, ray_cluster: LocalRayCluster, tmp_path: Path
) -> None:
    noted = tmp_path / "noted"

    def start_others() -> None:
        import os
        import time

        from fray import get_job_context
        from fray.cluster import Entrypoint, JobRequest, current_cluster

        class Lasting:
            def pid(self) -> int:
                return os.getpid()

        current_cluster().launch(JobRequest("child", Entrypoint.from_binary("sleep", ["600"])))
        context = get_job_context()
        actor = context.create_actor(Lasting, name="lasting", lifetime="detached")
        draft = noted.with_name("draft")
        draft.write_text(f"{os.getpid()} {context.get(actor.pid())}")
        draft.rename(noted)
        time.sleep(600)

    def child_runs() -> bool:
        return [each.status for each in joined_cluster.list_jobs(parent=job_id)] == [JobStatus.RUNNING]

    secret = "7e21-of-a-lost-job"
    environment = create_environment(env_vars={"SERVICE_API_KEY": secret})
    entrypoint = Entrypoint.from_callable(start_others)
    job_id = joined_cluster.launch(JobRequest("hopeless", entrypoint, environment=environment))
    until(noted.exists, "its actor runs", 200)
    until(child_runs, "the child runs", 200)
    assert entries_with(secret), "its tasks find the variable"
    supervisor, shell = supervisor_of(job_id), shell_of(job_id)
    kill(supervisor)
    info = joined_cluster.wait(job_id, timeout=120)
    assert (info.status, info.tasks[0].reason) == (JobStatus.FAILED, ExitReason.LOST), info.error_message
    assert "the process of the job on the head ended" in (info.error_message or "")
    theirs = [shell, *map(int, noted.read_text().split())]
    until(lambda: not any(map(alive, theirs)), "its shell, its program and its actor are gone")
    (child,) = joined_cluster.list_jobs(parent=job_id)
    until(lambda: joined_cluster.poll(child.job_id).status is JobStatus.STOPPED, "the child has ended", 120)
    until(lambda: not left_in_ray(), "no actor and no room of them is left")
    kept = [package(ray_cluster, job_id, "plan")]  # for a retry
    until(lambda: stored(ray_cluster, job_id) == kept, "nor anything else that the head kept for it")
    assert not entries_with(secret)


def test_a_job_whose_driver_has_not_ended_yet_is_not_removed_nor_its_parent_pruned(
    ray_cluster: LocalRayCluster, tmp_path: Path
) -> None:
    def launch_another(told: str, gate: str) -> None:
        from fray.cluster import Entrypoint, JobRequest, current_cluster

        # Its driver has written how the job ended, when it runs this.
        on_exit = f"touch {told}; timeout 300 sh -c 'until test -e {gate}; do sleep 0.1; done'"
        current_cluster().launch(JobRequest("child", Entrypoint.from_binary("true"), on_exit=on_exit))

    told, gate = Gate(tmp_path / "told"), Gate(tmp_path / "gate")
    table = JobSubmissionClient(ray_cluster.dashboard)
    cluster = RayCluster(ray_cluster.address, driver_exit_timeout=0.5)
    entrypoint = Entrypoint.from_callable(launch_another, [str(told.path), str(gate.path)])
    parent = cluster.launch(JobRequest("parent", entrypoint))
    assert cluster.wait(parent, timeout=120).status is JobStatus.SUCCEEDED
    (child,) = until(lambda: cluster.list_jobs(parent=parent), "the child is in the table")  # it may start
    until(told.is_open, "the child's driver runs what was given for its end", 120)
    assert cluster.poll(child.job_id).status is JobStatus.SUCCEEDED
    until(lambda: table.get_job_status(parent).is_terminal(), "the parent's driver is gone")
    with pytest.raises(ClusterUnavailableError, match=r"its driver has not, after 0\.5 s"):
        cluster.remove(child.job_id)
    assert parent not in cluster.prune().jobs
    assert cluster.poll(parent).finished
    gate.open()
    patient = RayCluster(ray_cluster.address)
    assert parent in patient.prune().jobs


def test_a_job_that_ray_lost_while_there_was_no_scheduler_has_its_grace_and_is_not_started_again(
    joined_cluster: RayCluster, ray_cluster: LocalRayCluster, tmp_path: Path
) -> None:
    request = JobRequest("lost", lasting(tmp_path), max_retries_failure=1)
    job_id = joined_cluster.launch(request)
    until((tmp_path / "up").exists, "it runs", 200)
    lose_without_a_scheduler(ray_cluster, job_id)
    until((tmp_path / "saved").exists, "it has SIGTERM, and the time to save")
    joined_cluster.terminate(job_id)
    (task,) = joined_cluster.wait(job_id, timeout=120).tasks
    assert (task.attempt, task.reason) == (1, ExitReason.LOST)
    until(lambda: not left_in_ray(), "no actor and no room of it is left")


def test_a_job_whose_end_ray_has_written_and_a_state_has_replaced_is_known_to_be_lost(
    joined_cluster: RayCluster, ray_cluster: LocalRayCluster, tmp_path: Path
) -> None:
    """Ray and the scheduler write the same entry, and Ray writes the end of a job once."""
    job_id = joined_cluster.launch(JobRequest("forgotten", lasting(tmp_path)))
    until((tmp_path / "up").exists, "it runs", 200)
    with paused(scheduler()):
        write_running = restoring_entry(job_id)
        kill(supervisor_of(job_id))
        table = JobSubmissionClient(ray_cluster.dashboard)
        until(lambda: table.get_job_status(job_id).is_terminal(), "Ray has lost it", 120)
        write_running()
    (task,) = joined_cluster.wait(job_id, timeout=120).tasks
    assert (task.attempt, task.reason) == (1, ExitReason.LOST)
    assert table.get_job_status(job_id).is_terminal(), "for Ray too, so that it can be removed"
    until(lambda: not left_in_ray(), "no actor and no room of it is left")


def test_a_sweep_that_ray_lost_while_there_was_no_scheduler_ends_and_can_be_run_again(
    joined_cluster: RayCluster, ray_cluster: LocalRayCluster, tmp_path: Path
) -> None:
    sweep = joined_cluster.launch_many([JobRequest("member", lasting(tmp_path))] * 2, max_parallel=1)
    until((tmp_path / "up").exists, "its first member runs", 200)
    lose_without_a_scheduler(ray_cluster, sweep)
    until((tmp_path / "saved").exists, "the member has SIGTERM")
    joined_cluster.terminate(sweep)
    assert joined_cluster.wait(sweep, timeout=120).progress == {"stopped": 2}
    (tmp_path / "go").touch()
    assert joined_cluster.retry(sweep) == sweep
    info = joined_cluster.wait(sweep, timeout=200)
    assert info.status is JobStatus.SUCCEEDED, info.error_message


def test_replicas_of_lost_jobs_end_by_themselves_where_no_scheduler_comes_within_a_minute(
    joined_cluster: RayCluster, tmp_path: Path
) -> None:
    jobs: dict[str, str] = {}
    for name, gang in (("gang", True), ("alone", False)):
        (tmp_path / name).mkdir()
        half = ResourceConfig(cpu=0.5, ram="64m")
        request = JobRequest(name, lasting(tmp_path / name), resources=half, gang=gang)
        jobs[name] = joined_cluster.launch(request)
    for name in jobs:
        until((tmp_path / name / "up").exists, "it runs", 200)
    programs = [int((tmp_path / name / "up").read_text()) for name in jobs]
    gang_process, process = map(process_of, jobs.values())
    heads = [pid for job_id in jobs.values() for pid in (supervisor_of(job_id), shell_of(job_id))]
    begun = time.monotonic()
    with paused(gang_process), paused(process):  # or they would start a scheduler
        end_scheduler()
        kill(*heads, gang_process, process)
    assert all(map(alive, programs))
    until(lambda: not any(map(alive, programs)), "their leases are over", 120)
    assert time.monotonic() - begun > 30.0, "something else has ended them"
    assert (tmp_path / "gang" / "saved").exists(), "a host of a gang has time to save"
    until(lambda: not left_in_ray(), "no actor and no room of them is left")
    named = [each["name"] for each in ray.util.list_named_actors(all_namespaces=True)]
    assert f"scheduler-{version('fray-ray')}" not in named
    for job_id in jobs.values():
        info = joined_cluster.poll(job_id)
        assert (info.status, info.tasks[0].reason) == (JobStatus.FAILED, ExitReason.LOST), info.error_message
    later = joined_cluster.launch(JobRequest("later", Entrypoint.from_binary("true")))
    assert joined_cluster.wait(later, timeout=200).status is JobStatus.SUCCEEDED
    for job_id in jobs.values():
        (task,) = joined_cluster.wait(job_id, timeout=120).tasks
        assert (task.attempt, task.reason) == (1, ExitReason.LOST)
