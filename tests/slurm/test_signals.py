"""Clusters on which Slurm signals one process of a step, as most do, and not all that descends from it.

`proctrack/cgroup` signals the process that Slurm itself started; `proctrack/pgid` its process group.
"""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from taking_signals import GRACE, TRACKINGS, below_a_shell, start, taken

from fray.cluster import Cluster, ExitReason, JobStatus, create_cluster
from fray.testing.cluster import launch, until
from fray.testing.cluster_fixtures import running
from fray_slurm.testing import LocalSlurm

PATIENCE = 90.0
pytestmark = pytest.mark.timeout(240)

# Notes each SIGTERM, and takes eight seconds to end from the first one on.
SAVES = """
    import pathlib, signal, sys, time
    folder = pathlib.Path(sys.argv[1])
    def take(number, frame):
        with (folder / "taken").open("a") as file:
            print(signal.Signals(number).name, file=file)
    signal.signal(signal.SIGTERM, take)
    print("up", flush=True)
    while not (folder / "taken").exists():
        time.sleep(0.05)
    time.sleep(8)
    (folder / "saved").touch()
"""


@pytest.fixture(scope="module")
def slurm(tracking_slurm: LocalSlurm) -> LocalSlurm:
    """Instead of the Slurm of the other tests."""
    return tracking_slurm


def test_a_program_that_is_stopped_is_asked_to_end(
    slurm: LocalSlurm, cluster: Cluster, tmp_path: Path
) -> None:
    job_id, pid = start(cluster, tmp_path)
    begun = time.monotonic()
    cluster.terminate(job_id, grace=60.0)
    assert time.monotonic() - begun < 45.0  # it did not take all of its grace
    assert taken(tmp_path) == ["SIGTERM"]
    assert not running(pid)
    assert cluster.poll(job_id).status is JobStatus.STOPPED


def test_a_preempted_program_has_notice_of_the_time_that_it_has(
    slurm: LocalSlurm, cluster: Cluster, number_of: Callable[[str], str], tmp_path: Path
) -> None:
    node = slurm.nodes[0]
    job_id, _ = start(cluster, tmp_path, backend={"slurm": {"nodelist": node}})
    number = number_of(job_id)
    slurm.preempt(node)
    until((tmp_path / "left").exists, "it has its notice", PATIENCE)
    assert taken(tmp_path) == ["SIGTERM"]
    assert 8.0 < float((tmp_path / "left").read_text()) <= GRACE
    until(lambda: cluster.poll(job_id).status is JobStatus.PENDING, "it is requeued", PATIENCE)
    slurm.end_hold(number)
    info = cluster.wait(job_id, timeout=PATIENCE)
    assert info.status is JobStatus.SUCCEEDED, info
    assert [each.reason for each in info.tasks[0].previous] == [ExitReason.PREEMPTED]


def test_a_job_that_is_cancelled_is_stopped_with_what_it_launched(
    slurm: LocalSlurm, cluster: Cluster, number_of: Callable[[str], str], tmp_path: Path
) -> None:
    noted = tmp_path / "noted"
    job_id, _ = start(cluster, tmp_path, on_exit=f"echo $FRAY_JOB_STATUS > '{noted}'")
    slurm.run("scancel", number_of(job_id))
    until(noted.exists, "the command of on_exit has run", PATIENCE)
    info = cluster.wait(job_id, timeout=PATIENCE)
    assert (info.status, info.tasks[0].reason) == (JobStatus.STOPPED, ExitReason.STOPPED)
    written = (tmp_path / "records" / job_id / "status.json").read_text()
    assert '"stopped"' in written


@pytest.mark.parametrize("tracking", TRACKINGS)
def test_a_program_that_saves_when_it_is_cancelled_gets_one_signal(
    tmp_path: Path, number_of: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, tracking: str
) -> None:
    with LocalSlurm(nodes=1, kill_wait=20, client_timeout=2, tracking=tracking) as slurm:
        monkeypatch.setenv("SLURM_CONF", slurm.variables["SLURM_CONF"])
        cluster = create_cluster(f"slurm?root={tmp_path}/records&poll_interval=0.5")
        job_id = launch(cluster, below_a_shell(SAVES, tmp_path), "saves")
        assert next(iter(cluster.monitor(job_id))) == "up"
        slurm.run("scancel", number_of(job_id))
        until((tmp_path / "saved").exists, "it has saved", PATIENCE)
        assert taken(tmp_path) == ["SIGTERM"]
        assert cluster.wait(job_id, timeout=PATIENCE).status is JobStatus.STOPPED


def test_a_signal_of_a_user_reaches_the_program_and_ends_nothing(
    slurm: LocalSlurm, cluster: Cluster, number_of: Callable[[str], str], tmp_path: Path
) -> None:
    job_id, pid = start(cluster, tmp_path)
    number = number_of(job_id)
    slurm.run("scancel", "--signal=USR1", "--full", number)  # the batch step, in which the supervisor is
    slurm.run("scancel", "--signal=USR2", number)  # the others
    until(lambda: "SIGUSR2" in taken(tmp_path), "it takes it", PATIENCE)
    assert running(pid)
    assert cluster.poll(job_id).status is JobStatus.RUNNING


def test_a_job_is_stopped_to_its_end_while_the_controller_is_away(
    slurm: LocalSlurm, cluster: Cluster, tmp_path: Path
) -> None:
    """The last test of this Slurm: a slurmctld that had not saved the job gives its number to another one."""
    job_id, pid = start(cluster, tmp_path)
    slurm.stop_controller()
    try:
        cluster.terminate(job_id, grace=20.0)
        assert cluster.poll(job_id).status is JobStatus.STOPPED
        until(lambda: not running(pid), "its program is gone", PATIENCE)
    finally:
        slurm.start_controller()
    assert taken(tmp_path) == ["SIGTERM"]
