"""RayCluster runs gangs as every cluster does."""

import pytest

from fray.testing.cluster import GangContract
from fray_ray.testing import LocalRayCluster


@pytest.mark.timeout(480)
class TestRayCluster(GangContract):
    PATIENCE = 300.0
    DEADLINE = 400.0

    @pytest.fixture
    def spec(self, ray_cluster: LocalRayCluster) -> str:
        return f"ray?address={ray_cluster.address}"
