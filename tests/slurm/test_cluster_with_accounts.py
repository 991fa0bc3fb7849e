"""The contract of a cluster on a Slurm that keeps accounts (slurmdbd on a MariaDB), and forgets jobs at once.

A job that has ended is soon in no queue any more, so that what is known of it with Slurm comes from `sacct`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from fray.cluster import ResourceConfig
from fray.testing.cluster import ClusterContract, GangContract
from fray_slurm.testing import LocalSlurm


@pytest.fixture(scope="module")
def accounted() -> Iterator[LocalSlurm]:
    with (
        LocalSlurm(grace=4, kill_wait=3, accounting=True, min_job_age=2) as running,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("SLURM_CONF", running.variables["SLURM_CONF"])
        yield running


class TestSlurmClusterWithAccounts(GangContract, ClusterContract):
    PATIENCE = 60.0
    GANGS: ClassVar[dict[str, ResourceConfig]] = {
        "cpus": ResourceConfig(replicas=2),
        "gpus": ResourceConfig.with_gpu("A100", count=2, replicas=2, ram="1g"),  # a node each
    }

    @pytest.fixture
    def spec(self, accounted: LocalSlurm, tmp_path: Path) -> str:
        return f"slurm?root={tmp_path}/records&poll_interval=0.5"
