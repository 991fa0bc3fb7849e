"""What is left of a job whose driver was killed is ended by whoever terminates the job."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray as typed_ray
from job_processes import alive, driver_of, kill

from fray.cluster import Entrypoint, ExitReason, JobRequest, JobStatus, create_environment
from fray.testing.gates import until
from fray_ray import RayCluster, _job_kv
from fray_ray.testing import LocalRayCluster

pytestmark = pytest.mark.timeout(400)
ray: Any = typed_ray  # Ray's own annotations know nothing of other libraries' types


@pytest.fixture
def cluster(ray_cluster: LocalRayCluster) -> Iterator[RayCluster]:
    ray.init(ray_cluster.address, ignore_reinit_error=True, log_to_driver=False)
    with RayCluster(ray_cluster.address) as cluster:
        yield cluster


def test_terminating_a_job_that_ray_lost_ends_what_is_left_of_it(cluster: RayCluster, tmp_path: Path) -> None:
    started = tmp_path / "started"
    entrypoint = Entrypoint.from_binary(
        "sh", ["-c", "echo $$ > $0.draft; mv $0.draft $0; sleep 600", str(started)]
    )
    environment = create_environment(env_vars={"PLAIN": "value"})
    job_id = cluster.launch(JobRequest("lost", entrypoint, environment=environment))
    until(started.exists, "it runs", 200)
    kill(driver_of(job_id))
    info = cluster.wait(job_id, timeout=120)
    assert (info.status, info.tasks[0].reason) == (JobStatus.FAILED, ExitReason.LOST)
    cluster.terminate(job_id)
    until(lambda: not alive(int(started.read_text())), "its program is gone")
    assert _job_kv.names_of(job_id) == ["plan"], "what a retry needs"
    assert cluster.poll(job_id).status is JobStatus.FAILED
    cluster.terminate(job_id)  # once more, and nothing happens
