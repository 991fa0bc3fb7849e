"""What a program learns of the time limit of its job. The least that Slurm has is a minute."""

from pathlib import Path

import pytest
from taking_signals import start, taken

from fray.cluster import ExitReason, JobStatus, create_cluster
from fray.testing.cluster import until
from fray_slurm.testing import LocalSlurm

PATIENCE = 90.0
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def slurm(tracking_slurm: LocalSlurm) -> LocalSlurm:
    """Instead of the Slurm of the other tests."""
    return tracking_slurm


def test_the_time_limit_is_announced(slurm: LocalSlurm, tmp_path: Path) -> None:
    # Slurm may send the notice half a minute early; the program has started by then.
    cluster = create_cluster(f"slurm?root={tmp_path}/records&poll_interval=0.5&grace=20")
    job_id, _ = start(cluster, tmp_path, backend={"slurm": {"partition": "short", "time": "1"}})
    until((tmp_path / "left").exists, "it has its notice", PATIENCE)
    assert taken(tmp_path) == ["SIGTERM"]
    assert 5.0 < float((tmp_path / "left").read_text()) < 60.0
    info = cluster.wait(job_id, timeout=200)
    assert (info.status, info.tasks[0].reason) == (JobStatus.FAILED, ExitReason.TIMED_OUT), info
