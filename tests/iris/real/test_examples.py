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
    create_environment,
)
from fray.testing.cluster import until

if TYPE_CHECKING:
    from tests.iris.real.conftest import LocalIris

PATIENCE = 300.0  # on a busy machine; a slice that is lost is noticed after ten questions
pytestmark = pytest.mark.timeout(700)
EXAMPLES = Path(__file__).parents[3] / "examples"


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
    # On a worker for CPUs: Iris counts the slices of a group that lost one.
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


# Python runs it at its start: the second checkpoint of the training waits for a file, or the training might
# be through before its worker is taken away.
HOLD = """
import os, time

saved, sync = [], os.fsync

def fsync(descriptor):
    saved.append(descriptor)
    while len(saved) == 2 and not os.path.exists(os.environ["GO_ON"]):
        time.sleep(0.01)
    sync(descriptor)

os.fsync = fsync
"""


def test_a_training_on_a_slice_that_lost_a_host_has_the_result_of_one_that_did_not(
    iris: "LocalIris", cluster: Cluster, tmp_path: Path
) -> None:
    def train(folder: Path, **variables: str) -> str:
        folder.mkdir()
        request = JobRequest(
            "train",
            Entrypoint.from_binary("python", [str(EXAMPLES / "train.py"), "work", str(folder)]),
            resources=ResourceConfig.with_tpu("v4-16"),
            environment=create_environment(env_vars=variables),
        )
        return cluster.launch(request)

    undisturbed, disturbed, go_on = tmp_path / "undisturbed", tmp_path / "disturbed", tmp_path / "go-on"
    first = cluster.wait(train(undisturbed), timeout=PATIENCE)
    assert first.status is JobStatus.SUCCEEDED, first.error_message
    assert len(first.tasks) == 2
    (tmp_path / "hold").mkdir()
    (tmp_path / "hold" / "sitecustomize.py").write_text(HOLD)
    job_id = train(disturbed, PYTHONPATH=str(tmp_path / "hold"), GO_ON=str(go_on))
    until((disturbed / "checkpoint.json").exists, "there is a checkpoint", PATIENCE)
    end_worker(iris, cluster, job_id, 1)
    go_on.touch()
    info = cluster.wait(job_id, timeout=PATIENCE)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    assert info.tasks[1].previous[0].reason is ExitReason.PREEMPTED
    starts = [line for line in cluster.monitor(job_id, replica=0) if line.startswith("starts at step")]
    assert len(starts) == info.tasks[0].attempt == 2
    assert starts[1] in ("starts at step 50", "starts at step 100")
    assert (disturbed / "result.json").read_text() == (undisturbed / "result.json").read_text()


def test_a_gang_that_has_no_retries_left_ends_with_its_worker(iris: "LocalIris", cluster: Cluster) -> None:
    code = "import time; print('here', flush=True); time.sleep(600)"
    program = Entrypoint.from_binary("python", ["-c", code])
    slice_ = ResourceConfig.with_tpu("v4-16")  # the one that the training left
    job_id = cluster.launch(JobRequest("stays", program, resources=slice_, max_retries_preemption=0))
    for replica in range(2):
        assert next(line for line in cluster.monitor(job_id, replica=replica) if line == "here")
    end_worker(iris, cluster, job_id, 0)
    info = cluster.wait(job_id, timeout=PATIENCE)
    assert info.status is JobStatus.FAILED
    assert [task.attempt for task in info.tasks] == [1, 1]
    assert info.tasks[0].reason is ExitReason.PREEMPTED
    assert next(each for each in cluster.list_jobs() if each.job_id == job_id).status is JobStatus.FAILED
