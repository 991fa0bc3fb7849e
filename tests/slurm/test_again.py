"""Jobs and replicas that run again because somebody wants it: `retry` and `restart`."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fray import ClusterUnavailableError
from fray.cluster import Cluster, JobStatus, ResourceConfig, create_cluster
from fray.testing.cluster import launch, program, until
from fray.testing.cluster_fixtures import running
from fray_slurm.testing import LocalSlurm, RecordedSlurm

PATIENCE = 90.0
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


def test_a_retry_that_slurm_refuses_leaves_a_job_that_can_be_retried(
    recorded: RecordedSlurm, tmp_path: Path
) -> None:
    cluster = create_cluster(f"slurm?root={tmp_path}/records&poll_interval=0.05")
    job_id = launch(cluster, program("pass"))
    recorded.says("squeue", "77|TIMEOUT|1:00|TimeLimit\n")
    until(lambda: cluster.poll(job_id).finished, "it has ended", 10)
    recorded.says("sbatch", "", error="sbatch: error: the partition is closed", code=1)
    with pytest.raises(ValueError, match="the partition is closed"):
        cluster.retry(job_id)
    assert cluster.poll(job_id).finished
    recorded.says("sbatch", "78\n")
    recorded.says("squeue", "78|PENDING|1:00|Priority\n")
    assert cluster.retry(job_id) == job_id
    until(lambda: "higher priority" in str(cluster.poll(job_id).pending_reason), "it waits", 10)


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
