"""Whatever dies, another process reads the truth."""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fray.backend import Holder, holder_of
from fray.cluster import (
    Entrypoint,
    ExitReason,
    JobId,
    JobInfo,
    JobRequest,
    JobStatus,
    ResourceConfig,
    create_cluster,
    create_environment,
    current_cluster,
)
from fray.testing.cluster import launch, program, until
from fray.testing.cluster_fixtures import numbers_in, running
from fray.testing.cluster_sweeps import WHEN_THERE
from fray_local import LocalCluster

SPEC = "local?cpus=8"
USER_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
SLEEPER = "import os, sys, time; print(os.getpid(), file=open(sys.argv[1], 'a'), flush=True); time.sleep(600)"


@pytest.fixture
def cluster() -> LocalCluster:
    return LocalCluster(cpus=8)


def read_elsewhere(job_id: str) -> JobInfo:
    """Poll from a new process."""
    code = (
        "import json, sys; from fray.cluster import create_cluster;"
        f"print(json.dumps(create_cluster({SPEC!r}).poll(sys.argv[1]).to_dict()))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, job_id], capture_output=True, check=True, timeout=30
    ).stdout
    return JobInfo.from_dict(json.loads(out))


def supervisor(state: Path, job_id: str) -> int:
    """The process that supervises a job, once it has said so."""
    lock = str(state / "jobs" / job_id / "lock")
    return until(lambda: (holder := holder_of(lock)) and holder.pid, "the supervisor is there") or 0


def test_a_killed_launcher_leaves_its_job_running(cluster: LocalCluster, tmp_path: Path) -> None:
    code = f"""
import sys, time
from fray.cluster import *
cluster = create_cluster({SPEC!r})
sleeper = Entrypoint.from_binary("python", ["-c", *sys.argv[1:]])
print(cluster.launch(JobRequest("left", sleeper)), flush=True)
time.sleep(600)
"""
    pids = tmp_path / "pids"
    with subprocess.Popen(
        [sys.executable, "-c", code, SLEEPER, pids], stdout=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout is not None
        job_id = launcher.stdout.readline().strip()
        launcher.kill()
    (pid,) = until(lambda: numbers_in(pids), "the job starts")
    until(lambda: cluster.poll(job_id).status is JobStatus.RUNNING, "it reads running")
    assert read_elsewhere(job_id).status is JobStatus.RUNNING
    assert running(pid)
    cluster.terminate(job_id, grace=0.0)
    assert not running(pid)


def test_a_killed_supervisor_fails_the_job_and_ends_what_is_left(
    cluster: LocalCluster, state_dir: Path, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    job_id = launch(cluster, program(SLEEPER, pids), resources=ResourceConfig(replicas=2))
    until(lambda: len(numbers_in(pids)) == 2, "the job starts")
    pid = supervisor(state_dir, job_id)
    os.kill(pid, signal.SIGKILL)
    cluster.wait(job_id, timeout=60)
    info = read_elsewhere(job_id)
    assert info.status is JobStatus.FAILED
    assert [task.reason for task in info.tasks] == [ExitReason.LOST] * 2
    assert info.error_message is not None
    assert f"supervisor (process {pid}) was killed" in info.error_message
    assert [replica for replica in numbers_in(pids) if running(replica)] == []
    assert cluster.poll(job_id) == info
    # What the dead one held is free again: a job of the whole machine starts.
    whole = launch(cluster, program("pass"), resources=ResourceConfig(cpu=8))
    assert cluster.wait(whole, timeout=30).status is JobStatus.SUCCEEDED


def signalled_by_a_user(state_dir: Path, job_id: str) -> Holder:
    """Send what a user sends to all processes of a tree to those that keep this one."""
    supervisor(state_dir, job_id)
    holder = holder_of(str(state_dir / "jobs" / job_id / "lock"))
    assert holder is not None
    for pid in (holder.guardian, holder.pid):
        for number in USER_SIGNALS:
            os.kill(pid, number)
    return holder


def test_signals_of_a_user_end_no_job(cluster: LocalCluster, state_dir: Path, tmp_path: Path) -> None:
    job_id, go = launch(cluster, program(WHEN_THERE, tmp_path / "go")), tmp_path / "go"
    signalled_by_a_user(state_dir, job_id)  # also while it starts
    until(lambda: cluster.poll(job_id).status is JobStatus.RUNNING, "it reads running")
    signalled_by_a_user(state_dir, job_id)
    go.touch()
    info = cluster.wait(job_id, timeout=30)
    assert info.status is JobStatus.SUCCEEDED, info


def test_signals_of_a_user_do_not_end_a_guardian(
    cluster: LocalCluster, state_dir: Path, tmp_path: Path
) -> None:
    job_id = launch(cluster, program(WHEN_THERE, tmp_path / "never"))
    until(lambda: cluster.poll(job_id).status is JobStatus.RUNNING, "it reads running")
    holder = signalled_by_a_user(state_dir, job_id)
    os.kill(holder.pid, signal.SIGKILL)
    cluster.wait(job_id, timeout=30)
    status = json.loads((state_dir / "jobs" / job_id / "status.json").read_text())
    assert status["status"] == "failed"  # by the guardian: readers write nothing
    assert f"supervisor (process {holder.pid}) was killed" in status["error_message"]


@pytest.mark.parametrize("number", USER_SIGNALS)
def test_a_program_ends_by_a_signal_of_a_user_that_it_does_not_handle(
    cluster: LocalCluster, tmp_path: Path, number: signal.Signals
) -> None:
    noted = tmp_path / "noted"
    on_exit = f"sh -c 'kill -{number:d} $$'; echo $? > {noted}.new; mv {noted}.new {noted}"
    ends = program(f"import os, time; os.kill(os.getpid(), {number:d}); time.sleep(600)")
    info = cluster.wait(launch(cluster, ends, on_exit=on_exit), timeout=30)
    (task,) = info.tasks
    assert (task.reason, task.exit_code) == (ExitReason.SIGNALLED, -number), info
    until(noted.exists, "the command of on_exit has run")
    assert noted.read_text() == f"{128 + number:d}\n"


@pytest.mark.parametrize("terminated", [False, True])
def test_the_jobs_of_one_whose_supervisor_was_killed_are_stopped(
    cluster: LocalCluster, state_dir: Path, tmp_path: Path, terminated: bool
) -> None:
    def launch_another(program: Entrypoint) -> None:
        current_cluster().launch(JobRequest("child", program))
        signal.pause()

    pids = tmp_path / "pids"
    ignoring = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPER}"
    child = program(ignoring if terminated else SLEEPER, pids)
    parent = launch(cluster, Entrypoint.from_callable(launch_another, [child]))
    (pid,) = until(lambda: numbers_in(pids), "the child starts")
    killed = supervisor(state_dir, parent)
    os.kill(killed, signal.SIGKILL)
    until(lambda: not running(killed), "the supervisor dies")
    if terminated:
        cluster.terminate(parent, grace=0.0)
    else:
        assert cluster.wait(parent, timeout=30).status is JobStatus.FAILED
        until(lambda: not running(pid), "the child ends")
    assert not running(pid)
    (info,) = [info for info in cluster.list_jobs() if info.job_id != parent]
    assert cluster.wait(info.job_id, timeout=30).status is JobStatus.STOPPED


def test_a_killed_replica_fails_the_job_by_its_signal(cluster: LocalCluster, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    job_id = launch(cluster, program(SLEEPER, pids))
    (pid,) = until(lambda: numbers_in(pids), "the job starts")
    os.kill(pid, signal.SIGKILL)
    info = cluster.wait(job_id, timeout=30)
    assert info == read_elsewhere(job_id)
    assert (info.status, info.tasks[0].reason, info.tasks[0].exit_code) == (
        JobStatus.FAILED,
        ExitReason.SIGNALLED,
        -9,
    )
    assert info.error_message is not None
    assert "replica 0 was ended by SIGKILL" in info.error_message


def test_sigterm_to_the_supervisor_stops_the_job(
    cluster: LocalCluster, state_dir: Path, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    job_id = launch(cluster, program(SLEEPER, pids))
    (pid,) = until(lambda: numbers_in(pids), "the job starts")
    os.kill(supervisor(state_dir, job_id), signal.SIGTERM)
    assert cluster.wait(job_id, timeout=30).status is JobStatus.STOPPED
    assert not running(pid)


def look_of(record: Path) -> None:
    """Wait until the supervisor of a record has looked for what comes without a wake-up, all of it."""
    for _ in range(2):  # it takes requests to restart first, so that the second is taken after a whole look
        (record / "restarts").touch()
        until(lambda: not (record / "restarts").exists(), "the supervisor looks")


def test_a_job_runs_on_while_its_supervisor_cannot_open_a_file(
    cluster: LocalCluster, state_dir: Path, tmp_path: Path
) -> None:
    pids, go = tmp_path / "pids", tmp_path / "go"
    code = "import os, sys, time; print(os.getpid(), file=open(sys.argv[1], 'w'), flush=True)\n"
    code += "while not os.path.exists(sys.argv[2]): time.sleep(0.01)"
    job_id = launch(cluster, program(code, pids, go))
    until(lambda: numbers_in(pids), "the job starts")
    until(lambda: cluster.poll(job_id).status is JobStatus.RUNNING, "the job reads running")
    pid = supervisor(state_dir, job_id)
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    taken = {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    free = min(set(range(len(taken) + 1)) - taken)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, before[1]))
    look_of(state_dir / "jobs" / job_id)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    assert cluster.poll(job_id).status is JobStatus.RUNNING
    go.touch()
    assert cluster.wait(job_id, timeout=30).status is JobStatus.SUCCEEDED


def test_a_request_to_stop_that_cannot_be_read_stops_nothing(
    cluster: LocalCluster, state_dir: Path, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    job_id = launch(cluster, program(SLEEPER, pids))
    (pid,) = until(lambda: numbers_in(pids), "the job starts")
    record = state_dir / "jobs" / job_id
    (record / "stop").symlink_to("stop")
    look_of(record)
    until(lambda: cluster.poll(job_id).status is JobStatus.RUNNING, "the job reads running")
    assert running(pid)
    (record / "stop").unlink()
    (record / "stop").write_text("no number")  # one that is there and makes no sense
    assert cluster.wait(job_id, timeout=30).status is JobStatus.STOPPED


def test_a_status_that_is_refused_for_a_while_does_not_end_the_job(
    cluster: LocalCluster, state_dir: Path, tmp_path: Path
) -> None:
    pids, refused, go = tmp_path / "pids", tmp_path / "refused", tmp_path / "go"
    code = """
        import os, sys, time
        print(os.getpid(), file=open(sys.argv[1], "a"), flush=True)
        while os.environ["FRAY_ATTEMPT"] == "1" and not os.path.exists(sys.argv[2]):
            time.sleep(0.01)
        while not os.path.exists(sys.argv[3]) and os.environ["FRAY_ATTEMPT"] == "2":
            time.sleep(0.01)
        sys.exit(os.environ["FRAY_ATTEMPT"] == "1")
    """
    job_id = launch(cluster, program(code, pids, refused, go), max_retries_failure=1)
    until(lambda: cluster.poll(job_id).status is JobStatus.RUNNING, "the job runs")
    draft = state_dir / "jobs" / job_id / "status.json.new"
    until(lambda: not draft.exists(), "the status is written")
    draft.mkdir()  # the next one cannot be written for that
    refused.touch()
    until(lambda: len(numbers_in(pids)) == 2, "the second attempt starts")
    assert cluster.poll(job_id).tasks[0].attempt == 1
    draft.rmdir()
    until(lambda: cluster.poll(job_id).tasks[0].attempt == 2, "the status is written")
    go.touch()
    assert cluster.wait(job_id, timeout=30).status is JobStatus.SUCCEEDED


def test_a_job_waits_on_while_the_status_of_that_before_it_cannot_be_read(
    cluster: LocalCluster, state_dir: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    code = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)"
    first = launch(cluster, program(code, go))
    until(lambda: cluster.poll(first).status is JobStatus.RUNNING, "the first runs")
    second = launch(cluster, program("pass"), after=[first])
    until(lambda: "to succeed" in (cluster.poll(second).pending_reason or ""), "the second waits")
    status, aside = state_dir / "jobs" / first / "status.json", tmp_path / "aside"
    loop = status.with_name("loop")
    aside.hardlink_to(status)
    loop.symlink_to(status)
    loop.replace(status)  # at no moment is there none
    look_of(state_dir / "jobs" / second)
    aside.replace(status)
    assert cluster.poll(second).status is JobStatus.PENDING
    go.touch()
    infos = cluster.wait([first, second], timeout=30)
    assert [info.status for info in infos] == [JobStatus.SUCCEEDED] * 2


@pytest.fixture
def stuck(cluster: LocalCluster, wheels: Path, tmp_path: Path) -> Callable[[], tuple[JobId, int]]:
    """Launches a job whose environment is being built, and goes on so; returns the builder's process too."""
    package, workspace, pids = tmp_path / "package", tmp_path / "workspace", tmp_path / "builders"
    package.mkdir()
    workspace.mkdir()
    (package / "pyproject.toml").write_text(
        "[build-system]\nrequires = []\nbuild-backend = 'stuck'\nbackend-path = ['.']\n"
        "[project]\nname = 'package'\nversion = '1'\n"
    )
    (package / "stuck.py").write_text(
        "import os, time\n\n\ndef build_wheel(folder, settings=None, metadata=None):\n"
        f"    print(os.getpid(), file=open({str(pids)!r}, 'a'), flush=True)\n    time.sleep(600)\n"
    )

    def begin() -> tuple[JobId, int]:
        before = len(numbers_in(pids))
        environment = create_environment(workspace=str(workspace), pip_packages=[str(package)])
        job_id = launch(cluster, program("pass"), environment=environment)
        (pid,) = until(lambda: numbers_in(pids)[before:], "the environment is being built")
        assert cluster.poll(job_id).status is JobStatus.PENDING
        return job_id, pid

    return begin


def test_a_supervisor_is_killed_while_the_environment_is_built(
    cluster: LocalCluster, state_dir: Path, stuck: Callable[[], tuple[JobId, int]]
) -> None:
    job_id, builder = stuck()
    os.kill(supervisor(state_dir, job_id), signal.SIGKILL)
    until(lambda: not running(builder), "the builder ends, though nobody looks")
    info = cluster.wait(job_id, timeout=30)
    assert (info.status, info.tasks[0].reason) == (JobStatus.FAILED, ExitReason.LOST)
    assert info.tasks[0].attempt == 0
    again, builder = stuck()  # what the dead one held is free
    cluster.terminate(again, grace=0.0)
    assert cluster.poll(again).status is JobStatus.STOPPED
    assert not running(builder)


@pytest.mark.parametrize("both", [False, True])
def test_a_job_whose_supervisor_is_suspended_is_stopped_while_its_environment_is_built(
    cluster: LocalCluster, state_dir: Path, stuck: Callable[[], tuple[JobId, int]], both: bool
) -> None:
    job_id, builder = stuck()
    holder = holder_of(str(state_dir / "jobs" / job_id / "lock"))
    assert holder is not None
    for pid in (holder.pid, holder.guardian) if both else (holder.pid,):
        os.kill(pid, signal.SIGSTOP)
    cluster.terminate(job_id, grace=0.5)
    info = cluster.poll(job_id)
    assert (info.status, info.tasks[0].reason) == (JobStatus.STOPPED, ExitReason.STOPPED)
    assert not running(builder)
    assert not running(holder.pid)


def test_a_damaged_record_reads_failed_and_hides_no_other(cluster: LocalCluster, state_dir: Path) -> None:
    damaged, sound = (launch(cluster, program("pass")) for _ in range(2))
    cluster.wait([damaged, sound], timeout=30)
    (state_dir / "jobs" / damaged / "status.json").write_text("{")
    infos = {info.job_id: info for info in create_cluster(SPEC).list_jobs()}
    assert infos[sound].status is JobStatus.SUCCEEDED
    assert infos[damaged].status is JobStatus.FAILED
    assert "status.json" in (infos[damaged].error_message or "")
