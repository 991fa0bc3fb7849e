"""However a process hides, it ends with its job."""

import itertools
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fray.cluster import Entrypoint, JobStatus
from fray.testing.cluster import launch, program, until
from fray.testing.cluster_fixtures import numbers_in, running
from fray_local import LocalCluster

# Each writes the ids of its processes to $1; sleep is what is to be found and ended.
TREES = {
    "child": "sleep 600 & echo $! >> $1; echo $$ >> $1; wait",
    "session": "setsid sleep 600 & echo $! >> $1; echo $$ >> $1; wait",
    "double fork": "(setsid sh -c 'echo $$ >> $1; exec sleep 600' sh $1 &); echo $$ >> $1; exec sleep 600",
    "stubborn": "trap '' TERM; sh -c 'trap \"\" TERM; echo $$ >> $1; while :; do sleep 600; done' sh $1 & "
    "echo $$ >> $1; while :; do sleep 600; done",
    "no environment": "(env -i setsid sh -c 'echo $$ >> $1; exec sleep 600' sh $1 &); "
    "echo $$ >> $1; exec sleep 600",
}


@pytest.mark.timeout(300)
def test_two_hundred_terminated_trees_leave_no_process(tmp_path: Path) -> None:
    cluster = LocalCluster(overcommit=True)
    kinds = list(itertools.islice(itertools.cycle(TREES), 200))

    def live_and_die(number: int) -> JobStatus:
        pids = tmp_path / f"{number}.pids"
        job_id = launch(
            cluster, Entrypoint.from_binary("/bin/sh", ["-c", TREES[kinds[number]], "sh", str(pids)])
        )
        until(lambda: len(numbers_in(pids)) >= 2, f"the tree {kinds[number]!r} grows")
        cluster.terminate(job_id, grace=0.1)
        return cluster.poll(job_id).status

    with ThreadPoolExecutor(8) as pool:
        outcomes = Counter(pool.map(live_and_die, range(200)))
    assert outcomes == {JobStatus.STOPPED: 200}
    survivors = {
        kinds[number]: pid
        for number in range(200)
        for pid in numbers_in(tmp_path / f"{number}.pids")
        if Path(f"/proc/{pid}").exists() and running(pid)
    }
    assert survivors == {}


def test_what_a_finished_job_left_behind_is_ended(tmp_path: Path) -> None:
    cluster = LocalCluster()
    pids = tmp_path / "pids"
    # It ends when what it started is in a session of its own.
    code = "setsid sh -c 'echo $$ > $1; exec sleep 600' sh $1 & while ! test -s $1; do sleep 0.01; done"
    job_id = launch(cluster, Entrypoint.from_binary("/bin/sh", ["-c", code, "sh", str(pids)]))
    assert cluster.wait(job_id, timeout=30).status is JobStatus.SUCCEEDED
    (pid,) = numbers_in(pids)
    assert not running(pid)


def test_what_a_failed_attempt_left_behind_is_gone_before_the_next(tmp_path: Path) -> None:
    code = """
        import os, subprocess, sys, time
        pids = sys.argv[1]
        if os.path.exists(pids):
            left, until = int(open(pids).read()), time.monotonic() + 20
            while os.path.exists(f"/proc/{left}") and time.monotonic() < until:
                time.sleep(0.01)  # it was killed before this began, and may not have run since
            print("left alive:", os.path.exists(f"/proc/{left}"))
            sys.exit(0)
        child = subprocess.Popen(["sleep", "600"])
        open(pids, "w").write(str(child.pid))
        os._exit(1)
    """
    cluster = LocalCluster()
    job_id = launch(cluster, program(code, tmp_path / "pids"), max_retries_failure=1)
    assert cluster.wait(job_id, timeout=30).status is JobStatus.SUCCEEDED
    assert list(cluster.monitor(job_id)) == ["left alive: False"]


def test_a_second_stop_shortens_the_grace_of_the_first(tmp_path: Path) -> None:
    cluster = LocalCluster()
    pids = tmp_path / "pids"
    job_id = launch(cluster, Entrypoint.from_binary("/bin/sh", ["-c", TREES["stubborn"], "sh", str(pids)]))
    until(lambda: len(numbers_in(pids)) == 2, "the tree grows")
    with ThreadPoolExecutor(1) as pool:
        patient = pool.submit(cluster.terminate, job_id, 600.0)
        cluster.terminate(job_id, grace=0.0)
        patient.result(timeout=30)
    assert cluster.poll(job_id).status is JobStatus.STOPPED


def test_leaving_the_with_block_stops_what_was_launched_in_it(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = (
        "import os, sys, time; print(os.getpid(), file=open(sys.argv[1], 'w'), flush=True); time.sleep(600)"
    )
    other = LocalCluster(overcommit=True)
    outside = launch(other, program("import time; time.sleep(600)"))
    with LocalCluster(overcommit=True) as cluster:
        inside = launch(cluster, program(code, pids))
        (pid,) = until(lambda: numbers_in(pids), "the job starts")
    assert other.poll(inside).status is JobStatus.STOPPED
    assert not running(pid)
    assert not other.poll(outside).finished
    other.terminate(outside, grace=0.0)


def test_leaving_the_with_block_after_a_job_was_removed_stops_the_others() -> None:
    sleeps = program("import time; time.sleep(600)")
    with LocalCluster(overcommit=True) as cluster:
        before = launch(cluster, sleeps)
        removed = launch(cluster, program("pass"))
        after = launch(cluster, sleeps)
        cluster.wait(removed, timeout=30)
        cluster.remove(removed)
    assert [cluster.poll(job_id).status for job_id in (before, after)] == [JobStatus.STOPPED] * 2
