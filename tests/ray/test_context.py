"""RayContext keeps the promises of every context, on a cluster of three nodes."""

import os
from collections.abc import Callable

import pytest
from cluster_connections import connections_of

from fray.testing.context import ContextContract
from fray_ray.testing import LocalRayCluster


class TestRayContext(ContextContract):
    DEADLINE = 400.0
    DEPTH = 20  # every level is a process of its own while it waits
    PROGRAMS = 15
    CHAIN = 2_000  # a link is 2.6 ms and more; one of 10,000 runs in benchmarks/ray_contexts.py
    INTERRUPTIONS = 6  # each makes four actors, which are processes

    @pytest.fixture
    def spec(self, ray_cluster: LocalRayCluster) -> str:
        return f"ray?address={ray_cluster.address}"

    @pytest.fixture
    def kept_by_library(self) -> Callable[[], set[str]]:
        """Ray keeps a connection to each worker that it has used, and chooses which worker that is."""
        return lambda: connections_of(f"RAY_TMPDIR={os.environ['RAY_TMPDIR']}")

    @pytest.fixture
    def narrow_spec(self, spec: str) -> str:
        # One node has 3 CPUs, no other has as many.
        return f"{spec}&num_cpus=3"
