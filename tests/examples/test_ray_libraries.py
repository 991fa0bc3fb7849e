"""Ray Data and Ray Train do their work inside the placement group of a gang."""

import subprocess
import sys
from pathlib import Path

import pytest

from fray_ray.testing import LocalRayCluster

pytestmark = pytest.mark.timeout(
    300
)  # each worker imports pandas and pyarrow: seconds, on a busy machine many

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, ray_cluster: LocalRayCluster, *argv: str) -> str:
    words = [sys.executable, str(EXAMPLES / name), "--cluster", f"ray?address={ray_cluster.address}", *argv]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=550)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_ray_data_makes_its_rows_inside_the_group(ray_cluster: LocalRayCluster) -> None:
    said = run("ray_data_in_gang.py", ray_cluster, "--rows", "100")
    assert "sum of squares: 328350; rows made inside the group: 100 of 100" in said


def test_ray_train_fits_a_line_inside_the_group(ray_cluster: LocalRayCluster, tmp_path: Path) -> None:
    said = run("ray_train_in_gang.py", ray_cluster, "--storage", str(tmp_path))
    assert "y = 3.00 x + 2.00, fitted inside of the group" in said
