"""LocalCluster runs gangs as every cluster does: of CPUs, of GPUs, of simulated TPU hosts."""

from pathlib import Path
from typing import ClassVar

import pytest

from fray.cluster import GpuConfig, JobRequest, JobStatus, ResourceConfig
from fray.testing.cluster import GangContract, program, until
from fray_local import LocalCluster


class TestLocalCluster(GangContract):
    BACKEND = "local"
    GANGS: ClassVar[dict[str, ResourceConfig]] = {
        "cpus": ResourceConfig(replicas=2),
        "gpus": ResourceConfig(device=GpuConfig("H100", 1), replicas=2),
        "tpus": ResourceConfig.with_tpu("v4-16"),
    }

    @pytest.fixture
    def spec(self) -> str:
        return "local?cpus=4&memory=8g&gpus=2&simulate=tpu"


def test_two_gpu_replicas_are_a_gang_without_being_asked_for() -> None:
    cluster = LocalCluster(gpus=2, overcommit=True)
    resources = ResourceConfig(device=GpuConfig("H100", 1), replicas=2)
    code = "import os; print(*(os.environ[name] for name in ('RANK', 'WORLD_SIZE', 'CUDA_VISIBLE_DEVICES')))"
    job_id = cluster.launch(JobRequest("torch", program(code), resources=resources))
    assert cluster.wait(job_id, timeout=30).status is JobStatus.SUCCEEDED
    assert sorted(cluster.monitor(job_id)) == ["[replica-0] 0 2 0", "[replica-1] 1 2 1"]
    apart = cluster.launch(
        JobRequest("apart", program("import os; os.environ['RANK']"), resources=resources, gang=False)
    )
    assert "KeyError: 'RANK'" in str(cluster.wait(apart, timeout=30).error_message)


def test_a_gang_is_started_again_as_one(tmp_path: Path) -> None:
    cluster, code = LocalCluster(overcommit=True), "import time; time.sleep(600)"
    request = JobRequest("gang", program(code), resources=ResourceConfig(replicas=3), gang=True)
    job_id = cluster.launch(request)

    def attempts() -> list[int]:
        return [task.attempt for task in cluster.poll(job_id).tasks if task.status is JobStatus.RUNNING]

    until(lambda: attempts() == [1, 1, 1], "the gang runs")
    cluster.restart(job_id, 1)
    until(lambda: attempts() == [2, 2, 2], "it runs again")
    cluster.terminate(job_id, grace=0.0)
    assert cluster.poll(job_id).status is JobStatus.STOPPED
