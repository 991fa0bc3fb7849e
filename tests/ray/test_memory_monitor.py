"""Ray's memory monitor ends a replica: it ran out of memory, which is a failure and no preemption."""

import os
from collections.abc import Iterator
from dataclasses import replace
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
        max_retries_preemption=9,  # of which none is used
    )
    with RayCluster(ray_cluster.address) as cluster:
        ids = [cluster.launch(replace(request, max_retries_failure=retries)) for retries in (0, 1)]
        once, twice = (cluster.wait(job_id, timeout=240) for job_id in ids)
    for info in (once, twice):
        assert (info.status, info.tasks[0].reason) == (JobStatus.FAILED, ExitReason.OUT_OF_MEMORY), f"{info}"
        assert "memory" in str(info.error_message)
    assert [task.attempt for task in once.tasks] == [1]
    (task,) = twice.tasks
    assert (task.attempt, [each.reason for each in task.previous]) == (2, [ExitReason.OUT_OF_MEMORY])
    assert "(attempt 2 of 2)" in str(twice.error_message)
