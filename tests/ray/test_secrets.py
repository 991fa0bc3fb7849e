"""What a job was given is in no file of its nodes, also when all that could clean up are killed at once."""

import contextlib
import os
import shutil
import signal
from pathlib import Path

from gang_hosts import pids_of_replicas
from words_in_files import files_with

from fray.cluster import Entrypoint, ExitReason, JobRequest, JobStatus, create_environment
from fray.testing.cluster_fixtures import running
from fray.testing.gates import until
from fray_ray import RayCluster

ARGUMENT, VARIABLE = "5d02c1-an-argument", "91ab7f-a-variable"


def work(folder: Path, argument: str) -> None:
    """Note what there is to know of this attempt, and wait."""
    import os
    import time
    from pathlib import Path

    assert argument
    assert os.environ["SERVICE_KEY"]
    private = Path(os.environ["FRAY_PREEMPTION_NOTICE"]).parent
    draft = Path(folder, "draft")
    draft.write_text(f"{os.getpid()} {os.getppid()} {private}")
    draft.rename(Path(folder, "up"))
    time.sleep(600)


def test_arguments_and_variables_are_in_no_file_when_all_processes_of_a_replica_are_killed(
    joined_cluster: RayCluster, tmp_path: Path
) -> None:
    environment = create_environment(env_vars={"SERVICE_KEY": VARIABLE})
    entrypoint = Entrypoint.from_callable(work, [tmp_path, ARGUMENT])
    job_id = joined_cluster.launch(JobRequest("secret", entrypoint, environment=environment))
    until((tmp_path / "up").exists, "the program runs")
    program, supervisor, private = (tmp_path / "up").read_text().split()
    guardian = Path(f"/proc/{supervisor}/stat").read_text().rpartition(")")[2].split()[1]
    places = Path(os.environ["RAY_TMPDIR"]), Path(private)
    assert not files_with([ARGUMENT, VARIABLE], *places)
    until(lambda: len(pids_of_replicas()) == 1, "no replica of an earlier test is left")
    (actor,) = pids_of_replicas()
    everybody = [int(guardian), int(supervisor), int(program), actor]
    for pid in everybody:
        with contextlib.suppress(ProcessLookupError):  # it ended with the one before
            os.kill(pid, signal.SIGKILL)
    info = joined_cluster.wait(job_id, timeout=120)
    assert (info.status, info.tasks[0].reason) == (JobStatus.FAILED, ExitReason.LOST)
    until(lambda: not any(map(running, everybody)), "no process is left")
    assert not files_with([ARGUMENT, VARIABLE], *places)
    shutil.rmtree(private, ignore_errors=True)  # an empty one: nobody was left to remove it
