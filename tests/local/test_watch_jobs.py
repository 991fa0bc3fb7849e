"""What a page asks again and again: all jobs, each record read once and when it changes."""

import json
import os
import shutil
from pathlib import Path

import pytest

from fray import JobNotFoundError
from fray.cluster import Cluster, JobStatus
from fray.testing.cluster import launch, program, until
from fray_local import LocalCluster

MANY = 300


def listed(cluster: Cluster) -> dict[str, JobStatus]:
    return {info.job_id: info.status for info in cluster.list_jobs()}


def removed(cluster: Cluster, job_id: str) -> bool:
    try:
        cluster.remove(job_id)
    except ValueError:  # its supervisor has said its last word, and is not gone
        return False
    return True


def copied(source: Path, count: int) -> None:
    """Make records of jobs that have ended, the last one the latest, and no index of them."""
    for number in range(count):
        copy = source.with_name(f"copy-{number:06x}")
        copy.mkdir()
        for name in ("status.json", "request.json"):
            (copy / name).write_text(
                (source / name).read_text().replace(f'"{source.name}"', f'"{copy.name}"')
            )
        os.utime(copy / "request.json", (2e9 + number, 2e9 + number))


def test_jobs_come_change_and_go(state_dir: Path) -> None:
    cluster = LocalCluster(overcommit=True)
    watch = cluster.watch_jobs()
    assert watch.look().infos == []
    waits = launch(cluster, program("import time; time.sleep(600)"))
    failed = launch(cluster, program("raise SystemExit(3)"))
    cluster.wait(failed)

    def seen() -> dict[str, JobStatus]:
        return {info.job_id: info.status for info in watch.look().infos}

    until(lambda: seen() == {waits: "running", failed: "failed"}, "both are seen")
    cluster.terminate(waits)
    until(lambda: seen()[waits] == "stopped", "its end is seen")
    until(lambda: removed(cluster, waits), "it is removed")
    assert seen() == listed(cluster) == {failed: "failed"}
    shutil.rmtree(state_dir / "jobs" / failed)
    assert seen() == {}


def test_a_retry_of_what_ended_long_ago_is_seen(state_dir: Path) -> None:
    cluster = LocalCluster(overcommit=True)
    job_id = launch(cluster, program("raise SystemExit(3)"))
    cluster.wait(job_id)
    path = state_dir / "jobs" / job_id / "status.json"
    status = json.loads(path.read_text())
    path.write_text(json.dumps(status | {"finished_at": 1e9}))
    watch = cluster.watch_jobs()
    assert [info.finished_at for info in watch.look().infos] == [1e9]
    cluster.retry(job_id)
    cluster.wait(job_id)
    watch.renew()
    (info,) = watch.look().infos
    assert [info] == cluster.list_jobs()
    assert (info.finished_at or 0.0) > 1e9


def test_many_records_without_an_index_are_read_little_by_little_the_latest_first(state_dir: Path) -> None:
    cluster = LocalCluster(keep_jobs=5000)
    first = launch(cluster, program("pass"))
    cluster.wait(first)
    copied(state_dir / "jobs" / first, MANY)
    watch = cluster.watch_jobs()
    for count in (1, 2, 3):
        seen = watch.look(0.0, least=1)
        latest = [f"copy-{MANY - 1 - number:06x}" for number in range(count)]
        assert ([info.job_id for info in seen.infos], seen.unread) == (latest, MANY + 1 - count)
    while seen.unread:
        seen = watch.look(0.05)
    assert {info.job_id: info.status for info in seen.infos} == listed(cluster)
    until(lambda: watch.look() is watch.look(), "the same list while nothing changes")
    (state_dir / "jobs" / "copy-000001" / "status.json").write_text("{")
    shutil.rmtree(state_dir / "jobs" / "copy-000002")
    watch.renew()
    now = listed(cluster)
    until(lambda: {info.job_id: info.status for info in watch.look().infos} == now, "both are seen")
    assert len(now) == MANY


def test_what_jobs_launched_and_the_members_of_a_sweep_are_watched(state_dir: Path, tmp_path: Path) -> None:
    cluster, go = LocalCluster(overcommit=True), tmp_path / "go"
    code = """
        import os, sys, time
        from fray.cluster import *
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
        c = current_cluster()
        c.wait(c.launch(JobRequest("below", Entrypoint.from_binary("true"))))
    """
    parent = launch(cluster, program(code, go))
    watch = cluster.watch_jobs()
    assert [info.job_id for info in watch.look().infos] == [parent]
    go.touch()
    cluster.wait(parent)
    assert {info.job_id.parent for info in watch.look().infos} == {None, parent}
    assert {info.job_id: info.status for info in watch.look().infos} == listed(cluster)
    below = cluster.watch_jobs(parent)
    assert [info.job_id.parent for info in below.look().infos] == [parent]
    with pytest.raises(JobNotFoundError):
        cluster.watch_jobs("nothing-123456")
