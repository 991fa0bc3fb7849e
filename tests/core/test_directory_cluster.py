"""DirectoryCluster, beyond its contract: what is left when a start fails, a supervisor dies, a job runs."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from fray import FrayError, UnsupportedError
from fray.backend import Health, settle_stopped
from fray.cluster import (
    DirectoryCluster,
    ExitReason,
    JobPlan,
    JobRequest,
    JobStatus,
    ResourceConfig,
    create_environment,
)
from fray.testing.cluster import launch, program, until
from fray.testing.cluster_fixtures import numbers_in, running

SLEEP = "import os, sys, time; print(os.getpid(), file=open(sys.argv[1], 'w', 1)); time.sleep(600)"


class ChildCluster(DirectoryCluster):
    """Carries each job in a child of this process."""

    host_end: Any = None

    def __init__(self, root: Path) -> None:
        super().__init__(f"child?root={root}", root)
        self.supervisors: list[subprocess.Popen[bytes]] = []

    def _start(self, job_id: str, command: list[str]) -> None:
        self.supervisors.append(subprocess.Popen(command, start_new_session=True))

    def _plan(self, request: JobRequest, *args: Any) -> JobPlan:
        return super()._plan(request, *args)._replace(host_end=self.host_end)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ChildCluster]:
    cluster = ChildCluster(tmp_path / "jobs")
    yield cluster
    end(cluster)


def end(cluster: ChildCluster) -> None:
    for supervisor in cluster.supervisors:
        supervisor.kill()
        supervisor.wait()


def test_a_start_that_fails_leaves_no_job(tmp_path: Path) -> None:
    class Broken(ChildCluster):
        def _start(self, job_id: str, command: list[str]) -> None:
            raise OSError("no room on any host")

    cluster = Broken(tmp_path / "jobs")
    with pytest.raises(OSError, match="no room"):
        launch(cluster, program("pass"))
    assert cluster.list_jobs() == []
    assert list((tmp_path / "jobs").iterdir()) == []


@pytest.mark.parametrize("swept", [False, True])
def test_a_job_that_could_not_be_started_again_reads_as_it_had_ended_and_can_be(
    tmp_path: Path, swept: bool
) -> None:
    class Breaking(ChildCluster):
        broken = False

        def _start(self, job_id: str, command: list[str]) -> None:
            if self.broken:
                raise OSError("no room on any host")
            super()._start(job_id, command)

    cluster, fixed = Breaking(tmp_path / "jobs"), tmp_path / "fixed"
    code = "import os, sys; sys.exit(not os.path.exists(sys.argv[1]))"
    request = JobRequest("job", program(code, fixed))
    job_id = cluster.launch_many([request] * 2) if swept else cluster.launch(request)
    ended = cluster.wait(job_id, timeout=60)
    members = cluster.list_jobs(parent=job_id)
    assert ended.status is JobStatus.FAILED
    cluster.broken = True
    with pytest.raises(OSError, match="no room"):
        cluster.retry(job_id)
    assert cluster.poll(job_id) == ended
    assert cluster.list_jobs(parent=job_id) == members
    cluster.broken = False
    fixed.touch()
    cluster.retry(job_id)
    assert cluster.wait(job_id, timeout=60).status is JobStatus.SUCCEEDED
    end(cluster)


def test_times_are_right_after_the_machine_was_suspended(tmp_path: Path) -> None:
    suspended = tmp_path / "suspended"

    class Sleepy(ChildCluster):
        """Once a file is there, the wall clock of its supervisors, and no other, is an hour ahead."""

        def _start(self, job_id: str, command: list[str]) -> None:
            clock = f"lambda: real() + 3600 * os.path.exists({str(suspended)!r})"
            at = command.index("-c") + 1
            command[at] = f"import os, time; real = time.time; time.time = {clock}\n{command[at]}"
            super()._start(job_id, command)

    cluster = Sleepy(tmp_path / "jobs")
    before = time.time()
    job_id = launch(cluster, program("import sys; open(sys.argv[1], 'w').close()", suspended))
    (task,) = cluster.wait(job_id, timeout=60).tasks
    end(cluster)
    assert task.started_at is not None
    assert task.finished_at is not None
    assert before <= task.started_at < before + 600
    assert before + 3600 <= task.finished_at < before + 4200


# Leaves a process that, when it is looked at, forks another of its kind and ends; the last of them does not.
DODGES = """
    import os, sys, time
    folder = sys.argv[1]
    for last in (False, False, False, False, False, True):
        child = os.fork()
        if child:
            while not os.path.exists(f"{folder}/{child}.up"):
                time.sleep(0.001)
            open(f"{folder}/armed", "w").close()
            os._exit(0)
        own = f"{folder}/{os.getpid()}"
        open(f"{own}.up", "w").close()
        while last or not os.path.exists(f"{own}.seen"):
            time.sleep(0.001)
"""
# What a supervisor opens while it looks at a process: that has ended before it is read.
LOOKS = """
import builtins, os, time
real = open
def looking(path, *args, **kwargs):
    own = str(path).replace("/proc/", "{folder}/").removesuffix("/cmdline")
    if os.path.exists("{folder}/armed") and own != path and os.path.exists(f"{{own}}.up"):
        real(f"{{own}}.seen", "w").close()
        for _ in range(600):
            with real(f"/proc/{{os.path.basename(own)}}/stat") as stat:
                if stat.read().rpartition(")")[2].split()[0] == "Z":
                    break
            time.sleep(0.005)
    return real(path, *args, **kwargs)
builtins.open = looking
"""


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_a_process_that_is_forked_while_the_tree_is_looked_at_ends_with_the_job(tmp_path: Path) -> None:
    class Looking(ChildCluster):
        def _start(self, job_id: str, command: list[str]) -> None:
            at = command.index("-c") + 1
            command[at] = LOOKS.format(folder=tmp_path) + command[at]
            super()._start(job_id, command)

    cluster = Looking(tmp_path / "jobs")
    job_id = launch(cluster, program(DODGES, tmp_path))
    assert cluster.wait(job_id, timeout=60).status is JobStatus.SUCCEEDED
    processes = [int(path.stem) for path in tmp_path.glob("*.up")]
    left = [pid for pid in processes if running(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert (len(processes), left) == (6, [])
    end(cluster)


def test_a_job_whose_supervisor_was_killed_reads_lost_and_nothing_of_it_is_left(
    cluster: ChildCluster, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    job_id = launch(cluster, program(SLEEP, pids))
    (pid,) = until(lambda: numbers_in(pids), "the job starts")
    until(lambda: cluster.poll(job_id).status is JobStatus.RUNNING, "the job reads running")
    holder = cluster.record(job_id).holder()
    assert holder is not None
    os.kill(holder.pid, signal.SIGKILL)
    until(lambda: not running(pid), "the replica ends, though nobody looks")
    info = cluster.wait(job_id, timeout=30)
    assert (info.status, info.tasks[0].reason) == (JobStatus.FAILED, ExitReason.LOST)
    assert "was killed" in str(info.error_message)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_command_that_runs_its_program_elsewhere_ignores_signals_of_a_user(
    tmp_path: Path, elsewhere: bool
) -> None:
    """From its start on: those that a user sends to all processes of a tree are for the program."""

    class Elsewhere(ChildCluster):
        def _plan(self, request: JobRequest, *args: Any) -> JobPlan:
            return super()._plan(request, *args)._replace(measured_elsewhere=elsewhere)

    cluster = Elsewhere(tmp_path / "jobs")
    code = "import signal; print(*(signal.getsignal(each).name for each in (signal.SIGUSR1, signal.SIGUSR2)))"
    job_id = launch(cluster, program(code))
    assert cluster.wait(job_id, timeout=30).status is JobStatus.SUCCEEDED
    expected = "SIG_IGN SIG_IGN" if elsewhere else "SIG_DFL SIG_DFL"
    assert list(cluster.monitor(job_id)) == [expected]
    end(cluster)


def test_a_supervisor_goes_on_without_its_guardian(cluster: ChildCluster, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    job_id = launch(cluster, program(SLEEP, pids))
    (pid,) = until(lambda: numbers_in(pids), "the job starts")
    cluster.supervisors[0].kill()
    cluster.supervisors[0].wait()
    until(lambda: cluster.poll(job_id).status is JobStatus.RUNNING, "it reads running")
    cluster.terminate(job_id, grace=0.0)
    assert cluster.poll(job_id).status is JobStatus.STOPPED
    assert not running(pid)


def test_a_job_that_waits_for_its_start_is_stopped_at_once_and_never_runs(tmp_path: Path) -> None:
    class Queueing(ChildCluster):
        """Starts nothing; the commands wait."""

        commands: ClassVar[list[list[str]]] = []

        def _start(self, job_id: str, command: list[str]) -> None:
            self.commands.append(command)

    cluster, ran = Queueing(tmp_path / "jobs"), tmp_path / "ran"
    job_id = launch(cluster, program("import sys; open(sys.argv[1], 'w')", ran))
    assert cluster.poll(job_id).status is JobStatus.PENDING
    cluster.terminate(job_id)
    info = cluster.poll(job_id)
    assert (info.status, info.tasks[0].reason) == (JobStatus.STOPPED, ExitReason.STOPPED)
    subprocess.run(cluster.commands[0], check=True)
    assert cluster.poll(job_id) == info
    assert not ran.exists()


def test_a_job_is_stopped_while_it_launches_another(cluster: ChildCluster, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    parent = launch(cluster, program(SLEEP, pids))
    (pid,) = until(lambda: numbers_in(pids), "the job starts")
    (tmp_path / "jobs" / parent / "jobs" / ".new-child-aaaaaa").mkdir(
        parents=True
    )  # as far as a launch is before its first state
    cluster.terminate(parent, grace=0.0)
    assert cluster.poll(parent).status is JobStatus.STOPPED
    assert [info.job_id for info in cluster.list_jobs()] == [parent]
    assert not running(pid)


def test_what_a_running_job_was_given_is_on_no_disk(cluster: ChildCluster, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    request = JobRequest(
        "secret", program(SLEEP, pids), environment=create_environment(env_vars={"TOKEN": "hush-hush"})
    )
    job_id = cluster.launch(request)
    until(lambda: numbers_in(pids), "the job starts")
    files = [path for path in (tmp_path / "jobs").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if b"hush-hush" in path.read_bytes()]
    assert (tmp_path / "jobs").stat().st_mode & 0o777 == 0o700
    cluster.terminate(job_id, grace=0.0)


def test_the_message_of_a_failure_ends_with_its_last_lines_without_secrets(cluster: ChildCluster) -> None:
    code = "import os; print('with', os.environ['TOKEN']); raise SystemExit(3)"
    environment = create_environment(env_vars={"TOKEN": "hush-hush"})
    job_id = launch(cluster, program(code), environment=environment)
    message = cluster.wait(job_id, timeout=60).error_message
    assert message == "replica 0 exited with code 3\nits last lines:\n  with ***"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"resources": ResourceConfig.with_gpu("H100", 1)}, "GPU"),
        ({"environment": create_environment(extras=["gpu-support"])}, "gpu-support"),
    ],
)
def test_what_it_cannot_do_is_refused(cluster: ChildCluster, fields: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedError, match=named):
        launch(cluster, program("pass"), **fields)
    assert cluster.list_jobs() == []


def test_a_supervisor_with_more_than_a_thousand_open_files_sees_all_that_happens(tmp_path: Path) -> None:
    """As that of a job with so many replicas, each with a pipe."""

    crowd = """
import os, resource, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, hard))
nothing = os.open(os.devnull, os.O_RDONLY)
for _ in range(1100):
    os.set_inheritable(os.dup(nothing), True)
os.execv(sys.argv[1], sys.argv[1:])
"""

    class Crowded(ChildCluster):
        def _start(self, job_id: str, command: list[str]) -> None:
            super()._start(job_id, [sys.executable, "-c", crowd, *command])

    cluster = Crowded(tmp_path / "jobs")
    job_id = launch(cluster, program("print('hello')"))
    assert cluster.wait(job_id, timeout=60).status is JobStatus.SUCCEEDED
    assert list(cluster.monitor(job_id)) == ["hello"]
    cluster.supervisors[0].wait(timeout=60)


# As `DirectoryCluster` of 0.1.0 wrote it, but for what each test changes.
OF_0_1: dict[str, Any] = {
    "job_id": "train-336295",
    "name": "train",
    "status": "failed",
    "tasks": [
        {
            "replica": 0,
            "status": "failed",
            "attempt": 1,
            "exit_code": 3,
            "reason": "exited",
            "error_message": "exited with code 3\nits last lines:\n  hello",
            "started_at": 1795316442.4131181,
            "finished_at": 1795316442.4182944,
            "previous": [],
        }
    ],
    "error_message": "replica 0 exited with code 3\nits last lines:\n  hello",
    "pending_reason": None,
    "submitted_at": 1795316442.2805035,
    "started_at": 1795316442.4130988,
    "finished_at": 1795316442.4264677,
}


def record_of_0_1(root: Path, name: str, status: str = "failed") -> Path:
    """Write a record of 0.1.0: a finished one, or one of a job that has not finished."""
    (root / name).mkdir(parents=True)
    (task,) = OF_0_1["tasks"]
    changes: dict[str, Any] = {"job_id": name.replace("+", "/")}
    if status != "failed":
        unfinished = dict.fromkeys(("finished_at", "error_message"), None)
        task = {**task, **unfinished, "status": status, "exit_code": None, "reason": None}
        changes |= {**unfinished, "status": status, "tasks": [task]}
    (root / name / "status.json").write_text(json.dumps(OF_0_1 | changes))
    if status == "pending":
        (root / name / "plan.pickle").write_bytes(b"a plan that only 0.1.0 reads")
    else:
        (root / name / "carried").touch()
        (root / name / "replica-0.attempt-1.log").write_text("hello\n")
    return root / name


def test_finished_records_of_0_1_0_are_read_and_removed(cluster: ChildCluster, tmp_path: Path) -> None:
    for name in ("train-336295", "train-336295+rollout-1b22d0"):
        record_of_0_1(tmp_path / "jobs", name)
    assert {info.job_id for info in cluster.list_jobs()} == {"train-336295", "train-336295/rollout-1b22d0"}
    for info in cluster.list_jobs():
        found = cluster.poll(info.job_id)
        assert (found.status, found.tasks[0].exit_code, found.exit_code) == (JobStatus.FAILED, 3, 3)
        assert list(cluster.monitor(info.job_id)) == ["hello"]
        cluster.terminate(info.job_id)
        cluster.remove(info.job_id)
    assert cluster.list_jobs() == []


def test_a_job_that_0_1_0_runs_reads_running_is_stopped_in_its_way_and_reads_lost_without_it(
    cluster: ChildCluster, tmp_path: Path
) -> None:
    record = record_of_0_1(tmp_path / "jobs", "train-336295", "running")

    def carry(held: int) -> None:  # as 0.1.0 did
        until((record / "stop").exists, "it is asked to stop")
        status = json.loads((record / "status.json").read_text())
        (record / "status.json").write_text(json.dumps(status | {"status": "stopped"}))
        os.close(held)

    held = os.open(record / "carried", os.O_WRONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    assert cluster.poll("train-336295").status is JobStatus.RUNNING
    with pytest.raises(ValueError, match="terminate it"):
        cluster.remove("train-336295")
    supervisor = threading.Thread(target=carry, args=[held])
    supervisor.start()
    cluster.terminate("train-336295", grace=1.0)
    supervisor.join()
    assert (record / "stop").read_text() == "1.0"
    assert cluster.poll("train-336295").status is JobStatus.STOPPED

    record_of_0_1(tmp_path / "jobs", "cut-bbbbbb", "running")
    info = cluster.poll("cut-bbbbbb")
    assert (info.status, info.tasks[0].reason) == (JobStatus.FAILED, ExitReason.LOST)
    cluster.remove("cut-bbbbbb")


def test_a_job_that_0_1_0_has_not_started_is_stopped_and_never_starts(
    cluster: ChildCluster, tmp_path: Path
) -> None:
    record = record_of_0_1(tmp_path / "jobs", "train-336295", "pending")
    assert cluster.poll("train-336295").status is JobStatus.PENDING
    cluster.terminate("train-336295")
    assert cluster.poll("train-336295").status is JobStatus.STOPPED
    assert (record / "carried").exists()  # 0.1.0 runs no job that has this
    assert not (record / "plan.pickle").exists()


def test_a_job_that_has_ended_on_another_host_is_pruned_once_its_supervisor_is_gone(
    cluster: ChildCluster,
) -> None:
    job_id = launch(cluster, program("pass"))
    cluster.wait(job_id, timeout=60)
    cluster.supervisors[0].wait(timeout=60)
    lock = cluster.record(job_id).path / "lock"
    holder = json.loads(lock.read_text())
    lock.write_text(json.dumps({**holder, "host": "n7", "boot": "another"}))
    assert cluster.prune().jobs == (), "its supervisor may have something to do yet"
    os.utime(lock, (time.time() - 120,) * 2)
    assert cluster.prune().jobs == (job_id,)


def test_of_a_job_that_is_not_resumed_no_file_has_secrets_and_it_can_be_run_again(
    cluster: ChildCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.host_end = SimpleNamespace()  # as on Slurm
    pids, go = tmp_path / "pids", tmp_path / "go"
    code = """
        import os, sys, time
        assert os.environ["TOKEN"] == "-".join(["hush", "hush"])
        print(os.getpid(), file=open(sys.argv[1], "w", 1))
        while not os.path.exists(sys.argv[2]):
            time.sleep(0.01)
    """
    request = JobRequest(
        "secret",
        program(code, pids, go),
        environment=create_environment(env_vars={"TOKEN": "hush-hush"}),
        max_retries_preemption=0,
    )
    job_id = cluster.launch(request)
    until(lambda: numbers_in(pids), "the job starts")
    files = [path for path in (tmp_path / "jobs").rglob("*") if path.is_file()]
    assert [path for path in files if b"hush-hush" in path.read_bytes()] == []
    record = cluster.record(job_id)
    holder = record.holder()
    assert holder is not None
    for pid in (holder.guardian, holder.pid):
        os.kill(pid, signal.SIGKILL)
    cluster.supervisors[0].wait()
    cluster.terminate(job_id)  # what is left of its tree
    until(lambda: settle_stopped(record), "its end is written")
    go.touch()
    monkeypatch.setenv("TOKEN", "hush-hush")
    cluster.retry(job_id)
    assert cluster.wait(job_id, timeout=60).status is JobStatus.SUCCEEDED


def test_a_file_system_without_locks_is_named(
    cluster: ChildCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "jobs").mkdir(mode=0o700)

    def no_locks(file: int, command: int, *args: Any) -> Any:
        if command == getattr(fcntl, "F_OFD_SETLK", None):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        return real(file, command, *args)

    real = fcntl.fcntl
    monkeypatch.setattr(fcntl, "fcntl", no_locks)
    with pytest.raises(FrayError, match=rf"{tmp_path}.* has no locks .*Function not implemented.*choose"):
        launch(cluster, program("pass"))
    assert list((tmp_path / "jobs").iterdir()) == []
    (locks,) = (finding for finding in cluster.diagnose() if finding.check == "locks")
    assert locks.health is Health.ERROR


def test_what_killed_launchers_and_removals_left_is_pruned(cluster: ChildCluster, tmp_path: Path) -> None:
    """On a cluster that deletes nothing by itself, too."""
    cluster.wait(launch(cluster, program("pass")))
    draft, doomed = tmp_path / "jobs" / ".new-job-aaaaaa", tmp_path / "jobs" / ".old-job-bbbbbb"
    for folder in (draft, doomed):
        (folder / "workspace").mkdir(parents=True)
        os.utime(folder, (1.0, 1.0))
    cluster.prune(dry_run=True)
    assert draft.exists()
    assert doomed.exists()
    cluster.prune()
    assert not draft.exists()
    assert not doomed.exists()
