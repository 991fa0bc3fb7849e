"""When one host of a gang goes, all go, and start again while the right budget lasts."""

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fray.backend import post_to_supervisor
from fray.cluster import JobInfo, JobStatus, ResourceConfig
from fray.testing.cluster import launch, program, until
from fray.testing.cluster_fixtures import numbers_in, running
from fray_local import LocalCluster
from fray_local.testing import preempt

# How hosts begin; `up` tells the test that one is ready for signals.
BEGIN = """
import os, pathlib, signal, subprocess, sys, time
rank = int(os.environ["FRAY_REPLICA_ID"])
folder = pathlib.Path(sys.argv[1])
(folder / "addresses").open("a").write(os.environ["FRAY_COORDINATOR_ADDRESS"] + "\\n")
def up():
    (folder / "pids").open("a").write(f"{os.getpid()}\\n")
def wait_for(name):
    while not (folder / name).exists():
        time.sleep(0.005)
"""
WORK = "up(); wait_for('go')"
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN); up(); wait_for('go')"
SAVE = """
def save(*_):
    if rank == 2:
        (folder / "asked-2").touch()
        wait_for("peer-2-lives")
    (folder / f"saved-{rank}").touch()
    os._exit(0)
signal.signal(signal.SIGTERM, save)
up()
while not (folder / "go").exists():
    if rank == 0 and (folder / "asked-2").exists():
        (folder / "peer-2-lives").touch()
    time.sleep(0.005)
"""


class Gang:
    """A job of the four hosts of a v5litepod-16, in a folder of its own."""

    def __init__(self, cluster: LocalCluster, folder: Path, code: str, **fields: Any) -> None:
        self.cluster, self.folder = cluster, folder
        resources = ResourceConfig.with_tpu("v5litepod-16", cpu=10_000)
        self.id = launch(cluster, program(BEGIN + code, folder), resources=resources, **fields)

    def up(self, hosts: int = 4) -> list[int]:
        """Wait until so many hosts, counted over all attempts, are up; return their process ids."""
        pids = self.folder / "pids"
        return until(
            lambda: found if len(found := numbers_in(pids)) >= hosts else [], f"{hosts} hosts are up"
        )

    def finish(self) -> JobInfo:
        (self.folder / "go").touch()
        return self.end()

    def end(self) -> JobInfo:
        return self.cluster.wait(self.id, timeout=60)


Start = Callable[..., Gang]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    return lambda code, **fields: Gang(LocalCluster(simulate="tpu"), tmp_path, code, **fields)


def reasons(info: JobInfo, attempt: int = -1) -> list[str]:
    """Why an attempt of each host ended, by rank."""
    return [str([*task.previous, task][attempt].reason) for task in info.tasks]


def test_a_preempted_host_saves_and_the_whole_gang_starts_again(start: Start) -> None:
    gang = start(SAVE)
    gang.up()
    # Rank 2 can save only while rank 0 lives.
    assert preempt(gang.id, 2, grace=60.0) == 1
    assert all((gang.folder / f"saved-{rank}").exists() for rank in range(4))
    gang.up(8)
    info = gang.finish()
    assert info.status is JobStatus.SUCCEEDED
    assert info.error_message is None
    assert [task.attempt for task in info.tasks] == [2] * 4
    assert reasons(info, 0) == ["stopped", "stopped", "preempted", "stopped"]
    assert [task.previous[0].status for task in info.tasks] == ["stopped", "stopped", "failed", "stopped"]
    assert info.tasks[2].previous[0].exit_code == 0
    assert "replica 2 was preempted" in (info.tasks[0].previous[0].error_message or "")


def test_every_attempt_meets_at_an_address_of_its_own(start: Start) -> None:
    gang = start(WORK)
    gang.up()
    preempt(gang.id, 0)
    gang.up(8)
    gang.finish()
    addresses = (gang.folder / "addresses").read_text().split()
    assert sorted(addresses.count(address) for address in set(addresses)) == [4, 4]


def test_hosts_that_do_not_heed_the_notice_are_killed(start: Start) -> None:
    gang = start(STUBBORN)
    pids = gang.up()
    assert preempt(gang.id, 1, grace=0.1) == 1
    gang.up(8)
    assert not any(running(pid) for pid in pids)
    info = gang.finish()
    assert reasons(info, 0) == ["stopped", "preempted", "stopped", "stopped"]
    assert [task.previous[0].exit_code for task in info.tasks] == [-9] * 4


def test_a_host_may_be_preempted_from_another_process(start: Start) -> None:
    gang = start(WORK)
    gang.up()
    code = "import sys; from fray_local.testing import preempt; print(preempt(sys.argv[1], 3))"
    done = subprocess.run([sys.executable, "-c", code, gang.id], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
    assert reasons(gang.finish(), 0)[3] == "preempted"


def test_preempting_the_next_attempt_waits_for_it(start: Start) -> None:
    gang = start(WORK)
    assert [preempt(gang.id, rank, cluster=gang.cluster) for rank in (0, 3, 3)] == [1, 2, 3]
    info = gang.finish()
    assert info.status is JobStatus.SUCCEEDED
    assert [task.attempt for task in info.tasks] == [4] * 4


def test_a_notice_for_an_attempt_that_is_over_changes_nothing(start: Start, state_dir: Path) -> None:
    gang = start(WORK)
    gang.up()
    assert post_to_supervisor(str(state_dir / "jobs" / gang.id), "preempt 1 7 0")
    assert [task.attempt for task in gang.finish().tasks] == [1] * 4


def test_a_failing_host_ends_its_peers_and_the_job(start: Start) -> None:
    gang = start("up()\nif rank == 3: print('out of luck'); wait_for('pids'); sys.exit(5)\nwait_for('go')")
    info = gang.end()
    assert info.status is JobStatus.FAILED
    assert (info.error_message or "").startswith("replica 3 exited with code 5\n")
    assert "out of luck" in (info.error_message or "")
    assert reasons(info) == ["stopped", "stopped", "stopped", "exited"]
    assert [task.status for task in info.tasks] == ["stopped"] * 3 + ["failed"]
    assert not any(running(pid) for pid in numbers_in(gang.folder / "pids"))
    assert info.exit_code == 5


FAIL_ONCE_PREEMPTED = """
up()
if rank == 1 and len((folder / "pids").read_text().split()) > 4:
    wait_for("fail")
    os._exit(7)
wait_for("go")
"""


def test_failures_and_preemptions_are_counted_apart(start: Start) -> None:
    gang = start(FAIL_ONCE_PREEMPTED, max_retries_failure=1, max_retries_preemption=1)
    gang.up()
    preempt(gang.id, 0)
    (gang.folder / "fail").touch()
    info = gang.end()
    assert info.status is JobStatus.FAILED
    message = "replica 1 exited with code 7 (attempt 3, failure 2; max_retries_failure=1)"
    assert (info.error_message or "").startswith(message)
    assert [reasons(info, attempt)[:2] for attempt in range(3)] == [
        ["preempted", "stopped"],
        ["stopped", "exited"],
        ["stopped", "exited"],
    ]


def test_a_gang_is_not_started_again_when_its_preemptions_are_used_up(start: Start) -> None:
    gang = start(WORK, max_retries_preemption=1, max_retries_failure=5)
    preempt(gang.id, 1)
    preempt(gang.id, 2)
    info = gang.end()
    assert info.status is JobStatus.FAILED
    message = "replica 2 was preempted (preemption 2; max_retries_preemption=1)"
    assert (info.error_message or "").startswith(message)
    assert reasons(info) == ["stopped", "stopped", "preempted", "stopped"]
    assert reasons(info, 0) == ["stopped", "preempted", "stopped", "stopped"]
    with pytest.raises(ValueError, match=f"job {gang.id} is failed"):
        preempt(gang.id, 1)


def test_a_host_that_was_done_runs_again_with_its_gang(start: Start) -> None:
    gang = start("up()\nif rank: wait_for('go')")
    gang.up()
    until(lambda: gang.cluster.poll(gang.id).tasks[0].status is JobStatus.SUCCEEDED, "rank 0 is done")
    preempt(gang.id, 1)
    info = gang.finish()
    assert [task.attempt for task in info.tasks] == [2] * 4
    assert info.tasks[0].previous[0].status is JobStatus.SUCCEEDED


def test_what_hosts_hid_is_gone_before_the_next_attempt(start: Start) -> None:
    hide = "hidden = subprocess.Popen(['setsid', 'sleep', '600'])\n"
    note = "(folder / 'hidden').open('a').write(f'{hidden.pid}\\n')\n"
    gang = start(hide + note + WORK)
    gang.up()
    hidden = numbers_in(gang.folder / "hidden")
    preempt(gang.id, 0)
    gang.up(8)
    assert not any(running(pid) for pid in hidden)
    assert gang.finish().status is JobStatus.SUCCEEDED


DEAF = """
signal.signal(signal.SIGTERM, lambda *_: (folder / f"asked-{rank}").touch())
up()
if rank == 3:
    wait_for("fail")
    sys.exit(1)
wait_for("go")
"""


def asked(gang: Gang, rank: int) -> None:
    until((gang.folder / f"asked-{rank}").exists, f"SIGTERM reaches rank {rank}")


def test_a_gang_can_be_stopped_while_a_host_saves(start: Start) -> None:
    gang = start(DEAF)
    pids = gang.up()
    with ThreadPoolExecutor(1) as pool:
        notice = pool.submit(preempt, gang.id, 1, grace=600.0)
        asked(gang, 1)
        gang.cluster.terminate(gang.id, grace=0.1)
        with pytest.raises(ValueError, match="is stopped"):
            notice.result(timeout=30)
    assert_stopped(gang, pids)


def test_a_gang_can_be_stopped_while_peers_of_a_failed_host_are(start: Start) -> None:
    gang = start(DEAF, max_retries_failure=9)
    pids = gang.up()
    (gang.folder / "fail").touch()
    asked(gang, 0)
    gang.cluster.terminate(gang.id, grace=0.1)
    assert_stopped(gang, pids)


def test_a_gang_can_be_stopped_before_it_starts_again(start: Start) -> None:
    gang = start("up()\nsys.exit(1)", max_retries_failure=99)

    def pausing() -> bool:
        task = gang.cluster.poll(gang.id).tasks[0]
        return task.attempt >= 6 and task.status is JobStatus.PENDING

    until(pausing, "the pause between two attempts is long")
    gang.cluster.terminate(gang.id, grace=0.1)
    assert_stopped(gang, gang.up())


def test_a_gang_can_be_stopped_as_it_starts(start: Start) -> None:
    gang = start(STUBBORN)
    gang.cluster.terminate(gang.id, grace=0.1)
    assert_stopped(gang, numbers_in(gang.folder / "pids"))


def test_a_gang_can_be_stopped_as_it_runs(start: Start) -> None:
    gang = start(STUBBORN)
    pids = gang.up()
    gang.cluster.terminate(gang.id, grace=0.1)
    assert_stopped(gang, pids)


def assert_stopped(gang: Gang, pids: list[int]) -> None:
    info = gang.cluster.poll(gang.id)
    assert info.status is JobStatus.STOPPED
    assert {task.status for task in info.tasks} <= {JobStatus.STOPPED, JobStatus.FAILED}
    assert not any(running(pid) for pid in pids)


def test_a_gang_that_runs_too_long_is_ended(start: Start) -> None:
    info = start(WORK, timeout=0.5).end()
    assert info.status is JobStatus.FAILED
    assert reasons(info) == ["timed_out"] * 4
