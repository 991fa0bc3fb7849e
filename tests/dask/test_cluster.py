"""The contract of a cluster on Dask's: jobs are started by its workers."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from fray_dask.connection import connect

from fray.cluster import Entrypoint, JobRequest, JobStatus, create_cluster
from fray.testing.cluster import ClusterContract, DirectoryContract, GangContract
from fray.testing.gates import Gate, until


class TestDaskCluster(ClusterContract, DirectoryContract, GangContract):
    BUILDS_ENVIRONMENTS = False

    @pytest.fixture
    def spec(self, address: str, tmp_path: Path) -> str:
        return f"dask?address={address}&root={tmp_path}/jobs"

    @pytest.fixture
    def spec_on(self, address: str) -> Callable[[Path], str]:
        return lambda folder: f"dask?address={address}&root={folder}/jobs"


def test_a_job_outlives_the_workers_that_could_have_started_it(address: str, tmp_path: Path) -> None:
    cluster = create_cluster(f"dask?address={address}&root={tmp_path}/jobs")
    gate = Gate(tmp_path / "gate")
    job_id = cluster.launch(JobRequest("patient", Entrypoint.from_callable(gate.wait)))
    until(lambda: cluster.poll(job_id).status is JobStatus.RUNNING, "the job runs")
    with connect(address) as client:
        before = set(client.nthreads())
        client.run(_die, wait=False)
        until(lambda: set(client.nthreads()) - before, "new workers are there")
    gate.open()
    assert cluster.wait(job_id, timeout=60).status is JobStatus.SUCCEEDED


async def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
