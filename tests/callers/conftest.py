"""A program's conftest of the time: it sets the current cluster, and its tests use what is current.

The programs of these tests are written as callers of the first generation write, so older spellings in them
may warn; everything else that warns fails.
"""

import os

# Read once, when Ray is imported: a private cluster on the loopback needs no token, and writes none.
os.environ["RAY_AUTH_MODE"] = "disabled"

import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from fray.cluster import Cluster, LocalCluster, create_cluster, set_current_cluster
from fray.job import JobContext, create_context, set_job_ctx
from fray_ray.testing import LocalRayCluster

PROGRAMS = Path(__file__).parent / "programs"
sys.path.insert(0, str(PROGRAMS))


def pytest_configure(config: pytest.Config) -> None:
    """Let the programs use older spellings, also while they are imported."""
    config.addinivalue_line("filterwarnings", "ignore:.* is an older spelling of:DeprecationWarning")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give the first test on Ray time for its cluster, and each for several jobs there."""
    item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[LocalRayCluster]:
    """A Ray cluster of two nodes, whose workers find the programs."""
    with patch.dict(os.environ, PYTHONPATH=str(PROGRAMS)), LocalRayCluster(num_cpus=4) as ray_cluster:
        ray_cluster.add_node(num_cpus=2)
        yield ray_cluster


@pytest.fixture
def local_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The current cluster: this machine, whose records go with the test."""
    monkeypatch.setenv("FRAY_STATE_DIR", str(tmp_path / "state"))
    with LocalCluster(overcommit=True, simulate="tpu", context="process") as cluster:
        set_current_cluster(cluster)
        yield cluster
        set_current_cluster(None)


@pytest.fixture(params=["local", "ray"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The current cluster, of either kind."""
    if request.param == "local":
        yield request.getfixturevalue("local_cluster")
        return
    address = request.getfixturevalue("ray_cluster").address
    cluster = create_cluster("ray", address=address)
    set_current_cluster(cluster)
    yield cluster
    set_current_cluster(None)


@pytest.fixture(params=["sync", "threadpool", "process", "ray"])
def context(request: pytest.FixtureRequest) -> Iterator[JobContext]:
    """A context of every type, made with one set of options; it is the current one."""
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    context = create_context(
        context_type=request.param, max_workers=4, memory=None, num_cpus=1, max_retries=2, namespace=None
    )
    with context:
        set_job_ctx(context)
        yield context
        set_job_ctx(None)
