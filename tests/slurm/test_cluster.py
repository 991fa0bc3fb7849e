"""The contract of a cluster, on a real Slurm."""

from pathlib import Path
from typing import ClassVar

import pytest

from fray.cluster import ResourceConfig
from fray.testing.cluster import ClusterContract, GangContract
from fray_slurm.testing import LocalSlurm


class TestSlurmCluster(GangContract, ClusterContract):
    PATIENCE = 60.0
    GANGS: ClassVar[dict[str, ResourceConfig]] = {
        "cpus": ResourceConfig(replicas=2),
        "gpus": ResourceConfig.with_gpu("A100", count=2, replicas=2, ram="1g"),  # a node each
    }

    @pytest.fixture
    def spec(self, slurm: LocalSlurm, tmp_path: Path) -> str:
        return f"slurm?root={tmp_path}/records&poll_interval=0.5"
