"""Whatever ends a gang, and whenever: no placement group, no actor, no process of it is left."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gang_hosts import Hosts, left_in_ray, slices_in_use
from job_processes import kill, shell_of

from fray.cluster import ExitReason, JobRequest, JobStatus, ResourceConfig, TpuConfig
from fray.testing.cluster import until
from fray_ray import RayCluster
from fray_ray.testing import LocalRayCluster

pytestmark = pytest.mark.timeout(480)


def launch(cluster: RayCluster, hosts: Hosts, slices: int = 1) -> str:
    resources = ResourceConfig(device=TpuConfig("v4-16"), replicas=slices)
    return cluster.launch(JobRequest("train", hosts.entrypoint, resources=resources))


def placing(cluster: RayCluster, slices: LocalRayCluster, hosts: Hosts) -> str:
    job_id = launch(cluster, hosts, 3)
    until(lambda: "waiting for 3" in (cluster.poll(job_id).pending_reason or ""), "it waits for room")
    return job_id


def starting(cluster: RayCluster, slices: LocalRayCluster, hosts: Hosts) -> str:
    job_id = launch(cluster, hosts)
    until(slices_in_use, "it has its room")  # and for as long as it runs: no look comes too late to see it
    return job_id


def running(cluster: RayCluster, slices: LocalRayCluster, hosts: Hosts) -> str:
    job_id = launch(cluster, hosts)
    hosts.await_up(2)
    return job_id


def restarting(cluster: RayCluster, slices: LocalRayCluster, hosts: Hosts) -> str:
    job_id = launch(cluster, hosts, 2)
    hosts.await_up(4)
    slices.kill_node(slices.node_of_host("slice-a", 1))
    until(lambda: "waiting for 2" in (cluster.poll(job_id).pending_reason or ""), "it waits for a new host")
    # What ran on the host that is gone notices that by itself: no scheduler can reach it any more.
    until(lambda: not hosts.living(), "no host runs")
    return job_id


@pytest.mark.parametrize("phase", [placing, starting, running, restarting])
def test_terminate_leaves_nothing(
    gangs: RayCluster,
    slices: LocalRayCluster,
    hosts: Hosts,
    phase: Callable[[RayCluster, LocalRayCluster, Hosts], str],
) -> None:
    job_id = phase(gangs, slices, hosts)
    gangs.terminate(job_id, grace=5.0)
    info = gangs.poll(job_id)
    assert info.status is JobStatus.STOPPED
    assert {task.status for task in info.tasks} == {JobStatus.STOPPED}
    assert not hosts.living()
    until(lambda: not left_in_ray(), "nothing is left")


def test_a_gang_whose_job_has_no_process_any_more_leaves_nothing(gangs: RayCluster, hosts: Hosts) -> None:
    job_id = launch(gangs, hosts)
    hosts.await_up(2)
    kill(shell_of(job_id))
    info = gangs.wait(job_id, timeout=200)
    assert (info.status, info.tasks[0].reason) == (JobStatus.FAILED, ExitReason.LOST)
    until(lambda: not hosts.living(), "no host runs")
    assert hosts.saved() == {0, 1}
    until(lambda: not left_in_ray(), "nothing is left")


@contextlib.contextmanager
def program_on_a_pod(
    slices: LocalRayCluster, hosts: Hosts, output: Path, kind: str
) -> Iterator["subprocess.Popen[bytes]"]:
    """A program that runs the hosts on a pod, and ends with the block; `calls` says that it is about to."""
    code = (
        "import ray; from fray_ray import run_on_pod; from gang_hosts import host; from pathlib import Path\n"
        f"ray.init({slices.address!r}, log_to_driver=False)\n"
        f"folder = Path({os.fspath(hosts.folder)!r}); (folder / 'calls').touch()\n"
        f"run_on_pod(lambda: host(folder), {kind!r})\n"
    )
    helpers = os.fspath(Path(__file__).parent / "helpers")
    path = os.pathsep.join(filter(None, [helpers, os.environ.get("PYTHONPATH")]))
    environ = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", code]
    with (
        output.open("w") as file,
        subprocess.Popen(command, env=environ, stdout=file, stderr=file) as program,
    ):
        try:
            yield program
        finally:
            program.kill()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_a_program_that_goes_away_takes_its_pod_with_it(
    gangs: RayCluster, slices: LocalRayCluster, hosts: Hosts, tmp_path: Path, how: signal.Signals
) -> None:
    with program_on_a_pod(slices, hosts, tmp_path / "output", "v4-16") as program:
        hosts.await_up(2)
        program.send_signal(how)
        program.wait(200)
    until(lambda: not hosts.living(), "no host runs")
    until(lambda: not left_in_ray(), "nothing is left")


def test_a_pod_that_no_slice_can_be_says_what_it_waits_for_and_leaves_nothing(
    gangs: RayCluster, slices: LocalRayCluster, hosts: Hosts, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    words = "waiting for 1 x v6e-16", "the cluster has 0, 0 free; its slices: 2 x v4-16, 1 x v4-8"
    with program_on_a_pod(slices, hosts, output, "v6e-16") as program:
        until((hosts.folder / "calls").exists, "it calls run_on_pod")
        until(lambda: all(each in output.read_text() for each in words), "it says what it waits for")
        program.send_signal(signal.SIGINT)
        program.wait(200)
    assert not hosts.pids()
    until(lambda: not left_in_ray(), "nothing is left")


def test_a_slice_that_breaks_while_it_waits_for_its_peer_is_replaced(
    gangs: RayCluster, slices: LocalRayCluster, hosts: Hosts, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    others = Hosts(tmp_path / "other")
    holder = launch(gangs, others)
    taken = others.await_up(2)[0]["TPU_NAME"]
    (free,) = {"slice-a", "slice-b"} - {taken}
    job_id = launch(gangs, hosts, 2)
    until(lambda: "the cluster has 2, 0 free" in (gangs.poll(job_id).pending_reason or ""), "it holds one")
    slices.kill_node(slices.node_of_host(free, 1))
    until(lambda: "hosts missing" in (gangs.poll(job_id).pending_reason or ""), "the loss is seen")
    slices.mend_slices()
    others.go()
    assert gangs.wait(holder, timeout=200).status is JobStatus.SUCCEEDED
    hosts.await_up(4)
    hosts.go()
    info = gangs.wait(job_id, timeout=200)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
