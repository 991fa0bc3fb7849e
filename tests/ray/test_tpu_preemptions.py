"""What a gang does when hosts of its slices are taken away."""

import os
import random
import threading
import time
from typing import Any

import pytest
from gang_hosts import Hosts, host, left_in_ray, lives
from metadata_server import MetadataServer

from fray.cluster import ExitReason, JobInfo, JobRequest, JobStatus, ResourceConfig, TpuConfig
from fray.testing.cluster import until
from fray_ray import RayCluster, run_on_pod
from fray_ray.testing import LocalRayCluster

pytestmark = pytest.mark.timeout(480)
KILLS = int(os.environ.get("FRAY_TEST_KILLS", "4"))  # CONTRIBUTING.md: the long storm


def launch(cluster: RayCluster, hosts: Hosts, count: int | tuple[int, ...] = 1, **more: Any) -> str:
    resources = ResourceConfig(device=TpuConfig("v4-16"), replicas=count)
    return cluster.launch(JobRequest("train", hosts.entrypoint, resources=resources, **more))


def await_attempt(cluster: RayCluster, hosts: Hosts, job_id: str, attempt: int, count: int) -> None:
    def started() -> bool:
        tasks = cluster.poll(job_id).tasks
        return len(tasks) == count and all(
            (task.attempt, task.status) == (attempt, JobStatus.RUNNING) for task in tasks
        )

    until(started, f"attempt {attempt} of all {count} hosts runs")
    hosts.await_up(count)


def await_running(cluster: RayCluster, hosts: Hosts, job_id: str, after: int) -> int:
    """Wait until both hosts run an attempt later than that; return its number."""

    def attempts() -> set[int]:
        return {task.attempt for task in cluster.poll(job_id).tasks if task.status is JobStatus.RUNNING}

    def settled() -> bool:
        return len(found := attempts()) == 1 and min(found) > after and len(hosts.living()) == 2

    until(settled, f"both hosts run after attempt {after}")
    return min(attempts(), default=after + 1)


def alive(told: dict[int, dict[str, str]]) -> bool:
    """Whether one of these hosts is still there."""
    return any(map(lives, told.values()))


def reasons(info: JobInfo) -> list[list[ExitReason | None]]:
    return [[past.reason for past in task.previous] for task in info.tasks]


@pytest.mark.parametrize("how", ["killed", "shut down"])
def test_a_gang_that_loses_a_host_starts_again_on_a_free_slice(
    gangs: RayCluster,
    slices: LocalRayCluster,
    hosts: Hosts,
    how: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job_id = launch(gangs, hosts)
    told = hosts.await_up(2)
    doomed = slices.node_of_host(told[1]["TPU_NAME"], 1)
    lost = time.monotonic()
    (slices.kill_node if how == "killed" else slices.stop_node)(doomed)
    await_attempt(gangs, hosts, job_id, 2, 2)
    with capsys.disabled():
        print(
            f"\nfrom the loss of a host ({how}) to the restart of its gang: {time.monotonic() - lost:.1f} s"
        )
    assert hosts.living()[0]["TPU_NAME"] != told[0]["TPU_NAME"]
    hosts.go()
    info = gangs.wait(job_id, timeout=200)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    assert reasons(info) == [[ExitReason.STOPPED], [ExitReason.PREEMPTED]]
    assert f"it lost its node {doomed}" in (info.tasks[1].previous[0].error_message or "")
    assert hosts.saved() == {0, 1}  # SIGTERM, and time to save; these machines live on


def test_a_gang_waits_for_a_new_host_where_no_other_slice_is_free(
    gangs: RayCluster, slices: LocalRayCluster, hosts: Hosts
) -> None:
    job_id = launch(gangs, hosts, 2)
    told = hosts.await_up(4)
    slices.kill_node(slices.node_of_host(told[3]["TPU_NAME"], 1))
    until(lambda: "1 with hosts missing" in (gangs.poll(job_id).pending_reason or ""), "it says why it waits")
    slices.mend_slices()
    await_attempt(gangs, hosts, job_id, 2, 4)
    hosts.go()
    assert gangs.wait(job_id, timeout=200).status is JobStatus.SUCCEEDED


def test_a_gang_goes_on_with_fewer_slices_where_that_is_acceptable(
    gangs: RayCluster, slices: LocalRayCluster, hosts: Hosts
) -> None:
    job_id = launch(gangs, hosts, (2, 1))
    told = hosts.await_up(4)
    slices.kill_node(slices.node_of_host(told[3]["TPU_NAME"], 0))
    await_attempt(gangs, hosts, job_id, 2, 2)
    assert {one["FRAY_SLICE_COUNT"] for one in hosts.living().values()} == {"1"}
    hosts.go()
    info = gangs.wait(job_id, timeout=200)
    assert (info.status, len(info.tasks)) == (JobStatus.SUCCEEDED, 2)


def test_a_drained_host_has_notice_and_time_to_save_while_its_peers_run(
    gangs: RayCluster, slices: LocalRayCluster, hosts: Hosts
) -> None:
    job_id = launch(gangs, hosts)
    told = hosts.await_up(2)
    for rank, what in enumerate(("deaf", "heed")):
        hosts.order(rank, what)
        hosts.await_obeyed(rank)
    before = time.time()
    # Enough for a busy machine: the code of a host that has not ended by then is lost with its actor.
    slices.drain_node(slices.node_of_host(told[1]["TPU_NAME"], 1), seconds=40.0)
    drained = time.time()
    until(lambda: hosts.saved() == {1}, "the host that is drained has its notice, and SIGTERM")
    assert before + 35.0 < hosts.goes_at(1) < drained + 40.0
    await_attempt(gangs, hosts, job_id, 2, 2)
    assert hosts.living()[0]["TPU_NAME"] != told[0]["TPU_NAME"]
    hosts.go()
    info = gangs.wait(job_id, timeout=200)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    assert reasons(info) == [[ExitReason.STOPPED], [ExitReason.PREEMPTED]]
    past = info.tasks[1].previous[0]
    assert past.exit_code == 0, f"drained at {before:.2f} to {drained:.2f}, {info}\n{hosts.trace()}"
    assert "(preemption 1; max_retries_preemption=100): its node" in (past.error_message or "")
    assert "is drained" in (past.error_message or "")


def test_preemptions_have_a_budget_of_their_own(
    gangs: RayCluster, slices: LocalRayCluster, hosts: Hosts
) -> None:
    job_id = launch(gangs, hosts, max_retries_preemption=0, max_retries_failure=5)
    told = hosts.await_up(2)
    slices.kill_node(slices.node_of_host(told[0]["TPU_NAME"], 0))
    info = gangs.wait(job_id, timeout=200)
    assert info.status is JobStatus.FAILED
    assert "(preemption 1; max_retries_preemption=0)" in (info.error_message or "")
    assert [task.reason for task in info.tasks] == [ExitReason.PREEMPTED, ExitReason.STOPPED]
    assert [task.attempt for task in info.tasks] == [1, 1]


def test_the_providers_notice_reaches_the_program_as_sigterm(
    gangs: RayCluster,
    slices: LocalRayCluster,
    hosts: Hosts,
    provider: MetadataServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GCE_METADATA_HOST", provider.host)
    slices.add_host("spot", 0, "v4-8", num_cpus=3)
    monkeypatch.delenv("GCE_METADATA_HOST")
    resources = ResourceConfig(cpu=3, device=TpuConfig("v4-8"))  # room on that host alone
    job_id = gangs.launch(JobRequest("spot", hosts.entrypoint, resources=resources))
    hosts.await_up(1)
    provider.preempted = "TRUE"
    until(lambda: hosts.saved() == {0}, "the host has SIGTERM")
    until(lambda: "waiting" in (gangs.poll(job_id).pending_reason or ""), "that host is not taken again")
    slices.add_host("safe", 0, "v4-8", num_cpus=3)
    await_attempt(gangs, hosts, job_id, 2, 1)
    assert hosts.living()[0]["TPU_NAME"] == "safe"
    hosts.go()
    info = gangs.wait(job_id, timeout=200)
    assert reasons(info) == [[ExitReason.PREEMPTED]]
    assert "preempted: TRUE" in (info.tasks[0].previous[0].error_message or "")
    for name in ("spot", "safe"):
        slices.forget_slice(name)


def test_a_function_on_a_pod_runs_again_when_a_host_is_lost(
    gangs: RayCluster, slices: LocalRayCluster, hosts: Hosts
) -> None:
    killed: list[str] = []

    def kill() -> None:
        told = hosts.await_up(2)
        first = set(hosts.pids())
        killed.append(slices.node_of_host(told[1]["TPU_NAME"], 1))
        slices.kill_node(killed[0])
        until(lambda: len(hosts.living()) == 2 and len(set(hosts.pids()) - first) == 2, "both run again")
        hosts.go()

    thread = threading.Thread(target=kill)
    thread.start()
    assert run_on_pod(lambda: host(hosts.folder), "v4-16") == ["done by 0", "done by 1"]
    thread.join()


@pytest.mark.timeout(900)
def test_random_kills_leave_nothing(
    gangs: RayCluster, slices: LocalRayCluster, hosts: Hosts, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of hosts' nodes and of their programs, one or two at a time; `FRAY_TEST_KILLS` says how many in all."""
    chance, started = random.Random(6), time.monotonic()
    job_id = launch(gangs, hosts, max_retries_failure=2 * KILLS)
    kills = restarts = attempt = 0
    while kills < KILLS:
        attempt = await_running(gangs, hosts, job_id, attempt)
        told = hosts.living()
        for rank in chance.sample((0, 1), min(chance.choice((1, 2)), KILLS - kills)):
            if chance.random() < 0.5:
                slices.kill_node(slices.node_of_host(told[rank]["TPU_NAME"], rank))
            else:
                hosts.order(rank, "crash")
            kills += 1
        restarts += 1
        until(lambda: not alive(told), "the gang is down")  # noqa: B023
        for rank in (0, 1):
            hosts.withdraw(rank)
        slices.mend_slices()
    await_running(gangs, hosts, job_id, attempt)
    hosts.go()
    info = gangs.wait(job_id, timeout=200)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    assert info.tasks[0].attempt > restarts
    until(lambda: not left_in_ray(), "nothing is left")
    with capsys.disabled():
        print(f"\n{kills} kills over {restarts} restarts: {time.monotonic() - started:.0f} s")
