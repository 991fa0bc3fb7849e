"""Moments of a job in which its scheduler, or what that needs, is away: the job goes on all the same."""

import enum
import functools
import json
import os
import pickle
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import ray as typed_ray
import requests
from gang_hosts import left_in_ray
from head_store import package, stored
from job_processes import dashboard, kill, kill_scheduler, paused, scheduler
from ray.job_submission import JobSubmissionClient

from fray.cluster import Entrypoint, JobRequest, JobStatus, ResourceConfig, create_environment
from fray.testing.gates import Gate, until
from fray_ray import RayCluster
from fray_ray.testing import LocalRayCluster

ray: Any = typed_ray
pytestmark = pytest.mark.timeout(480)

TRUE = Entrypoint.from_binary("true")
# Fails for as long as there is no file of that name; then a task has to find the job's variable.
FAILS_UNTIL = """
import os, pathlib, sys
from fray import get_job_context
print(pathlib.Path("data.txt").read_text())
if not pathlib.Path(sys.argv[1]).exists():
    sys.exit(1)
context = get_job_context()
assert context.get(context.run(os.getenv, "TOLD")) == os.environ["TOLD"] == "to all"
"""


class Mode(enum.StrEnum):
    """A class of this module, which the scheduler cannot import."""

    FAST = "fast"


# Prints how many classes of actors the head keeps.
CLASSES = """
import sys
import ray
from ray.experimental import internal_kv
ray.init(sys.argv[1], log_to_driver=False)
print(len(internal_kv._internal_kv_list("ActorClass", namespace=b"fun")))
"""


def is_placed(job_id: str) -> bool:
    """Whether Ray has given a job its room."""
    groups = ray.util.placement_group_table().values()
    return any(job_id in group["name"] and group["state"] == "CREATED" for group in groups)


def await_entry(ray_cluster: LocalRayCluster, job_id: str) -> None:
    """Wait until a job is in Ray's table as one that waits."""
    table = JobSubmissionClient(ray_cluster.dashboard)
    until(lambda: job_id in [each.submission_id for each in table.list_jobs()], "it is in the table")


def waiting_job(cluster: RayCluster, ray_cluster: LocalRayCluster) -> str:
    """Launch a job that waits for 60 CPUs, which no node has."""
    job_id = cluster.launch(JobRequest("large", TRUE, resources=ResourceConfig(cpu=60)))
    await_entry(ray_cluster, job_id)
    until(lambda: "60" in (cluster.poll(job_id).pending_reason or ""), "it waits")
    return job_id


def is_gone(url: str) -> bool:
    """Whether the head's memory does not hold something."""
    return not requests.get(url, timeout=30).ok


def is_finished(cluster: RayCluster, job_id: str) -> bool:
    """Whether a job has ended."""
    return cluster.poll(job_id).finished


def test_a_job_starts_while_the_dashboard_takes_its_time(
    joined_cluster: RayCluster, ray_cluster: LocalRayCluster, tmp_path: Path
) -> None:
    gate, three = Gate(tmp_path / "gate"), ResourceConfig(cpu=3)
    holds = Entrypoint.from_binary("sh", ["-c", f"until test -e {gate.path}; do sleep 0.05; done"])
    holder = joined_cluster.launch(JobRequest("holder", holds, resources=three))
    until(lambda: joined_cluster.poll(holder).status is JobStatus.RUNNING, "it runs", 200)
    waits = joined_cluster.launch(JobRequest("waits", TRUE, resources=three))
    later = joined_cluster.launch(JobRequest("later", TRUE, after=[waits]))
    await_entry(ray_cluster, later)
    since = JobSubmissionClient(ray_cluster.dashboard).get_job_info(waits).start_time
    submitted_at = joined_cluster.poll(waits).submitted_at or 0.0
    until(lambda: time.time() - submitted_at > 4.0, "it has waited for longer than a process may be away")
    with paused(dashboard()):
        gate.open()
        until(lambda: is_placed(waits), "it has room", 200)
        time.sleep(2.5)  # the scheduler looks for what is lost twice in a second, and `later` once
    for job_id in (waits, later):
        info = joined_cluster.wait(job_id, timeout=200)
        assert info.status is JobStatus.SUCCEEDED, info.error_message
    entry = JobSubmissionClient(ray_cluster.dashboard).get_job_info(waits)
    assert (entry.metadata or {})["fray.since"] == str(since), "it is still the first with its key"


def test_a_job_that_has_room_when_its_scheduler_comes_up_starts(
    joined_cluster: RayCluster, ray_cluster: LocalRayCluster
) -> None:
    job_id = waiting_job(joined_cluster, ray_cluster)
    before = scheduler()
    with paused(before):
        node = ray_cluster.add_node(num_cpus=60)
        until(lambda: is_placed(job_id), "it has room", 200)
        kill(before)
    info = joined_cluster.wait(job_id, timeout=200)
    ray_cluster.kill_node(node)
    assert info.status is JobStatus.SUCCEEDED, info.error_message


@pytest.mark.parametrize("many", [False, True], ids=["a job", "a sweep"])
def test_what_was_shipped_is_there_when_it_is_run_again(
    ray_cluster: LocalRayCluster, tmp_path: Path, many: bool
) -> None:
    (tmp_path / "data.txt").write_text("came along")
    cluster = RayCluster(ray_cluster.address, ship_workspace=True)
    marker = tmp_path.parent / f"{tmp_path.name}-go"  # not in what is shipped
    entrypoint = Entrypoint.from_binary("python", ["-c", FAILS_UNTIL, os.fspath(marker)])
    environment = create_environment(workspace=tmp_path, env_vars={"TOLD": "to all"})
    request = JobRequest("shipped", entrypoint, environment=environment)
    job_id = cluster.launch_many([request, request]) if many else cluster.launch(request)
    for again in (False, True):
        if again:
            assert cluster.retry(job_id) == job_id
        info = cluster.wait(job_id, timeout=200)
        ran = cluster.poll(f"{job_id}/0") if many else info
        assert (info.status, ran.tasks[0].exit_code) == (JobStatus.FAILED, 1), ran.error_message
    marker.touch()
    assert cluster.retry(job_id) == job_id
    info = cluster.wait(job_id, timeout=200)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    until(lambda: not stored(ray_cluster, job_id), "nothing is kept")


UNREADABLE = b"\x80\x04cnowhere_to_be_found\nPlan\n."


def upload(cluster: LocalRayCluster, job_id: str, kind: str, data: bytes) -> None:
    """Have the head's memory hold something of a job."""
    requests.put(package(cluster, job_id, kind), data=data, timeout=30).raise_for_status()


def test_a_plan_that_cannot_be_read_fails_its_own_job_alone(
    joined_cluster: RayCluster, ray_cluster: LocalRayCluster
) -> None:
    first = joined_cluster.launch(JobRequest("first", TRUE))
    assert joined_cluster.wait(first, timeout=200).status is JobStatus.SUCCEEDED
    metadata = JobSubmissionClient(ray_cluster.dashboard).get_job_info(first).metadata or {}
    metadata = {name: metadata[name] for name in ("fray.name", "fray.replicas", "fray.about", "fray.tries")}
    queued: dict[str, Any] = {"command": "true", "runtime_env": {}, "version": version("fray-ray")}
    plans = {"aaa-unreadable": UNREADABLE, "aab-something-else": pickle.dumps(5)}
    for job_id, plan in plans.items():
        queued["metadata"] = {**metadata, "fray.job_id": job_id}
        upload(ray_cluster, job_id, "plan", plan)
        upload(ray_cluster, job_id, "waiting", b"-")
        upload(ray_cluster, job_id, "queued", json.dumps(queued).encode())
        until(functools.partial(is_finished, joined_cluster, job_id), "it has ended", 200)
        info = joined_cluster.poll(job_id)
        assert info.status is JobStatus.FAILED
        assert "cannot read the job's plan" in (info.error_message or "")
    later = joined_cluster.launch(JobRequest("later", TRUE))
    assert joined_cluster.wait(later, timeout=200).status is JobStatus.SUCCEEDED
    for job_id in plans:
        joined_cluster.remove(job_id)


def test_a_state_that_cannot_be_read_fails_its_own_job_alone(
    joined_cluster: RayCluster, ray_cluster: LocalRayCluster
) -> None:
    job_id = waiting_job(joined_cluster, ray_cluster)
    before = scheduler()
    with paused(before):
        upload(ray_cluster, job_id, "state", f"{version('fray-ray')}\n".encode() + UNREADABLE)
        kill(before)
    info = joined_cluster.wait(job_id, timeout=120)
    assert info.status is JobStatus.FAILED
    assert "cannot read the job's state" in (info.error_message or "")
    later = joined_cluster.launch(JobRequest("later", TRUE))
    assert joined_cluster.wait(later, timeout=200).status is JobStatus.SUCCEEDED
    assert not left_in_ray()


def test_requests_that_make_no_sense_change_nothing(
    joined_cluster: RayCluster, ray_cluster: LocalRayCluster, tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "gate")
    entrypoint = Entrypoint.from_binary(
        "timeout", ["300", "sh", "-c", 'until test -e "$0"; do sleep 0.05; done', os.fspath(gate.path)]
    )
    job_id = joined_cluster.launch(JobRequest("asked", entrypoint))
    until(lambda: joined_cluster.poll(job_id).status is JobStatus.RUNNING, "it runs", 200)
    for kind, data in (("stop", b"soon"), ("restart.0.1", b""), ("endpoint.0.1.ab", b'{"name": "half"}')):
        upload(ray_cluster, job_id, kind, data)
        url = package(ray_cluster, job_id, kind)
        until(functools.partial(is_gone, url), "the scheduler has read it")
    assert joined_cluster.poll(job_id).tasks[0].attempt == 1
    joined_cluster.restart(job_id, 0)
    until(lambda: joined_cluster.poll(job_id).tasks[0].attempt == 2, "what becomes of it is shown")
    gate.open()
    info = joined_cluster.wait(job_id, timeout=120)
    assert (info.status, info.tasks[0].attempt) == (JobStatus.SUCCEEDED, 2), info.error_message


def test_words_of_a_class_of_the_users_are_plain_text_for_the_scheduler(joined_cluster: RayCluster) -> None:
    environment = create_environment(env_vars={"MODE": Mode.FAST})
    entrypoint = Entrypoint.from_binary("sh", ["-c", 'test "$MODE-$0" = fast-fast', Mode.FAST])
    job_id = joined_cluster.launch(JobRequest("words", entrypoint, environment=environment))
    info = joined_cluster.wait(job_id, timeout=200)
    assert info.status is JobStatus.SUCCEEDED, info.error_message


def test_a_retry_asks_for_secrets_also_when_the_scheduler_was_killed_at_the_jobs_end(
    joined_cluster: RayCluster,
    ray_cluster: LocalRayCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, gate = Gate(tmp_path / "begun"), Gate(tmp_path / "gate")
    on_exit = f"touch {begun.path}; timeout 300 sh -c 'until test -e {gate.path}; do sleep 0.1; done'"
    environment = create_environment(env_vars={"SERVICE_API_KEY": "abc-12345"})
    words = ["-c", 'test "$SERVICE_API_KEY" = abc-12345 && test -e "$0"', os.fspath(tmp_path / "good")]
    entrypoint = Entrypoint.from_binary("sh", words)
    job_id = joined_cluster.launch(JobRequest("secret", entrypoint, environment=environment, on_exit=on_exit))
    until(begun.is_open, "what was given for its end runs", 200)
    kill_scheduler()
    gate.open()
    assert joined_cluster.wait(job_id, timeout=200).status is JobStatus.FAILED
    table = JobSubmissionClient(ray_cluster.dashboard)
    until(lambda: table.get_job_status(job_id).is_terminal(), "Ray knows it too", 200)
    with pytest.raises(ValueError, match="SERVICE_API_KEY"):
        joined_cluster.retry(job_id)
    monkeypatch.setenv("SERVICE_API_KEY", "abc-12345")
    (tmp_path / "good").touch()
    joined_cluster.retry(job_id)
    until(lambda: joined_cluster.poll(job_id).status is JobStatus.SUCCEEDED, "it ran with its secret", 200)


def test_nothing_is_kept_of_a_job_that_was_removed(
    joined_cluster: RayCluster, ray_cluster: LocalRayCluster
) -> None:
    job_id = joined_cluster.launch(JobRequest("fails", Entrypoint.from_binary("false")))
    assert joined_cluster.wait(job_id, timeout=200).status is JobStatus.FAILED
    assert stored(ray_cluster, job_id)
    joined_cluster.remove(job_id)
    until(lambda: not stored(ray_cluster, job_id), "nothing of it is left", 200)


def test_a_request_that_a_scheduler_read_when_it_was_killed_is_done_by_the_next(
    joined_cluster: RayCluster, ray_cluster: LocalRayCluster
) -> None:
    request = JobRequest("large", TRUE, resources=ResourceConfig(cpu=60))
    jobs = sorted(joined_cluster.launch(request) for _ in range(16))  # it reads them in this order
    for job_id in jobs:
        await_entry(ray_cluster, job_id)
    with ThreadPoolExecutor(len(jobs)) as pool:
        with paused(scheduler()):
            stops = [pool.submit(joined_cluster.terminate, job_id, 0.0) for job_id in jobs]
            for job_id in jobs:
                until(lambda: not is_gone(package(ray_cluster, job_id, "stop")), "it is to be stopped")  # noqa: B023
        reader, first = scheduler(), package(ray_cluster, jobs[0], "stop")
        while not is_gone(first):  # no pause: it acts soon after it has read all
            continue
        kill(reader)
        for stop in stops:
            stop.result(200)
    assert {joined_cluster.poll(job_id).status for job_id in jobs} == {JobStatus.STOPPED}


def test_a_request_to_stop_a_member_that_was_read_when_the_scheduler_was_killed_is_done_by_the_next(
    joined_cluster: RayCluster, ray_cluster: LocalRayCluster, tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "gate")
    holds = Entrypoint.from_binary("sh", ["-c", f"until test -e {gate.path}; do sleep 0.05; done"])
    sweep = joined_cluster.launch_many([JobRequest("member", holds)] * 24, max_parallel=1)
    until(lambda: joined_cluster.poll(sweep.member(0)).status is JobStatus.RUNNING, "the first runs", 200)
    others = [sweep.member(number) for number in range(1, 24)]
    requested = [package(ray_cluster, f"{sweep}~{number}", "stop") for number in range(1, 24)]
    with ThreadPoolExecutor(len(others)) as pool:
        reader = scheduler()
        with paused(reader):
            stops = [pool.submit(joined_cluster.terminate, member) for member in others]
            until(lambda: not any(map(is_gone, requested)), "all are to be stopped")
        while not any(map(is_gone, requested)):
            continue
        kill(reader)
        for stop in stops:
            stop.result(200)
    gate.open()
    info = joined_cluster.wait(sweep, timeout=200)
    assert info.progress == {"succeeded": 1, "stopped": 23}


def test_a_job_that_has_room_while_the_dashboard_is_away_starts_when_it_is_back(
    joined_cluster: RayCluster, ray_cluster: LocalRayCluster
) -> None:
    job_id = waiting_job(joined_cluster, ray_cluster)
    with paused(dashboard()):
        node = ray_cluster.add_node(num_cpus=60)
        until(lambda: is_placed(job_id), "it has room", 200)
        time.sleep(63.0)  # the scheduler gives up an answer after 60 s
    info = joined_cluster.wait(job_id, timeout=200)
    ray_cluster.kill_node(node)
    assert info.status is JobStatus.SUCCEEDED, info.error_message


def test_the_head_keeps_nothing_for_each_attempt(
    joined_cluster: RayCluster, ray_cluster: LocalRayCluster
) -> None:
    def classes() -> int:
        command = [sys.executable, "-c", CLASSES, ray_cluster.address]
        return int(subprocess.run(command, check=True, capture_output=True, timeout=120).stdout)

    first = joined_cluster.launch(JobRequest("first", TRUE))
    joined_cluster.wait(first, timeout=200)
    before = classes()
    fails = joined_cluster.launch(JobRequest("fails", Entrypoint.from_binary("false"), max_retries_failure=3))
    assert joined_cluster.wait(fails, timeout=200).tasks[0].attempt == 4
    assert before > 0
    assert classes() == before
