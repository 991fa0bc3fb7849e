"""Clusters on which Slurm signals one process of a step, as most do, and not all that descends from it.

`proctrack/cgroup` signals the process that Slurm itself started; `proctrack/pgid` its process group.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fray.cluster import Cluster, Entrypoint, ExitReason, JobStatus, create_cluster
from fray.testing.cluster import launch, program, until
from fray.testing.cluster_fixtures import running
from fray_slurm.testing import LocalSlurm

PATIENCE = 90.0
GRACE = 20  # seconds that a partition leaves to a preempted job
pytestmark = pytest.mark.timeout(240)

# Notes each signal in a file, below a shell: no signal of Slurm's own reaches it. It ends at SIGTERM.
TAKES = """
    import os, pathlib, signal, sys, time
    from fray.job import preemption_notice
    folder = pathlib.Path(sys.argv[1])
    notice = preemption_notice()
    def take(number, frame):
        with (folder / "taken").open("a") as file:
            print(signal.Signals(number).name, file=file)
        if number == signal.SIGTERM:
            (folder / "left").write_text(str(notice.seconds_left))
            sys.exit(0)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, take)
    print("up", os.getpid(), flush=True)
    while os.environ["FRAY_ATTEMPT"] == "1":
        time.sleep(0.05)
"""

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


def may_make_control_groups() -> bool:
    """Whether a Slurm of this user can have `proctrack/cgroup`: a container often cannot."""
    groups = Path("/sys/fs/cgroup")
    place = groups / "freezer" if (groups / "freezer").is_dir() else groups
    probe = place / f"fray-probe-{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return True


TRACKINGS = ["pgid", *(["cgroup"] if may_make_control_groups() else [])]


@pytest.fixture(scope="module", params=TRACKINGS)
def slurm(request: pytest.FixtureRequest) -> Iterator[LocalSlurm]:
    """Instead of the Slurm of the other tests."""
    rig = LocalSlurm(nodes=2, kill_wait=5, grace=GRACE, client_timeout=2, tracking=request.param)
    with rig as slurm, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", slurm.variables["SLURM_CONF"])
        yield slurm


def below_a_shell(code: str, *words: object) -> Entrypoint:
    entrypoint = program(code, *words)
    assert entrypoint.binary is not None
    script = 'trap "" TERM USR1 USR2; "$@"; exit $?'
    return Entrypoint.from_binary("sh", ["-c", script, "sh", entrypoint.binary, *entrypoint.args])


def start(cluster: Cluster, folder: Path, **options: object) -> tuple[str, int]:
    """Launch a job that takes signals; return its id and the process of its program."""
    job_id = launch(cluster, below_a_shell(TAKES, folder), "takes", **options)
    word, pid = next(iter(cluster.monitor(job_id))).split()
    assert word == "up"
    return job_id, int(pid)


def taken(folder: Path) -> list[str]:
    path = folder / "taken"
    return path.read_text().split() if path.exists() else []


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


def test_the_time_limit_is_announced(slurm: LocalSlurm, tmp_path: Path) -> None:
    # Slurm may send the notice half a minute early; the program has started by then.
    cluster = create_cluster(f"slurm?root={tmp_path}/records&poll_interval=0.5&grace=20")
    job_id, _ = start(cluster, tmp_path, backend={"slurm": {"partition": "short", "time": "1"}})
    until((tmp_path / "left").exists, "it has its notice", PATIENCE)
    assert taken(tmp_path) == ["SIGTERM"]
    assert 5.0 < float((tmp_path / "left").read_text()) < 60.0
    info = cluster.wait(job_id, timeout=200)
    assert (info.status, info.tasks[0].reason) == (JobStatus.FAILED, ExitReason.TIMED_OUT), info


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
