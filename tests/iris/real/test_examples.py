"""The programs of examples/ on Iris, as they are, and a worker that is gone."""

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fray.cluster import (
    Cluster,
    Entrypoint,
    ExitReason,
    JobRequest,
    JobStatus,
    ResourceConfig,
    create_cluster,
)
from fray.testing.cluster import until

if TYPE_CHECKING:
    from tests.iris.real.conftest import LocalIris

PATIENCE = 110.0
EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def spec(address: str) -> str:
    return f"iris?controller={address}&shared_files=true"


@pytest.fixture
def cluster(spec: str) -> Cluster:
    return create_cluster(spec)


def end_worker(iris: "LocalIris", cluster: Any, job_id: str, replica: int) -> None:
    """Take the worker of a replica away."""
    task = cluster.iris.tasks(cluster.iris_name(job_id))[replica]
    assert "killed" in iris.ask(f"kill {task['worker_id']}")


def test_rollouts_learn_from_actors_that_they_share(spec: str) -> None:
    environment = os.environ | {"FRAY_CLUSTER_SPEC": spec}
    program = [sys.executable, str(EXAMPLES / "rl_loop.py")]
    done = subprocess.run(
        program, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mastered 4 levels" in done.stdout


def test_a_job_whose_worker_is_gone_starts_again_elsewhere(
    iris: "LocalIris", cluster: Cluster, tmp_path: Path
) -> None:
    code = "import os, sys, time; print('try', flush=True); os.path.exists(sys.argv[1]) or time.sleep(600)"
    go = tmp_path / "go"
    # On workers for CPUs: the slices are for the training.
    among = [{"key": "pool", "op": "CONSTRAINT_OP_EQ", "value": {"string_value": "cpus"}}]
    program = Entrypoint.from_binary("python", ["-c", code, str(go)])
    job_id = cluster.launch(JobRequest("moves", program, backend={"iris": {"constraints": among}}))
    assert next(line for line in cluster.monitor(job_id) if line == "try")
    end_worker(iris, cluster, job_id, 0)
    go.touch()
    info = cluster.wait(job_id, timeout=PATIENCE)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    (task,) = info.tasks
    assert (task.attempt, task.previous[0].reason) == (2, ExitReason.PREEMPTED)


def test_a_training_on_a_slice_that_lost_a_host_has_the_result_of_one_that_did_not(
    iris: "LocalIris", cluster: Cluster, tmp_path: Path
) -> None:
    def train(folder: Path) -> str:
        folder.mkdir()
        program = Entrypoint.from_binary("python", [str(EXAMPLES / "train.py"), "work", str(folder)])
        return cluster.launch(JobRequest("train", program, resources=ResourceConfig.with_tpu("v5litepod-16")))

    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    first = cluster.wait(train(undisturbed), timeout=PATIENCE)
    assert first.status is JobStatus.SUCCEEDED, first.error_message
    assert len(first.tasks) == 4
    job_id = train(disturbed)
    until(lambda: any(disturbed.iterdir()), "it has begun", PATIENCE)
    end_worker(iris, cluster, job_id, 2)
    info = cluster.wait(job_id, timeout=PATIENCE)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    assert info.tasks[2].attempt > 1
    assert info.tasks[2].previous[0].reason is ExitReason.PREEMPTED
    assert (disturbed / "result.json").read_text() == (undisturbed / "result.json").read_text()
