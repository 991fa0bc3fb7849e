"""`local?simulate=tpu`: the hosts of TPU slices as processes, each of which knows its place."""

import json
from pathlib import Path

import pytest

from fray import JobNotFoundError, UnsupportedError, create_cluster
from fray.cluster import Entrypoint, ExitReason, JobId, JobStatus, ResourceConfig, create_environment
from fray.testing.cluster import launch, program, until
from fray.testing.command_line import main
from fray_local import LocalCluster
from fray_local.testing import preempt

SHOW = """
    import json, os
    known = ("FRAY_REPLICA", "FRAY_SLICE", "FRAY_HOST", "FRAY_COORDINATOR", "MEGASCALE_", "JAX_")
    print(json.dumps({name: value for name, value in os.environ.items() if name.startswith(known)}))
"""
HOLD = """
    import os, sys, time
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
"""


def tpu(kind: str = "v5litepod-4", slices: int | tuple[int, ...] = 1) -> ResourceConfig:
    """Slices whose every host asks for more than any machine has."""
    return ResourceConfig.with_tpu(kind, slices=slices, cpu=10_000, ram="1000t")


def variables_of(cluster: LocalCluster, job_id: JobId) -> list[dict[str, str]]:
    """What each host of a job that shows it found in its environment, by rank."""
    info = cluster.wait(job_id, timeout=30)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    return [json.loads(next(cluster.monitor(job_id, replica=task.replica))) for task in info.tasks]


def pending_reason(cluster: LocalCluster, job_id: JobId) -> str:
    until(lambda: "waiting for" in (cluster.poll(job_id).pending_reason or ""), "the job waits")
    return cluster.poll(job_id).pending_reason or ""


@pytest.mark.parametrize(
    ("kind", "slices", "hosts"), [("v5litepod-4", 1, 1), ("v5litepod-16", 1, 4), ("v4-16", 3, 2)]
)
def test_every_host_knows_its_place(kind: str, slices: int, hosts: int) -> None:
    cluster = LocalCluster(simulate="tpu")
    found = variables_of(cluster, launch(cluster, program(SHOW), resources=tpu(kind, slices)))
    shared = {
        "FRAY_REPLICA_COUNT": str(slices * hosts),
        "FRAY_SLICE_COUNT": str(slices),
        "FRAY_HOST_COUNT": str(hosts),
        "FRAY_COORDINATOR_ADDRESS": found[0]["FRAY_COORDINATOR_ADDRESS"],
        "JAX_PLATFORMS": "cpu",
    }
    if slices > 1:
        shared["MEGASCALE_COORDINATOR_ADDRESS"] = "127.0.0.1"
        shared["MEGASCALE_PORT"] = found[0]["MEGASCALE_PORT"]
        shared["MEGASCALE_NUM_SLICES"] = str(slices)
    for rank, variables in enumerate(found):
        own = {"FRAY_REPLICA_ID": rank, "FRAY_SLICE_ID": rank // hosts, "FRAY_HOST_ID": rank % hosts}
        own |= {"MEGASCALE_SLICE_ID": rank // hosts} if slices > 1 else {}
        assert variables == shared | {name: str(value) for name, value in own.items()}
    assert len(found) == slices * hosts


def test_hosts_meet_at_the_coordinator() -> None:
    code = """
        import os, socket, time
        rank, count = int(os.environ["FRAY_REPLICA_ID"]), int(os.environ["FRAY_REPLICA_COUNT"])
        host, port = os.environ["FRAY_COORDINATOR_ADDRESS"].split(":")
        if rank:
            while True:
                try:
                    peer = socket.create_connection((host, int(port)))
                    break
                except ConnectionRefusedError:
                    time.sleep(0.01)
            peer.sendall(bytes([rank]))
        else:
            with socket.create_server((host, int(port))) as server:
                print(sorted(server.accept()[0].recv(1)[0] for _ in range(count - 1)))
    """
    cluster = LocalCluster(simulate="tpu")
    job_id = launch(cluster, program(code), resources=tpu("v5litepod-16"))
    assert cluster.wait(job_id, timeout=30, raise_on_failure=True).status is JobStatus.SUCCEEDED
    assert list(cluster.monitor(job_id)) == ["[replica-0] [1, 2, 3]"]


def test_the_environment_may_choose_another_platform() -> None:
    cluster = LocalCluster(simulate="tpu")
    environment = create_environment(env_vars={"JAX_PLATFORMS": "interpreter"})
    job_id = launch(cluster, program(SHOW), resources=tpu(), environment=environment)
    assert variables_of(cluster, job_id)[0]["JAX_PLATFORMS"] == "interpreter"


def test_a_callable_runs_on_every_host() -> None:
    def say() -> None:
        import os

        print("host", os.environ["FRAY_HOST_ID"])

    cluster = LocalCluster(simulate="tpu")
    job_id = launch(cluster, say, resources=tpu("v4-16"))
    assert cluster.wait(job_id, timeout=30).status is JobStatus.SUCCEEDED
    assert sorted(cluster.monitor(job_id)) == ["[replica-0] host 0", "[replica-1] host 1"]


def test_a_job_that_a_host_launches_is_no_host() -> None:
    code = """
        import os, sys
        from fray.cluster import *
        cluster = current_cluster()
        child = cluster.launch(JobRequest("child", Entrypoint.from_binary("python", ["-c", sys.argv[1]])))
        cluster.wait(child, raise_on_failure=True)
        print(*cluster.monitor(child))
    """
    own = ("FRAY_SLICE", "FRAY_HOST", "FRAY_COORDINATOR", "MEGASCALE")
    look = f"import os; print([name for name in os.environ if name.startswith({own})])"
    cluster = LocalCluster(simulate="tpu", overcommit=True)
    job_id = launch(cluster, program(code, look), resources=tpu("v5litepod-4", 2))
    assert cluster.wait(job_id, timeout=60).status is JobStatus.SUCCEEDED
    assert list(cluster.monitor(job_id, replica=1)) == [str([])]


def test_any_number_of_slices_is_there_unless_told() -> None:
    cluster = LocalCluster(simulate="tpu")
    job_id = launch(cluster, program("pass"), resources=tpu(slices=(2, 5, 3)))
    assert len(cluster.wait(job_id, timeout=30).tasks) == 5


def test_the_largest_acceptable_number_that_is_free_is_taken(tmp_path: Path) -> None:
    cluster = create_cluster("local?simulate=tpu&slices=3")
    assert isinstance(cluster, LocalCluster)
    go = tmp_path / "go"
    first = launch(cluster, program(HOLD, go), resources=tpu(slices=(4, 2, 1)))
    second = launch(cluster, program(HOLD, go), resources=tpu(slices=(4, 2, 1)))
    third = launch(cluster, program(HOLD, go), resources=tpu(slices=(4, 2)))
    assert "2 TPU slices (0 TPU slices of 3 TPU slices free)" in pending_reason(cluster, third)
    go.touch()
    infos = cluster.wait([first, second, third], timeout=30)
    assert [(info.status, len(info.tasks)) for info in infos] == [
        (JobStatus.SUCCEEDED, slices) for slices in (2, 1, 2)
    ]


def test_more_slices_than_there_are_wait_and_keep_nobody_else_waiting() -> None:
    cluster = LocalCluster(simulate="tpu", slices=2)
    many = launch(cluster, program("pass"), resources=tpu(slices=3))
    assert "waiting for 3 TPU slices (2 TPU slices of 2 TPU slices free)" in pending_reason(cluster, many)
    few = launch(cluster, program("pass"), resources=tpu(slices=2))
    assert cluster.wait(few, timeout=30).status is JobStatus.SUCCEEDED
    assert cluster.poll(many).status is JobStatus.PENDING
    cluster.terminate(many)
    assert cluster.poll(many).status is JobStatus.STOPPED


def test_a_program_that_is_not_there_ends_the_gang_at_once() -> None:
    cluster = LocalCluster(simulate="tpu")
    entrypoint = Entrypoint.from_binary("no-such-program")
    job_id = launch(cluster, entrypoint, resources=tpu("v5litepod-16"), max_retries_failure=5)
    info = cluster.wait(job_id, timeout=30)
    assert info.status is JobStatus.FAILED
    assert "could not start 'no-such-program'" in (info.error_message or "")
    assert info.tasks[0].reason is ExitReason.COULD_NOT_START
    assert {task.status for task in info.tasks} == {JobStatus.FAILED}


def test_the_command_line_launches_slices(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os; print(os.environ['FRAY_SLICE_ID'], os.environ['FRAY_HOST_ID'])"
    )
    argv = ["run", "--cluster", "local?simulate=tpu", "--tpu", "v5litepod-16", "--replicas", "2"]
    assert main([*argv, "--workdir", str(tmp_path), "--", "python", "train.py"]) == 0
    lines = [f"[replica-{4 * slice_ + host}] {slice_} {host}" for slice_ in range(2) for host in range(4)]
    assert sorted(capsys.readouterr().out.splitlines()) == lines


def test_a_tpu_that_is_not_simulated_is_refused_with_the_way_to_simulate_it() -> None:
    with pytest.raises(UnsupportedError, match=r"no TPU .*v5litepod-16.*for tests local\?simulate=tpu"):
        launch(LocalCluster(), program("pass"), resources=tpu("v5litepod-16"))


def test_bad_options_are_named() -> None:
    with pytest.raises(ValueError, match=r"simulate must be 'tpu', .* got 'gpu'"):
        create_cluster("local?simulate=gpu")
    with pytest.raises(ValueError, match="slices must be given together with simulate='tpu', got 2"):
        LocalCluster(slices=2)
    with pytest.raises(ValueError, match="slices must be a whole number"):
        LocalCluster(simulate="tpu", slices=-1)


def test_what_cannot_be_preempted_is_said() -> None:
    cluster = LocalCluster(simulate="tpu", overcommit=True)
    hosts, plain = launch(cluster, program("pass"), resources=tpu("v4-16")), launch(cluster, program("pass"))
    with pytest.raises(ValueError, match="replica must be below 2"):
        preempt(hosts, 2)
    with pytest.raises(ValueError, match="grace must be"):
        preempt(hosts, 0, grace=-1)
    with pytest.raises(JobNotFoundError):
        preempt("no-such-job", 0)
    with pytest.raises(UnsupportedError, match="has no host to preempt"):
        preempt(plain, 0)
    cluster.wait([hosts, plain], timeout=30)
    with pytest.raises(ValueError, match=f"job {hosts} is succeeded"):
        preempt(hosts, 0)
