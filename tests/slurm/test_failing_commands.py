"""Slurm's commands fail: nothing is taken for ended, nobody waits long, and the cluster says what it was."""

import json
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fray import ClusterUnavailableError
from fray.cluster import Cluster, JobStatus, create_cluster
from fray.testing.cluster import launch, program, until
from fray_slurm.testing import RecordedSlurm

AWAY = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"


@pytest.fixture
def cluster(recorded: RecordedSlurm, tmp_path: Path) -> Cluster:
    return create_cluster(f"slurm?root={tmp_path}/records&poll_interval=0.05")


def test_a_new_process_asks_once_for_all_jobs_which_cluster_this_is(
    recorded: RecordedSlurm, tmp_path: Path
) -> None:
    """With slurmctld away each question takes up to 18 seconds."""
    launching = create_cluster(f"slurm?root={tmp_path}/records&poll_interval=0.05")
    recorded.says("scontrol", "ClusterName = here\n")
    for number in range(30):
        recorded.says("sbatch", f"{100 + number}\n")
        launch(launching, program("pass"))
    recorded.says("scontrol", "", error=AWAY, code=1)
    recorded.says("squeue", "", error=AWAY, code=1)
    asked = len(recorded.calls("scontrol"))
    fresh = create_cluster(f"slurm?root={tmp_path}/records&poll_interval=0.05")
    assert len(list(fresh.list_jobs())) == 30
    assert len(recorded.calls("scontrol")) - asked <= 2


def says_nothing(recorded: RecordedSlurm) -> None:
    for name in ("scontrol", "squeue"):
        recorded.says(name, "", error=AWAY, code=1)


def test_a_job_of_another_slurm_is_not_lost_where_the_name_of_this_one_was_not_to_be_had(
    recorded: RecordedSlurm, tmp_path: Path
) -> None:
    spec = f"slurm?root={tmp_path}/records&poll_interval=0.05"
    recorded.says("scontrol", "ClusterName = here\n")
    job_id = launch(create_cluster(spec), program("pass"))
    says_nothing(recorded)
    there = create_cluster(spec)
    assert "does not answer" in str(there.poll(job_id).pending_reason)
    recorded.says("scontrol", "ClusterName = there\n")
    recorded.says("squeue", "")
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline:
        assert there.poll(job_id).status is JobStatus.PENDING
    assert "in the queue of the Slurm cluster 'here'" in str(there.poll(job_id).pending_reason)
    assert there.prune().jobs == ()
    assert not recorded.calls("scancel")


def test_a_job_is_not_cancelled_by_its_number_before_the_name_of_the_cluster_is_known(
    recorded: RecordedSlurm, tmp_path: Path, runs_elsewhere: Callable[[Path], None]
) -> None:
    """One that has started is known by its number alone, which another cluster gives to another job."""
    spec = f"slurm?root={tmp_path}/records&poll_interval=0.05"
    recorded.says("scontrol", "ClusterName = here\n")
    job_id = launch(create_cluster(spec), program("pass"))
    record = tmp_path / "records" / job_id
    runs_elsewhere(record)
    allocation = {"variables": {"SLURM_JOB_ID": "77"}, "nodes": [], "addresses": {}}
    (record / "slurm" / "allocation.json").write_text(json.dumps(allocation))
    recorded.says("scontrol", "ClusterName = there\n", error=AWAY, code=1)
    recorded.says("squeue", "77|PENDING|1:00|None|another\n")
    there, asked = create_cluster(spec), len(recorded.calls("scontrol"))

    def is_asked_again() -> bool:
        return len(recorded.calls("scontrol")) > asked + 2 or bool(recorded.calls("scancel"))

    with ThreadPoolExecutor(1) as threads:
        stopped = threads.submit(there.terminate, job_id, 0.0)
        until(is_asked_again, "Slurm is asked for the name again", 60)
        recorded.says("scontrol", "ClusterName = there\n")
        status = json.loads((record / "status.json").read_text())
        (record / "status.json").write_text(json.dumps(status | {"status": "stopped"}))
        stopped.result(60)
    assert not recorded.calls("scancel")


def test_a_job_that_was_launched_when_slurm_answered_again_is_known_as_this_cluster_s(
    cluster: Cluster, recorded: RecordedSlurm, tmp_path: Path
) -> None:
    launch(cluster, program("pass"))  # asks whether the nodes see the folder
    recorded.says("scontrol", "ClusterName = here\n")
    fresh = create_cluster(f"slurm?root={tmp_path}/records&poll_interval=0.05")
    first = launch(fresh, program("pass"))
    says_nothing(recorded)
    again = create_cluster(f"slurm?root={tmp_path}/records&poll_interval=0.05")
    assert "does not answer" in str(again.poll(first).pending_reason)
    recorded.says("scontrol", "ClusterName = here\n")
    job_id = launch(again, program("pass"))
    noted = json.loads((tmp_path / "records" / job_id / "slurm" / "job.json").read_text())
    assert noted["cluster"] == "here"


def test_accounts_that_fail_for_an_unknown_reason_lose_no_job(
    cluster: Cluster, recorded: RecordedSlurm
) -> None:
    job_id = launch(cluster, program("pass"))
    recorded.says("sacct", "", error="sacct: error: slurm_persist_conn_open: No route to host", code=1)
    until(lambda: "No route to host" in str(cluster.poll(job_id).pending_reason), "they are asked", 20)
    asked = len(recorded.calls("sacct"))

    def asked_again() -> bool:
        cluster.poll(job_id)
        return len(recorded.calls("sacct")) > asked + 2

    until(asked_again, "they are asked again", 20)
    assert cluster.poll(job_id).status is JobStatus.PENDING
    recorded.says("sacct", "77|TIMEOUT|0:15|None\n")
    until(lambda: cluster.poll(job_id).finished, "they answer", 20)
    assert "time limit" in str(cluster.poll(job_id).error_message)


def test_accounts_that_fail_again_after_an_hour_lose_no_job(
    cluster: Cluster, recorded: RecordedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are asked only while a job is missing; those that fail for five minutes may not be kept at all."""
    passed, clock = 0.0, time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() + passed)
    job_id = launch(cluster, program("pass"))
    recorded.says("sacct", "", error="sacct: error: slurm_persist_conn_open: No route to host", code=1)
    until(lambda: "No route to host" in str(cluster.poll(job_id).pending_reason), "they are asked", 20)
    recorded.says("squeue", "77|PENDING|1:00|Priority\n")
    until(lambda: "higher priority" in str(cluster.poll(job_id).pending_reason), "it is there again", 20)
    passed, asked = 3600.0, len(recorded.calls("sacct"))
    recorded.says("squeue", "")

    def is_asked() -> bool:
        assert cluster.poll(job_id).status is JobStatus.PENDING
        return len(recorded.calls("sacct")) > asked + 3

    until(is_asked, "they are asked again", 20)
    for _ in range(40):
        passed += 10.0
        cluster.poll(job_id)
    until(lambda: cluster.poll(job_id).finished, "it is given up", 20)


def test_a_host_that_cannot_start_a_command_leaves_jobs_as_they_were(
    cluster: Cluster, recorded: RecordedSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that has no process left for it."""
    job_id = launch(cluster, program("pass"))
    programs = tmp_path / "recorded"
    for name in ("cat", "env"):  # which the recorded commands call
        (programs / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(programs))
    (programs / "squeue").chmod(0o600)
    until(lambda: "could not be started" in str(cluster.poll(job_id).pending_reason), "it is asked", 20)
    assert cluster.poll(job_id).status is JobStatus.PENDING
    (programs / "sbatch").chmod(0o600)
    with pytest.raises(ClusterUnavailableError, match="sbatch could not be started: Permission denied"):
        launch(cluster, program("pass"))
