"""What a SlurmCluster is asked for: options, refusals, the folder that nodes must share, the command line."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fray import UnsupportedError
from fray.cluster import (
    Entrypoint,
    JobRequest,
    JobStatus,
    ResourceConfig,
    SlurmCluster,
    create_cluster,
    create_environment,
)
from fray.testing.cluster import launch, program
from fray_slurm import SlurmError
from fray_slurm.testing import LocalSlurm, RecordedSlurm


def test_the_spec_opens_the_same_cluster_again(tmp_path: Path) -> None:
    cluster = create_cluster(f"slurm?root={tmp_path}&partition=gpu&qos=high&region_constraint=true&grace=30")
    assert isinstance(cluster, SlurmCluster)
    again = create_cluster(cluster.spec)
    assert isinstance(again, SlurmCluster)
    assert again.spec == cluster.spec
    assert "partition=gpu" in cluster.spec


def test_making_a_cluster_asks_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    cluster = create_cluster("slurm", root=tmp_path / "records")
    assert cluster.list_jobs() == []
    assert not (tmp_path / "records").exists()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"resources": ResourceConfig.with_tpu("v5litepod-16")}, "TPU"),
        ({"resources": ResourceConfig(regions=["us-east"])}, "region_constraint=true"),
        ({"environment": create_environment(docker_image="ubuntu:24.04")}, r"ubuntu:24\.04"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_it_cannot_do_is_refused(tmp_path: Path, fields: dict[str, Any], says: str) -> None:
    cluster = create_cluster("slurm", root=tmp_path)
    with pytest.raises(UnsupportedError, match=says):
        launch(cluster, program("pass"), **fields)
    assert cluster.list_jobs() == []


def test_the_batch_script_of_a_request_can_be_read_before(tmp_path: Path) -> None:
    cluster = SlurmCluster(root=tmp_path, partition="gpu", account="lab")
    request = JobRequest(
        "train", program("pass"), resources=ResourceConfig.with_gpu("H100", count=8, replicas=2)
    )
    script = cluster.batch_script(request)
    for line in ("--partition=gpu", "--account=lab", "--nodes=2", "--gres=gpu:h100:8", "--requeue"):
        assert f"#SBATCH {line}\n" in script
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_the_nodes_do_not_see_is_refused_at_launch(
    recorded: RecordedSlurm, tmp_path: Path
) -> None:
    recorded.node("another-host")
    recorded.says("srun", "n\n")
    cluster = create_cluster("slurm", root=tmp_path / "records")
    with pytest.raises(SlurmError, match=r"do not see .*slurm\?root="):
        launch(cluster, program("pass"))
    assert cluster.list_jobs() == []
    assert list((tmp_path / "records").iterdir()) == []  # nor what was probed with
    assert recorded.calls("sbatch") == []


@pytest.mark.parametrize("answer", ["y\n", ""])  # none: no node was free to be asked
def test_a_folder_that_they_see_is_asked_for_once(
    recorded: RecordedSlurm, tmp_path: Path, answer: str
) -> None:
    recorded.node("another-host")
    recorded.says("srun", answer, code=0 if answer else 1)
    cluster = create_cluster("slurm", root=tmp_path / "records", partition="gpu")
    for _ in range(2):
        launch(cluster, program("pass"))
    (asked,) = recorded.calls("srun")
    assert "--partition=gpu" in asked


def test_nobody_is_asked_where_all_nodes_are_this_host(recorded: RecordedSlurm, tmp_path: Path) -> None:
    launch(create_cluster("slurm", root=tmp_path / "records"), program("pass"))
    assert recorded.calls("srun") == []


def test_a_job_on_a_node_that_does_not_see_the_folder_says_so(
    slurm: LocalSlurm, tmp_path: Path, number_of: Callable[[str], str]
) -> None:
    """The records vanish while the job waits: as on a node that has not mounted them."""
    cluster = create_cluster(f"slurm?root={tmp_path}/records&poll_interval=0.5")
    job_id = launch(cluster, program("pass"), backend={"slurm": {"begin": "now+3600"}})
    number = number_of(job_id)
    script = slurm.run("scontrol", "write", "batch_script", number, "-")
    (tmp_path / "script").write_text(script.replace(f"{tmp_path}/records/{job_id}", "/not/mounted"))
    done = subprocess.run(["sh", os.fspath(tmp_path / "script")], capture_output=True, text=True, check=False)
    assert done.returncode == 97
    assert "does not see /not/mounted" in done.stderr
    cluster.terminate(job_id)


def test_many_jobs_are_polled_by_few_questions(slurm: LocalSlurm, tmp_path: Path) -> None:
    """Twenty waiting jobs, each polled a hundred times: what squeue was started for is counted."""
    count = tmp_path / "count"
    wrapper = tmp_path / "bin" / "squeue"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\necho >> {count}\nexec /usr/bin/squeue "$@"\n')
    wrapper.chmod(0o755)
    cluster = create_cluster(f"slurm?root={tmp_path}/records&poll_interval=2")
    ids = [launch(cluster, program("pass"), backend={"slurm": {"begin": "now+3600"}}) for _ in range(20)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
        started = time.monotonic()
        for _ in range(100):
            assert {cluster.poll(job_id).status for job_id in ids} == {JobStatus.PENDING}
        seconds = time.monotonic() - started
    assert len(count.read_text().splitlines()) <= 2 + seconds / 2.0, "one in each interval"
    for job_id in ids:
        cluster.terminate(job_id)


def fray(*words: str, spec: str) -> str:
    done = subprocess.run(
        [Path(sys.executable).with_name("fray"), *words, "--cluster", spec],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_line_runs_lists_shows_and_stops(slurm: LocalSlurm, tmp_path: Path) -> None:
    spec = f"slurm?root={tmp_path}/records&poll_interval=0.5"
    cluster = create_cluster(spec)
    job_id = cluster.launch(
        JobRequest("hello", Entrypoint.from_binary("sh", ["-c", "echo hello; sleep 600"]))
    )
    assert next(iter(cluster.monitor(job_id))) == "hello"
    assert job_id in fray("list", spec=spec)
    assert "running" in fray("status", job_id, spec=spec)
    assert "hello" in fray("logs", job_id, spec=spec)
    fray("stop", job_id, spec=spec)
    assert cluster.poll(job_id).status is JobStatus.STOPPED


@pytest.mark.parametrize("by_variable", [False, True])
def test_a_dry_run_prints_the_batch_script_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_variable: bool
) -> None:
    words = [str(Path(sys.executable).with_name("fray")), "run", "--dry-run", "--cpu", "3"]
    spec = f"slurm?root={tmp_path}/records&partition=gpu"
    if by_variable:
        monkeypatch.setenv("FRAY_CLUSTER_SPEC", spec)
    named = [] if by_variable else ["--cluster", spec]
    done = subprocess.run(
        [*words, *named, "--", "python", "train.py"], capture_output=True, text=True, check=True
    )
    assert "#SBATCH --partition=gpu" in done.stderr
    assert "#SBATCH --cpus-per-task=3" in done.stderr
    assert not (tmp_path / "records").exists()
