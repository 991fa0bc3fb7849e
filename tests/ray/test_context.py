"""RayContext keeps the promises of every context, on a cluster of three nodes."""

from pathlib import Path

import pytest

from fray import JobContext
from fray.testing.context import ContextContract
from fray.testing.tasks import add, endless
from fray_ray.testing import LocalRayCluster


class TestRayContext(ContextContract):
    DEPTH = 20  # every level is a process of its own while it waits
    PROGRAMS = 15

    @pytest.fixture
    def spec(self, ray_cluster: LocalRayCluster) -> str:
        return f"ray?address={ray_cluster.address}"

    @pytest.fixture
    def narrow_spec(self, spec: str) -> str:
        # One node has 3 CPUs, no other has as many.
        return f"{spec}&num_cpus=3"

    @pytest.mark.xfail(
        strict=True, raises=TimeoutError, reason="a producer that Ray's backpressure holds keeps its CPU"
    )
    def test_a_producer_that_waits_for_its_consumer_holds_no_worker(
        self, narrow: JobContext, tmp_path: Path
    ) -> None:
        stream = narrow.run(endless, tmp_path / "diary")
        try:
            assert narrow.get(narrow.run(add, 1), timeout=5) == 2
        finally:
            narrow.cancel(stream)
