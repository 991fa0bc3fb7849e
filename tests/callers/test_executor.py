"""An executor of experiment steps on every cluster, and its jobs on the command line."""

import json
from pathlib import Path

import pytest
from executor_steps import Executor, ExecutorStep, experiment

from fray.cluster import Cluster, JobStatus


def test_an_experiment_runs_once(cluster: Cluster, tmp_path: Path) -> None:
    executor, last = Executor(tmp_path / "out"), experiment()
    statuses = executor.run([last])
    assert set(statuses) == {
        "raw/fineweb:v1",
        "raw/code:v1",
        "tokenized/fineweb:v1",
        "tokenized/code:v1",
        "checkpoints/llama-30m",
    }
    assert set(statuses.values()) == {JobStatus.SUCCEEDED}
    assert json.loads((executor.output_path(last) / "checkpoint.json").read_text()) == {"tokens": 160}
    assert executor.run([last]) == {}

    job_id = executor.launched["tokenized/fineweb:v1"]
    assert job_id.startswith("executor-tokenized-fineweb-v1-")
    assert cluster.poll(job_id).name == "executor:tokenized/fineweb:v1"


def test_a_step_that_fails_stops_what_needs_it(cluster: Cluster, tmp_path: Path) -> None:
    executor, too_much = Executor(tmp_path / "out"), experiment(tokens=1_000)
    statuses = executor.run([ExecutorStep("evals/llama-30m", too_much.fn, needs=(too_much,))])
    assert statuses["checkpoints/llama-30m"] == JobStatus.FAILED
    assert "evals/llama-30m" not in statuses
    info = cluster.poll(executor.launched["checkpoints/llama-30m"])
    assert "160 tokens are too few for 1000" in str(info.error_message)


def test_the_command_line_knows_the_names(
    local_cluster: Cluster, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from fray.testing.command_line import main

    spec = ["--cluster", "local?overcommit=true"]
    assert main(["run", *spec, "--name", "executor:tokenized/fineweb", "--", "echo", "tokens"]) == 0
    assert "tokens" in capfd.readouterr().out
    assert main(["list", *spec]) == 0
    assert "executor-tokenized-fineweb-" in capfd.readouterr().out
    assert main(["list", *spec, "--json"]) == 0
    (job,) = json.loads(capfd.readouterr().out)
    assert job["name"] == "executor:tokenized/fineweb"
    assert main(["status", *spec, job["job_id"]]) == 0
