"""The contract of a cluster, and of gangs, on a real Iris."""

from typing import ClassVar

import pytest

from fray.cluster import ResourceConfig
from fray.testing.cluster import ClusterContract, GangContract


class TestIrisCluster(ClusterContract, GangContract):
    RUNS_CONTAINERS = True  # Iris has them; its local workers run processes
    HAS_TPUS = True
    KNOWS_TIMES = True
    GANGS: ClassVar[dict[str, ResourceConfig]] = {
        "cpus": ResourceConfig(replicas=2),
        "gpus": ResourceConfig.with_gpu("H100", count=8, replicas=2),
        "tpu": ResourceConfig.with_tpu("v5litepod-16"),
    }

    @pytest.fixture
    def spec(self, address: str) -> str:
        return f"iris?controller={address}&shared_files=true&poll_interval=0.05"
