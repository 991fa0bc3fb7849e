"""Replicas that have a supervisor each, on a cluster that starts a command for each of them."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from fray.cluster import (
    DirectoryCluster,
    ExitReason,
    JobId,
    JobPlan,
    JobRequest,
    JobStatus,
    ResourceConfig,
    create_environment,
)
from fray.testing.cluster import launch, program, until
from fray.testing.cluster_fixtures import numbers_in, running

THREE = ResourceConfig(replicas=3, ram="64m")
SLEEPS = "import os, sys, time; print(os.getpid(), file=open(sys.argv[1], 'a', 1)); time.sleep(600)"
# Replica 1 fails until a file is there; the others end well.
ONE_FAILS = """
    import os, pathlib, sys
    number = os.environ["FRAY_REPLICA_ID"]
    print("replica", number, "of", os.environ["FRAY_REPLICA_COUNT"], "attempt", os.environ["FRAY_ATTEMPT"])
    sys.exit(3 if number == "1" and not pathlib.Path(sys.argv[1]).exists() else 0)
"""


class Room(DirectoryCluster):
    """Starts the supervisors as children, as many as there is room for; the other commands wait."""

    def __init__(self, root: Path) -> None:
        super().__init__(f"room?root={root}", root)
        self.room = 99
        self.started: list[subprocess.Popen[bytes]] = []
        self.waiting: list[list[str]] = []

    def _plan(self, request: JobRequest, job_id: JobId, variables: Mapping[str, str]) -> JobPlan:
        plan = super()._plan(request, job_id, variables)
        return plan._replace(apart=plan.gang is None and plan.replicas > 1)

    def _start(self, job_id: str, command: list[str]) -> None:
        self.waiting.append(command)
        self.start_more()

    def start_more(self) -> None:
        while self.waiting and len(self.started) < self.room:
            self.started.append(subprocess.Popen(self.waiting.pop(0), start_new_session=True))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Room]:
    cluster = Room(tmp_path / "jobs")
    yield cluster
    for started in cluster.started:
        started.kill()
        started.wait()


def test_each_runs_under_its_own_number_and_the_job_reads_as_one(cluster: Room, tmp_path: Path) -> None:
    told = tmp_path / "told"
    on_exit = f"echo $FRAY_JOB_STATUS >> {told}"
    job_id = launch(cluster, program(ONE_FAILS, "/"), resources=THREE, on_exit=on_exit)
    info = cluster.wait(job_id, timeout=60)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    assert [task.replica for task in info.tasks] == [0, 1, 2]
    assert sorted(cluster.monitor(job_id)) == [
        f"[replica-{number}] replica {number} of 3 attempt 1" for number in range(3)
    ]
    # Beside these there may be that of `on_exit`.
    assert len([path for path in info.logs if "replica-" in path]) == 3
    until(lambda: told.exists() and told.read_text(), "its end is reported")
    for started in cluster.started:
        started.wait(timeout=60)
    assert told.read_text() == "succeeded\n"
    assert cluster.poll(job_id).status is JobStatus.SUCCEEDED
    cluster.remove(job_id)
    assert cluster.list_jobs() == []


def test_they_start_as_room_comes(cluster: Room, tmp_path: Path) -> None:
    pids, cluster.room = tmp_path / "pids", 1
    job_id = launch(cluster, program(SLEEPS, pids), resources=THREE)
    until(lambda: len(numbers_in(pids)) == 1, "the first runs")
    until(lambda: cluster.poll(job_id).status is JobStatus.RUNNING, "the job reads running")
    info = cluster.poll(job_id)
    assert [task.attempt for task in info.tasks] == [1, 0, 0]
    assert any("2 of 3 replicas wait" in text for text in info.warnings)
    cluster.room = 2
    cluster.start_more()
    until(lambda: len(numbers_in(pids)) == 2, "another runs")
    cluster.terminate(job_id, grace=5.0)  # with one that nobody has started
    info = cluster.poll(job_id)
    assert (info.status, info.error_message) == (JobStatus.STOPPED, None)
    assert not any(map(running, numbers_in(pids)))
    cluster.room = 3
    cluster.start_more()
    cluster.started[-1].wait(timeout=60)
    assert len(numbers_in(pids)) == 2
    assert cluster.poll(job_id) == info


def test_one_that_fails_leaves_the_others_and_alone_is_run_again(cluster: Room, tmp_path: Path) -> None:
    there = tmp_path / "there"
    environment = create_environment(env_vars={"OTHER": "plain"})
    job_id = launch(cluster, program(ONE_FAILS, there), resources=THREE, environment=environment)
    info = cluster.wait(job_id, timeout=60)
    assert info.status is JobStatus.FAILED
    assert str(info.error_message).startswith("replica 1 exited with code 3")
    assert [task.status for task in info.tasks].count(JobStatus.SUCCEEDED) == 2
    there.touch()
    assert cluster.retry(job_id) == job_id
    info = cluster.wait(job_id, timeout=60)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    assert [task.attempt for task in info.tasks] == [1, 2, 1]
    assert info.tasks[1].previous[0].exit_code == 3
    assert "replica 1 of 3 attempt 2" in " ".join(cluster.monitor(job_id, replica=1))
    assert len(cluster.started) == 4


def test_those_that_could_not_be_started_again_read_as_they_had_ended_and_can_be(
    tmp_path: Path, cluster: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there"
    job_id = launch(cluster, program(ONE_FAILS, there), resources=THREE)
    ended = cluster.wait(job_id, timeout=60)

    def broken(job_id: str, command: list[str]) -> None:
        raise OSError("no room on any host")

    with monkeypatch.context() as patch:
        patch.setattr(cluster, "_start", broken)
        with pytest.raises(OSError, match="no room"):
            cluster.retry(job_id)
    info = cluster.poll(job_id)
    assert (info.status, info.tasks, info.error_message) == (ended.status, ended.tasks, ended.error_message)
    there.touch()
    cluster.retry(job_id)
    assert cluster.wait(job_id, timeout=60).status is JobStatus.SUCCEEDED


def test_a_supervisor_that_is_killed_takes_its_own_replica_along(cluster: Room, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    job_id = launch(cluster, program(SLEEPS, pids), resources=THREE)
    until(lambda: len(numbers_in(pids)) == 3, "all run")
    until(lambda: [task.attempt for task in cluster.poll(job_id).tasks] == [1] * 3, "it is written")
    holder = cluster.record(job_id).of_replica(1).holder()
    assert holder is not None
    os.kill(holder.pid, signal.SIGKILL)
    until(lambda: cluster.poll(job_id).tasks[1].reason is ExitReason.LOST, "one is lost")
    assert sum(map(running, numbers_in(pids))) == 2
    assert cluster.poll(job_id).status is JobStatus.RUNNING
    with pytest.raises(ValueError, match="terminate it"):
        cluster.remove(job_id)
    cluster.restart(job_id, 2, grace=0.0)
    until(lambda: cluster.poll(job_id).tasks[2].attempt == 2, "another was started again")
    cluster.terminate(job_id, grace=0.0)
    info = cluster.poll(job_id)
    assert info.status is JobStatus.STOPPED
    assert "was killed" in str(info.error_message)
    assert not any(map(running, numbers_in(pids)))
    cluster.prune()
    until(lambda: not cluster.prune().jobs and not cluster.list_jobs(), "its record is gone")


def test_what_runs_after_it_waits_for_all(cluster: Room, tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = """
        import os, pathlib, sys, time
        while os.environ["FRAY_REPLICA_ID"] == "2" and not pathlib.Path(sys.argv[1]).exists():
            time.sleep(0.02)
    """
    first = launch(cluster, program(code, go), resources=THREE)
    second = launch(cluster, program("print('after')"), after=[first])
    until(lambda: [task.status for task in cluster.poll(first).tasks].count(JobStatus.SUCCEEDED) == 2, "two")
    assert cluster.poll(second).status is JobStatus.PENDING
    go.touch()
    assert cluster.wait(second, timeout=60).status is JobStatus.SUCCEEDED
    assert cluster.poll(first).status is JobStatus.SUCCEEDED
