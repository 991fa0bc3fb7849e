"""Jobs and replicas that run again because somebody wants it: `retry` and `restart`."""

import contextlib
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fray import ClusterUnavailableError
from fray.backend import SupervisorLock
from fray.cluster import Cluster, JobRequest, JobStatus, ResourceConfig, create_cluster
from fray.testing.cluster import launch, program, until
from fray.testing.cluster_fixtures import running
from fray_slurm.testing import LocalSlurm, RecordedSlurm

PATIENCE = 90.0
KILLED = 9
SMALL = ResourceConfig(cpu=2, ram="100m")
# Notes its process, and does not end when it is asked to.
STUBBORN = """
    import os, signal, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(os.getpid(), file=open(sys.argv[1], "a", 1))
    time.sleep(600)
"""


def test_an_attempt_that_is_killed_is_gone_before_the_next_one(cluster: Cluster, tmp_path: Path) -> None:
    """The process that started it, and srun, are killed with it: its step would run on."""
    pids = tmp_path / "pids"
    job_id = launch(cluster, program(STUBBORN, pids), resources=ResourceConfig(replicas=2, ram="100m"))

    def noted() -> list[int]:
        return [int(line) for line in pids.read_text().split()] if pids.exists() else []

    until(lambda: len(noted()) == 2, "both run", PATIENCE)
    cluster.restart(job_id, 1, grace=0.0)
    until(lambda: len(noted()) == 3, "one runs again", PATIENCE)
    assert sum(running(pid) for pid in noted()) == 2
    assert running(noted()[-1])
    until(lambda: [task.attempt for task in cluster.poll(job_id).tasks] == [1, 2], "it is written", PATIENCE)


def test_a_supervisor_on_another_host_is_asked_by_a_file(cluster: Cluster, tmp_path: Path) -> None:
    job_id = launch(cluster, program("import time; print('up', flush=True); time.sleep(600)"))
    assert next(iter(cluster.monitor(job_id))) == "up"
    (tmp_path / "records" / job_id / "control").unlink()  # a pipe reaches nobody on another host
    cluster.restart(job_id)
    until(lambda: cluster.poll(job_id).tasks[0].attempt == 2, "it runs again", PATIENCE)


def test_a_job_that_was_cancelled_while_it_waited_is_retried(
    slurm: LocalSlurm, cluster: Cluster, tmp_path: Path, number_of: Callable[[str], str]
) -> None:
    later = {"slurm": {"begin": "now+3600"}}
    job_id = launch(cluster, program("print('ran')"), backend=later, labels={"run": "7"})
    number = number_of(job_id)
    slurm.run("scancel", number)
    assert cluster.wait(job_id, timeout=PATIENCE).status is JobStatus.STOPPED
    assert cluster.retry(job_id) == job_id
    again = number_of(job_id)
    assert again != number
    assert "Comment=run=7" in slurm.run("scontrol", "show", "job", again)
    slurm.run("scontrol", "update", f"JobId={again}", "StartTime=now")
    info = cluster.wait(job_id, timeout=PATIENCE)
    assert (info.status, info.tasks[0].attempt) == (JobStatus.SUCCEEDED, 1)


def test_a_retry_that_slurm_has_not_taken_is_not_the_run_that_has_ended(
    slurm: LocalSlurm,
    cluster: Cluster,
    number_of: Callable[[str], str],
    wrap_sbatch: Callable[[str], None],
) -> None:
    job_id = launch(cluster, program("pass"), backend={"slurm": {"begin": "now+3600"}})
    slurm.run("scancel", number_of(job_id))
    assert cluster.wait(job_id, timeout=PATIENCE).status is JobStatus.STOPPED
    wrap_sbatch("echo 'sbatch: error: Socket timed out on send/recv operation' >&2; exit 1")
    with pytest.raises(ClusterUnavailableError, match="Socket timed out"):
        cluster.retry(job_id)
    assert cluster.poll(job_id).finished
    wrap_sbatch('/usr/bin/sbatch "$@" >/dev/null; echo sbatch: error: Socket timed out >&2; exit 1')
    assert cluster.retry(job_id) == job_id  # it was taken
    slurm.run("scontrol", "update", f"JobId={number_of(job_id)}", "StartTime=now")
    assert cluster.wait(job_id, timeout=PATIENCE).status is JobStatus.SUCCEEDED


@pytest.mark.parametrize("what", ["job", "replicas", "sweep"])
def test_a_retry_that_slurm_refuses_leaves_a_job_that_ended_as_it_did_and_can_be_retried(
    recorded: RecordedSlurm, tmp_path: Path, what: str
) -> None:
    cluster = create_cluster(f"slurm?root={tmp_path}/records&poll_interval=0.05")
    job_id = launch_one(cluster, what)
    recorded.says("squeue", "".join(f"77{task}|TIMEOUT|1:00|TimeLimit\n" for task in ("", "_0", "_1")))
    until(lambda: cluster.poll(job_id).finished, "it has ended", 10)
    ended = cluster.poll(job_id)
    recorded.says("sbatch", "", error="sbatch: error: the partition is closed", code=1)
    with pytest.raises(ValueError, match="the partition is closed"):
        cluster.retry(job_id)
    info = cluster.poll(job_id)
    assert (info.status, info.error_message) == (JobStatus.FAILED, ended.error_message)
    assert [task.reason for task in info.tasks] == [task.reason for task in ended.tasks]
    recorded.says("sbatch", "78\n")
    recorded.says("squeue", "".join(f"78{task}|PENDING|1:00|Priority\n" for task in ("", "_0", "_1")))
    assert cluster.retry(job_id) == job_id
    shown = f"{job_id}/0" if what == "sweep" else job_id
    until(lambda: "higher priority" in str(cluster.poll(shown).pending_reason), "it waits", 10)


def launch_one(cluster: Cluster, what: str) -> str:
    """Launch a job, one with two replicas, or a sweep of two."""
    if what == "sweep":
        return cluster.launch_many([JobRequest("job", program("pass"), resources=SMALL)] * 2)
    resources = ResourceConfig(cpu=2, ram="100m", replicas=2) if what == "replicas" else SMALL
    return launch(cluster, program("pass"), resources=resources)


@pytest.mark.parametrize("what", ["job", "replicas", "sweep"])
def test_a_job_whose_launcher_was_killed_as_its_record_appeared_is_run_again_with_what_it_asked_for(
    recorded: RecordedSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    cluster = create_cluster(f"slurm?root={tmp_path}/records&poll_interval=0.05")
    launcher = os.fork()
    if launcher == 0:
        sys.addaudithook(killed_after_a_rename_to(tmp_path / "records"))
        launch_one(cluster, what)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(launcher, 0)[1]) == KILLED
    assert not recorded.calls("sbatch")
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 600)
    (info,) = cluster.list_jobs()
    assert cluster.wait(info.job_id, timeout=PATIENCE).status is JobStatus.FAILED
    cluster.retry(info.job_id)
    assert "#SBATCH --cpus-per-task=2\n" in recorded.script


def killed_after_a_rename_to(folder: Path) -> Callable[[str, tuple[object, ...]], None]:
    """Return an audit hook that ends its process as soon as something new has a name in a folder."""
    appeared: list[object] = []

    def hook(event: str, args: tuple[object, ...]) -> None:
        if appeared:
            os._exit(KILLED)
        if event == "os.rename" and Path(str(args[1])).parent == folder:
            appeared.append(args[1])

    return hook


def test_one_of_two_who_retry_a_job_at_once_leaves_that_of_the_other_alone(
    recorded: RecordedSlurm, tmp_path: Path
) -> None:
    first, second = (create_cluster(f"slurm?root={tmp_path}/records&poll_interval=0.05") for _ in range(2))
    job_id = launch(first, program("pass"))
    recorded.says("squeue", "77|TIMEOUT|1:00|TimeLimit\n")
    for each in (first, second):
        until(lambda each=each: each.poll(job_id).finished, "it has ended", 10)  # type: ignore[misc]
    asked, go = tmp_path / "asked", tmp_path / "go"
    squeue = tmp_path / "recorded" / "squeue"
    wait = f"mkdir '{asked}' 2>/dev/null && until [ -e '{go}' ]; do sleep 0.05; done"
    squeue.write_text(squeue.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{wait}\n"))
    recorded.says("sbatch", "78\n")
    with ThreadPoolExecutor(1) as threads:
        late = threads.submit(second.retry, job_id)
        until(asked.exists, "the other asks whether Slurm has it yet", 10)
        first.retry(job_id)
        recorded.says("squeue", "78|PENDING|1:00|Priority\n")
        go.touch()
        with pytest.raises(ValueError, match="is pending: it can be run again when it has ended"):
            late.result(20)
    until(lambda: "higher priority" in str(first.poll(job_id).pending_reason), "it is followed", 10)
    assert len(recorded.calls("sbatch")) == 2


def test_a_slurm_job_that_was_taken_late_does_not_run_what_was_submitted_again(
    slurm: LocalSlurm,
    cluster: Cluster,
    wrap_sbatch: Callable[[str], None],
    number_of: Callable[[str], str],
    tmp_path: Path,
) -> None:
    runs = tmp_path / "runs"
    noting = program("import sys; print('run', file=open(sys.argv[1], 'a'))", runs)
    job_id = launch(cluster, noting, backend={"slurm": {"begin": "now+3600"}})
    cluster.terminate(job_id)
    wrap_sbatch(f"cat > '{tmp_path}/script'; echo 'sbatch: error: Socket timed out' >&2; exit 1")
    with pytest.raises(ClusterUnavailableError, match="Socket timed out"):
        cluster.retry(job_id)
    wrap_sbatch('exec /usr/bin/sbatch "$@"')
    cluster.retry(job_id)
    number = number_of(job_id)
    stale = slurm.run("sbatch", "--parsable", "--begin=now", os.fspath(tmp_path / "script")).strip()
    until(lambda: stale not in slurm.run("squeue", "-h", "-o", "%i"), "that one has ended", PATIENCE)
    assert not runs.exists()
    assert number_of(job_id) == number
    assert cluster.poll(job_id).status is JobStatus.PENDING
    slurm.run("scontrol", "update", f"JobId={number}", "StartTime=now")
    assert cluster.wait(job_id, timeout=PATIENCE).status is JobStatus.SUCCEEDED
    assert runs.read_text() == "run\n"


def test_a_record_that_a_host_holds_which_is_down_hangs_nobody(
    recorded: RecordedSlurm, tmp_path: Path
) -> None:
    """A file system keeps the locks of a host for a while, and some until it is up again."""
    cluster = create_cluster(f"slurm?root={tmp_path}/records&poll_interval=0.05")
    job_id = launch(cluster, program("pass"))
    recorded.says("squeue", "77|NODE_FAIL|1:00|None\n")
    until(lambda: cluster.poll(job_id).finished, "it has ended", 10)
    held = SupervisorLock.acquire(os.fspath(tmp_path / "records" / job_id / "lock"))
    assert held is not None
    with contextlib.closing(held), ThreadPoolExecutor(3) as threads:
        retried, removed = (threads.submit(do, job_id) for do in (cluster.retry, cluster.remove))
        pruned = threads.submit(cluster.prune)
        for refused in (retried, removed):
            with pytest.raises(ClusterUnavailableError, match="still holds its record"):
                refused.result(30)
        assert pruned.result(30).jobs == ()
    cluster.remove(job_id)


def test_a_retry_does_not_wait_for_the_job_that_has_the_number_by_now(
    recorded: RecordedSlurm, tmp_path: Path
) -> None:
    cluster = create_cluster(f"slurm?root={tmp_path}/records&poll_interval=0.05")
    job_id = launch(cluster, program("pass"))
    recorded.says("squeue", "77|RUNNING|1:00|None|another\n")
    until(lambda: cluster.poll(job_id).finished, "it is lost", 10)
    recorded.says("sbatch", "78\n")
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(cluster.retry, job_id).result(15) == job_id
    assert len(recorded.calls("sbatch")) == 2


def test_jobs_that_slurm_alone_knows_to_have_ended_are_pruned(
    recorded: RecordedSlurm, tmp_path: Path
) -> None:
    cluster = create_cluster(f"slurm?root={tmp_path}/records&poll_interval=0.05")
    job_id = launch(cluster, program("pass"))
    recorded.says("squeue", "77|CANCELLED by 1000|1:00|None\n")
    until(lambda: cluster.poll(job_id).finished, "it has ended", 10)
    cluster.prune()
    assert cluster.list_jobs() == []


def test_jobs_of_a_job_that_slurm_alone_knows_to_have_ended_keep_no_record(
    recorded: RecordedSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = create_cluster(f"slurm?root={tmp_path}/records&poll_interval=0.05")
    parent = launch(cluster, program("pass"))
    recorded.says("sbatch", "78\n")
    monkeypatch.setenv("FRAY_JOB_ID", parent)
    child = launch(cluster, program("pass"))
    monkeypatch.delenv("FRAY_JOB_ID")
    recorded.says("squeue", "77|CANCELLED by 1|1:00|None\n78|CANCELLED by 1|1:00|None\n")
    until(lambda: cluster.poll(parent).finished and cluster.poll(child).finished, "they have ended", 10)
    assert cluster.prune().jobs == (parent,)
    assert cluster.list_jobs() == []
