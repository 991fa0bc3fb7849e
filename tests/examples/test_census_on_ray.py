"""The census gives the same tables on a Ray cluster as in one thread."""

import subprocess
import sys
from pathlib import Path

from fray_ray.testing import LocalRayCluster

PROGRAM = Path(__file__).parents[2] / "examples" / "census.py"


def census(context: str) -> str:
    argv = [sys.executable, str(PROGRAM), "--context", context, "--limit", "200"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_tables_are_those_of_one_thread(ray_cluster: LocalRayCluster) -> None:
    assert census(f"ray?address={ray_cluster.address}") == census("sync")
