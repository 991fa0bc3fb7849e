"""What Slurm does to jobs, and how that reads: time limits, preemption, kills, an absent controller."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fray.cluster import (
    Cluster,
    Entrypoint,
    ExitReason,
    JobInfo,
    JobRequest,
    JobStatus,
    ResourceConfig,
    create_cluster,
    create_environment,
)
from fray.testing.cluster import launch, program, until
from fray_slurm.testing import LocalSlurm

PATIENCE = 90.0
TWO_NODES = {"slurm": {"nodelist": "n1,n2"}}
# Counts to argv[2] in a file, a number a tenth of a second, from where the last attempt was.
TRAIN = """
    import os, pathlib, signal, sys, time
    saved = pathlib.Path(sys.argv[1] + os.environ["FRAY_REPLICA_ID"])
    step = int(saved.read_text()) if saved.exists() else 0
    print("attempt", os.environ["FRAY_ATTEMPT"], "from", step, flush=True)
    def save(number, frame):
        saved.write_text(str(step))
        print("saved", step, flush=True)
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    while step < int(sys.argv[2]):
        time.sleep(0.1)
        step += 1
        if step == 3:
            print("under way", flush=True)
    print("trained", step, flush=True)
"""

# It knows by the notice alone: it ignores the signal.
NOTICE = """
    import signal
    from fray.job import preemption_notice
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    print("under way", flush=True)
    notice = preemption_notice()
    assert not notice.is_set()
    if notice.wait(600) and notice.seconds_left > 0:
        print("noticed", flush=True)
    raise SystemExit(143)
"""


@pytest.fixture(scope="module", autouse=True)
def limited(
    slurm: LocalSlurm, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Cluster, str, Path]]:
    """A job that reaches its time limit, a minute at the least, while the other tests run."""
    folder = tmp_path_factory.mktemp("limited")
    cluster = create_cluster(f"slurm?root={folder}/records&poll_interval=0.5")
    native = {"slurm": {"partition": "short", "time": "1", "nodelist": "n3"}}
    job_id = launch(cluster, program(TRAIN, folder / "saved", 6000), "long", backend=native)
    running(cluster, job_id)
    assert any("after 1:00" in warning for warning in cluster.poll(job_id).warnings)
    yield cluster, job_id, folder / "saved0"
    if not cluster.poll(job_id).finished:
        cluster.terminate(job_id, grace=0.0)


def running(cluster: Cluster, job_id: str) -> JobInfo:
    until(lambda: cluster.poll(job_id).status is not JobStatus.PENDING, "the job runs", PATIENCE)
    return cluster.poll(job_id)


def test_a_preempted_job_saves_is_requeued_and_goes_on(
    slurm: LocalSlurm, cluster: Cluster, tmp_path: Path, number_of: Callable[[str], str]
) -> None:
    saved = tmp_path / "saved"
    two_nodes = ResourceConfig(cpu=4, replicas=2, ram="1g")
    job_id = launch(
        cluster, program(TRAIN, saved, 40), "train", resources=two_nodes, gang=True, backend=TWO_NODES
    )
    for replica in range(2):
        assert next(line for line in cluster.monitor(job_id, replica=replica) if line == "under way")
    slurm.preempt("n1,n2")
    number = number_of(job_id)
    until(lambda: cluster.poll(job_id).status is JobStatus.PENDING, "it is requeued", PATIENCE)
    assert cluster.poll(job_id).pending_reason
    slurm.end_hold(number)
    info = cluster.wait(job_id, timeout=PATIENCE)
    assert info.status is JobStatus.SUCCEEDED, info
    for task in info.tasks:
        assert (task.attempt, task.exit_code) == (2, 0)
        assert [each.reason for each in task.previous] == [ExitReason.PREEMPTED]
    lines = list(cluster.monitor(job_id, replica=0))
    assert any(line.startswith("attempt 2 from ") and not line.endswith(" 0") for line in lines)


def test_preemptions_have_a_budget_of_their_own(slurm: LocalSlurm, cluster: Cluster, tmp_path: Path) -> None:
    resources = ResourceConfig(cpu=4, replicas=2, ram="1g")
    job_id = launch(
        cluster,
        program(NOTICE),
        "train",
        resources=resources,
        gang=True,
        max_retries_preemption=0,
        backend=TWO_NODES,
    )
    for replica in range(2):
        assert next(line for line in cluster.monitor(job_id, replica=replica) if line == "under way")
    slurm.preempt("n1,n2")
    info = cluster.wait(job_id, timeout=PATIENCE)
    assert info.status is JobStatus.FAILED
    assert {task.reason for task in info.tasks} == {ExitReason.PREEMPTED}
    assert "room for another job" in str(info.error_message)
    lines = [line.partition("] ")[2] for line in cluster.monitor(job_id)]
    assert lines.count("noticed") == 2


def test_a_replica_that_slurm_ends_for_its_memory_is_said_to_be_so(
    slurm: LocalSlurm, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what srun is known to do where memory is confined, which this machine's Slurm does not."""
    recorded = tmp_path / "bin" / "srun"
    recorded.parent.mkdir()
    recorded.write_text(
        "#!/bin/sh\necho 'slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.' >&2\nexit 253\n"
    )
    recorded.chmod(0o755)
    monkeypatch.setenv("PATH", f"{recorded.parent}:{os.environ['PATH']}")
    info = cluster.wait(launch(cluster, program("pass")), timeout=PATIENCE)
    assert (info.status, info.tasks[0].reason) == (JobStatus.FAILED, ExitReason.OUT_OF_MEMORY)
    assert "more memory than it asked for" in str(info.error_message)
    assert "oom_kill event" in str(info.error_message)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_program_that_a_signal_ends_is_not_said_to_have_exited(cluster: Cluster, number: int) -> None:
    """Also by those that Fray and Slurm send themselves."""
    job_id = launch(cluster, Entrypoint.from_binary("sh", ["-c", f"kill -{number:d} $$"]))
    (task,) = cluster.wait(job_id, timeout=PATIENCE).tasks
    assert (task.reason, task.exit_code) == (ExitReason.SIGNALLED, -number)


def test_what_a_process_of_the_same_id_noted_on_another_node_is_not_this_replicas(
    slurm: LocalSlurm, cluster: Cluster, tmp_path: Path, number_of: Callable[[str], str]
) -> None:
    """Each node has ids of its own, and a container the small ones."""
    exits = Entrypoint.from_binary("sh", ["-c", "exit 3"])
    job_id = launch(cluster, exits, backend={"slurm": {"begin": "now+3600"}})
    last = int(Path("/proc/sys/kernel/ns_last_pid").read_text())
    largest = int(Path("/proc/sys/kernel/pid_max").read_text())
    said = json.dumps({"step": "1.0", "run": "1 restarted 0", "failure": "of an earlier run"})
    for number in range(last, last + 5000):  # the ids that come next, once more from small ones
        note = tmp_path / "records" / job_id / "slurm" / f"replica-0.{number % largest}.json"
        note.write_text(said)
    slurm.run("scontrol", "update", f"JobId={number_of(job_id)}", "StartTime=now")
    assert "exited with code 3" in str(cluster.wait(job_id, timeout=PATIENCE).error_message)


def test_a_job_that_somebody_cancels_is_stopped(
    slurm: LocalSlurm, cluster: Cluster, tmp_path: Path, number_of: Callable[[str], str]
) -> None:
    job_id = launch(cluster, program(TRAIN, tmp_path / "saved", 6000), "train")
    assert next(line for line in cluster.monitor(job_id) if "attempt" in line)
    slurm.run("scancel", number_of(job_id))
    info = cluster.wait(job_id, timeout=PATIENCE)
    assert (info.status, info.tasks[0].reason) == (JobStatus.STOPPED, ExitReason.STOPPED)


def test_a_job_that_is_cancelled_while_it_waits_is_stopped(
    slurm: LocalSlurm, cluster: Cluster, tmp_path: Path, number_of: Callable[[str], str]
) -> None:
    job_id = launch(cluster, program("pass"), "waits", backend={"slurm": {"begin": "now+3600"}})
    waiting = until(
        lambda: "BeginTime" in str(cluster.poll(job_id).pending_reason), "Slurm says why", PATIENCE
    )
    assert waiting
    slurm.run("scancel", number_of(job_id))
    info = cluster.wait(job_id, timeout=PATIENCE)
    assert info.status is JobStatus.STOPPED
    assert "not through Fray" in str(info.error_message)


def test_a_waiting_job_is_stopped_at_once_and_leaves_the_queue(
    slurm: LocalSlurm, cluster: Cluster, tmp_path: Path, number_of: Callable[[str], str]
) -> None:
    job_id = launch(cluster, program("pass"), "waits", backend={"slurm": {"begin": "now+3600"}})
    number = number_of(job_id)
    cluster.terminate(job_id)
    assert cluster.poll(job_id).status is JobStatus.STOPPED
    assert slurm.run("squeue", "-h", "-j", number, "-t", "all", "-o", "%T").strip() == "CANCELLED"


def test_a_job_that_can_never_start_says_why(cluster: Cluster) -> None:
    native = {"slurm": {"partition": "short", "time": "100"}}
    job_id = launch(cluster, program("pass"), "too-long", backend=native)
    until(lambda: "will never start" in str(cluster.poll(job_id).pending_reason), "Slurm says why", PATIENCE)
    assert "(Partition" in str(cluster.poll(job_id).pending_reason)


def test_a_supervisor_that_is_killed_is_said_to_be_so(
    slurm: LocalSlurm, cluster: Cluster, tmp_path: Path
) -> None:
    job_id = launch(cluster, program(TRAIN, tmp_path / "saved", 6000), "train", max_retries_preemption=0)
    running(cluster, job_id)
    supervisor = json.loads((tmp_path / "records" / job_id / "lock").read_text())
    for pid in (supervisor["guardian"], supervisor["pid"]):
        os.kill(pid, signal.SIGKILL)
    info = cluster.wait(job_id, timeout=PATIENCE)
    assert info.status is JobStatus.FAILED
    assert info.tasks[0].reason is ExitReason.LOST, info


def test_members_of_a_gang_on_several_nodes_meet(cluster: Cluster) -> None:
    code = """
        import os, socket
        rank, address = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        if rank == 0:
            with socket.create_server(address) as server:
                for _ in range(int(os.environ["WORLD_SIZE"]) - 1):
                    connection, _ = server.accept()
                    connection.close()
        else:
            import time
            for _ in range(600):
                try:
                    socket.create_connection(address).close()
                    break
                except ConnectionRefusedError:
                    time.sleep(0.05)
            else:
                raise SystemExit("nobody there")
        print("rank", rank, "on", os.environ["SLURMD_NODENAME"])
    """
    resources = ResourceConfig.with_gpu("A100", count=2, replicas=3, ram="1g")
    job_id = launch(cluster, program(code), "gang", resources=resources)
    info = cluster.wait(job_id, timeout=PATIENCE)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    lines = list(cluster.monitor(job_id))
    assert sorted(line.partition("] ")[2] for line in lines) == [
        f"rank {rank} on n{rank + 1}" for rank in range(3)
    ]


def test_a_launcher_inside_an_allocation_gives_it_to_nobody(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CPU_BIND", "quiet,mask_cpu:0x1")
    monkeypatch.setenv("SBATCH_PARTITION", "nope")
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("SQUEUE_FORMAT", "%A")
    code = """
        import os
        print("bind", os.environ.get("SLURM_CPU_BIND"), os.environ["SLURM_JOB_ID"], os.environ["KEPT"])
    """
    environment = create_environment(env_vars={"KEPT": "yes"})
    job_id = cluster.launch(JobRequest("inside", program(code), environment=environment))
    assert cluster.wait(job_id, timeout=PATIENCE).status is JobStatus.SUCCEEDED
    (line,) = cluster.monitor(job_id)
    assert not line.startswith("bind quiet,mask_cpu:0x1 ")
    assert " 77 " not in line


def test_no_secret_is_in_the_script_or_with_slurm(
    slurm: LocalSlurm, cluster: Cluster, tmp_path: Path, number_of: Callable[[str], str]
) -> None:
    environment = create_environment(env_vars={"TOKEN": "hunter2-4b7e"})
    job_id = cluster.launch(JobRequest("secret", program("pass"), environment=environment))
    number = number_of(job_id)
    script = slurm.run("scontrol", "write", "batch_script", number, "-")
    assert "hunter2" not in script + slurm.run("scontrol", "show", "job", number)
    assert cluster.wait(job_id, timeout=PATIENCE).status is JobStatus.SUCCEEDED
    folder = tmp_path / "records" / job_id / "slurm"
    assert not any("hunter2" in path.read_text() for path in folder.iterdir())
    assert (tmp_path / "records").stat().st_mode & 0o077 == 0


@pytest.mark.timeout(240)
def test_a_replica_that_ends_at_an_early_notice_of_the_limit_has_not_finished(
    slurm: LocalSlurm, tmp_path: Path
) -> None:
    """Its job would read succeeded, and what runs after it would start."""
    cluster = create_cluster(f"slurm?root={tmp_path}/records&poll_interval=0.5&grace=600")
    saved = tmp_path / "saved"
    job_id = launch(cluster, program(TRAIN, saved, 6000), "train", backend={"slurm": {"time": "8"}})
    try:
        until((tmp_path / "saved0").exists, "it has its notice, and saves", PATIENCE)
        with pytest.raises(TimeoutError):
            cluster.wait(
                job_id, timeout=75
            )  # more than Slurm takes to end a job of which it has given notice
        assert cluster.poll(job_id).status is JobStatus.RUNNING
    finally:
        cluster.terminate(job_id, grace=0.0)


def test_a_time_limit_gives_grace_and_is_called_by_its_name(limited: tuple[Cluster, str, Path]) -> None:
    cluster, job_id, saved = limited
    info = cluster.wait(job_id, timeout=150)
    assert (info.status, info.tasks[0].reason) == (JobStatus.FAILED, ExitReason.TIMED_OUT), info
    assert "time limit" in str(info.error_message)
    assert saved.exists()
    assert info.exit_code == 124
