"""What a driver books, and how long its replicas pause; nothing here needs a cluster."""

import importlib.util
import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from plans import plan
from ray import exceptions as rx

from fray.cluster import ExitReason, JobStatus
from fray.testing.gates import until
from fray_ray._head import independent_replicas, replicas
from fray_ray._head.independent_replicas import IndependentReplicas
from fray_ray._head.job_state import Outcome, Progress
from fray_ray._head.placing import STOPPED
from fray_ray._head.replicas import Replica
from fray_ray._plan import Plan, job_config

TIMED_OUT = Outcome(JobStatus.FAILED, ExitReason.TIMED_OUT, "ran longer than its timeout")


def test_what_a_replica_tells_ray_is_the_environment_of_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())  # an environment that has pip
    told = {"runtime_env": {"working_dir": "gcs://a.zip", "env_vars": {"A": "ray's"}}, "metadata": {"b": "c"}}
    environ = {"FRAY_JOB_ID": "job-1", "TOKEN": "of the request"}
    asked = replace(plan(), environ=environ, confidential=("TOKEN",), pip=("numpy==2.0", "./x.whl"))
    assert json.loads(job_config(asked, json.dumps(told))) == {
        "runtime_env": {
            "working_dir": "gcs://a.zip",
            "env_vars": {"A": "ray's", "FRAY_JOB_ID": "job-1"},
            "pip": ["numpy==2.0", "./x.whl"],
            "config": {"eager_install": False},
        },
        "metadata": {"b": "c"},
    }


class Watched(Progress):
    """Tells the last word."""

    @property
    def info(self) -> Any:
        return self._info


def test_the_time_of_each_attempt_is_counted_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    progress = Progress(plan(replicas=2), listed=False)

    def preempted(replica: int) -> None:
        progress.end(replica, JobStatus.FAILED, ExitReason.PREEMPTED, None, "gone", again=True)

    now += 7  # waits for room
    for replica in range(2):
        progress.begin(replica)
        now += 1
    assert progress.longest_attempt() == 2
    preempted(0)
    now += 3  # the other runs on
    assert progress.longest_attempt() == 4
    preempted(1)
    assert progress.longest_attempt() == 0
    now += 50  # waits for room again
    progress.begin(1)
    now += 4
    assert progress.longest_attempt() == 4


def test_a_job_that_ends_between_attempts_keeps_the_earlier_one() -> None:
    progress = Watched(plan(replicas=2), listed=False)
    progress.begin(0)
    progress.end(0, JobStatus.FAILED, ExitReason.PREEMPTED, None, "gone", again=True)
    progress.finish(TIMED_OUT)
    again, never = progress.info.tasks
    assert (again.status, again.reason, again.attempt) == (JobStatus.FAILED, ExitReason.TIMED_OUT, 2)
    (earlier,) = again.previous
    assert (earlier.attempt, earlier.reason, earlier.error_message) == (1, ExitReason.PREEMPTED, "gone")
    assert (again.started_at, never.attempt, never.previous) == (None, 0, ())


class NoReservation:
    """A room in which no actor can be made."""

    def __init__(self, plan: Plan) -> None: ...

    def placed(self, timeout: float) -> bool:
        raise OSError("no head answers")

    def host(self, replica: int) -> Any:
        raise OSError("no actor")

    def release(self, replica: int) -> None: ...


def test_a_replica_that_pauses_between_attempts_is_stopped_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "_FIRST_PAUSE", 600.0)
    monkeypatch.setattr(replicas, "_LONGEST_PAUSE", 600.0)
    monkeypatch.setattr(replicas, "node_is_gone", lambda node: False)
    progress = Watched(plan(retries=5), listed=False)
    room: Any = NoReservation(plan())
    replica = Replica(plan(retries=5), 0, room, progress)
    replica.start()
    until(lambda: progress.info.tasks[0].reason is ExitReason.LOST, "it pauses")
    replica.stop(0.0, ExitReason.STOPPED)
    replica.join(30)
    assert not replica.is_alive()
    progress.finish(STOPPED)
    assert progress.info.tasks[0].status is JobStatus.STOPPED


class Vanishing(NoReservation):
    """A room whose node vanishes while an actor comes up there."""

    def host(self, replica: int) -> Any:
        return SimpleNamespace(node_id=SimpleNamespace(remote=lambda: "answer"))

    def nodes(self) -> dict[int, str]:
        return {0: "node-1"}


@pytest.mark.parametrize("error", [rx.RuntimeEnvSetupError("cut off"), rx.ActorDiedError()], ids=repr)
def test_a_node_that_vanishes_while_a_replica_starts_there_is_a_preemption(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(ref: Any) -> Any:
        raise error

    looks = iter([([], ["answer"]), (["answer"], [])])
    monkeypatch.setattr(ray, "wait", lambda refs, timeout: next(looks))
    monkeypatch.setattr(ray, "get", fail)
    monkeypatch.setattr(replicas, "loss_is_known", lambda node: False)
    monkeypatch.setattr(replicas, "node_is_gone", lambda node: node == "node-1")
    progress, room = Watched(plan(), listed=False), Vanishing(plan())
    Replica(plan(), 0, room, progress).run()  # type: ignore[arg-type]
    assert progress.info.tasks[0].reason is ExitReason.PREEMPTED


def test_what_fails_while_room_is_looked_for_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(independent_replicas, "Reservation", NoReservation)
    replicas = IndependentReplicas(plan(), Progress(plan(), listed=False))
    with pytest.raises(OSError, match="no head answers"):
        replicas.run()
    assert replicas.outcome.message == "its driver failed: OSError('no head answers')"


def test_what_many_attempts_used_is_written_beside_the_log_and_stays_small(tmp_path: Path) -> None:
    written = tmp_path / "usage.txt"
    progress = Progress(plan(replicas=500), listed=False, usage=str(written))
    samples = "".join(f"{1e9 + second} {second} {second / 2}\n" for second in range(240))
    for replica in range(500):
        progress.begin(replica)
        progress.used(replica, samples + "17000")  # the last line is in the making
    progress.publish(0.0)
    lines = written.read_text().splitlines()
    assert lines[0] == "0 1 1000000000.0 0 0.0"
    assert len(lines) < 25_000
    assert {line.split()[0] for line in lines} == set(map(str, range(500)))
    assert {line for line in lines if line.split()[3] == "239"} == {
        f"{replica} 1 1000000239.0 239 119.5" for replica in range(500)
    }
    progress.begin(7)
    progress.used(7, "1000000500.0 9 1.0\n")
    progress.finish(TIMED_OUT)
    assert "7 2 1000000500.0 9 1.0" in written.read_text().splitlines()
