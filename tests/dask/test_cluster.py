"""The contract of a cluster on Dask's: jobs are started by its workers."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fray.testing.cluster import ClusterContract, DirectoryContract


class TestDaskCluster(ClusterContract, DirectoryContract):
    BUILDS_ENVIRONMENTS = False

    @pytest.fixture
    def spec(self, address: str, tmp_path: Path) -> str:
        return f"dask?address={address}&root={tmp_path}/jobs"

    @pytest.fixture
    def spec_on(self, address: str) -> Callable[[Path], str]:
        return lambda folder: f"dask?address={address}&root={folder}/jobs"
