"""One Ray cluster of three nodes for the whole session, private to it."""

import os

# Read once, when Ray is imported: a private cluster on the loopback needs no token, and writes none.
os.environ["RAY_AUTH_MODE"] = "disabled"
# As early: a machine that is busy takes longer than 30 s to start a node.
os.environ["RAY_raylet_start_wait_time_s"] = "120"  # noqa: SIM112 - how Ray spells it

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fray_ray.testing import LocalRayCluster


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[LocalRayCluster]:
    """A head with 2 CPUs, a node with 3 and one with 2; no process of it is left behind."""
    with LocalRayCluster(num_cpus=2, resources={"head_node": 1}) as cluster:
        mark = f"RAY_TMPDIR={os.environ['RAY_TMPDIR']}\0".encode()
        cluster.add_node(num_cpus=3)
        cluster.add_node(num_cpus=2)
        yield cluster
    deadline = time.monotonic() + 20.0
    while left := processes_with(mark):
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.05)


def processes_with(mark: bytes) -> list[str]:
    """The command lines of the processes that were started with a variable."""
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit() and mark in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " ")[:200])
    return found
