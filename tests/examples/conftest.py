"""The examples as modules, and a cluster of their own."""

import os

# Read once, when Ray is imported: a private cluster on the loopback needs no token, and writes none.
os.environ["RAY_AUTH_MODE"] = "disabled"
# As early: a machine that is busy takes longer than 30 s to start a node.
os.environ["RAY_raylet_start_wait_time_s"] = "120"  # noqa: SIM112 - how Ray spells it

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from fray.cluster import LocalCluster, use_cluster
from fray_ray.testing import LocalRayCluster

sys.path.insert(0, str(Path(__file__).parent / "helpers"))
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    """A cluster whose records go with the test."""
    monkeypatch.setenv("FRAY_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.syspath_prepend(str(EXAMPLES))
    with LocalCluster() as cluster, use_cluster(cluster):
        yield cluster


@pytest.fixture
def load() -> Callable[[str], ModuleType]:
    """Import an example by its name."""

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[LocalRayCluster]:
    """A Ray cluster of two nodes."""
    with LocalRayCluster(num_cpus=4) as ray_cluster:
        ray_cluster.add_node(num_cpus=2)
        yield ray_cluster
