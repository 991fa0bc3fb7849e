"""A Slurm of three nodes on this machine, once for all tests of a process."""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fray.cluster import Cluster, create_cluster
from fray_slurm.testing import LocalSlurm, RecordedSlurm


@pytest.fixture(scope="session")
def slurm() -> Iterator[LocalSlurm]:
    """A real Slurm; its commands find it by SLURM_CONF in this process's environment."""
    with LocalSlurm(grace=4, kill_wait=3) as running, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_"))]:
            patch.delenv(name)
        for name, value in running.variables.items():
            patch.setenv(name, value)
        yield running


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
