"""What a replica's step notes in the record, where the file system shows or takes it late, or not at all."""

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fray.cluster import Cluster, Entrypoint, ExitReason, JobStatus
from fray.testing.cluster import launch, program, until
from fray_slurm.testing import LocalSlurm

PATIENCE = 90.0
Wrap = Callable[[str], None]


@pytest.mark.parametrize("code", [0, 3])
def test_a_replica_whose_note_is_seen_late_ended_as_it_did(
    slurm: LocalSlurm, cluster: Cluster, wrap_srun: Wrap, tmp_path: Path, code: int
) -> None:
    """As on NFS: a host may go on for a minute without what another one has written."""
    wrap_srun(
        f"""
        cd '{tmp_path}'/records/*/slurm || exit 99
        /usr/bin/srun "$@"
        code=$?
        mkdir '{tmp_path}/away'
        mv replica-* '{tmp_path}/away'
        (sleep 3; mv '{tmp_path}'/away/* .) > /dev/null 2>&1 &
        exit $code
        """
    )
    job_id = launch(cluster, Entrypoint.from_binary("sh", ["-c", f"exit {code}"]))
    info = cluster.wait(job_id, timeout=PATIENCE)
    assert info.status is (JobStatus.FAILED if code else JobStatus.SUCCEEDED)
    assert info.tasks[0].exit_code == code


def test_a_program_whose_step_can_note_nothing_for_a_while_runs_once(
    slurm: LocalSlurm, cluster: Cluster, wrap_srun: Wrap, tmp_path: Path
) -> None:
    """As on a disk that is full: neither its start nor its end could be noted when they came."""
    wrap_srun(
        f"""
        cd '{tmp_path}'/records/* || exit 99
        mv slurm slurm.away
        (sleep 5; mv slurm.away slurm) > /dev/null 2>&1 &
        exec /usr/bin/srun "$@"
        """
    )
    runs = tmp_path / "runs"
    script = f"echo run >> '{runs}'; sleep 1; exit 3"
    job_id = launch(cluster, Entrypoint.from_binary("sh", ["-c", script]))
    info = cluster.wait(job_id, timeout=PATIENCE)
    assert (info.tasks[0].exit_code, info.tasks[0].reason) == (3, ExitReason.EXITED)
    assert runs.read_text() == "run\n"


def has_pending(pid: int, number: int) -> bool:
    """Whether a process has a signal that it has not taken."""
    lines = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(lines["ShdPnd"], 16) >> (number - 1) & 1)


def test_an_attempt_that_is_to_end_before_srun_was_called_does_not_run(
    slurm: LocalSlurm, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process ends what is left of the attempt before it, for which Slurm takes as long as it likes."""
    asked, go, runs = (tmp_path / name for name in ("asked", "go", "runs"))
    wrapper = tmp_path / "bin" / "scontrol"
    wrapper.parent.mkdir()
    wait = f"echo $PPID > '{asked}.new'; mv '{asked}.new' '{asked}'; until [ -e '{go}' ]; do sleep 0.1; done"
    wrapper.write_text(f'#!/bin/sh\n[ "$2" = step ] && {{ {wait}; }}\nexec /usr/bin/scontrol "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}{os.pathsep}{os.environ['PATH']}")
    script = f"echo run >> '{runs}'; [ $FRAY_ATTEMPT = 1 ] && exit 1; sleep 600"
    job_id = launch(cluster, Entrypoint.from_binary("sh", ["-c", script]), max_retries_failure=1)
    until(asked.exists, "the second attempt asks for what is left of the first", PATIENCE)
    with ThreadPoolExecutor(1) as threads:
        stopped = threads.submit(cluster.terminate, job_id, 600.0)
        until(lambda: has_pending(int(asked.read_text()), signal.SIGTERM), "it is to end", PATIENCE)
        go.touch()
        stopped.result(60)
    assert cluster.poll(job_id).status is JobStatus.STOPPED
    assert runs.read_text() == "run\n"


def test_a_replica_that_waits_for_the_end_of_its_job_is_started_again(
    slurm: LocalSlurm, cluster: Cluster, number_of: Callable[[str], str], tmp_path: Path
) -> None:
    """Its program has ended by a signal of Slurm's, which need not mean that the job ends."""
    job_id = launch(cluster, program("import time; print('up', flush=True); time.sleep(600)"))
    assert next(iter(cluster.monitor(job_id))) == "up"
    slurm.run("scancel", "--signal=TERM", number_of(job_id))
    ends = tmp_path / "records" / job_id / "ends" / "replica-0.attempt-1"
    until(lambda: ends.exists() and "held" in ends.read_text(), "it waits", PATIENCE)
    cluster.restart(job_id, grace=0.0)
    until(lambda: cluster.poll(job_id).tasks[0].attempt == 2, "it runs again", PATIENCE)
