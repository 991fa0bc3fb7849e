"""Ray's memory monitor ends a replica: it ran out of memory, which is a failure and no preemption."""

import os
from collections.abc import Iterator
from unittest import mock

import pytest

from fray.cluster import Entrypoint, ExitReason, JobRequest, JobStatus, ResourceConfig
from fray_ray import RayCluster
from fray_ray.testing import LocalRayCluster

REGION = "of-too-little-memory"


@pytest.fixture
def full_node(ray_cluster: LocalRayCluster) -> Iterator[str]:
    """A node whose memory is always used up, as Ray sees it: its monitor ends each worker that it finds."""
    told = {"RAY_memory_usage_threshold": "0.0", "RAY_memory_monitor_refresh_ms": "100"}
    with mock.patch.dict(os.environ, told):
        node_id = ray_cluster.add_node(num_cpus=2, labels={"ray.io/availability-region": REGION})
    yield REGION
    ray_cluster.kill_node(node_id)


@pytest.mark.parametrize("gang", [False, True], ids=["alone", "gang"])
def test_a_replica_that_rays_memory_monitor_ends_ran_out_of_memory(
    ray_cluster: LocalRayCluster, full_node: str, gang: bool
) -> None:
    request = JobRequest(
        "hungry",
        Entrypoint.from_binary("sleep", ["600"]),
        resources=ResourceConfig(cpu=1, regions=[full_node]),
        gang=gang,
        max_retries_failure=1,
    )
    with RayCluster(ray_cluster.address) as cluster:
        info = cluster.wait(cluster.launch(request), timeout=240)
    (task,) = info.tasks
    assert (info.status, task.reason) == (JobStatus.FAILED, ExitReason.OUT_OF_MEMORY), info.error_message
    assert "memory" in str(info.error_message)
