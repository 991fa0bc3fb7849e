"""Nodes that fail under jobs: another rig, because a node of it stays away."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fray.backend import SupervisorLock
from fray.cluster import Cluster, ExitReason, JobStatus, create_cluster
from fray.testing.cluster import launch, program, until
from fray_slurm.testing import LocalSlurm

PATIENCE = 100.0
# Ends by itself in a second attempt.
AGAIN = """
    import os, time
    print("attempt", os.environ["FRAY_ATTEMPT"], "on", os.environ["SLURMD_NODENAME"], flush=True)
    time.sleep(0 if os.environ["FRAY_ATTEMPT"] == "2" else 600)
"""


@pytest.mark.timeout(240)
def test_a_node_that_fails_takes_its_jobs_to_another_or_fails_them(tmp_path: Path) -> None:
    with LocalSlurm(nodes=2, node_timeout=5, kill_wait=3) as slurm, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", slurm.variables["SLURM_CONF"])
        cluster = create_cluster(f"slurm?root={tmp_path}/records&poll_interval=0.5")
        resumed = launch(cluster, program(AGAIN), "resumed")
        assert next(iter(cluster.monitor(resumed))) == "attempt 1 on n1"
        here = {"slurm": {"nodelist": "n1"}}
        failed = launch(cluster, program(AGAIN), "failed", max_retries_preemption=0, backend=here)
        assert next(iter(cluster.monitor(failed))) == "attempt 1 on n1"
        slurm.kill_node("n1")

        info = cluster.wait(failed, timeout=PATIENCE)
        assert (info.status, info.tasks[0].reason) == (JobStatus.FAILED, ExitReason.LOST)
        assert "one of its nodes failed" in str(info.error_message)

        number = json.loads((tmp_path / "records" / resumed / "slurm" / "job.json").read_text())["id"]
        until(lambda: cluster.poll(resumed).status is JobStatus.PENDING, "it is requeued", PATIENCE)
        slurm.run("scontrol", "update", f"JobId={number}", "StartTime=now")
        info = cluster.wait(resumed, timeout=PATIENCE)
        assert info.status is JobStatus.SUCCEEDED, info
        assert (info.tasks[0].attempt, info.tasks[0].previous[0].reason) == (2, ExitReason.PREEMPTED)
        assert list(cluster.monitor(resumed))[-1] == "attempt 2 on n2"


def test_a_job_waits_for_its_record_that_a_host_which_failed_still_holds(
    slurm: LocalSlurm, cluster: Cluster, number_of: Callable[[str], str], tmp_path: Path
) -> None:
    """NFS keeps the locks of a host until that is up again; a requeued job has a new supervisor before."""
    job_id = launch(cluster, program("print('ran')"), backend={"slurm": {"begin": "now+3600"}})
    record = tmp_path / "records" / job_id
    lock = SupervisorLock.acquire(os.fspath(record / "lock"))
    assert lock is not None
    try:
        slurm.run("scontrol", "update", f"JobId={number_of(job_id)}", "StartTime=now")
        until((record / "slurm" / "allocation.json").exists, "its batch step has begun", PATIENCE)
        time.sleep(3.0)  # nothing tells that its supervisor was kept out
    finally:
        lock.close()
    info = cluster.wait(job_id, timeout=PATIENCE)
    assert info.status is JobStatus.SUCCEEDED, info
    assert list(cluster.monitor(job_id)) == ["ran"]
