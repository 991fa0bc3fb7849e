"""What a cluster for tests leaves on the machine when its block has ended."""

import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.timeout(240)
PROGRAM = """
    import os
    from fray.backend import process_tree
    from fray_ray.testing import LocalRayCluster

    def commands(folder):
        started = process_tree.with_variable("RAY_TMPDIR", folder)
        said = [" ".join(process_tree.command_of(pid)) for pid in started]
        # The tracker ends by itself when those it serves have ended. What has just ended has no command.
        return [line for line in said if line and "resource_tracker" not in line]

    with LocalRayCluster(num_cpus=1):
        folder = os.environ["RAY_TMPDIR"]
        print(any("MetricsHead" in line for line in commands(folder)), os.path.exists(folder))
    print(commands(folder), os.path.exists(folder))
"""


def test_no_process_and_no_folder_is_left() -> None:
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert run.stdout.splitlines() == ["True True", "[] False"], run.stderr
