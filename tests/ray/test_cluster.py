"""RayCluster keeps the promises of every cluster."""

import pytest

from fray.testing.cluster import ClusterContract
from fray_ray.testing import LocalRayCluster


@pytest.mark.timeout(480)
class TestRayCluster(ClusterContract):
    HAS_TPUS = True
    PATIENCE = 300.0  # Ray copies its own environment before it installs what a job asks for
    DEADLINE = 400.0
    STARTS_WITHIN = 100.0  # the first job of a cluster waits for its agent, which a busy machine starts late

    @pytest.fixture
    def spec(self, ray_cluster: LocalRayCluster) -> str:
        return f"ray?address={ray_cluster.address}"
