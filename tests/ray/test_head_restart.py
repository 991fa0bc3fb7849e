"""A head whose state is in a Redis is killed: its GCS alone, and the whole of it."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from job_processes import process_of
from ray.job_submission import JobSubmissionClient
from redis_server import redis_server

from fray import ClusterUnavailableError
from fray.cluster import Entrypoint, ExitReason, JobRequest, JobStatus, ResourceConfig
from fray.testing.cluster_fixtures import running
from fray.testing.gates import until
from fray_ray import RayCluster
from fray_ray.testing import LocalRayCluster

pytestmark = pytest.mark.timeout(900)

# Makes Ray's entry of a job one hour older.
WAITS_FOR_AN_HOUR = """
import json, sys
import ray
from ray.experimental import internal_kv
ray.init(sys.argv[1], log_to_driver=False)
keys = internal_kv._internal_kv_list("", namespace=b"job")
(key,) = [key for key in keys if key.decode().endswith(sys.argv[2])]
entry = json.loads(internal_kv._internal_kv_get(key, namespace=b"job"))
entry["start_time"] -= 3_600_000
internal_kv._internal_kv_put(key, json.dumps(entry).encode(), namespace=b"job")
"""


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRayCluster]:
    """A head that runs no replica, and a node for them; what the Redis has outlives the head."""
    with (
        redis_server(tmp_path_factory.mktemp("redis")) as redis,
        LocalRayCluster(num_cpus=0, redis=redis) as cluster,
    ):
        cluster.add_node(num_cpus=2)
        yield cluster


def waiting(folder: Path) -> Entrypoint:
    """A program that notes its process and replica, and SIGTERM, and ends well when the test lets it."""
    script = (
        'trap "touch $0/told" TERM; r=$FRAY_REPLICA_ID; '
        'echo $$ > "$0/draft-$r"; mv "$0/draft-$r" "$0/up-$r"; '
        'while [ ! -e "$0/go" ]; do sleep 0.05; done; echo done'
    )
    return Entrypoint.from_binary("sh", ["-c", script, os.fspath(folder)])


def answers(cluster: RayCluster) -> bool:
    """Whether the cluster answers; for a few seconds it may not, and says so."""
    try:
        cluster.list_jobs()
    except ClusterUnavailableError:
        return False
    return True


def ray_has_failed_one() -> bool:
    """Whether Ray has failed a job that did not start; the scheduler may have written it again since."""
    logs = Path(os.environ["RAY_TMPDIR"], "ray").glob("session_*/logs/dashboard*.log")
    return any("actor failed to start within" in path.read_text(errors="replace") for path in logs)


def ended_for_ray(table: JobSubmissionClient, job_id: str) -> bool:
    """Whether Ray's table has the end of a job."""
    return table.get_job_status(job_id).is_terminal()


def test_jobs_run_on_and_end_well_when_the_gcs_is_killed(kept: LocalRayCluster, tmp_path: Path) -> None:
    cluster = RayCluster(kept.address)
    lasting, gang, member = (tmp_path / name for name in ("lasting", "gang", "member"))
    for folder in (lasting, gang, member):
        folder.mkdir()
    quarter, half = (ResourceConfig(cpu=cpu, ram="64m") for cpu in (0.25, 0.5))
    pair = replace(quarter, replicas=2)
    job_id = cluster.launch(JobRequest("lasting", waiting(lasting), resources=half))
    gang_id = cluster.launch(JobRequest("gang", waiting(gang), resources=pair, gang=True))
    members = [JobRequest("member", waiting(member), resources=quarter)] * 2
    sweep = cluster.launch_many(members, max_parallel=1)
    paths = [lasting / "up-0", gang / "up-0", gang / "up-1", member / "up-0"]
    for path in paths:
        until(path.exists, f"{path.parent.name} runs", 200)
    programs = [int(path.read_text()) for path in paths]
    large = JobRequest("large", Entrypoint.from_binary("true"), resources=ResourceConfig(cpu=2, ram="64m"))
    waits = cluster.launch(large)
    until(lambda: "waiting for room" in (cluster.poll(waits).pending_reason or ""), "it waits")
    kept.restart_gcs()
    until(lambda: answers(cluster), "the dashboard has found the GCS again", 200)
    assert [cluster.poll(each).status for each in (job_id, gang_id, sweep.member(0))] == [
        JobStatus.RUNNING
    ] * 3
    assert [cluster.poll(each).status for each in (waits, sweep.member(1))] == [JobStatus.PENDING] * 2
    assert all(map(running, programs))
    (lasting / "go").touch()
    info = cluster.wait(job_id, timeout=200)
    assert (info.status, info.tasks[0].attempt) == (JobStatus.SUCCEEDED, 1), info.error_message
    assert list(cluster.monitor(job_id)) == ["done"]
    (gang / "go").touch()
    info = cluster.wait(gang_id, timeout=200)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    assert [task.attempt for task in info.tasks] == [1, 1]
    assert cluster.poll(sweep.member(1)).status is JobStatus.PENDING
    (member / "go").touch()
    info = cluster.wait(sweep, timeout=200)
    assert info.progress == {"succeeded": 2}, info.error_message
    assert [cluster.poll(sweep.member(number)).tasks[0].attempt for number in (0, 1)] == [1, 1]
    info = cluster.wait(waits, timeout=200)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    later = cluster.launch(JobRequest("later", Entrypoint.from_binary("true")))
    assert cluster.wait(later, timeout=200).status is JobStatus.SUCCEEDED


def test_jobs_are_known_and_can_be_run_again_when_the_head_is_killed(
    kept: LocalRayCluster, tmp_path: Path
) -> None:
    cluster = RayCluster(kept.address)
    ended = cluster.launch(JobRequest("ended", Entrypoint.from_binary("true")))
    cluster.wait(ended, timeout=200, raise_on_failure=True)
    job_id = cluster.launch(JobRequest("lost", waiting(tmp_path)))
    until((tmp_path / "up-0").exists, "it runs", 200)
    program = int((tmp_path / "up-0").read_text())
    large = JobRequest("large", Entrypoint.from_binary("true"), resources=ResourceConfig(cpu=60))
    waits = cluster.launch(large)
    until(lambda: "60" in (cluster.poll(waits).pending_reason or ""), "it waits")
    subprocess.run([sys.executable, "-c", WAITS_FOR_AN_HOUR, kept.address, waits], check=True, timeout=120)
    kept.restart_head()
    cluster = RayCluster(kept.address)
    until(lambda: answers(cluster), "the dashboard reads the table", 200)
    assert cluster.poll(ended).status is JobStatus.SUCCEEDED
    # Ray looks at the jobs of the head before it when the next one is submitted.
    later = cluster.launch(JobRequest("later", Entrypoint.from_binary("true")))
    assert cluster.wait(later, timeout=200).status is JobStatus.SUCCEEDED
    info = cluster.wait(job_id, timeout=200)
    assert (info.status, info.tasks[0].reason) == (JobStatus.FAILED, ExitReason.LOST)
    until(lambda: not running(program), "its program is gone", 200)
    (tmp_path / "go").touch()
    cluster.retry(job_id)
    assert cluster.wait(job_id, timeout=200).status is JobStatus.SUCCEEDED
    # Ray takes a job that waits for its own, and for one whose process did not start within 15 minutes.
    until(ray_has_failed_one, "Ray has failed it", 200)
    assert cluster.poll(waits).status is JobStatus.PENDING
    kept.add_node(num_cpus=60)
    assert cluster.wait(waits, timeout=200).status is JobStatus.SUCCEEDED


@pytest.mark.parametrize("begun", [False, True], ids=["at once", "when its process is there"])
def test_the_gcs_is_killed_while_one_job_starts_one_is_stopped_and_one_runs_its_on_exit(
    kept: LocalRayCluster, tmp_path: Path, begun: bool
) -> None:
    cluster = RayCluster(kept.address)
    starts, stopped, ends, gate = (tmp_path / name for name in ("starts", "stopped", "ends", "gate"))
    for folder in (starts, stopped, ends):
        folder.mkdir()
    quarter = ResourceConfig(cpu=0.25, ram="64m")
    on_exit = f"echo x >> {ends}/ran; timeout 300 sh -c 'until test -e {gate}; do sleep 0.1; done'"
    ends_id = cluster.launch(JobRequest("ends", waiting(ends), resources=quarter, on_exit=on_exit))
    stopped_id = cluster.launch(JobRequest("stopped", waiting(stopped), resources=quarter))
    for folder in (ends, stopped):
        until((folder / "up-0").exists, f"{folder.name} runs", 200)
    program = int((stopped / "up-0").read_text())
    (ends / "go").touch()
    until((ends / "ran").exists, "its on_exit runs", 200)
    with ThreadPoolExecutor(1) as pool:
        stop = pool.submit(cluster.terminate, stopped_id, 5.0)
        until((stopped / "told").exists, "it has SIGTERM", 200)
        starts_id = cluster.launch(JobRequest("starts", waiting(starts), resources=quarter))
        if begun:
            process_of(starts_id)
        kept.restart_gcs()
        gate.touch()
        with contextlib.suppress(ClusterUnavailableError):  # it has been stopped all the same
            stop.result(200)
    until(lambda: answers(cluster), "the dashboard has found the GCS again", 200)
    assert cluster.wait(stopped_id, timeout=200).status is JobStatus.STOPPED
    assert not running(program)
    (starts / "go").touch()
    info = cluster.wait(starts_id, timeout=200)
    assert (info.status, info.tasks[0].attempt) == (JobStatus.SUCCEEDED, 1), info.error_message
    table = JobSubmissionClient(kept.dashboard)
    for job_id in (starts_id, stopped_id, ends_id):
        until(partial(ended_for_ray, table, job_id), "Ray sees the end", 200)
    assert cluster.poll(ends_id).status is JobStatus.SUCCEEDED
    assert (ends / "ran").read_text() == "x\n"
