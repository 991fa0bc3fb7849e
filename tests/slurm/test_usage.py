"""What replicas use over time is measured on their nodes: the supervisor of a job sees srun alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fray.cluster import Cluster, DirectoryCluster, ResourceConfig, create_environment
from fray.testing.cluster import launch, program, until

PATIENCE = 90.0
WHOLE_NODES = ResourceConfig(cpu=4, ram="500m", replicas=2)
# A child in a session of its own holds 80 MiB in the second replica and 40 MiB in the first one.
HOLDS = """
import os, subprocess, sys, time
if len(sys.argv) == 2:
    child = [sys.executable, "-c", os.environ["PROGRAM"], sys.argv[1], "child"]
    sys.exit(subprocess.run(child, start_new_session=True).returncode)
held = bytearray(b"x") * (40 + 40 * int(os.environ["FRAY_REPLICA_ID"]) << 20)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""


@pytest.mark.parametrize("gang", [True, False], ids=["gang", "array"])
def test_samples_of_each_replica_come_while_it_runs_and_stay(
    cluster: Cluster, tmp_path: Path, gang: bool
) -> None:
    assert isinstance(cluster, DirectoryCluster)
    end = tmp_path / "end"
    environment = create_environment(env_vars={"PROGRAM": HOLDS})
    job_id = launch(cluster, program(HOLDS, end), resources=WHOLE_NODES, gang=gang, environment=environment)

    def holding(replica: int, least: int) -> bool:
        samples = [sample for sample in cluster.usage(job_id) if sample.replica == replica]
        return any(sample.memory > least << 20 for sample in samples)

    until(lambda: holding(0, 40) and holding(1, 80), "samples of both replicas", PATIENCE)
    end.touch()
    info = cluster.wait(job_id, timeout=PATIENCE)
    samples = cluster.usage(job_id)
    assert {(sample.replica, sample.attempt) for sample in samples} == {(0, 1), (1, 1)}
    for task in info.tasks:
        own = [sample for sample in samples if sample.replica == task.replica]
        assert [sample.time for sample in own] == sorted(sample.time for sample in own)
        assert [sample.cpu_time for sample in own] == sorted(sample.cpu_time for sample in own)
        assert own[-1].cpu_time > 0
        assert max(sample.memory for sample in own) <= (task.peak_memory or 0)
    fray = Path(sys.executable).with_name("fray")
    shown = subprocess.run(
        [fray, "usage", job_id, "--json", "--cluster", cluster.spec],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(shown.stdout) == [sample.to_dict() for sample in samples]
