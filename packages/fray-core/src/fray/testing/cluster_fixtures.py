"""What the tests of a cluster share: the cluster, small programs to run on it, a way to wait."""

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fray._contracts.cluster import Cluster
from fray._discovery.current import create_cluster
from fray._values.capabilities import ClusterCapabilities
from fray._values.entrypoint import Entrypoint
from fray._values.jobs import JobId, JobRequest
from fray.testing.gates import until as until
from fray.testing.promises import Promises


class ClusterFixtures(Promises):
    """The fixtures of every area, and what a backend declares of itself.

    Attributes:
        PATIENCE: Seconds within which anything that should happen has happened.
        STARTS_WITHIN: Seconds within which `launch` returns, however long the job takes.
        BUILDS_ENVIRONMENTS: `pip_packages` are installed for the job; tests give the path of a small
            project.
        RUNS_CONTAINERS: `docker_image` is accepted.
        HAS_TPUS: `TpuConfig` is accepted.
    """

    PATIENCE = 60.0
    STARTS_WITHIN = 10.0
    BUILDS_ENVIRONMENTS = True
    RUNS_CONTAINERS = False
    KNOWS_TIMES: bool | None = None
    """`since` is taken, because it is known when a line was written; None where `log_limit` says so."""
    HAS_TPUS = False

    @pytest.fixture
    def spec(self) -> str:
        """The spec that opens the cluster: the one fixture that every subclass gives."""
        raise NotImplementedError("a contract's subclass gives `spec`: fixture -> the spec of the cluster")

    @pytest.fixture
    def cluster(self, spec: str) -> Iterator[Cluster]:
        """The cluster; jobs that a failed test left are stopped."""
        cluster = create_cluster(spec)
        yield cluster
        left = [info.job_id for info in cluster.list_jobs() if not info.finished]
        if left:
            with ThreadPoolExecutor(len(left)) as pool:
                list(pool.map(lambda job_id: cluster.terminate(job_id, grace=0.0), left))

    def declares(self, cluster: Cluster, capability: str) -> bool:
        """Whether the cluster says that it can do this."""
        return bool(getattr(getattr(cluster, "capabilities", ClusterCapabilities()), capability))

    @pytest.fixture
    def elsewhere(self, spec: str) -> Callable[..., str]:
        """Run Python in another process that has the same cluster open as `cluster`; returns its output."""

        def run(code: str, *args: str) -> str:
            opened = f"import sys\nfrom fray.cluster import *\ncluster = create_cluster({spec!r})\n"
            done = subprocess.run(
                [sys.executable, "-c", opened + textwrap.dedent(code), *args],
                capture_output=True,
                text=True,
                check=False,
                timeout=self.PATIENCE,
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        return run


def program(code: str, *args: Any) -> Entrypoint:
    """Make a command that runs Python code; the arguments are its `sys.argv[1:]`."""
    return Entrypoint.from_binary("python", ["-c", textwrap.dedent(code), *map(str, args)])


def launch(cluster: Cluster, entrypoint: Any, name: str = "job", **fields: Any) -> JobId:
    """Launch a job of the cheapest kind."""
    return cluster.launch(JobRequest(name, entrypoint, **fields))


def numbers_in(path: Path) -> list[int]:
    """Return the numbers that programs wrote to a file, a line each; none where there is no file yet."""
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def running(pid: int) -> bool:
    """Whether a process of this machine still runs; one that only waits to be reaped does not."""
    if not Path("/proc/self/stat").exists():
        shown = subprocess.run(
            ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
        )
        return shown.returncode == 0 and not shown.stdout.strip().startswith("Z")
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
