"""A Slurm of three nodes on this machine, once for all tests of a process."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

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
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedSlurm:
    """A Slurm that answers with recorded text."""
    slurm = RecordedSlurm(tmp_path / "recorded")
    for name, value in slurm.variables.items():
        monkeypatch.setenv(name, value)
    return slurm
