"""Jobs of TPU slices and gangs of GPUs, on a cluster that stays whole."""

import os
from pathlib import Path
from typing import Any

import pytest
from gang_hosts import Hosts, pending_groups, slices_in_use
from words_in_files import files_with

from fray import WorkerDiedError, create_context
from fray.cluster import (
    Entrypoint,
    ExitReason,
    GpuConfig,
    JobInfo,
    JobRequest,
    JobStatus,
    ResourceConfig,
    TpuConfig,
    create_environment,
)
from fray.testing.cluster import until
from fray.testing.command_line import main
from fray_ray import RayCluster, run_on_pod
from fray_ray.testing import LocalRayCluster

pytestmark = pytest.mark.timeout(480)


def on_slices(kind: str, count: int | tuple[int, ...] = 1, **more: Any) -> ResourceConfig:
    return ResourceConfig(device=TpuConfig(kind), replicas=count, **more)


def final(cluster: RayCluster, job_id: str) -> JobInfo:
    return cluster.wait(job_id, timeout=200)


def test_every_host_of_two_slices_knows_its_place(gangs: RayCluster, hosts: Hosts) -> None:
    environment = create_environment(env_vars={"MEGASCALE_SLICE_ID": "7"})  # as a platform might set it
    request = JobRequest("train", hosts.entrypoint, resources=on_slices("v4-16", 2), environment=environment)
    job_id = gangs.launch(request)
    told = hosts.await_up(4)
    hosts.go()
    info = final(gangs, job_id)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    assert [task.replica for task in info.tasks] == [0, 1, 2, 3]
    names = "FRAY_SLICE_ID", "FRAY_HOST_ID", "TPU_WORKER_ID", "MEGASCALE_SLICE_ID"
    assert [[told[rank][name] for name in names] for rank in range(4)] == [
        ["0", "0", "0", "0"],
        ["0", "1", "1", "0"],
        ["1", "0", "0", "1"],
        ["1", "1", "1", "1"],
    ]
    same = "FRAY_REPLICA_COUNT", "FRAY_SLICE_COUNT", "FRAY_HOST_COUNT", "MEGASCALE_NUM_SLICES"
    assert {tuple(one[name] for name in same) for one in told.values()} == {("4", "2", "2", "2")}
    for name in ("FRAY_COORDINATOR_ADDRESS", "MEGASCALE_COORDINATOR_ADDRESS", "MEGASCALE_PORT"):
        assert len({one[name] for one in told.values()}) == 1
    assert told[0]["TPU_NAME"] == told[1]["TPU_NAME"] != told[2]["TPU_NAME"] == told[3]["TPU_NAME"]
    assert not any("JAX_PLATFORMS" in one for one in told.values())


def test_a_single_host_is_never_part_of_a_larger_slice(gangs: RayCluster, hosts: Hosts) -> None:
    job_id = gangs.launch(JobRequest("one", hosts.entrypoint, resources=on_slices("v4-8")))
    (told,) = hosts.await_up(1).values()
    hosts.go()
    assert final(gangs, job_id).status is JobStatus.SUCCEEDED
    assert (told["TPU_NAME"], told["FRAY_HOST_COUNT"], told["FRAY_SLICE_COUNT"]) == ("single", "1", "1")
    assert not any(name.startswith("MEGASCALE") for name in told)


def test_the_command_line_runs_a_command_on_slices(
    gangs: RayCluster,
    slices: LocalRayCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import os\nprint('host', os.environ['FRAY_REPLICA_ID'], os.getcwd())")
    spec = f"ray?address={slices.address}"
    command = ["run", "--cluster", spec, "--tpu", "v4-16", "--replicas", "2", "--", "python", "train.py"]
    assert main(command) == 0
    lines = sorted(line for line in capsys.readouterr().out.splitlines() if "host" in line)
    assert lines == [f"[replica-{rank}] host {rank} {tmp_path}" for rank in range(4)]


def test_of_several_acceptable_counts_the_largest_that_is_free_is_taken_and_who_waits_comes_in_order(
    gangs: RayCluster, hosts: Hosts, tmp_path: Path
) -> None:
    def waiting(name: str, count: int, entrypoint: Entrypoint) -> str:
        job_id = gangs.launch(JobRequest(name, entrypoint, resources=on_slices("v4-16", count)))
        until(lambda: f"{count} x v4-16" in (gangs.poll(job_id).pending_reason or ""), f"{name} waits")
        return job_id

    (tmp_path / "large").mkdir()
    hosts_of_large = Hosts(tmp_path / "large")
    job_id = gangs.launch(JobRequest("most", hosts.entrypoint, resources=on_slices("v4-16", (4, 2, 1))))
    told = hosts.await_up(4)
    assert {one["FRAY_SLICE_COUNT"] for one in told.values()} == {"2"}
    large = waiting("large", 2, hosts_of_large.entrypoint)
    small = waiting("small", 1, Entrypoint.from_binary("true"))
    assert "the cluster has 2, 0 free" in (gangs.poll(small).pending_reason or "")
    until(lambda: len(pending_groups()) == 2, "only the first that waits asks Ray for slices")
    hosts.go()
    assert len(final(gangs, job_id).tasks) == 4
    hosts_of_large.await_up(4)
    assert gangs.poll(small).status is JobStatus.PENDING
    hosts_of_large.go()
    assert final(gangs, large).status is JobStatus.SUCCEEDED
    assert final(gangs, small).status is JobStatus.SUCCEEDED


def test_a_gang_for_more_slices_than_exist_asks_for_them_while_later_ones_run_on_those_that_exist(
    gangs: RayCluster, slices: LocalRayCluster, tmp_path: Path
) -> None:
    def launch(name: str, count: int) -> tuple[str, Hosts]:
        (tmp_path / name).mkdir()
        its_hosts = Hosts(tmp_path / name)
        resources = on_slices("v4-16", count)
        return gangs.launch(JobRequest(name, its_hosts.entrypoint, resources=resources)), its_hosts

    large, hosts_of_large = launch("large", 3)
    until(lambda: len(slices_in_use()) == 2, "it is alone, and keeps what exists from ending as idle")
    small, hosts_of_small = launch("small", 2)
    hosts_of_small.await_up(4)
    third, hosts_of_third = launch("third", 2)
    until(lambda: "0 free" in (gangs.poll(third).pending_reason or ""), "the third waits")
    until(
        lambda: len(pending_groups()) == 3, "the third asks for both, the first for the one that is missing"
    )
    hosts_of_small.go()
    hosts_of_third.await_up(4)
    until(pending_groups, "the first asks still")
    assert final(gangs, small).status is JobStatus.SUCCEEDED
    slices.add_slice("slice-c", "v4-16")
    try:
        hosts_of_third.go()
        hosts_of_large.await_up(6)
        hosts_of_large.go()
        assert final(gangs, large).status is JobStatus.SUCCEEDED
        assert final(gangs, third).status is JobStatus.SUCCEEDED
    finally:
        slices.forget_slice("slice-c")


def test_a_type_that_the_cluster_has_not_is_waited_for_and_what_there_is_said(gangs: RayCluster) -> None:
    job_id = gangs.launch(JobRequest("far", Entrypoint.from_binary("true"), resources=on_slices("v6e-16")))
    until(lambda: "v6e-16" in (gangs.poll(job_id).pending_reason or ""), "it says what it waits for")
    reason = gangs.poll(job_id).pending_reason or ""
    assert "the cluster has 0, 0 free; its slices: 2 x v4-16, 1 x v4-8" in reason
    gangs.terminate(job_id, grace=0.0)
    assert gangs.poll(job_id).status is JobStatus.STOPPED


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TpuConfig("v9-16"), r"v9-16.*v4"),
        (lambda: TpuConfig("v5litepod-17"), r"did you mean 'v5litepod-16'"),
        (lambda: TpuConfig("v5litepod-16", count=3), r"4 or 8"),
        (lambda: TpuConfig("v5litepod-16", topology="3x5"), r"4x4"),
    ],
    ids=["generation", "size", "count", "topology"],
)
def test_what_no_slice_can_be_is_refused_with_what_exists(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("order", "reason", "code", "words"),
    [("raise", ExitReason.EXITED, 1, "out of luck"), ("crash", ExitReason.SIGNALLED, -11, "signal 11")],
)
def test_a_host_that_fails_ends_its_peers_and_the_job(
    gangs: RayCluster, hosts: Hosts, order: str, reason: ExitReason, code: int, words: str
) -> None:
    job_id = gangs.launch(JobRequest("fails", hosts.entrypoint, resources=on_slices("v4-16")))
    hosts.await_up(2)
    hosts.order(1, order)
    info = final(gangs, job_id)
    assert info.status is JobStatus.FAILED
    assert words in (info.error_message or "")
    peer, failed = info.tasks
    assert (failed.status, failed.reason, failed.exit_code) == (JobStatus.FAILED, reason, code)
    assert (peer.status, peer.reason, peer.attempt) == (JobStatus.STOPPED, ExitReason.STOPPED, 1)
    assert "stopped with its gang: replica 1" in (peer.error_message or "")
    assert hosts.saved() == {0}


def test_a_gang_that_failed_starts_again_as_a_whole_while_its_retries_last(
    gangs: RayCluster, hosts: Hosts
) -> None:
    request = JobRequest("again", hosts.entrypoint, resources=on_slices("v4-16"), max_retries_failure=1)
    job_id = gangs.launch(request)
    hosts.await_up(2)
    first = hosts.pids()
    hosts.order(1, "raise")
    until(lambda: len(hosts.pids()) == 4 and len(hosts.living()) == 2, "both run again")
    hosts.order(0, "raise")
    info = final(gangs, job_id)
    assert info.status is JobStatus.FAILED
    assert [task.attempt for task in info.tasks] == [2, 2]
    assert [[past.reason for past in task.previous] for task in info.tasks] == [
        [ExitReason.STOPPED],
        [ExitReason.EXITED],
    ]
    assert len(first) == 2


def test_a_gang_of_gpus_finds_its_ranks_and_fails_as_one(
    gangs: RayCluster, ray_cluster: LocalRayCluster, hosts: Hosts
) -> None:
    nodes = [ray_cluster.add_node(num_cpus=1, num_gpus=2, gpu_type="H100") for _ in range(2)]
    resources = ResourceConfig(device=GpuConfig("H100", 2), replicas=2)
    job_id = gangs.launch(JobRequest("torch", hosts.entrypoint, resources=resources))
    told = hosts.await_up(2)
    assert [told[rank]["RANK"] for rank in (0, 1)] == ["0", "1"]
    assert {(one["WORLD_SIZE"], one["LOCAL_RANK"]) for one in told.values()} == {("2", "0")}
    ((address, port),) = {(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in told.values()}
    assert f"{address}:{port}" == told[1]["FRAY_COORDINATOR_ADDRESS"]
    assert "FRAY_SLICE_ID" not in told[0]
    hosts.order(1, "raise")
    info = final(gangs, job_id)
    assert [task.reason for task in info.tasks] == [ExitReason.STOPPED, ExitReason.EXITED]
    for node in nodes:
        ray_cluster.kill_node(node)


def test_a_function_on_a_pod_returns_what_each_host_returned_and_it_is_in_no_file(
    gangs: RayCluster, tmp_path: Path
) -> None:
    secret = "f3a9-of-a-result"

    def place() -> tuple[int, str, str, str]:
        import os
        import subprocess

        listing = ["ls", "-l", "/proc/self/fd"]
        opened = subprocess.run(listing, close_fds=False, capture_output=True, text=True, check=True).stdout
        return int(os.environ["FRAY_REPLICA_ID"]), os.environ["TPU_WORKER_ID"], secret, opened

    found = run_on_pod(place, "v4-16", num_slices=2)
    assert [each[:3] for each in found] == [(rank, str(rank % 2), secret) for rank in range(4)]
    assert not files_with([secret], Path(os.environ["RAY_TMPDIR"]))
    for _, _, _, opened in found:  # what a program of the function has open
        assert "pipe:" in opened
        assert "memfd" not in opened


def test_a_function_on_a_pod_uses_references_and_handles_of_its_program(
    gangs: RayCluster, ray_cluster: LocalRayCluster
) -> None:
    class Collected:
        def __init__(self) -> None:
            self.found: list[int] = []

        def add(self, number: int) -> int:
            self.found.append(number)
            return len(self.found)

        def all(self) -> list[int]:
            return sorted(self.found)

    with create_context(f"ray?address={ray_cluster.address}") as context:
        weights = context.put([10, 20])
        collected = context.create_actor(Collected)

        def report() -> int:
            import os

            from fray import get_job_context

            inside = get_job_context()
            number = inside.get(weights)[int(os.environ["FRAY_REPLICA_ID"])]
            inside.get(collected.add(number))
            return int(number)

        assert run_on_pod(report, "v4-16") == [10, 20]
        assert context.get(collected.all()) == [10, 20]


def test_a_function_on_a_pod_fails_with_its_own_exception_when_its_retries_are_used_up(
    gangs: RayCluster, tmp_path: Path
) -> None:
    def refuse() -> str:
        import os
        import time

        from fray.testing.cluster_fixtures import running
        from fray.testing.gates import until

        tries, peer = tmp_path / "tries", tmp_path / "peer"
        replica, attempt = os.environ["FRAY_REPLICA_ID"], int(os.environ["FRAY_ATTEMPT"])
        if replica == "0":
            peer.write_text(str(os.getpid()))
        with tries.open("a") as file:
            file.write(replica)
        if replica == "1":
            # Its peer is ended at once, or has returned: it has written by then.
            until(lambda: tries.read_text().count("0") == attempt, "the peer runs", 200.0)
            if attempt == 2:
                until(lambda: not running(int(peer.read_text())), "the peer has returned", 200.0)
            raise KeyError("no such luck")
        if attempt == 1:
            time.sleep(600)
        return "done"

    with pytest.raises(KeyError, match="no such luck"):
        run_on_pod(refuse, "v4-16", max_retries_failure=1)
    assert sorted((tmp_path / "tries").read_text()) == ["0", "0", "1", "1"]


def test_a_function_on_a_pod_says_what_is_wrong_before_anything_starts(gangs: RayCluster) -> None:
    with pytest.raises(ValueError, match="v4-16"):
        run_on_pod(int, "v4-17")
    with pytest.raises(ValueError, match="max_retries_failure"):
        run_on_pod(int, "v4-16", max_retries_failure=-1)


def test_a_function_that_ends_its_process_on_a_pod_has_returned_nothing(gangs: RayCluster) -> None:
    def leave() -> None:
        import os

        if os.environ["FRAY_REPLICA_ID"] == "1":
            os._exit(0)

    with pytest.raises(WorkerDiedError, match="host 1 ended without returning"):
        run_on_pod(leave, "v4-16")
