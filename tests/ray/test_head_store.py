"""What the scheduler makes of what others have left in the head's store; nothing here needs a cluster."""

import asyncio
import contextlib
import json
import os
import pickle
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import ray
from head_in_memory import (
    SCHEDULER,
    Context,
    EmptyCluster,
    HeadInMemory,
    driver_of,
    plan_of,
    queued,
    scheduler_of,
)

from fray import ClusterUnavailableError
from fray.backend import AttemptEnd, Begin, Ended, Placed
from fray.cluster import Endpoint, ExitReason, JobId, JobInfo, JobStatus
from fray.testing.gates import until
from fray_ray._head import job_process
from fray_ray._head.dashboard import Dashboard
from fray_ray._head.descendants import end_family
from fray_ray._head.job import new_machine
from fray_ray._head.job_board import JobBoard
from fray_ray._head.job_run import JobRun
from fray_ray._head.kept import forget_oldest, forget_orphans
from fray_ray._head.lost_nodes import LostNodes
from fray_ray._head.nodes import gone_of, watch_draining
from fray_ray._head.output import LogFile
from fray_ray._head.process_link import ProcessLink
from fray_ray._head.ray_job import RayJob
from fray_ray._head.record import JobRecord
from fray_ray._head.reservation import Reservation
from fray_ray._head.scheduler import SchedulerActor
from fray_ray._job_table import read, state_metadata, stored_entry
from fray_ray._queued_job import QueuedJob
from fray_ray._sweep_plan import Member, SweepPlan

STANDING = "_ray_internal_job_info_train-1.starting"
DESCENDANTS = "fray_ray._head.descendants"


def message_of(head: HeadInMemory, submission: str) -> str:
    """How a job has failed; empty while it has not."""
    entry = head.entry(submission) or {}
    return str(entry["message"]) if entry.get("status") == "FAILED" else ""


@pytest.mark.parametrize("many", [False, True], ids=["a job", "a sweep"])
def test_a_job_that_is_run_again_without_a_variable_that_was_not_kept_fails_and_names_it(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, many: bool
) -> None:
    plan: Any = plan_of("train-1", withheld=("SERVICE_TOKEN",))
    if many:
        plan = SweepPlan("train-1", (Member(plan, {}),))
    submission = queued(head, "train-1", plan, previous_run="train-1", tries=2)
    with scheduler_of(head, monkeypatch, tmp_path):
        until(lambda: "SERVICE_TOKEN" in message_of(head, submission), "it has failed")
        until(lambda: not [name for name in head.packages if submission in name], "nothing of it is kept")


def test_a_job_that_is_run_again_stands_in_line_behind_those_that_wait(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun = time.time()
    queued(head, "train-1", plan_of("train-1", submitted_at=1.0), previous_run="train-1", tries=2)
    with scheduler_of(head, monkeypatch, tmp_path):
        until(lambda: "fray-train-1-r2.plan" in head.packages, "it is taken")
    assert pickle.loads(head.packages["fray-train-1-r2.plan"]).submitted_at >= begun


@pytest.mark.parametrize("previous", [None, "train-0"])
def test_a_job_without_a_plan_fails_also_when_it_was_refused_before(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, previous: str | None
) -> None:
    head.put("fray-train-1.queued", b"of another version")
    with scheduler_of(head, monkeypatch, tmp_path):
        until(lambda: "get fray-train-1.queued" in head.calls, "it is refused")
        head.put("fray-train-1.forget", b"-")
        until(lambda: not head.packages, "nothing of it is left")
        queued(head, "train-1", None, previous_run=previous)
        until(lambda: "its plan is no longer" in message_of(head, "train-1"), "it has failed")


def test_what_starts_a_scheduler_is_given_the_reason_why_it_cannot_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise OSError("no place for its socket")

    def ready() -> None:
        try:
            actor.ready()
        except RuntimeError as error:
            said.append(str(error))

    said, ended = list[str](), threading.Event()
    monkeypatch.setattr(f"{SCHEDULER}.Scheduler", fail)
    monkeypatch.setattr(f"{SCHEDULER}._end_process", ended.set)
    monkeypatch.setattr(f"{SCHEDULER}._SAID_WITHIN", 0.1, raising=False)
    actor = SchedulerActor()
    starter = threading.Thread(target=ready, daemon=True)
    starter.start()
    assert ended.wait(20), "its process ends"
    starter.join(20)
    assert said, "it has not said why"
    assert "OSError: no place for its socket" in said[0]


ABOUT: dict[str, Any] = {"labels": {}, "after": []}


class Taking:
    """A dashboard that takes every job."""

    def submit(self, *_: Any) -> None: ...


class Refusing:
    """A dashboard that takes no job."""

    def submit(self, *_: Any) -> None:
        raise RuntimeError("the agent is out of order")


def test_a_job_that_waited_has_an_entry_while_ray_takes_it(head: HeadInMemory) -> None:
    seen: list[tuple[bool, Any]] = []

    class Looking(Refusing):
        def client(self) -> "Looking":
            return self

        def submit(self, *told: Any) -> None:
            standing = head.entry("train-1.starting") or {}
            seen.append((head.entry("train-1") is None, standing["metadata"]["fray.job_id"]))
            super().submit(*told)

    metadata = {"fray.job_id": "train-1", "fray.name": "train", "fray.replicas": "1"}
    job = QueuedJob(command="true", metadata=metadata, runtime_env={})
    ray_job = RayJob("train-1", job, cast("Dashboard", Looking()), "head", submitted=False)
    ray_job.show_waiting()
    assert "out of order" in str(asyncio.run(ray_job.begin()))
    assert seen == [(True, "train-1")]
    assert head.entry("train-1.starting") is None


def test_a_job_that_ray_has_taken_runs_although_the_head_is_away_then(head: HeadInMemory) -> None:
    class Away(Taking):
        def client(self) -> "Away":
            return self

        def submit(self, *_: Any) -> None:
            head.add_entry("train-1", {"status": "RUNNING", "metadata": metadata})
            head.broken = {f"del {STANDING}"}

    metadata = {"fray.job_id": "train-1", "fray.name": "train", "fray.replicas": "1"}
    job = QueuedJob(command="true", metadata=metadata, runtime_env={})
    ray_job = RayJob("train-1", job, cast("Dashboard", Away()), "head", submitted=False)

    async def run() -> str | None:
        ray_job.show_waiting()
        begun = asyncio.create_task(ray_job.begin())
        while f"del {STANDING}" not in head.calls:
            await asyncio.sleep(0.01)
        ray_job.attach(cast("ProcessLink", None))
        return await begun

    assert asyncio.run(run()) is None
    head.broken = set()
    asyncio.run(ray_job.settle(JobStatus.SUCCEEDED, None))
    assert head.entry("train-1.starting") is None


def test_a_sweep_that_ray_does_not_take_can_be_run_again(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(f"{SCHEDULER}._client", Refusing)
    secret = {"environ": {"TOKEN": "abc-12345"}, "confidential": ("TOKEN",)}
    queued(head, "many-1", SweepPlan("many-1", (Member(plan_of("many-1/0", **secret), {}),)))
    with scheduler_of(head, monkeypatch, tmp_path):
        until(lambda: "out of order" in message_of(head, "many-1"), "it has failed")
        until(lambda: list(head.packages) == ["fray-many-1.plan"], "its plan is kept")
    assert b"abc-12345" not in head.packages["fray-many-1.plan"]
    metadata = (head.entry("many-1") or {})["metadata"]
    assert json.loads(metadata["fray.kept"]) == {"withheld": ["TOKEN"], "runtime_env": {}}


def test_nothing_is_kept_of_a_sweep_that_ended_and_is_too_large_to_be_run_again(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its plan has the values of variables that are named like secrets."""
    monkeypatch.setattr(f"{SCHEDULER}._client", Refusing)
    plan = plan_of("many-1/0", environ={"TOKEN": "abc-12345"}, payload=b"-" * (16 * 2**20))
    queued(head, "many-1", SweepPlan("many-1", (Member(plan, {}),)))
    with scheduler_of(head, monkeypatch, tmp_path):
        until(lambda: "del fray-many-1.queued" in head.calls, "it has ended")
        until(lambda: not head.packages, "nothing of it is kept", 20)
    assert (head.entry("many-1") or {})["metadata"]["fray.kept"] == "null"


def test_a_sweep_whose_process_never_came_up_can_be_run_again(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ray took it, and its process ended before it had connected: `ray job stop`, or a full disk."""

    class Ending:
        def submit(self, _: str, submission: str, metadata: dict[str, str], __: Any) -> None:
            ended = {"status": "FAILED", "message": "it could not start", "metadata": metadata}
            head.add_entry(submission, ended)

    monkeypatch.setattr(f"{SCHEDULER}._client", Ending)
    members = {"fray.count": "1", "fray.members": "e" * 20_000}
    queued(head, "many-1", SweepPlan("many-1", (Member(plan_of("many-1/0"), ABOUT),)), metadata=members)
    with scheduler_of(head, monkeypatch, tmp_path):
        until(lambda: "fray.kept" in (head.entry("many-1") or {}).get("metadata", {}), "it is settled")
        until(lambda: list(head.packages) == ["fray-many-1.plan"], "its plan is kept")
    entry = head.entry("many-1") or {}
    assert (entry["status"], entry["message"]) == ("FAILED", "it could not start")
    assert entry["metadata"].items() >= members.items()


def test_a_sweep_starts_its_members_although_there_is_no_dashboard(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def client() -> None:
        raise ClusterUnavailableError("no dashboard answers")

    monkeypatch.setattr(f"{SCHEDULER}._client", client)
    metadata = {"fray.job_id": "many-1", "fray.name": "many", "fray.replicas": "0", "fray.count": "1"}
    head.add_entry("many-1", {"status": "RUNNING", "metadata": metadata})  # Ray has it from another scheduler
    queued(head, "many-1", SweepPlan("many-1", (Member(plan_of("many-1/0"), ABOUT),)))
    with scheduler_of(head, monkeypatch, tmp_path):
        until(lambda: "get fray-many-1.stopping" in head.calls, "it is taken")
        with driver_of("many-1", tmp_path):
            until(lambda: "put fray-many-1~0.queued" in head.calls, "the member is queued")


def test_all_members_of_a_sweep_have_their_grace_at_the_same_time_and_a_shorter_one_at_once(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def stops() -> list[float]:
        return [float(data) for name, data in head.packages.items() if name.endswith(".grace")]

    def keep(submissions: Any, grace: float) -> None:
        for each in submissions:  # what the scheduler would take away at once
            head.put(f"fray-{each}.grace", str(grace).encode())

    def wait(*_: Any) -> None:
        asked.append(stops())
        until(lambda: stops() == [1.0] * count, "all have the shorter grace")

    count, asked = 40, list[list[float]]()
    monkeypatch.setattr(f"{SCHEDULER}._client", Taking)
    monkeypatch.setattr("fray_ray._job_kv.request_stops", keep)
    monkeypatch.setattr("fray_ray._head.sweep_coordinator.await_stopped", wait)
    members = tuple(Member(plan_of(f"many-1/{number}"), ABOUT) for number in range(count))
    for number in range(count):  # which another scheduler has started
        own = {"fray.job_id": f"many-1/{number}", "fray.name": "one", "fray.replicas": "1"}
        head.add_entry(f"many-1~{number}", {"status": "RUNNING", "metadata": own})
    queued(head, "many-1", SweepPlan("many-1", members))
    with scheduler_of(head, monkeypatch, tmp_path):
        until(lambda: "get fray-many-1.stopping" in head.calls, "it is taken")
        with driver_of("many-1", tmp_path):
            head.put("fray-many-1.stop", b"600.0")
            until(lambda: bool(asked), "it waits for its members")
            head.put("fray-many-1.stop", b"1.0")
            until(lambda: len(asked) >= count, "it has waited for all of them")
    assert asked[0] == [600.0] * count


@pytest.mark.parametrize(
    ("status", "left"), [(JobStatus.SUCCEEDED, []), (JobStatus.FAILED, ["fray-many-1.plan"])]
)
def test_a_sweep_that_has_ended_stays_so_under_another_scheduler_which_deletes_what_is_left(
    head: HeadInMemory,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    status: JobStatus,
    left: list[str],
) -> None:
    monkeypatch.setattr(f"{SCHEDULER}._client", Taking)
    own = {"fray.job_id": "many-1", "fray.name": "many", "fray.replicas": "0", "fray.count": "1"}
    head.add_entry("many-1", {"status": "RUNNING", "metadata": own})
    member = JobInfo(job_id=JobId("many-1/0"), name="train", status=status, tasks=())
    metadata = {"fray.job_id": "many-1/0", "fray.name": "train", **state_metadata(member)}
    queued(head, "many-1", SweepPlan("many-1", (Member(plan_of("many-1/0"), ABOUT),)))
    head.put("fray-many-1.state", b"[0]")  # another scheduler has started the member, which has ended
    head.add_entry("many-1~0", {"status": str(status).upper(), "metadata": metadata})
    head.broken = {"del fray-many-1.queued"}
    with scheduler_of(head, monkeypatch, tmp_path), driver_of("many-1", tmp_path) as link:
        assert link.recv(100) == (b"exit 0\n" if status is JobStatus.SUCCEEDED else b"exit 1\n")
    entry = head.entry("many-1") or {}
    head.add_entry("many-1", {**entry, "status": str(status).upper()})  # so Ray says of its process
    head.broken = set()
    with scheduler_of(head, monkeypatch, tmp_path):
        until(lambda: "fray-many-1.queued" not in head.packages, "it is not carried any more")
        found = stored_entry("many-1")
        info = None if found is None else read(found)
        assert info is not None
        assert info.status is status
        until(lambda: list(head.packages) == left, "nothing else is kept of it")


def test_a_sweep_that_ray_did_not_take_has_failed_under_another_scheduler_too(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(f"{SCHEDULER}._client", Refusing)
    queued(head, "many-1", SweepPlan("many-1", (Member(plan_of("many-1/0"), ABOUT),)))
    head.broken = {"del fray-many-1.queued"}
    with scheduler_of(head, monkeypatch, tmp_path):
        until(lambda: "del fray-many-1.queued" in head.calls, "it has ended")
    head.broken = set()
    with scheduler_of(head, monkeypatch, tmp_path):
        until(lambda: list(head.packages) == ["fray-many-1.plan"], "its plan is kept")
    found = stored_entry("many-1")
    info = None if found is None else read(found)
    assert info is not None
    assert (info.status, "out of order" in message_of(head, "many-1")) == (JobStatus.FAILED, True)


def wait_for_another(head: HeadInMemory, job_id: str) -> None:
    """Queue a job that runs after another one, which waits."""
    metadata = {"fray.job_id": "first-1", "fray.name": "first", "fray.replicas": "1", "fray.waits": "1"}
    head.add_entry("first-1", {"status": "PENDING", "metadata": metadata})
    queued(head, job_id, plan_of(job_id, after=("first-1",)))


def queue_sweeps_after_a_job(head: HeadInMemory, count: int) -> None:
    """Queue sweeps whose only member runs after a job outside of them, which runs."""
    running = {"fray.job_id": "first-1", "fray.name": "first", "fray.replicas": "1"}
    head.add_entry("first-1", {"status": "RUNNING", "metadata": running})
    for number in range(count):
        sweep = f"many-{number}"
        own = {"fray.job_id": sweep, "fray.name": "many", "fray.replicas": "0", "fray.count": "1"}
        head.add_entry(sweep, {"status": "RUNNING", "metadata": own})  # Ray has it from another scheduler
        member = Member(plan_of(f"{sweep}/0"), ABOUT)
        queued(head, sweep, SweepPlan(sweep, (member,), {0: ("first-1",)}), metadata=own)


def test_one_look_at_a_job_serves_all_sweeps_whose_members_run_after_it(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(f"{SCHEDULER}._client", Taking)
    queue_sweeps_after_a_job(head, 8)
    taken = {f"get fray-many-{number}.stopping" for number in range(8)}
    look = "get _ray_internal_job_info_first-1"
    with scheduler_of(head, monkeypatch, tmp_path), contextlib.ExitStack() as processes:
        until(lambda: taken <= set(head.calls), "they are taken")
        for number in range(8):
            processes.enter_context(driver_of(f"many-{number}", tmp_path))
        until(lambda: look in head.calls, "the job is looked at")
        before, end = head.calls.count(look), time.monotonic() + 3.0
        until(lambda: time.monotonic() > end, "a while is over")
        looks = head.calls.count(look) - before
    assert 1 <= looks < 8, f"{looks} looks in 3 s, for eight sweeps"  # one look serves them, once a second


@pytest.mark.parametrize("removed", [False, True])
def test_a_member_of_a_sweep_starts_or_fails_when_a_job_outside_of_it_has_ended(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, removed: bool
) -> None:
    monkeypatch.setattr(f"{SCHEDULER}._client", Taking)
    queue_sweeps_after_a_job(head, 1)
    with scheduler_of(head, monkeypatch, tmp_path), contextlib.ExitStack() as processes:
        until(lambda: "get fray-many-0.stopping" in head.calls, "it is taken")
        processes.enter_context(driver_of("many-0", tmp_path))
        until(lambda: "get _ray_internal_job_info_first-1" in head.calls, "it looks at the job")
        assert "put fray-many-0~0.queued" not in head.calls
        if removed:
            head.remove_entry("first-1")
            until(lambda: "first-1, which was removed" in unstarted_of(head, "many-0"), "it has failed")
        else:
            first = JobInfo(job_id=JobId("first-1"), name="first", status=JobStatus.SUCCEEDED, tasks=())
            ended = state_metadata(first)
            metadata = {"fray.job_id": "first-1", **ended}
            head.add_entry("first-1", {"status": "SUCCEEDED", "metadata": metadata})
            until(lambda: "put fray-many-0~0.queued" in head.calls, "it is queued")


def unstarted_of(head: HeadInMemory, sweep: str) -> str:
    """What the entry of a sweep says of members that ended before they were started."""
    return str((head.entry(sweep) or {})["metadata"].get("fray.unstarted", ""))


def test_a_request_that_comes_while_one_of_its_name_is_read_is_read_too(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def register(port: int) -> None:
        address, job_id = f"10.0.0.1:{port}", JobId("train-1")
        endpoint = Endpoint(
            name="http", address=address, job_id=job_id, replica=0, attempt=1, registered_at=1.0
        )
        head.put(name, json.dumps(endpoint.to_dict()).encode())

    name = "fray-train-1.endpoint.0.1.abc"
    wait_for_another(head, "train-1")
    with scheduler_of(head, monkeypatch, tmp_path):
        until(lambda: head.entry("train-1") is not None, "it is shown as waiting")
        head.then[f"get {name}"] = lambda: register(8002)
        register(8001)
        until(lambda: b"10.0.0.1:8002" in head.packages.get("fray-train-1.state", b""), "it is known")
        until(lambda: name not in head.packages, "it is deleted")


def test_the_process_of_a_job_ends_although_its_last_traces_cannot_be_deleted(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("fray_ray._head.job.end_family", lambda *_: None)
    wait_for_another(head, "train-1")
    with scheduler_of(head, monkeypatch, tmp_path):
        until(lambda: head.entry("train-1") is not None, "it is shown as waiting")
        head.broken = {"del fray-train-1.state"}
        with driver_of("train-1", tmp_path) as link:
            head.remove_entry("first-1")
            assert link.recv(100) == b"exit 1\n"


@pytest.mark.parametrize("noted", [True, False], ids=["and known to be", "and a zombie"])
def test_the_process_of_a_job_ends_whose_shell_was_gone_before_it_had_begun(
    tmp_path: Path, noted: bool
) -> None:
    """It has another parent then, which stays."""
    shell = subprocess.Popen(["true"])
    os.waitid(os.P_PID, shell.pid, os.WEXITED | (0 if noted else os.WNOWAIT))
    path = os.fspath(tmp_path / "scheduler")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        command = [sys.executable, "-I", "-S", job_process.__file__, "train-1", path, str(shell.pid), "1"]
        assert subprocess.run(command, timeout=20, check=False).returncode == 1
    shell.poll()


def test_the_process_of_a_job_ends_whose_supervisor_was_gone_before_it_watched_the_shell(
    tmp_path: Path,
) -> None:
    """As where the head ends while Ray starts a job: the shell stays, with another parent."""
    path, ended = os.fspath(tmp_path / "scheduler"), tmp_path / "ended"
    process = shlex.join([sys.executable, "-I", "-S", job_process.__file__, "train-1", path])
    shell = f"{process} $$ $PPID; echo $? > {ended}.draft; mv {ended}.draft {ended}"
    starts = f"import subprocess; subprocess.Popen(['sh', '-c', {shell!r}]); input()"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        server.settimeout(20)
        supervisor = subprocess.Popen([sys.executable, "-c", starts], stdin=subprocess.PIPE)
        link, _ = server.accept()
        with link:
            supervisor.kill()
            supervisor.communicate()
            until(ended.exists, "it has ended")
    assert ended.read_text() == "1\n"


def test_a_member_of_a_sweep_that_the_store_did_not_take_is_queued_later(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(f"{SCHEDULER}._client", Taking)
    head.broken = {"put fray-many-1~0.plan"}
    queued(head, "many-1", SweepPlan("many-1", (Member(plan_of("many-1/0"), ABOUT),)))
    with scheduler_of(head, monkeypatch, tmp_path):
        until(lambda: "get fray-many-1.stopping" in head.calls, "it is taken")
        with driver_of("many-1", tmp_path):
            until(lambda: head.calls.count("put fray-many-1~0.plan") > 0, "a member is to be queued")
            head.broken = set()
            until(lambda: "put fray-many-1~0.queued" in head.calls, "it is queued")


def test_nothing_is_kept_of_a_job_that_is_removed_before_it_is_settled(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wait_for_another(head, "train-1")
    with scheduler_of(head, monkeypatch, tmp_path):
        until(lambda: head.entry("train-1") is not None, "it is shown as waiting")
        head.put("fray-train-1.forget", b"-")
        head.remove_entry("first-1")
        until(lambda: not head.packages, "nothing of it is kept")


def test_a_job_that_cannot_be_carried_is_tried_for_a_while_and_fails(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(f"{SCHEDULER}._LOOK_AFTER_ERROR", 0.05)
    monkeypatch.setattr(f"{SCHEDULER}._TRIES_FOR", 5.0, raising=False)
    submission = queued(head, "train-1", plan_of("train-1"))
    head.broken = {"put fray-train-1.environ"}
    with scheduler_of(head, monkeypatch, tmp_path):
        until(lambda: "could not carry it" in message_of(head, submission), "it has failed")
        until(lambda: not head.packages, "nothing of it is kept")
    assert head.calls.count("put fray-train-1.environ") > 3
    log = (tmp_path / "job-driver-train-1.log").read_text()
    assert log.count("[fray] the scheduler failed") == 1


def test_what_an_interrupted_launch_left_is_deleted_after_a_while(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(f"{SCHEDULER}._LAUNCHED_WITHIN", 0.2, raising=False)
    head.put("fray-half-1.plan", b"a plan")
    head.put("fray-kept-1.plan", b"that of a job which has failed")
    head.add_entry("kept-1", {"status": "FAILED", "metadata": {"fray.job_id": "kept-1"}})
    head.put("fray-sweep-1~3.stop", b"0.0")
    with scheduler_of(head, monkeypatch, tmp_path):
        until(lambda: "fray-half-1.plan" not in head.packages, "it is deleted")
    assert head.packages.keys() == {"fray-kept-1.plan", "fray-sweep-1~3.stop"}


def test_a_launch_that_is_on_its_way_keeps_its_plan(head: HeadInMemory) -> None:
    head.put("fray-half-1.plan", b"a plan")
    seen = forget_orphans(())
    assert seen == {"half-1"}
    assert "fray-half-1.plan" in head.packages
    head.put("fray-half-1.queued", b"")
    assert forget_orphans(seen) == set()
    assert "fray-half-1.plan" in head.packages


def test_of_what_ended_jobs_keep_the_oldest_is_forgotten_beyond_a_bound(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fray_ray._head.kept._MOST_OF_ALL", 250)
    for number, status in enumerate(["RUNNING", "FAILED", "STOPPED", "FAILED"]):
        head.put(f"fray-job-{number}.plan", b"p" * 60)
        head.put(f"fray-job-{number}.workspace.zip", b"w" * 40)
        entry = {"status": status, "end_time": 1_000 * (5 - number), "metadata": {"fray.kept": "{}"}}
        head.add_entry(f"job-{number}", entry)
    sizes = forget_oldest({})
    assert sizes == {"job-0": 100, "job-1": 100}, "those that ended first are forgotten"
    assert {name.partition(".")[0] for name in head.packages} == {"fray-job-0", "fray-job-1"}
    kept = [(head.entry(f"job-{number}") or {})["metadata"]["fray.kept"] for number in range(4)]
    assert kept == ["{}", "{}", "null", "null"]
    assert forget_oldest(sizes) == sizes


def test_the_jobs_below_a_job_end_although_the_dashboard_is_away_for_a_moment(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect() -> Any:
        if away:
            raise away.pop()
        return SimpleNamespace(entries=list)

    def stop(_: Any, child: str, grace: float) -> None:
        asked = [name for name in head.packages if name.endswith(".stop")]
        stopped.append((child, grace, len(asked)))

    away, stopped = [ClusterUnavailableError("it is away")] * 2, list[tuple[str, float, int]]()
    children = {f"parent-1~child-{number}" for number in range(40)}
    for child in children:
        head.put(f"fray-{child}.queued", b"")
    monkeypatch.setattr(ray, "get_runtime_context", Context)
    monkeypatch.setattr(f"{DESCENDANTS}.await_stopped", stop)
    monkeypatch.setattr(f"{DESCENDANTS}.drivers_of", lambda _: {})
    monkeypatch.setattr(f"{DESCENDANTS}.living_actors_of", lambda _: [])
    end_family("parent-1", "parent-1", 5.0, Dashboard(connect))
    assert sorted(stopped) == sorted((child, 5.0, 40) for child in children), "all have their grace at once"


def test_what_a_job_started_ends_although_the_dashboard_stays_away(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect() -> Any:
        raise ClusterUnavailableError("no dashboard answers")

    killed: list[Any] = []
    head.put("fray-parent-1~child-1.queued", b"")
    monkeypatch.setattr(ray, "get_runtime_context", Context)
    monkeypatch.setattr(f"{DESCENDANTS}._TRIES_FOR", 0.5)
    monkeypatch.setattr(f"{DESCENDANTS}.drivers_of", lambda _: {})
    monkeypatch.setattr(f"{DESCENDANTS}.living_actors_of", lambda _: ["an actor"])
    monkeypatch.setattr(f"{DESCENDANTS}.kill_actors", lambda actors, _: killed.extend(actors))
    with pytest.raises(ClusterUnavailableError):
        end_family("parent-1", "parent-1", 5.0, Dashboard(connect))
    assert head.packages["fray-parent-1~child-1.stop"] == b"5.0"
    assert killed == ["an actor"]


NODE = {"NodeID": "node-1", "Alive": True, "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": 1}


@pytest.mark.parametrize(
    ("failures", "gone"),
    [([], False), ([TimeoutError] * 2, False), ([TimeoutError] * 3, True), ([ConnectionRefusedError], True)],
    ids=["it answers", "late", "never", "refused"],
)
def test_a_node_is_gone_when_it_refuses_or_does_not_answer_for_a_while(
    monkeypatch: pytest.MonkeyPatch, failures: list[type[OSError]], gone: bool
) -> None:
    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        if left:
            raise left.pop()
        return socket.socket()

    left = list(failures)
    monkeypatch.setattr(ray, "nodes", lambda: [NODE])
    monkeypatch.setattr(socket, "create_connection", connect)
    assert gone_of(["node-1"]) == ({"node-1"} if gone else set())
    assert not left


def test_drained_nodes_are_noticed_although_the_head_was_away_and_another_job_takes_no_notice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def drained() -> dict[str, int]:
        if away:
            raise away.pop()
        return {"node-1": 0}

    async def watch() -> Mapping[str, float]:
        noticed = asyncio.Queue[Mapping[str, float]]()
        jobs = [SimpleNamespace(notice=each) for each in (str.strip, noticed.put_nowait)]
        watching = asyncio.create_task(watch_draining(lambda: jobs, 0.01))
        found = await asyncio.wait_for(noticed.get(), 20)
        watching.cancel()
        return found

    away = [RuntimeError("the head does not answer")] * 2
    monkeypatch.setattr("fray_ray._head.nodes.draining_nodes", drained)
    assert asyncio.run(watch()).keys() == {"node-1"}
    assert not away


def test_a_node_that_lives_although_it_seemed_lost_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "nodes", lambda: [NODE])
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 1.0})
    monkeypatch.setattr(Reservation, "nodes", lambda _: {0: "node-1"})
    monkeypatch.setattr("fray_ray._head.nodes.draining_nodes", dict)
    plan, now = plan_of("train-1"), time.monotonic
    record = JobRecord(machine=new_machine(plan), avoid=["node-1"])
    reservation = Reservation(plan, JobBoard(plan, record, listed=False), {})
    assert reservation.look_at_avoided() == {"node-1"}
    lost = LostNodes(record, reservation)
    lost.preempted("node-1")
    assert lost.leaving() == {0}
    monkeypatch.setattr(time, "monotonic", lambda: now() + 61.0)
    assert lost.leaving() == set()
    assert not reservation.look_at_avoided()


def test_what_is_shown_of_a_replica_is_made_again_only_where_it_has_changed(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of("train-1", choices=(2,), max_retries_failure=3)
    record = JobRecord(machine=new_machine(plan), ports={(0, 1): {"http": 80}})
    board, bad = JobBoard(plan, record, listed=False), AttemptEnd(ExitReason.EXITED, 3)
    record.machine.handle(Begin(), 0.0)
    for number in (1, 2):
        record.machine.handle(Placed((0, 1)), number * 10.0)
        before = board.info.tasks
        assert all(one is other for one, other in zip(board.info.tasks, before, strict=True))
        record.machine.handle(Ended(0, number, bad), number * 10.0 + 1.0)
        tasks = board.info.tasks
        assert tasks[0] is not before[0]
        assert tasks[1] is before[1]
    record.machine.handle(Placed((0,)), 30.0)
    later = board.info.tasks[0]
    assert [(each.attempt, dict(each.ports)) for each in later.previous] == [(1, {"http": 80}), (2, {})]
    assert later.previous[0] is tasks[0].previous[0]
    record.ports[0, 3] = {"http": 81}
    assert board.info.tasks[0].ports == {"http": 81}


def test_a_job_runs_in_rays_table_before_its_first_attempt_begins(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else, where all its processes are lost just then, it reads as a job that could not start."""
    plan = plan_of("train-1")
    metadata = {"fray.job_id": "train-1", "fray.name": "train", "fray.replicas": "1"}
    head.add_entry("train-1", {"status": "RUNNING", "entrypoint": "true", "metadata": metadata})
    board = JobBoard(plan, JobRecord(machine=new_machine(plan)))
    board.show_again()
    seen: list[JobStatus | None] = []

    async def run() -> None:
        begun = asyncio.Event()

        async def begin(*_: Any) -> None:
            entry = stored_entry("train-1")
            info = None if entry is None else read(entry)
            seen.append(None if info is None else info.status)
            begun.set()
            await asyncio.Event().wait()

        monkeypatch.setattr("fray_ray._head.job_run.AttemptRun.run", begin)
        queue: Any = EmptyCluster()
        running = asyncio.create_task(JobRun(plan, board, queue, LogFile(os.devnull)).run())
        await asyncio.wait_for(begun.wait(), 20)
        running.cancel()

    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 1.0})
    monkeypatch.setattr(Reservation, "make_actors", lambda *_: {})
    monkeypatch.setattr(Reservation, "actor", lambda *_: None)
    monkeypatch.setattr(LostNodes, "leaving", lambda _: set())
    asyncio.run(run())
    assert seen == [JobStatus.RUNNING]
