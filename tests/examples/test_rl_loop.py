"""The same program learns on this machine and on Ray: only the specs differ."""

import os
import subprocess
import sys
from pathlib import Path

from killing import killer

from fray_ray.testing import LocalRayCluster

PROGRAM = Path(__file__).parents[2] / "examples" / "rl_loop.py"


def learn(cluster: str) -> str:
    """Run the program as its users do and return what it prints."""
    environment = os.environ | {"FRAY_CLUSTER_SPEC": cluster}
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_learns_with_processes_of_this_machine() -> None:
    assert "mastered 4 levels" in learn("local")


def test_rollouts_that_are_killed_do_not_stop_it() -> None:
    with killer("rollout-", times=3) as killed:
        for _ in range(20):  # it may be done sooner than three are killed
            assert "mastered 4 levels" in learn("local")
            if len(killed) == 3:
                break
    assert len(killed) == 3


def test_it_learns_on_ray(ray_cluster: LocalRayCluster) -> None:
    assert "mastered 4 levels" in learn(f"ray?address={ray_cluster.address}")
