"""What `fray doctor` says of Slurm."""

import os
from pathlib import Path

import pytest

from fray_slurm import SlurmCluster
from fray_slurm.testing import LocalSlurm


def test_a_slurm_that_answers_is_well(slurm: LocalSlurm, tmp_path: Path) -> None:
    found = {each.check: each for each in SlurmCluster(root=tmp_path).diagnose()}
    assert found["commands"].health == "ok"
    assert (found["controller"].health, found["controller"].found) == ("ok", "3 nodes")


def test_missing_commands_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    found = {each.check: each for each in SlurmCluster(root=tmp_path).diagnose()}
    assert found["commands"].health == "error"
    assert "sbatch, squeue" in found["commands"].found
    assert "login node" in found["commands"].advice
    assert "controller" not in found
