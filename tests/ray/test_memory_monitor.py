"""Ray's memory monitor ends a replica: it ran out of memory, which is a failure and no preemption."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from fray import ActorDiedError, WorkerDiedError, create_context
from fray.backend import process_tree
from fray.cluster import Entrypoint, ExitReason, JobRequest, JobStatus, ResourceConfig
from fray.testing.cluster import program, until
from fray.testing.cluster_fixtures import numbers_in, running
from fray_ray import RayCluster
from fray_ray.testing import LocalRayCluster

REGION = "of-too-little-memory"


class Hungry:
    def sleep(self) -> None:
        time.sleep(600)


@pytest.fixture
def full_node(ray_cluster: LocalRayCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A node whose memory is always used up, as Ray sees it: its monitor ends each worker that it finds.

    A parameter is how often it looks, in milliseconds.
    """
    look = str(getattr(request, "param", 100))
    told = {"RAY_memory_usage_threshold": "0.0", "RAY_memory_monitor_refresh_ms": look}
    with mock.patch.dict(os.environ, told):
        node_id = ray_cluster.add_node(num_cpus=2, labels={"ray.io/availability-region": REGION})
    yield REGION
    ray_cluster.kill_node(node_id)


@pytest.mark.parametrize("gang", [False, True], ids=["alone", "gang"])
def test_a_replica_that_rays_memory_monitor_ends_ran_out_of_memory(
    ray_cluster: LocalRayCluster, full_node: str, gang: bool
) -> None:
    request = JobRequest(
        "hungry",
        Entrypoint.from_binary("sleep", ["600"]),
        resources=ResourceConfig(cpu=1, regions=[full_node]),
        gang=gang,
        max_retries_preemption=9,  # of which none is used
    )
    with RayCluster(ray_cluster.address) as cluster:
        ids = [cluster.launch(replace(request, max_retries_failure=retries)) for retries in (0, 1)]
        once, twice = (cluster.wait(job_id, timeout=240) for job_id in ids)
    for info in (once, twice):
        assert (info.status, info.tasks[0].reason) == (JobStatus.FAILED, ExitReason.OUT_OF_MEMORY), f"{info}"
        assert "memory" in str(info.error_message)
    assert [task.attempt for task in once.tasks] == [1]
    (task,) = twice.tasks
    assert (task.attempt, [each.reason for each in task.previous]) == (2, [ExitReason.OUT_OF_MEMORY])
    assert "(attempt 2 of 2)" in str(twice.error_message)


@pytest.mark.parametrize("full_node", [500], indirect=True)
def test_an_actor_that_rays_memory_monitor_ends_is_dead_and_a_task_has_lost_its_worker(
    ray_cluster: LocalRayCluster, full_node: str
) -> None:
    selector = {"ray.io/availability-region": full_node}
    with create_context("ray", address=ray_cluster.address, label_selector=selector) as context:
        hungry = context.create_actor(Hungry)
        for _ in range(2):  # one that runs, and one that comes later
            with pytest.raises(ActorDiedError, match=r"(?s)actor Hungry is dead: .*low on memory"):
                context.get(hungry.sleep(), timeout=240)
        with pytest.raises(WorkerDiedError, match="low on memory"):
            context.get(context.run(time.sleep, 600), timeout=240)


@pytest.mark.parametrize("full_node", [4_000], indirect=True)
def test_what_ended_a_replica_is_known_although_the_head_says_it_late(
    ray_cluster: LocalRayCluster, full_node: str, tmp_path: Path
) -> None:
    """Ray first says that the actor cannot be reached."""
    told = tmp_path / "told"
    code = """
        import os, sys, time
        print(os.environ["FRAY_ATTEMPT"], os.getppid(), file=open(sys.argv[1], "a"))
        time.sleep(600)
    """
    resources = ResourceConfig(cpu=1, regions=[full_node])
    request = JobRequest("hungry", program(code, told), resources=resources, max_retries_failure=99)
    mine = process_tree.with_variable("RAY_TMPDIR", os.environ["RAY_TMPDIR"])
    (gcs,) = (pid for pid in mine if "/gcs_server" in process_tree.command_of(pid)[0])
    with RayCluster(ray_cluster.address) as cluster:
        job_id = cluster.launch(request)
        attempt, supervisor = until(lambda: numbers_in(told), "an attempt runs")[-2:]
        os.kill(gcs, signal.SIGSTOP)
        try:
            until(lambda: not running(supervisor), "the monitor has ended it")
            time.sleep(4.0)  # a head that is as slow as this: Ray waits for it for a second or two
        finally:
            os.kill(gcs, signal.SIGCONT)
        until(lambda: cluster.poll(job_id).tasks[0].attempt > attempt, "there is another attempt")
        cluster.terminate(job_id, grace=0.0)
        (task,) = cluster.poll(job_id).tasks
    reasons = {each.attempt: each.reason for each in task.previous}
    assert reasons[attempt] is ExitReason.OUT_OF_MEMORY, f"{task}"


@pytest.mark.parametrize("full_node", [4_000], indirect=True)
def test_the_signal_that_ends_a_worker_does_not_reach_the_process_that_keeps_its_attempt(
    ray_cluster: LocalRayCluster, full_node: str
) -> None:
    """Ray sends it to the worker's group. An attempt whose supervisor it ends would be lost for no reason."""
    resources = ResourceConfig(cpu=1, regions=[full_node])
    sleep = Entrypoint.from_binary("sleep", ["600"])
    request = JobRequest("hungry", sleep, resources=resources, max_retries_failure=99)
    with RayCluster(ray_cluster.address) as cluster:
        job_id = cluster.launch(request)
        supervisor, worker = until(_held_while_it_starts, "a process that is to keep an attempt is held")
        try:
            (task,) = until(lambda: cluster.poll(job_id).tasks, "the job shows its attempt")
            until(lambda: not running(worker), "Ray has ended the worker")
            signalled = _has_sigterm(supervisor)
        finally:
            os.kill(supervisor, signal.SIGCONT)
        until(lambda: not running(supervisor), "it ends, for the worker that would ask it is gone")
        until(lambda: cluster.poll(job_id).tasks[0].previous[task.attempt - 1 :], "the attempt has ended")
        cluster.terminate(job_id, grace=0.0)
        ended = cluster.poll(job_id).tasks[0].previous[task.attempt - 1]
    assert not signalled
    assert ended.reason is ExitReason.OUT_OF_MEMORY, f"{ended}"


def _held_while_it_starts() -> list[int]:
    """Stop a process that a worker of this cluster has started to keep an attempt; return the ids of both."""
    for pid in process_tree.with_variable("RAY_TMPDIR", os.environ["RAY_TMPDIR"]):
        if any("process_supervisor" in word for word in process_tree.command_of(pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                parent = int(_status(pid)["PPid"])
                if any(word.startswith("ray::") for word in process_tree.command_of(parent)):
                    return [pid, parent]
                os.kill(pid, signal.SIGCONT)  # it has gone on in a process of its own
    return []


def _has_sigterm(pid: int) -> bool:
    """Whether a stopped process is to have SIGTERM when it goes on."""
    return bool(int(_status(pid)["ShdPnd"], 16) >> (signal.SIGTERM - 1) & 1)


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
