"""A slurmctld that comes back without its jobs, and one that is away: another rig, of two nodes."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fray import ClusterUnavailableError
from fray.cluster import Cluster, ExitReason, JobStatus, ResourceConfig, create_cluster
from fray.testing.cluster import launch, program, until
from fray_slurm.testing import LocalSlurm

PATIENCE = 90.0
LATER = {"slurm": {"begin": "now+3600", "nodelist": "n2"}}
SMALL = ResourceConfig(cpu=1, ram="200m")
FAILS_ONCE = """
    import os, sys, time, pathlib
    print("up", flush=True)
    while not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.05)
    sys.exit(3 if os.environ["FRAY_ATTEMPT"] == "1" else 0)
"""
WAITS_FOR_FILE = """
    import sys, time, pathlib
    print("up", flush=True)
    while not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def other() -> Iterator[LocalSlurm]:
    with LocalSlurm(nodes=2, client_timeout=2) as slurm:
        yield slurm


def forget_jobs(slurm: LocalSlurm) -> None:
    slurm.stop_controller(lose_jobs=True)
    slurm.start_controller()
    slurm.wait_until_idle()


def give_away(slurm: LocalSlurm, number: str) -> None:
    """Submit jobs of somebody else, which wait, until one has this number."""
    taken = ""
    while taken != number:
        assert not taken or int(taken) < int(number)
        later = ["--begin=now+3600", "--output=/dev/null"]
        taken = slurm.run("sbatch", "--parsable", *later, "--wrap", "sleep 600").strip()


def saved_jobs(slurm: LocalSlurm) -> bytes:
    """What slurmctld has saved of its jobs; nothing in the moment in which it replaces the file."""
    try:
        return (slurm.folder / "state" / "job_state").read_bytes()
    except FileNotFoundError:
        return b""


@pytest.fixture
def cluster(other: LocalSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("SLURM_CONF", other.variables["SLURM_CONF"])
    cluster = create_cluster(f"slurm?root={tmp_path}/records&poll_interval=0.2")
    yield cluster
    for info in cluster.list_jobs():
        if not info.finished:
            cluster.terminate(info.job_id, grace=0.0)


def test_a_job_that_slurmctld_has_lost_says_so_and_can_be_run_again(
    other: LocalSlurm, cluster: Cluster, tmp_path: Path, number_of: Callable[[str], str]
) -> None:
    """Its number is given to somebody else's job, which is not taken for it."""
    job_id = launch(cluster, program("print('ran')"), "lost", backend=LATER)
    number = number_of(job_id)
    forget_jobs(other)
    give_away(other, number)
    info = cluster.wait(job_id, timeout=PATIENCE)
    assert (info.status, info.tasks[0].reason) == (JobStatus.FAILED, ExitReason.LOST)
    assert "slurmctld has lost it" in str(info.error_message)
    assert cluster.retry(job_id) == job_id
    other.run("scontrol", "update", f"JobId={number_of(job_id)}", "StartTime=now")
    assert cluster.wait(job_id, timeout=PATIENCE).status is JobStatus.SUCCEEDED
    assert list(cluster.monitor(job_id)) == ["ran"]
    assert f"JobId={number}" in other.run("scontrol", "show", "job", number)


@pytest.mark.parametrize(
    ("replicas", "state"), [(1, "PENDING"), (1, "RUNNING"), (2, "PENDING")], ids=["job", "runs", "array"]
)
def test_a_stop_leaves_the_job_alone_that_has_the_number_by_now(
    other: LocalSlurm,
    cluster: Cluster,
    tmp_path: Path,
    number_of: Callable[[str], str],
    replicas: int,
    state: str,
) -> None:
    resources = ResourceConfig(cpu=1, ram="200m", replicas=replicas)
    job_id = launch(cluster, program("pass"), "lost", resources=resources, backend=LATER)
    number = number_of(job_id)
    forget_jobs(other)
    give_away(other, number)

    def has_state(wanted: str) -> bool:
        return other.run("squeue", "-h", "-t", "all", "-j", number, "-o", "%T").split() == [wanted]

    if state == "RUNNING":
        other.run("scontrol", "update", f"JobId={number}", "StartTime=now")
        until(lambda: has_state("RUNNING"), "it runs", PATIENCE)
    # As another process does, which has not asked Slurm before.
    another = create_cluster(f"slurm?root={tmp_path}/records")
    another.terminate(job_id)
    assert another.poll(job_id).status is JobStatus.STOPPED
    assert has_state(state)
    other.run("scancel", number)
    until(lambda: has_state("CANCELLED"), "its node is free", PATIENCE)


def test_jobs_outlive_a_controller_that_is_away(
    other: LocalSlurm, cluster: Cluster, tmp_path: Path, number_of: Callable[[str], str]
) -> None:
    """One ends meanwhile, one fails and is to start again, one waits in the queue."""
    here = {"slurm": {"nodelist": "n1"}}
    fails = launch(
        cluster,
        program(FAILS_ONCE, tmp_path / "go"),
        "fails",
        resources=SMALL,
        backend=here,
        max_retries_failure=1,
    )
    assert next(line for line in cluster.monitor(fails) if line == "up")
    job_id = launch(cluster, program(WAITS_FOR_FILE, tmp_path / "go"), backend=here)
    assert next(line for line in cluster.monitor(job_id) if line == "up")
    waits = launch(cluster, program("pass"), "waits", backend=LATER)
    number = number_of(waits)
    # What it has not saved a crash would lose.
    until(lambda: b"waits-" in saved_jobs(other), "it is saved", PATIENCE)
    other.stop_controller()
    try:
        until(lambda: "does not answer" in str(cluster.poll(waits).pending_reason), "it is noticed", PATIENCE)
        assert cluster.poll(job_id).status is JobStatus.RUNNING
        with pytest.raises(ClusterUnavailableError, match="Unable to contact slurm controller"):
            launch(cluster, program("pass"), "refused")
        (tmp_path / "go").touch()
        assert cluster.wait(job_id, timeout=PATIENCE).status is JobStatus.SUCCEEDED
        until(lambda: cluster.poll(fails).tasks[0].attempt == 2, "it is to start again", PATIENCE)
        assert {info.job_id for info in cluster.list_jobs()} == {job_id, fails, waits}
    finally:
        other.start_controller()
    info = cluster.wait(fails, timeout=PATIENCE)
    assert (info.status, info.tasks[0].attempt) == (JobStatus.SUCCEEDED, 2), info.error_message
    # The step that ended meanwhile holds its node for a minute: Slurm says so only then.
    until(lambda: "idle" in other.run("sinfo", "-h", "-n", "n2", "-o", "%T").split(), "n2 is back", PATIENCE)
    other.run("scontrol", "update", f"JobId={number}", "StartTime=now")
    assert cluster.wait(waits, timeout=PATIENCE).status is JobStatus.SUCCEEDED


def test_what_is_stopped_while_the_controller_is_away_is_gone_when_it_is_back(
    other: LocalSlurm, cluster: Cluster, tmp_path: Path, number_of: Callable[[str], str]
) -> None:
    here = {"slurm": {"nodelist": "n1"}}
    runs = launch(cluster, program(WAITS_FOR_FILE, tmp_path / "never"), "runs", backend=here)
    assert next(line for line in cluster.monitor(runs) if line == "up")
    waits = launch(cluster, program("pass"), "waits", backend=LATER)
    number = number_of(waits)
    until(lambda: b"waits-" in saved_jobs(other), "it is saved", PATIENCE)
    with ThreadPoolExecutor(1) as threads:
        other.stop_controller()
        try:
            cluster.terminate(runs, grace=5.0)  # its supervisor is asked, not Slurm
            assert cluster.poll(runs).status is JobStatus.STOPPED
            stopped = threads.submit(cluster.terminate, waits)
            until(lambda: cluster.poll(waits).status is JobStatus.STOPPED, "it will never run", PATIENCE)
            is_in_the_queue = not stopped.done()
        finally:
            other.start_controller()
        assert is_in_the_queue
        stopped.result(PATIENCE)
    assert number not in other.run("squeue", "-h", "-o", "%i").split()
