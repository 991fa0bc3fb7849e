"""A Slurm of three nodes on this machine, once for all tests of a process."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fray.cluster import Cluster, create_cluster
from fray_slurm.testing import LocalSlurm, RecordedSlurm

sys.path.insert(0, str(Path(__file__).parent / "helpers"))

from taking_signals import GRACE, TRACKINGS

# The files that take longest begin, or the other processes would wait for them at the end. The process that
# has the first, of two tests, gets the last of these at once, which takes a moment: xdist keeps three ahead.
FIRST = (
    "test_time_limit",
    "test_life",
    "test_cluster",
    "test_signals",
    "test_cluster_with_accounts",
    "test_families",
    "test_script",
)


@pytest.fixture(scope="session")
def slurm() -> Iterator[LocalSlurm]:
    """A real Slurm; its commands find it by SLURM_CONF in this process's environment."""
    with LocalSlurm(grace=4, kill_wait=3) as running, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_"))]:
            patch.delenv(name)
        for name, value in running.variables.items():
            patch.setenv(name, value)
        yield running


@pytest.fixture(scope="module", params=TRACKINGS)
def tracking_slurm(request: pytest.FixtureRequest) -> Iterator[LocalSlurm]:
    """A real Slurm that tracks processes in one of its ways, for the tests of a module."""
    rig = LocalSlurm(nodes=2, kill_wait=5, grace=GRACE, client_timeout=2, tracking=request.param)
    with rig as slurm, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", slurm.variables["SLURM_CONF"])
        yield slurm


@pytest.fixture
def cluster(slurm: LocalSlurm, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster whose jobs are stopped at the end, and which has its records in `records`."""
    cluster = create_cluster(f"slurm?root={tmp_path}/records&poll_interval=0.5")
    yield cluster
    for info in cluster.list_jobs():
        if not info.finished:
            cluster.terminate(info.job_id, grace=0.0)


@pytest.fixture
def number_of(tmp_path: Path) -> Callable[[str], str]:
    """Return the number that Slurm has given a job, whose record is in `records`."""

    def number(job_id: str) -> str:
        noted = tmp_path / "records" / job_id / "slurm" / "job.json"
        return str(json.loads(noted.read_text())["id"])

    return number


@pytest.fixture
def wrap_sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let sbatch be lines of shell, as where a site wraps it; /usr/bin/sbatch is Slurm's own."""
    return wrapping("sbatch", tmp_path, monkeypatch)


@pytest.fixture
def wrap_srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let srun be lines of shell in the batch steps of jobs; /usr/bin/srun is Slurm's own."""
    return wrapping("srun", tmp_path, monkeypatch)


def wrapping(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    wrapper = tmp_path / f"wrapped-{program}" / program
    wrapper.parent.mkdir()
    monkeypatch.setenv("PATH", f"{wrapper.parent}{os.pathsep}{os.environ['PATH']}")

    def wrap(lines: str) -> None:
        wrapper.write_text(f"#!/bin/sh\n{lines}\n")
        wrapper.chmod(0o755)

    return wrap


@pytest.fixture
def runs_elsewhere() -> Callable[[Path], None]:
    """Let the record of a job say that its first attempt runs, on a host that this one cannot ask."""

    def run(record: Path) -> None:
        status = json.loads((record / "status.json").read_text())
        status |= {"status": "running", "started_at": time.time()}
        status["tasks"][0] |= {"status": "running", "attempt": 1}
        (record / "status.json").write_text(json.dumps(status))
        (record / "lock").write_text(json.dumps({"host": "n9", "boot": "another"}).ljust(1024))

    return run


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedSlurm:
    """A Slurm that answers with recorded text."""
    slurm = RecordedSlurm(tmp_path / "recorded")
    for name, value in slurm.variables.items():
        monkeypatch.setenv(name, value)
    return slurm


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest; the order within a file, and of other folders, stays."""
    items.sort(key=turn)


def turn(item: pytest.Item) -> int:
    own = item.path.parent == Path(__file__).parent
    return FIRST.index(item.path.stem) if own and item.path.stem in FIRST else len(FIRST)
