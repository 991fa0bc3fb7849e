"""What becomes of a replica, and what is left, when processes that keep it on its node are killed."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from gang_hosts import pids_of_replicas
from job_processes import kill
from words_in_files import files_with

from fray.backend import JOB_VARIABLE, gang_runtime, with_variable
from fray.cluster import Entrypoint, ExitReason, JobRequest, JobStatus, ResourceConfig
from fray.testing.cluster_fixtures import running
from fray.testing.gates import until
from fray_ray import RayCluster
from fray_ray.testing import LocalRayCluster

pytestmark = pytest.mark.timeout(400)
SECRET = "8c1f7e-of-the-arguments"
KILLED = [
    ("program",),
    ("supervisor",),
    ("guardian",),
    ("supervisor", "guardian"),
    ("guardian", "supervisor", "program"),
]


def work(folder: Path, secret: str) -> None:
    """Note its processes, and wait; the first three have a daemon with a session of its own."""
    import os
    import subprocess
    import time
    from pathlib import Path

    assert secret
    rank = os.environ["FRAY_REPLICA_ID"]
    daemon = ["env", "-i", "sleep", "600"] if int(rank) < 3 else ["true"]  # nobody is left to end the others'
    started = subprocess.Popen(daemon, start_new_session=True)
    private = Path(os.environ["FRAY_PREEMPTION_NOTICE"]).parent
    draft = Path(folder, f"draft-{rank}")
    draft.write_text(f"{os.getpid()} {os.getppid()} {started.pid} {private}")
    draft.rename(Path(folder, f"up-{rank}"))
    print("up", flush=True)
    time.sleep(600)


def waits_or_ends(folder: Path) -> None:
    """As `work`; the first returns when it may, and the last ends by a signal of its own."""
    import os
    import signal
    import time
    from pathlib import Path

    rank = int(os.environ["FRAY_REPLICA_ID"])
    if rank == 2:
        os.kill(os.getpid(), signal.SIGUSR1)
    private = Path(os.environ["FRAY_PREEMPTION_NOTICE"]).parent
    draft = Path(folder, f"draft-{rank}")
    draft.write_text(f"{os.getpid()} {os.getppid()} 0 {private}")
    draft.rename(Path(folder, f"up-{rank}"))
    while rank or not Path(folder, "go").exists():
        time.sleep(0.02)


def holds_a_lock(folder: Path) -> None:
    """Take a lock that may not be held, as libtpu does, and ignore SIGTERM; the second attempt returns."""
    import fcntl
    import os
    import signal
    import time
    from pathlib import Path

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    lock = Path(folder, "lock").open("w")  # noqa: SIM115 - it is held until the process ends
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if os.environ["FRAY_ATTEMPT"] == "1":
        Path(folder, "up").touch()
        time.sleep(600)


class Attempt:
    """The processes of one replica, and the folder of its own."""

    def __init__(self, noted: str) -> None:
        program, supervisor, daemon, private = noted.split()
        guardian = Path(f"/proc/{supervisor}/stat").read_text().rpartition(")")[2].split()[1]
        self.private, self.daemon = Path(private), int(daemon)
        self.pids = {"program": int(program), "supervisor": int(supervisor), "guardian": int(guardian)}

    def kill(self, *names: str) -> None:
        for name in names:
            with contextlib.suppress(ProcessLookupError):  # it ended with the one before
                os.kill(self.pids[name], signal.SIGKILL)

    def holds_memory_files(self) -> bool:
        """Whether one of its processes has a file open that is in no folder."""
        files = [file for pid in self.pids.values() for file in Path(f"/proc/{pid}/fd").iterdir()]
        found = []
        for file in files:
            with contextlib.suppress(FileNotFoundError):  # it has just been closed
                found.append("memfd" in os.fspath(file.readlink()))
        return any(found)

    def left(self) -> list[int]:
        return [pid for pid in self.pids.values() if running(pid)]


def test_a_replica_ends_with_what_keeps_it_and_what_it_was_given_is_in_no_file_whichever_is_killed(
    ray_cluster: LocalRayCluster, tmp_path: Path
) -> None:
    cluster = RayCluster(ray_cluster.address)
    entrypoint = Entrypoint.from_callable(work, [tmp_path, SECRET])
    job_id = cluster.launch(JobRequest("killed", entrypoint, resources=ResourceConfig(replicas=len(KILLED))))
    up = [tmp_path / f"up-{rank}" for rank in range(len(KILLED))]
    until(lambda: all(path.exists() for path in up), "all run", 200)
    attempts = [Attempt(path.read_text()) for path in up]
    until(lambda: not any(each.holds_memory_files() for each in attempts), "what was read is freed")
    places = Path(os.environ["RAY_TMPDIR"]), *(each.private for each in attempts)
    assert not files_with([SECRET], *places)
    for attempt, names in zip(attempts, KILLED, strict=True):
        attempt.kill(*names)
    stays = KILLED.index(("guardian",))
    ended = [rank for rank in range(len(KILLED)) if rank != stays]
    until(lambda: all(cluster.poll(job_id).tasks[rank].status.finished for rank in ended), "they end")
    tasks = cluster.poll(job_id).tasks
    assert (tasks[0].reason, tasks[0].exit_code) == (ExitReason.SIGNALLED, -9)
    assert [tasks[rank].reason for rank in ended[1:]] == [ExitReason.LOST] * 3
    assert "ended by signal 9" in str(tasks[1].error_message)
    assert all("none has said why" in str(tasks[rank].error_message) for rank in ended[2:])
    assert tasks[stays].status is JobStatus.RUNNING
    cluster.terminate(job_id, grace=0.0)
    assert cluster.poll(job_id).tasks[stays].status is JobStatus.STOPPED
    until(lambda: not any(each.left() for each in attempts), "no process is left")
    until(lambda: not any(running(each.daemon) for each in attempts), "nor what the programs had started")
    until(lambda: not any(each.private.exists() for each in attempts), "nor a folder")
    assert not files_with([SECRET], *places)
    assert list(cluster.monitor(job_id, replica=stays)) == ["up"]


def test_signals_of_a_user_end_no_process_that_keeps_a_replica(
    joined_cluster: RayCluster, tmp_path: Path
) -> None:
    entrypoint = Entrypoint.from_callable(waits_or_ends, [tmp_path])
    job_id = joined_cluster.launch(JobRequest("kept", entrypoint, resources=ResourceConfig(replicas=3)))
    up = [tmp_path / f"up-{rank}" for rank in range(2)]
    until(lambda: all(path.exists() for path in up), "they run", 200)
    kept, doomed = (Attempt(path.read_text()) for path in up)
    for attempt in (kept, doomed):
        for name in ("guardian", "supervisor"):
            for number in (signal.SIGUSR1, signal.SIGUSR2):
                os.kill(attempt.pids[name], number)
    doomed.kill("supervisor")
    (tmp_path / "go").touch()
    first, second, third = joined_cluster.wait(job_id, timeout=200).tasks
    assert first.status is JobStatus.SUCCEEDED, first
    assert second.reason is ExitReason.LOST
    assert "ended by signal 9" in str(second.error_message)  # says its guardian
    assert (third.reason, third.exit_code) == (ExitReason.SIGNALLED, -signal.SIGUSR1)


@pytest.mark.parametrize("ends_by", [0, signal.SIGKILL])
def test_a_member_of_a_gang_that_brings_its_ray_ends_as_its_program_and_by_no_signal_of_a_user(
    tmp_path: Path, ends_by: int
) -> None:
    code = f"""
        import os, signal
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            print(signal.getsignal(number).name, flush=True)
            os.kill(os.getppid(), number)
        os.kill(os.getpid(), {ends_by:d})
    """
    program = [sys.executable, "-c", textwrap.dedent(code)]
    command = gang_runtime("ray").command(program, python=sys.executable, cpus=1, memory=400 << 20)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environ |= {"FRAY_REPLICA_ID": "0", "FRAY_REPLICA_COUNT": "1", JOB_VARIABLE: os.fspath(tmp_path)}
    environ["FRAY_COORDINATOR_ADDRESS"] = "127.0.0.1:1"
    try:
        ended = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=False)
        assert (ended.returncode, ended.stdout.split()) == (-ends_by, ["SIG_DFL"] * 2)
    finally:
        for pid in with_variable(JOB_VARIABLE, os.fspath(tmp_path)):
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                kill(pid)


def test_a_replica_whose_actor_is_killed_was_lost_and_runs_again_on_the_budget_of_failures(
    joined_cluster: RayCluster, tmp_path: Path
) -> None:
    entrypoint = Entrypoint.from_callable(work, [tmp_path, SECRET])
    request = JobRequest("lost", entrypoint, max_retries_failure=1, max_retries_preemption=9)
    job_id = joined_cluster.launch(request)
    up = tmp_path / "up-0"
    attempts, actors = [], []
    for _ in range(2):
        until(up.exists, "it runs", 200)
        attempts.append(Attempt(up.read_text()))
        up.unlink()
        (actor,) = until(lambda: [pid for pid in pids_of_replicas() if pid not in actors], "its actor is up")
        actors.append(actor)
        kill(actor)
    info = joined_cluster.wait(job_id, timeout=200)
    (task,) = info.tasks
    assert (info.status, task.attempt, task.reason) == (JobStatus.FAILED, 2, ExitReason.LOST), info
    assert [earlier.reason for earlier in task.previous] == [ExitReason.LOST]
    assert "replica 0 was lost" in str(info.error_message)
    assert "(attempt 2 of 2)" in str(info.error_message)
    until(lambda: not any(each.left() or running(each.daemon) for each in attempts), "no process is left")
    until(lambda: not any(each.private.exists() for each in attempts), "nor a folder")


def test_a_gang_whose_actor_is_killed_starts_again_when_the_program_has_ended_that_saves_still(
    joined_cluster: RayCluster, tmp_path: Path
) -> None:
    entrypoint = Entrypoint.from_callable(holds_a_lock, [tmp_path])
    job_id = joined_cluster.launch(JobRequest("locked", entrypoint, gang=True, max_retries_failure=1))
    until((tmp_path / "up").exists, "it runs", 200)
    until(lambda: len(pids_of_replicas()) == 1, "no other job's actor is left")
    kill(*pids_of_replicas())
    info = joined_cluster.wait(job_id, timeout=200)
    (task,) = info.tasks
    assert (info.status, task.attempt) == (JobStatus.SUCCEEDED, 2), info.error_message
    assert [earlier.reason for earlier in task.previous] == [ExitReason.LOST]
