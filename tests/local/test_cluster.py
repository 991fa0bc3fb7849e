"""LocalCluster keeps the promises of every cluster."""

import pytest

from fray.testing.cluster import ClusterContract


class TestLocalCluster(ClusterContract):
    BACKEND = "local"

    @pytest.fixture
    def spec(self) -> str:
        # As many CPUs as the contract asks for, however few the machine has.
        return "local?cpus=4&memory=8g"
