"""A real JAX program across the hosts of a slice, preempted twice, ends as if it had not been."""

import sys
from pathlib import Path

import numpy as np
import pytest
from gang_hosts import slices_in_use

from fray.cluster import (
    Entrypoint,
    ExitReason,
    JobInfo,
    JobRequest,
    JobStatus,
    ResourceConfig,
    TpuConfig,
    create_environment,
)
from fray.testing.cluster import until
from fray_ray import RayCluster
from fray_ray.testing import LocalRayCluster

PROGRAM = Path(__file__).parents[2] / "examples" / "train_gang.py"


def train(cluster: RayCluster, folder: Path, *more: str) -> str:
    environment = create_environment(env_vars={"JAX_PLATFORMS": "cpu"})  # these slices have no chips
    request = JobRequest(
        "train",
        Entrypoint.from_binary(sys.executable, [str(PROGRAM), str(folder), "--steps", "120", *more]),
        resources=ResourceConfig(device=TpuConfig("v4-16")),
        environment=environment,
    )
    return cluster.launch(request)


def step_of(folder: Path) -> int:
    path = folder / "checkpoint.npz"
    return int(np.load(path)["step"]) if path.exists() else 0


def results(cluster: RayCluster, info: JobInfo) -> set[str]:
    return {line.split(": ")[-1] for line in cluster.monitor(info.job_id) if "slope" in line}


@pytest.mark.timeout(600)
def test_training_that_is_preempted_twice_ends_with_the_same_weights(
    gangs: RayCluster, slices: LocalRayCluster, tmp_path: Path
) -> None:
    calm = gangs.wait(train(gangs, tmp_path / "calm"), timeout=200)
    assert calm.status is JobStatus.SUCCEEDED, calm.error_message

    job_id = train(gangs, tmp_path / "preempted", "--pause", "0.1", "--every", "5")
    until(lambda: step_of(tmp_path / "preempted") >= 5, "it has saved")
    (home,) = slices_in_use()
    slices.drain_node(slices.node_of_host(home, 1))  # announced: it saves and leaves
    until(lambda: gangs.poll(job_id).tasks[0].attempt == 2, "it starts again")
    before = step_of(tmp_path / "preempted")
    until(lambda: step_of(tmp_path / "preempted") > before, "it goes on")
    (other,) = {"slice-a", "slice-b"} - {home}
    assert slices_in_use() == {other}
    # Not announced: the last checkpoint is what there is. It trains on, so nothing slow comes before.
    slices.kill_node(slices.node_of_host(other, 0))
    slices.mend_slices()
    preempted = gangs.wait(job_id, timeout=200)

    assert preempted.status is JobStatus.SUCCEEDED, preempted.error_message
    assert [task.attempt for task in preempted.tasks] == [3, 3]
    for attempt in (0, 1):
        assert ExitReason.PREEMPTED in {task.previous[attempt].reason for task in preempted.tasks}
    assert results(gangs, calm) == results(gangs, preempted) != set()
    folders = [tmp_path / "calm", tmp_path / "preempted"]
    first, second = (np.load(folder / "checkpoint.npz")["weights"] for folder in folders)
    assert np.array_equal(first, second)
