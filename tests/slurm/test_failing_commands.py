"""Slurm's commands fail: nothing is taken for ended, nobody waits long, and the cluster says what it was."""

import shutil
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
