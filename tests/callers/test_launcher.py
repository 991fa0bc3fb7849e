"""A launcher of multi-slice training: simulated slices on this machine, fake ones on Ray."""

import json
from collections.abc import Iterator

import pytest
from train_launcher import TrainLmConfig, launch

from fray import JobFailedError, UnsupportedError
from fray.cluster import Cluster, ResourceConfig, create_cluster, set_current_cluster
from fray_ray.testing import LocalRayCluster


@pytest.fixture(scope="module")
def slices(ray_cluster: LocalRayCluster) -> LocalRayCluster:
    """Two slices of two hosts."""
    for name in ("slice-a", "slice-b"):
        ray_cluster.add_slice(name, "v4-16")
    return ray_cluster


@pytest.fixture(params=["local", "ray"])
def tpu_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The current cluster, which has two slices of a v4-16."""
    if request.param == "local":
        yield request.getfixturevalue("local_cluster")
        return
    cluster = create_cluster("ray", address=request.getfixturevalue("slices").address)
    set_current_cluster(cluster)
    yield cluster
    set_current_cluster(None)


def test_every_host_of_every_slice_trains(tpu_cluster: Cluster) -> None:
    config = TrainLmConfig()
    info = launch(config)
    assert info.job_id.startswith("train_lm-llama-30m-")
    lines = [line.partition("] ")[2] for line in tpu_cluster.monitor(info.job_id)]
    hosts = [json.loads(line) for line in lines if line.startswith("{")]
    assert sorted((seen["host"]["MEGASCALE_SLICE_ID"], seen["host"]["FRAY_HOST_ID"]) for seen in hosts) == [
        ("0", "0"),
        ("0", "1"),
        ("1", "0"),
        ("1", "1"),
    ]
    assert {(seen["variant"], seen["wandb"]) for seen in hosts} == {("v4-16", "marginal")}
    assert config.peak_flops == 2 * 8 * 275e12


def test_training_that_fails_raises(local_cluster: Cluster) -> None:
    one_host = ResourceConfig.with_gpu(gpu_type="H100", count=1, cpu=0.1, ram="64m")
    with pytest.raises((JobFailedError, UnsupportedError)):
        launch(TrainLmConfig(resources=one_host))
