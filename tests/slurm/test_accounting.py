"""Jobs that Slurm's queue has forgotten: with accounts of them (sacct), and without."""

import json
from pathlib import Path

import pytest

from fray.cluster import Cluster, ExitReason, JobStatus, create_cluster
from fray.testing.cluster import launch, program, until
from fray_slurm.testing import LocalSlurm

FORGETS_AFTER = 2  # seconds, and what slurmctld takes to look


def forgotten_job(slurm: LocalSlurm, cluster: Cluster, records: Path) -> str:
    """A job that was cancelled by hand while it waited, and that squeue no longer knows."""
    job_id = launch(cluster, program("pass"), "waits", backend={"slurm": {"begin": "now+3600"}})
    number = json.loads((records / job_id / "slurm" / "job.json").read_text())["id"]
    slurm.run("scancel", number)
    until(
        lambda: number not in slurm.run("squeue", "-h", "-t", "all", "-o", "%i").split(),
        "it is forgotten",
        60,
    )
    return job_id


@pytest.mark.parametrize("accounting", [True, False])
def test_the_end_of_a_forgotten_job(tmp_path: Path, accounting: bool) -> None:
    with (
        LocalSlurm(nodes=1, accounting=accounting, min_job_age=FORGETS_AFTER) as slurm,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("SLURM_CONF", slurm.variables["SLURM_CONF"])
        spec = f"slurm?root={tmp_path}/records&poll_interval=0.2"
        job_id = forgotten_job(slurm, create_cluster(spec), tmp_path / "records")
        info = create_cluster(spec).wait(job_id, timeout=60)
        if accounting:
            assert (info.status, info.tasks[0].reason) == (JobStatus.STOPPED, ExitReason.STOPPED)
            assert "cancelled by user" in str(info.error_message)
        else:
            assert (info.status, info.tasks[0].reason) == (JobStatus.FAILED, ExitReason.LOST)
            assert "it was cancelled" in str(info.error_message)
