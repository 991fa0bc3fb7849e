"""A head that is away for a moment, at any moment of a job: its scheduler carries it on. Without Ray."""

import asyncio
import contextlib
import functools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fake_dashboard import fake_dashboard
from head_in_memory import SCHEDULER, FullCluster, HeadInMemory, driver_of, plan_of, queued, scheduler_of
from ray.exceptions import RaySystemError
from replicas_in_memory import GOOD, EmptyCluster, Replica, ReplicasInMemory

from fray.cluster import ExitReason, JobId, JobInfo, JobStatus
from fray.testing.gates import until
from fray_ray import _job_kv
from fray_ray._head.dashboard import Dashboard
from fray_ray._head.process_link import ProcessLink
from fray_ray._head.ray_job import RayJob
from fray_ray._job_table import read, state_metadata, stored_entry
from fray_ray._jobs_client import JobsClient
from fray_ray._queued_job import QueuedJob
from fray_ray._ray_internals.environment import JOB_CONFIG
from fray_ray._sweep_plan import Member, SweepPlan

CONFIG = f'{JOB_CONFIG}={{"runtime_env": {{}}, "metadata": {{}}}}'
ENTRY = "_ray_internal_job_info_train-1"
AWAY = RaySystemError("the head is away")  # type: ignore[no-untyped-call]
METADATA = {"fray.job_id": "train-1", "fray.name": "train", "fray.replicas": "1"}


@pytest.fixture
def replicas(head: HeadInMemory, monkeypatch: pytest.MonkeyPatch) -> ReplicasInMemory:
    """Replicas in this process, and a dashboard that takes every job."""

    class Taking:
        def submit(self, _: str, submission: str, metadata: dict[str, str], __: Any) -> None:
            head.add_entry(submission, {"status": "RUNNING", "entrypoint": "true", "metadata": metadata})

    monkeypatch.setattr(f"{SCHEDULER}._client", Taking)
    monkeypatch.setattr(f"{SCHEDULER}._LOOK_AFTER_ERROR", 0.05)
    monkeypatch.setattr("fray_ray._head.job.end_family", lambda *_: None)
    return ReplicasInMemory(monkeypatch)


def shown(head: HeadInMemory) -> JobInfo:
    """What users read of the job."""
    entry = stored_entry("train-1")
    info = None if entry is None else read(entry)
    assert info is not None, head.entry("train-1")
    return info


@contextlib.contextmanager
def submitted(head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[None]:
    """Carry a job of one replica that Ray has; its process has not connected."""
    queued(head, "train-1", plan_of("train-1"))
    with scheduler_of(head, monkeypatch, folder, EmptyCluster):
        until(lambda: (head.entry("train-1") or {}).get("status") == "RUNNING", "Ray has it")
        yield


def end_well(head: HeadInMemory, replicas: ReplicasInMemory) -> None:
    """Wait until the program of a job has started, and end it."""
    until(lambda: any(each.starts for each in replicas.made), "it runs")
    replicas.made[-1].events.append(GOOD)
    until(lambda: shown(head).finished, "it has ended")


@contextlib.contextmanager
def running(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, folder: Path, replicas: ReplicasInMemory
) -> Iterator[Replica]:
    """Run a job of one replica until its program has started."""
    with submitted(head, monkeypatch, folder), driver_of("train-1", folder, CONFIG):
        until(lambda: any(each.starts for each in replicas.made), "it runs")
        yield replicas.made[-1]


@pytest.mark.parametrize("call", ["draining", "table"])
def test_a_job_that_finds_its_places_while_the_head_is_away_runs(
    head: HeadInMemory,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    replicas: ReplicasInMemory,
    call: str,
) -> None:
    replicas.fails[call] = 2
    with running(head, monkeypatch, tmp_path, replicas) as replica:
        replica.events.append(GOOD)
        until(lambda: shown(head).finished, "it has ended")
    info = shown(head)
    assert (info.status, info.tasks[0].attempt) == (JobStatus.SUCCEEDED, 1), info.error_message
    assert not replicas.groups


def test_a_job_whose_process_is_awaited_while_the_head_is_away_runs(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, replicas: ReplicasInMemory
) -> None:
    with submitted(head, monkeypatch, tmp_path):
        asked = head.calls.count(f"get {ENTRY}")
        head.broken = {f"get {ENTRY}"}
        until(lambda: head.calls.count(f"get {ENTRY}") > asked, "it is asked what has become of it")
        head.broken = set()
        with driver_of("train-1", tmp_path, CONFIG):
            end_well(head, replicas)
    assert shown(head).status is JobStatus.SUCCEEDED, shown(head).error_message


def test_a_program_that_fails_while_the_head_is_away_has_its_own_exit_code(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, replicas: ReplicasInMemory
) -> None:
    with running(head, monkeypatch, tmp_path, replicas) as replica:
        replicas.fails["draining"] = 2
        replica.events.append({**GOOD, "exit_code": 3})
        until(lambda: shown(head).finished, "it has ended")
    task = shown(head).tasks[0]
    assert (task.reason, task.exit_code, task.attempt) == (ExitReason.EXITED, 3, 1), task.error_message


def test_a_job_that_is_stopped_while_the_head_is_away_gives_back_its_room(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, replicas: ReplicasInMemory
) -> None:
    with running(head, monkeypatch, tmp_path, replicas) as replica:
        replicas.fails["remove"] = 1
        head.put("fray-train-1.stop", b"600.0")
        until(lambda: bool(replica.stops), "its program is stopped")
        replica.events.append({**GOOD, "exit_code": -15})
        until(lambda: shown(head).finished, "it has ended")
    assert shown(head).status is JobStatus.STOPPED
    assert not replicas.groups


def test_a_program_has_notice_although_the_head_was_away_at_the_end_of_the_one_before(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, replicas: ReplicasInMemory
) -> None:
    drained: dict[str, int] = {}
    monkeypatch.setattr("fray_ray._head.nodes.draining_nodes", lambda: dict(drained))
    monkeypatch.setattr("fray_ray._head.reservation._AVOIDED", 0.0)
    queued(head, "train-1", plan_of("train-1", max_retries_preemption=1))
    with scheduler_of(head, monkeypatch, tmp_path, EmptyCluster):
        until(lambda: (head.entry("train-1") or {}).get("status") == "RUNNING", "Ray has it")
        with driver_of("train-1", tmp_path, CONFIG):
            until(lambda: any(each.starts for each in replicas.made), "it runs")
            drained["node-1"] = 0
            until(lambda: bool(replicas.made[0].stops), "its program has notice")
            drained.clear()
            replicas.fails["kill"] = 1
            replicas.made[0].events.append({**GOOD, "exit_code": -15})
            until(lambda: len(replicas.made) > 1 and replicas.made[1].starts, "it runs again")
            drained["node-1"] = 0
            until(lambda: bool(replicas.made[1].stops), "the next one has notice, too", 20)
            replicas.made[1].events.append({**GOOD, "exit_code": -15})
            until(lambda: shown(head).finished, "it has ended")


def test_a_replica_runs_on_although_the_store_is_away_when_it_says_its_ports(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, replicas: ReplicasInMemory
) -> None:
    with running(head, monkeypatch, tmp_path, replicas) as replica:
        head.broken_once = {"put fray-train-1.state"}
        replica.events.append({"ports": {"http": 80}})
        until(lambda: not head.broken_once, "it could not be stored")
        replica.events.append(GOOD)
        until(lambda: shown(head).finished, "it has ended")
    task = shown(head).tasks[0]
    assert (task.status, task.attempt, task.previous) == (JobStatus.SUCCEEDED, 1, ()), task.error_message
    assert dict(task.ports) == {"http": 80}
    assert len(replicas.made) == 1


def test_a_job_is_taken_up_although_the_store_is_away_again_when_that_is_tried(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, replicas: ReplicasInMemory
) -> None:
    def look() -> dict[str, list[str]]:
        looks.append(True)
        return all_names()

    all_names, looks = _job_kv.all_names, list[bool]()
    monkeypatch.setattr("fray_ray._job_kv.all_names", look)
    with running(head, monkeypatch, tmp_path, replicas) as replica:
        before = len(looks)
        until(lambda: len(looks) > before + 1, "the scheduler has read all that the store has")
        head.broken_once = {"put fray-train-1.state", "get fray-train-1.state"}
        replica.events.append({"ports": {"http": 80}})
        until(lambda: not head.broken_once, "it could be neither stored nor taken up")
        replica.events.append(GOOD)
        until(lambda: shown(head).finished, "it has ended", 20)
    assert shown(head).status is JobStatus.SUCCEEDED, shown(head).error_message


def test_a_job_that_is_carried_between_errors_does_not_fail(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, replicas: ReplicasInMemory
) -> None:
    """They are at 0, 40 and 75 seconds by the scheduler's clock."""

    def taken_or_failed(times: int) -> bool:
        return head.calls.count(began) > times or shown(head).finished

    ahead, began = 0.0, "put fray-train-1.environ"
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + ahead, sleep=time.sleep)
    monkeypatch.setattr(f"{SCHEDULER}.time", clock)
    with running(head, monkeypatch, tmp_path, replicas) as replica:
        for port, passes in enumerate((0.0, 40.0, 35.0)):
            ahead += passes
            begun = head.calls.count(began)
            head.broken_once = {"put fray-train-1.state"}
            replica.events.append({"ports": {"http": port}})
            until(functools.partial(taken_or_failed, begun), "it is taken up", 20)
        replica.events.append(GOOD)
        until(lambda: shown(head).finished, "it has ended")
    assert shown(head).status is JobStatus.SUCCEEDED, shown(head).error_message


def test_an_actor_whose_name_the_store_did_not_take_is_made_later(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, replicas: ReplicasInMemory
) -> None:
    def nodes(_: Any) -> dict[int, str]:
        if not lost:
            lost.append(True)
            head.broken_once = {"put fray-train-1.state"}
        return {0: "node-1"}

    lost: list[bool] = []
    monkeypatch.setattr("fray_ray._head.reservation.Reservation.nodes", nodes)
    with submitted(head, monkeypatch, tmp_path), driver_of("train-1", tmp_path, CONFIG):
        end_well(head, replicas)
    assert shown(head).status is JobStatus.SUCCEEDED, shown(head).error_message


def test_the_jobs_below_a_job_have_their_grace_when_that_has_it(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, replicas: ReplicasInMemory
) -> None:
    kept: list[tuple[str, float]] = []
    monkeypatch.setattr(
        "fray_ray._job_kv.request_stops", lambda jobs, grace: kept.extend((each, grace) for each in jobs)
    )
    with running(head, monkeypatch, tmp_path, replicas) as replica:
        head.put("fray-train-1~child-1.queued", b"of another version")
        head.put("fray-train-1.stop", b"600.0")
        until(lambda: bool(replica.stops), "its program is stopped")
        until(lambda: kept == [("train-1~child-1", 600.0)], "the job below is to end", 5)
        assert not shown(head).finished
        replica.events.append({**GOOD, "exit_code": -15})
        until(lambda: shown(head).finished, "it has ended")


def test_a_job_that_waits_for_room_runs_although_the_job_before_it_was_removed_and_its_scheduler_killed(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, replicas: ReplicasInMemory
) -> None:
    class Noting(FullCluster):
        async def find(self, *_: Any) -> None:
            waits.set()
            await super().find()

    waits = threading.Event()
    first = JobInfo(job_id=JobId("first-1"), name="first", status=JobStatus.SUCCEEDED, tasks=())
    metadata = {"fray.job_id": "first-1", "fray.name": "first", **state_metadata(first)}
    head.add_entry("first-1", {"status": "SUCCEEDED", "metadata": metadata})
    queued(head, "train-1", plan_of("train-1", after=("first-1",)))
    with scheduler_of(head, monkeypatch, tmp_path, Noting):
        until(waits.is_set, "it waits for room")
    head.remove_entry("first-1")
    with (
        scheduler_of(head, monkeypatch, tmp_path, EmptyCluster),
        driver_of("train-1", tmp_path, CONFIG),
    ):
        until(lambda: any(each.starts for each in replicas.made) or shown(head).finished, "it runs")
        assert not shown(head).finished, shown(head).error_message
        end_well(head, replicas)
    assert shown(head).status is JobStatus.SUCCEEDED, shown(head).error_message


# --- Ray is asked to run the job's own process ---


class Unsteady:
    """A dashboard that takes every job; `head.broken` is repaired when it was asked for."""

    def __init__(self, head: HeadInMemory, answers: list[Exception]) -> None:
        self._head, self._answers = head, answers

    def client(self) -> "Unsteady":
        """Return what takes jobs."""
        return self

    def forget(self) -> None:
        """Look for it again."""
        self._head.broken = set()

    def submit(self, _: str, submission: str, metadata: dict[str, str], __: Any) -> None:
        """Take a job, or not."""
        if self._answers:
            raise self._answers.pop(0)
        self._head.add_entry(submission, {"status": "RUNNING", "metadata": metadata})


def given(head: HeadInMemory, *answers: Exception) -> tuple[RayJob, dict[str, Any]]:
    """A job that waits for Ray to run it, and its entry."""
    job = QueuedJob(command="true", metadata=METADATA, runtime_env={}, previous_run=None)
    ray_job = RayJob(
        "train-1", job, cast("Dashboard", Unsteady(head, list(answers))), "head", submitted=False
    )
    ray_job.show_waiting()
    return ray_job, head.entry("train-1") or {}


async def begin(head: HeadInMemory, ray_job: RayJob) -> str | None:
    """Have Ray run the job, whose process connects then."""
    begun = asyncio.create_task(ray_job.begin())
    while (head.entry("train-1") or {}).get("status") != "RUNNING" and not begun.done():
        await asyncio.sleep(0.01)
    ray_job.attach(cast("ProcessLink", None))
    return await asyncio.wait_for(begun, 20)


@pytest.mark.parametrize("call", [f"get {ENTRY}", f"put {ENTRY}.starting", f"del {ENTRY}"])
def test_a_job_is_given_to_ray_again_where_the_store_is_away(head: HeadInMemory, call: str) -> None:
    ray_job, entry = given(head)
    head.broken = {call}
    assert asyncio.run(begin(head, ray_job)) is None
    since = (head.entry("train-1") or {})["metadata"]["fray.since"]
    assert float(since) == pytest.approx(entry["start_time"], abs=0.001)
    assert head.entry("train-1.starting") is None


@pytest.mark.parametrize("error", [AWAY, OSError("no socket is left")])
def test_a_job_is_given_to_ray_again_where_it_did_not_answer(head: HeadInMemory, error: Exception) -> None:
    ray_job, _ = given(head, error)
    assert asyncio.run(begin(head, ray_job)) is None
    assert "fray.since" in (head.entry("train-1") or {})["metadata"], "it is still the first with its key"


@pytest.mark.parametrize("code", [400, 500])
def test_a_failure_of_the_agent_is_no_refusal_of_a_job(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int
) -> None:
    """The head's dashboard passes both on as 500."""

    def submit(job: dict[str, Any]) -> tuple[int, Any]:
        if not asked:
            asked.append("once")
            return 500, f"RuntimeError: Request failed with status code {code}: Traceback: TimeoutError."
        return take(job)

    asked: list[str] = []
    queued(head, "train-1", plan_of("train-1"))
    with fake_dashboard(head) as dashboard:
        take = dashboard.submit
        monkeypatch.setattr(dashboard, "submit", submit)
        monkeypatch.setattr(f"{SCHEDULER}._client", lambda: JobsClient(dashboard.url))
        ReplicasInMemory(monkeypatch)
        with scheduler_of(head, monkeypatch, tmp_path, EmptyCluster):
            status = until(lambda: ended_or_running(head), "Ray has it, or refuses it", 20)
    assert status == ("RUNNING" if code == 500 else "FAILED"), head.entry("train-1")


def ended_or_running(head: HeadInMemory) -> str | None:
    """What the table has of a job that waits no more."""
    status = (head.entry("train-1") or {}).get("status")
    return status if status in ("RUNNING", "FAILED") else None


def test_a_job_that_could_not_be_given_to_ray_ends(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`settle` waits for no process of it."""
    monkeypatch.setattr("fray_ray._head.ray_job._DASHBOARD_WITHIN", 0.0)
    ray_job, _ = given(head, AWAY)

    async def run() -> str | None:
        problem = await ray_job.begin()
        await asyncio.wait_for(ray_job.settle(JobStatus.FAILED, problem), 20)
        return problem

    assert "the head is away" in str(asyncio.run(run()))
    assert (head.entry("train-1") or {})["status"] == "FAILED"


# --- jobs that cannot be carried ---


def failed(head: HeadInMemory, submission: str) -> str:
    """How a job has failed; empty while it has not."""
    entry = head.entry(submission) or {}
    return str(entry["message"]) if entry.get("status") == "FAILED" else ""


def test_a_job_that_cannot_be_taken_fails_after_a_while_and_its_log_says_why(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(f"{SCHEDULER}._LOOK_AFTER_ERROR", 0.05)
    monkeypatch.setattr(f"{SCHEDULER}._TRIES_FOR", 1.0)
    queued(head, "many-1", SweepPlan("many-1", (Member(plan_of("many-1/0"), {"labels": {}, "after": []}),)))
    head.broken = {"get fray-many-1.stopping"}
    with scheduler_of(head, monkeypatch, tmp_path):
        until(lambda: "the traceback is in this job's log" in failed(head, "many-1"), "it has failed", 20)
    log = (tmp_path / "job-driver-many-1.log").read_text()
    assert log.count("the head's store is away: get fray-many-1.stopping") == 1


def test_a_job_that_was_not_taken_once_is_taken_although_another_never_is(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(f"{SCHEDULER}._LOOK_AFTER_ERROR", 0.05)
    names = [f"get fray-{each}.plan" for each in ("aaa-1", "bbb-1")]
    for job_id in ("aaa-1", "bbb-1"):
        queued(head, job_id, plan_of(job_id))
    head.broken = set(names)
    with scheduler_of(head, monkeypatch, tmp_path):
        until(lambda: all(name in head.calls for name in names), "both were tried")
        head.broken = {names[0]}
        until(lambda: head.entry("bbb-1") is not None, "the other one waits", 20)


def test_a_job_is_taken_up_although_what_it_used_is_no_text(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("fray_ray._head.job.usage_file", lambda _: str(tmp_path / "usage"))
    (tmp_path / "usage").write_bytes(b"0 1 \xff\xfe\n0 1 1.0 7 2.0\n")
    queued(head, "train-1", plan_of("train-1"))
    with scheduler_of(head, monkeypatch, tmp_path):
        until(lambda: head.entry("train-1") is not None, "it waits", 20)


def test_nothing_stands_for_a_job_that_fails_while_ray_takes_it(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its scheduler was killed just then, and its plan is gone."""
    waits = {"status": "PENDING", "entrypoint": "true", "metadata": {**METADATA, "fray.waits": "1"}}
    head.add_entry("train-1.starting", waits)
    queued(head, "train-1", None)
    with scheduler_of(head, monkeypatch, tmp_path):
        until(lambda: bool(failed(head, "train-1")), "it has failed")
        until(lambda: not head.packages, "nothing of it is kept")
    assert head.entry("train-1.starting") is None


def test_the_process_of_a_job_without_a_plan_ends_and_its_log_says_what_to_do(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with scheduler_of(head, monkeypatch, tmp_path), driver_of("train-1", tmp_path) as link:
        assert link.recv(100) == b"exit 1\n"
    assert "launch it again" in (tmp_path / "job-driver-train-1.log").read_text()
