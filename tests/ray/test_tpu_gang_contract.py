"""RayCluster runs gangs as every cluster does: of CPUs, and of the hosts of a TPU slice."""

from typing import ClassVar

import pytest

from fray.cluster import ResourceConfig
from fray.testing.cluster import GangContract
from fray_ray.testing import LocalRayCluster


@pytest.mark.timeout(480)
class TestRayCluster(GangContract):
    PATIENCE = 300.0
    DEADLINE = 400.0
    GANGS: ClassVar[dict[str, ResourceConfig]] = {
        "cpus": ResourceConfig(replicas=2),
        "tpus": ResourceConfig.with_tpu("v4-16"),
    }

    @pytest.fixture
    def spec(self, slices: LocalRayCluster) -> str:
        return f"ray?address={slices.address}"
