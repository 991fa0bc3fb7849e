"""Ray across the nodes of one job: its own, and gone with it."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fray import UnsupportedError
from fray.cluster import Cluster, JobStatus, ResourceConfig, create_environment
from fray.testing.cluster import launch, program, until
from fray_slurm.testing import LocalSlurm

PATIENCE = 250.0
pytestmark = pytest.mark.timeout(300)  # a Ray of several nodes takes long to start on a busy machine
CENSUS = Path(__file__).parents[2] / "examples" / "census.py"
ON_RAY = create_environment(env_vars={"FRAY_CONTEXT_SPEC": "ray"})
# Two tasks that wait for each other, on nodes of one CPU each: neither node could run both.
NODES = """
    import os, sys, time, pathlib
    import fray

    go, meeting = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])

    def meet(number):
        import ray
        (meeting / str(number)).touch()
        while not (meeting / str(1 - number)).exists():
            time.sleep(0.05)
        return os.environ["SLURMD_NODENAME"], ray.get_runtime_context().gcs_address

    meeting.mkdir()
    context = fray.get_job_context()
    found = context.get([context.run(meet, number) for number in range(2)])
    print("nodes", *sorted(each[0] for each in found), flush=True)
    print("head", found[0][1], flush=True)
    print("replicas", os.environ["FRAY_REPLICA_COUNT"], os.environ.get("RANK"), flush=True)
    while not go.exists():
        time.sleep(0.1)
    raise SystemExit(3)
"""


def launch_on_ray(cluster: Cluster, go: Path, name: str) -> str:
    resources = ResourceConfig(cpu=1, ram="1g", replicas=2)
    native = {"slurm": {"nodelist": "n1,n2"}}
    code = program(NODES, go, go.with_name(name))
    return launch(cluster, code, name, resources=resources, environment=ON_RAY, backend=native)


def ray_processes() -> str:
    return subprocess.run(
        ["ps", "-A", "-ww", "-o", "args="], capture_output=True, text=True, check=True
    ).stdout


def test_two_jobs_on_the_same_hosts_have_a_ray_each_that_ends_with_them(
    cluster: Cluster, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    abandoned, held = (Path(tempfile.mkdtemp(prefix="fray-ray-", dir="/tmp")) for _ in range(2))
    (abandoned / "owner.lock").touch()  # what a process leaves that is killed
    jobs = [launch_on_ray(cluster, go, name) for name in ("one", "two")]
    said: list[list[str]] = []
    for job_id in jobs:
        lines = iter(cluster.monitor(job_id, replica=0))
        said.append(
            [next(line for line in lines if line.startswith(word)) for word in ("nodes", "head", "rep")]
        )
    assert [each[0] for each in said] == ["nodes n1 n2"] * 2
    assert said[0][1] != said[1][1]
    assert not abandoned.exists()
    assert held.exists()  # its owner is about to lock it
    held.rmdir()
    assert said[0][2] == "replicas 1 None"
    token = tmp_path / "records" / jobs[0] / "ray" / "attempt-1" / "token"
    assert token.stat().st_mode & 0o077 == 0
    assert token.read_text() not in ray_processes()
    cluster.terminate(jobs[0])
    go.touch()
    info = cluster.wait(jobs[1], timeout=PATIENCE)
    assert (info.status, info.tasks[0].exit_code) == (JobStatus.FAILED, 3), info  # its program's own code
    assert len(info.tasks) == 2
    heads = [each[1].partition(" ")[2] for each in said]
    until(lambda: not any(head in ray_processes() for head in heads), "both are gone", 30)


def test_a_census_runs_on_ray_across_an_allocation(slurm: LocalSlurm, tmp_path: Path) -> None:
    """The command of the issue, on part of the library."""
    spec = f"slurm?root={tmp_path}/records&poll_interval=0.5"
    words = ["run", "--cluster", spec, "--context", "ray", "-n", "3", "--ram", "1g", "--json"]
    census = ["python", str(CENSUS), "--limit", "60", "--context", "auto"]
    done = subprocess.run(
        [str(Path(sys.executable).with_name("fray")), *words, "--", *census],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["tasks"]) == 3
    assert "60 files" in done.stderr


def test_replicas_that_are_independent_have_no_ray_together(cluster: Cluster) -> None:
    with pytest.raises(UnsupportedError, match="gang=False"):
        launch(cluster, program("pass"), environment=ON_RAY, gang=False)
