"""Sweeps on this machine: what waits is no process, who is killed, where secrets are, what is run again."""

import contextlib
import os
import signal
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fray import UnsupportedError
from fray.backend import SupervisorLock, environment_of, post_to_supervisor
from fray.cluster import (
    Entrypoint,
    ExitReason,
    JobRequest,
    JobStatus,
    ResourceConfig,
    SweepId,
    create_environment,
)
from fray.testing.cluster import launch, program, until
from fray.testing.cluster_fixtures import numbers_in
from fray.testing.cluster_sweeps import WHEN_THERE
from fray_local import LocalCluster

SECRET = "hunter2-hunter2-hunter2"
SLEEP = "import os, sys, time; print(os.getpid(), file=open(sys.argv[1], 'a', 1)); time.sleep(600)"
PATIENCE = 60.0


def sleepers(cluster: LocalCluster, pids: Path, count: int, max_parallel: int | None = None) -> SweepId:
    """Launch a sweep of jobs that do not end."""
    return cluster.launch_many([JobRequest("sleeper", program(SLEEP, pids))] * count, max_parallel)


def supervised(state: Path) -> set[str]:
    """The records that processes of this machine are about."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    records = {environment_of(pid).get("FRAY_JOB_DIR", "") for pid in pids}
    return {record for record in records if record.startswith(f"{state}/")}


def test_the_end_of_a_member_reads_none_of_those_that_wait(state_dir: Path, tmp_path: Path) -> None:
    """There is no index of members: nobody reads one, and it would be made again at each end."""
    cluster, pids = LocalCluster(overcommit=True), tmp_path / "pids"
    first = JobRequest("first", Entrypoint.from_binary("true"))
    others = [JobRequest("sleeper", program(SLEEP, pids))] * 220
    sweep = cluster.launch_many([first, *others], max_parallel=1)
    until(lambda: numbers_in(pids), "the first has ended, and the second runs", PATIENCE)
    members = state_dir / "jobs" / sweep / "jobs"
    until(lambda: str(members / "0") not in supervised(state_dir), "its guardian has ended", PATIENCE)
    assert [path.name for path in members.iterdir() if not path.name.isdecimal()] == []
    cluster.terminate(sweep, grace=0.0)


def test_members_that_wait_are_no_processes(state_dir: Path, tmp_path: Path) -> None:
    cluster, pids = LocalCluster(cpus=2), tmp_path / "pids"
    sweep = sleepers(cluster, pids, 100)
    until(lambda: len(numbers_in(pids)) == 2, "as many run as there is room for", PATIENCE)
    until(lambda: (cluster.poll(sweep).progress or {}).get("running") == 2, "they read running", PATIENCE)
    assert cluster.poll(sweep).progress == {"pending": 98, "running": 2}
    assert len(supervised(state_dir)) <= 2 + 1 + 8  # those that run, the coordinator, and the next ones
    assert [info.job_id for info in cluster.list_jobs(status="running")] == [sweep]
    until(lambda: len(cluster.list_jobs(parent=sweep, status="pending")) == 98, "so do they", PATIENCE)
    cluster.terminate(sweep, grace=0.0)
    assert cluster.poll(sweep).progress == {"stopped": 100}
    assert len(numbers_in(pids)) == 2


@pytest.mark.parametrize("guarded", [True, False])
def test_a_sweep_ends_with_its_coordinator(state_dir: Path, tmp_path: Path, guarded: bool) -> None:
    cluster, pids = LocalCluster(overcommit=True), tmp_path / "pids"
    sweep = sleepers(cluster, pids, 4, max_parallel=2)
    until(lambda: len(numbers_in(pids)) == 2, "two members run", PATIENCE)
    until(
        lambda: sum(1 for info in cluster.list_jobs(parent=sweep) if info.started_at) == 2,
        "they read running",
        PATIENCE,
    )
    holder = cluster.record(sweep).holder()
    assert holder is not None
    victims = [holder.pid] if guarded else [holder.guardian, holder.pid]
    for pid in victims:
        os.kill(pid, signal.SIGSTOP)
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    info = cluster.wait(sweep, timeout=PATIENCE)
    assert info.status is JobStatus.FAILED
    assert "was killed before" in str(info.error_message)
    waiting = [each for each in cluster.list_jobs(parent=sweep) if not each.started_at]
    if guarded:
        until(lambda: cluster.poll(sweep).progress == {"stopped": 4}, "all of it ends", PATIENCE)
    else:
        assert [each.status for each in waiting] == [JobStatus.STOPPED] * 2
        assert "its sweep ended" in str(waiting[0].error_message)
        for position in (0, 1):
            cluster.terminate(sweep.member(position), grace=0.0)
    assert all(each.finished for each in cluster.list_jobs(parent=sweep))
    until(lambda: cluster.prune().jobs == (sweep,), "it is forgotten", PATIENCE)
    assert len(numbers_in(pids)) == 2


def test_signals_of_a_user_end_no_sweep_and_reach_the_programs_of_its_members(
    state_dir: Path, tmp_path: Path
) -> None:
    cluster, go = LocalCluster(overcommit=True), tmp_path / "go"
    waits = JobRequest("waits", program(WHEN_THERE, go))
    signals = (signal.SIGUSR1, signal.SIGUSR2)
    ends = [JobRequest("ends", program(f"import os; os.kill(os.getpid(), {each:d})")) for each in signals]
    sweep = cluster.launch_many([waits, *ends], max_parallel=1)
    until(lambda: (cluster.poll(sweep).progress or {}).get("running") == 1, "the first runs", PATIENCE)
    holders = [cluster.record(job_id).holder() for job_id in (sweep, sweep.member(0))]
    for pid in [pid for holder in holders if holder for pid in (holder.guardian, holder.pid)]:
        for number in signals:
            os.kill(pid, number)
    go.touch()
    info = cluster.wait(sweep, timeout=PATIENCE)
    assert info.progress == {"succeeded": 1, "failed": 2}, info
    codes = [cluster.poll(sweep.member(position)).tasks[0].exit_code for position in range(3)]
    assert codes == [0, -signal.SIGUSR1, -signal.SIGUSR2]


def test_members_whose_supervisors_were_killed_run_again_with_the_rest(
    state_dir: Path, tmp_path: Path
) -> None:
    cluster, pids, go = LocalCluster(overcommit=True), tmp_path / "pids", tmp_path / "go"
    code = """
        import os, sys, time
        print(os.getpid(), file=open(sys.argv[1], "a", 1))
        while not os.path.exists(sys.argv[2]):
            time.sleep(0.01)
    """
    sweep = cluster.launch_many([JobRequest("one", program(code, pids, go))] * 2)
    until(lambda: len(numbers_in(pids)) == 2, "both members run", PATIENCE)
    holder = cluster.record(sweep.member(0)).holder()
    assert holder is not None
    os.kill(holder.pid, signal.SIGKILL)
    until(lambda: (cluster.poll(sweep).progress or {}).get("failed") == 1, "one member is lost", PATIENCE)
    assert cluster.poll(sweep.member(0)).tasks[0].reason is ExitReason.LOST
    with pytest.raises(ValueError, match="when it has ended"):
        cluster.retry(sweep)
    with pytest.raises(ValueError, match="retry it then"):
        cluster.retry(sweep.member(0))
    go.touch()
    assert cluster.wait(sweep, timeout=PATIENCE).progress == {"succeeded": 1, "failed": 1}
    cluster.retry(sweep.member(0))
    assert cluster.wait(sweep, timeout=PATIENCE).progress == {"succeeded": 2}


@pytest.mark.parametrize("swept", [False, True])
def test_of_two_calls_that_run_a_job_again_at_one_moment_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swept: bool
) -> None:
    cluster, runs = LocalCluster(overcommit=True), tmp_path / "runs"
    code = """
        import sys
        with open(sys.argv[1], "a") as file:
            file.write("0\\n")
        sys.exit(len(open(sys.argv[1]).readlines()) == 1)
    """
    request = JobRequest("once", program(code, runs))
    job_id = cluster.launch_many([request]) if swept else cluster.launch(request)
    assert cluster.wait(job_id, timeout=PATIENCE).status is JobStatus.FAILED
    lock = until(
        lambda: SupervisorLock.acquire(f"{cluster.record(job_id).path}/lock"), "it is free", PATIENCE
    )
    assert lock is not None
    acquire, waiting = SupervisorLock.acquire, set[int]()

    def noted(path: str) -> SupervisorLock | None:
        waiting.add(threading.get_ident())
        return acquire(path)

    monkeypatch.setattr(SupervisorLock, "acquire", noted)
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(cluster.retry, job_id) for _ in range(2)]
        until(lambda: len(waiting) == 2, "both have judged the job, and wait", PATIENCE)
        lock.close()
        errors = [call.exception(PATIENCE) for call in calls]
    assert sorted(map(type, errors), key=str) == sorted([type(None), ValueError], key=str), errors
    assert cluster.wait(job_id, timeout=PATIENCE).status is JobStatus.SUCCEEDED
    assert len(numbers_in(runs)) == 2


def test_a_job_that_could_not_be_started_again_reads_as_it_had_ended_and_can_be(
    state_dir: Path, tmp_path: Path
) -> None:
    cluster, fixed = LocalCluster(cpus=1), tmp_path / "fixed"
    job_id = launch(cluster, program("import os, sys; sys.exit(not os.path.exists(sys.argv[1]))", fixed))
    ended = cluster.wait(job_id, timeout=PATIENCE)
    log = state_dir / "jobs" / job_id / "supervisor.log"
    log.unlink()
    log.mkdir()  # no supervisor is started without its log
    with pytest.raises(IsADirectoryError):
        cluster.retry(job_id)
    assert cluster.poll(job_id) == ended
    log.rmdir()
    fixed.touch()
    cluster.retry(job_id)
    info = cluster.wait(job_id, timeout=PATIENCE)
    assert (info.status, info.tasks[0].attempt) == (JobStatus.SUCCEEDED, 2)


def test_a_job_whose_supervisor_was_killed_cannot_be_run_again(state_dir: Path, tmp_path: Path) -> None:
    cluster, pids = LocalCluster(overcommit=True), tmp_path / "pids"
    job_id = launch(cluster, program(SLEEP, pids))
    until(lambda: numbers_in(pids), "it runs", PATIENCE)
    holder = cluster.record(job_id).holder()
    assert holder is not None
    os.kill(holder.pid, signal.SIGKILL)
    cluster.wait(job_id, timeout=PATIENCE)
    with pytest.raises(UnsupportedError, match="launch it as a new job"):
        cluster.retry(job_id)


def test_secrets_are_in_no_file_and_come_from_who_runs_it_again(
    state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, go = LocalCluster(overcommit=True), tmp_path / "go"
    code = f"""
        import os, sys, time
        assert os.environ['API_TOKEN'] == {SECRET[::-1]!r}[::-1] and os.environ['LEVEL'] == '3'
        while not os.path.exists(sys.argv[1]): time.sleep(0.01)
        raise SystemExit(int(open(sys.argv[1]).read() or 0))
    """
    plain = {"MAX_TOKENS": "9", "TOKENIZERS_PARALLELISM": "0", "FRAY_PARAM_KEY": "a", "FRAY_PARAM_LR": "1"}
    environment = create_environment(env_vars={"API_TOKEN": SECRET, "LEVEL": "3", **plain})
    request = JobRequest("secret", program(code, go), environment=environment)
    job_id, sweep = cluster.launch(request), cluster.launch_many([request] * 2, max_parallel=1)

    def in_files() -> list[Path]:
        found = []
        for path in state_dir.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # it is replaced, or needed no more
                if path.is_file():
                    assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
                    found += [path] if SECRET in path.read_text(errors="replace") else []
        return found

    assert in_files() == []
    go.write_text("3")
    assert [info.exit_code for info in cluster.wait([job_id, sweep], timeout=PATIENCE)] == [3, 1]
    assert cluster.poll(sweep).progress == {"failed": 2}
    assert in_files() == []
    for each in (job_id, sweep):
        with pytest.raises(ValueError, match="API_TOKEN in env_vars"):
            cluster.retry(each)
        assert cluster.poll(each).status is JobStatus.FAILED
    go.write_text("")
    monkeypatch.setenv("API_TOKEN", SECRET)
    for each in (job_id, sweep):
        cluster.retry(each)
        assert cluster.wait(each, timeout=PATIENCE).status is JobStatus.SUCCEEDED
    assert in_files() == []


def test_a_sweep_of_a_snapshot_has_one_copy(state_dir: Path, tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "step.py").write_text("print('as it was')")
    cluster, environment = LocalCluster(overcommit=True), create_environment(workspace=workspace)
    go = tmp_path / "go"
    blocker = launch(cluster, program(WHEN_THERE, go))
    request = JobRequest("step", "step", environment=environment, snapshot=True, after=[blocker])
    sweep = cluster.launch_many([request] * 3)
    (workspace / "step.py").write_text("print('as it is')")
    go.touch()
    cluster.wait(sweep, timeout=PATIENCE, raise_on_failure=True)
    assert sorted(cluster.monitor(sweep)) == [f"[{position}] as it was" for position in range(3)]
    assert len([path for path in state_dir.rglob("step.py") if not path.parent.is_symlink()]) == 1
    copied = len("print('as it was')")
    # At least: Python may have kept what it compiled beside the copy.
    until(lambda: cluster.prune(dry_run=True).sizes["snapshots"] >= copied, "the copy is that of a snapshot")


def test_a_job_runs_only_those_replicas_again_that_failed(state_dir: Path, tmp_path: Path) -> None:
    cluster, fixed = LocalCluster(overcommit=True), tmp_path / "fixed"
    code = """
        import os, sys
        sys.exit(int(os.environ["FRAY_REPLICA_ID"] == "1" and not os.path.exists(sys.argv[1])))
    """
    job_id = launch(cluster, program(code, fixed), resources=ResourceConfig(replicas=2))
    assert cluster.wait(job_id, timeout=PATIENCE).status is JobStatus.FAILED
    fixed.touch()
    cluster.retry(job_id)
    assert [task.attempt for task in cluster.wait(job_id, timeout=PATIENCE).tasks] == [1, 2]
    assert cluster.poll(job_id).status is JobStatus.SUCCEEDED


def test_a_sweep_that_was_lost_with_its_machine_runs_again(state_dir: Path, tmp_path: Path) -> None:
    """All of its processes are killed at one moment, as by a power cut."""
    cluster, pids, go = LocalCluster(overcommit=True), tmp_path / "pids", tmp_path / "go"
    code = """
        import os, sys, time
        print(os.getpid(), file=open(sys.argv[1], "a", 1))
        while not os.path.exists(sys.argv[2]):
            time.sleep(0.01)
    """
    sweep = cluster.launch_many([JobRequest("one", program(code, pids, go))] * 3, max_parallel=1)
    until(lambda: len(numbers_in(pids)) == 1, "a member runs", PATIENCE)
    until(lambda: cluster.poll(sweep.member(0)).started_at, "it reads running", PATIENCE)
    holders = [cluster.record(each).holder() for each in (sweep, sweep.member(0))]
    doomed = [pid for holder in holders if holder for pid in (holder.guardian, holder.pid)] + numbers_in(pids)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError):  # it has ended with one that was killed before
                os.kill(pid, number)
    assert cluster.wait(sweep, timeout=PATIENCE).status is JobStatus.FAILED
    ended = [JobStatus.FAILED, JobStatus.STOPPED, JobStatus.STOPPED]
    # A process that was killed holds its lock for a moment yet.
    until(lambda: [info.status for info in cluster.list_jobs(parent=sweep)] == ended, "all ended", PATIENCE)
    cluster.retry(sweep)
    go.touch()
    assert cluster.wait(sweep, timeout=PATIENCE).progress == {"succeeded": 3}
    (task,) = cluster.poll(sweep.member(0)).tasks
    assert [each.reason for each in (task, *task.previous)] == [ExitReason.EXITED, ExitReason.LOST]


@pytest.mark.parametrize("what", ["job", "sweep"])
def test_a_retry_that_is_killed_before_it_starts_a_supervisor_leaves_what_can_be_retried(
    state_dir: Path, tmp_path: Path, what: str
) -> None:
    cluster, ready = LocalCluster(overcommit=True), tmp_path / "ready"
    request = JobRequest("job", program(f"import os, sys; sys.exit(not os.path.exists({str(ready)!r}))"))
    job_id = cluster.launch_many([request] * 2) if what == "sweep" else cluster.launch(request)
    assert cluster.wait(job_id, timeout=PATIENCE).status is JobStatus.FAILED
    killed = os.fork()
    if killed == 0:
        SupervisorLock.say = lambda self, holder: os._exit(9)  # type: ignore[method-assign]
        try:
            cluster.retry(job_id)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(killed, 0)[1]) == 9
    assert cluster.wait(job_id, timeout=PATIENCE).status is JobStatus.FAILED
    ready.touch()
    cluster.retry(job_id)
    assert cluster.wait(job_id, timeout=PATIENCE).status is JobStatus.SUCCEEDED


# Notes its process when it is asked to end, and does not end.
STUBBORN = """
    import os, signal, sys, time
    def note(path):
        print(os.getpid(), file=open(path, "a", 1))
    signal.signal(signal.SIGTERM, lambda *_: note(sys.argv[2]))
    note(sys.argv[1])
    while True:
        time.sleep(1)
"""


def test_a_sweep_that_is_to_end_sooner_than_was_asked_before_does(state_dir: Path, tmp_path: Path) -> None:
    cluster, pids, told = LocalCluster(overcommit=True), tmp_path / "pids", tmp_path / "told"
    sweep = cluster.launch_many([JobRequest("stubborn", program(STUBBORN, pids, told))] * 2)
    until(lambda: len(numbers_in(pids)) == 2, "both run", PATIENCE)
    with ThreadPoolExecutor(1) as threads:
        patient = threads.submit(cluster.terminate, sweep, 600.0)
        until(lambda: len(numbers_in(told)) == 2, "they are asked to end", PATIENCE)
        # It does not end them itself, as `terminate` would after a while: it is the coordinator's part.
        assert post_to_supervisor(os.fspath(state_dir / "jobs" / sweep), "stop 0.5")
        patient.result(PATIENCE)
    assert cluster.poll(sweep).progress == {"stopped": 2}


def test_a_sweep_goes_on_while_the_status_of_a_member_cannot_be_read(state_dir: Path, tmp_path: Path) -> None:
    cluster, go = LocalCluster(overcommit=True), tmp_path / "go"
    sweep = cluster.launch_many([JobRequest("waits", program(WHEN_THERE, go))] * 2, max_parallel=1)
    until(lambda: cluster.poll(sweep.member(0)).status is JobStatus.RUNNING, "the first one runs", PATIENCE)
    status, aside = state_dir / "jobs" / sweep / "jobs" / "1" / "status.json", tmp_path / "aside"
    status.rename(aside)
    status.symlink_to(status)
    go.touch()
    until(lambda: (cluster.poll(sweep).progress or {}).get("succeeded") == 1, "it has ended", PATIENCE)
    aside.replace(status)
    info = cluster.wait(sweep, timeout=PATIENCE)
    assert (info.status, info.progress) == (JobStatus.SUCCEEDED, {"succeeded": 2})
