"""The programs of examples/ on Slurm, as they are."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fray.cluster import (
    Cluster,
    Entrypoint,
    ExitReason,
    JobRequest,
    JobStatus,
    ResourceConfig,
)
from fray.testing.cluster import until
from fray_slurm.testing import LocalSlurm

PATIENCE = 110.0
EXAMPLES = Path(__file__).parents[2] / "examples"


def census(*words: str) -> str:
    command = [sys.executable, str(EXAMPLES / "census.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_census_of_replicas_is_that_of_one_program(cluster: Cluster, tmp_path: Path) -> None:
    parts, limit = tmp_path / "parts", ("--limit", "60")
    command = [str(EXAMPLES / "census.py"), "--save", str(parts), *limit]
    resources = ResourceConfig(replicas=3, ram="500m")
    job_id = cluster.launch(
        JobRequest("census", Entrypoint.from_binary("python", command), resources=resources)
    )
    info = cluster.wait(job_id, timeout=PATIENCE)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    assert len(list(parts.iterdir())) == 3
    assert census("--merge", str(parts)) == census(*limit)


def train(cluster: Cluster, folder: Path) -> JobRequest:
    folder.mkdir()
    program = Entrypoint.from_binary("python", [str(EXAMPLES / "train.py"), "work", str(folder)])
    return JobRequest(
        "train",
        program,
        resources=ResourceConfig(cpu=4, replicas=2, ram="1g"),
        gang=True,
        backend={"slurm": {"nodelist": "n1,n2"}},
    )


# Slurm numbers the steps of a run as they come: step 0 is of replica 0 in the first run, of 1 in the second.
SRUN = """#!/bin/sh
case "$*" in *--job-name=replica-1*)
    until [ "$SLURM_RESTART_COUNT" ] || SCONTROL show step "$SLURM_JOB_ID.0" >/dev/null 2>&1; do
        sleep 0.1
    done
esac
exec SRUN "$@"
"""
SCONTROL = """#!/bin/sh
if [ "$SLURM_RESTART_COUNT" ] && [ "$*" = "show step $SLURM_JOB_ID.0" ]; then
    until SCONTROL "$@" >/dev/null 2>&1; do sleep 0.1; done
fi
exec SCONTROL "$@"
"""


def order_steps(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the steps of a requeued job be numbered in another order, with programs before Slurm's own."""
    folder.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        for program in ("SRUN", "SCONTROL"):
            text = text.replace(program, str(shutil.which(program.lower())))
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def programs(folder: Path) -> list[int]:
    """Return the processes of a training, which are on this machine as its nodes are."""
    words = f"train.py\0work\0{folder}\0".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = path.read_bytes()
            if command.endswith(words) and b"fray_slurm" not in command and not command.startswith(b"srun"):
                found.append(int(path.parent.name))
    assert len(found) == 2, found
    return found


def test_a_training_that_was_preempted_has_the_result_of_one_that_was_not(
    slurm: LocalSlurm,
    cluster: Cluster,
    tmp_path: Path,
    number_of: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order_steps(tmp_path / "bin", monkeypatch)
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    first = cluster.launch(train(cluster, undisturbed))
    assert cluster.wait(first, timeout=PATIENCE).status is JobStatus.SUCCEEDED
    job_id = cluster.launch(train(cluster, disturbed))
    assert next(line for line in cluster.monitor(job_id, replica=0) if line.startswith("starts at step 0"))
    number = number_of(job_id)
    hosts = programs(disturbed)
    for host in hosts:  # or it may be through before Slurm takes its nodes
        os.kill(host, signal.SIGSTOP)
    slurm.preempt("n1,n2")
    until(lambda: "R" not in slurm.run("squeue", "-h", "-j", number, "-o", "%t").split(), "it is preempted")
    for host in hosts:
        with contextlib.suppress(ProcessLookupError):
            os.kill(host, signal.SIGCONT)
    slurm.end_hold(number)
    info = cluster.wait(job_id, timeout=PATIENCE)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    for task in info.tasks:
        assert task.attempt == 2
        assert task.previous[0].reason is ExitReason.PREEMPTED
    assert (disturbed / "result.json").read_text() == (undisturbed / "result.json").read_text()
