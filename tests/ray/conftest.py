"""One Ray cluster of three nodes for the whole session, private to it."""

import os

# Read once, when Ray is imported: a private cluster on the loopback needs no token, and writes none.
os.environ["RAY_AUTH_MODE"] = "disabled"
# As early: a machine that is busy takes longer than 30 s to start a node.
os.environ["RAY_raylet_start_wait_time_s"] = "300"  # noqa: SIM112 - how Ray spells it
os.environ["RAY_DASHBOARD_STARTUP_TIMEOUT_S"] = "300"
os.environ["RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT"] = "300"
# Where two cores run two clusters and more beside them, a node with its first worker takes a minute.
os.environ["FRAY_TEST_PATIENCE"] = "200"

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from fray.testing.cluster import until
from fray_ray import RayCluster
from fray_ray.testing import LocalRayCluster

sys.path.insert(0, str(Path(__file__).parent / "helpers"))

from gang_hosts import Hosts, left_in_ray
from head_in_memory import HeadInMemory
from metadata_server import MetadataServer, metadata_server


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> HeadInMemory:
    """A head's store in this process; nothing of Ray runs."""
    return HeadInMemory(monkeypatch)


@pytest.fixture
def provider() -> Iterator[MetadataServer]:
    """The metadata server of a machine, which is away at first."""
    with metadata_server(away=6) as server:
        yield server


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[LocalRayCluster]:
    """A head with 2 CPUs, a node with 3 and one with 2; no process of it is left behind."""
    with LocalRayCluster(num_cpus=2, resources={"head_node": 1}) as cluster:
        mark = f"RAY_TMPDIR={os.environ['RAY_TMPDIR']}\0".encode()
        cluster.add_node(num_cpus=3)
        cluster.add_node(num_cpus=2)
        yield cluster
    deadline = time.monotonic() + 120.0
    while left := processes_with(mark):
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.05)


@pytest.fixture(autouse=True)
def lost_nodes_are_known(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test killed is not taken for alive in the next."""
    yield
    if "ray_cluster" in request.fixturenames:
        request.getfixturevalue("ray_cluster").settle()


@pytest.fixture(scope="session")
def all_slices(ray_cluster: LocalRayCluster) -> LocalRayCluster:
    """Two slices of two hosts and one of a single host more; the files that use them are the last ones."""
    for name, kind in (("slice-a", "v4-16"), ("slice-b", "v4-16"), ("single", "v4-8")):
        ray_cluster.add_slice(name, kind)
    return ray_cluster


@pytest.fixture
def slices(all_slices: LocalRayCluster) -> LocalRayCluster:
    """All slices, whole: what an earlier test took away is there again."""
    all_slices.mend_slices()
    return all_slices


def processes_with(mark: bytes) -> list[str]:
    """The command lines of the processes that were started with a variable."""
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit() and mark in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " ")[:200])
    return found


@pytest.fixture
def joined_cluster(ray_cluster: LocalRayCluster) -> Iterator[RayCluster]:
    """The cluster of the session, which this process has joined through Ray too."""
    ray.init(ray_cluster.address, ignore_reinit_error=True, log_to_driver=False)
    with RayCluster(ray_cluster.address) as cluster:
        yield cluster


@pytest.fixture
def gangs(slices: LocalRayCluster) -> Iterator[RayCluster]:
    """The cluster with its slices, and nothing of any job left when the test is over."""
    ray.init(slices.address, ignore_reinit_error=True, log_to_driver=False)
    cluster = RayCluster(slices.address)
    yield cluster
    for info in cluster.list_jobs():
        if not info.finished:
            cluster.terminate(info.job_id, grace=0.0)
    until(lambda: not left_in_ray(), "nothing is left of the gangs")


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    """What a gang of the test is to run; no process of it is left."""
    hosts = Hosts(tmp_path)
    yield hosts
    hosts.go()
    until(lambda: not hosts.living(), "no host is left")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give a test time for the cluster that it may be the first to use, while another process makes one."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(480))
