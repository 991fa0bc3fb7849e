"""A controller that does not answer for a while, and answers that are lost on their way."""

import random
import time
from pathlib import Path
from typing import Any

import pytest
from fake_controller import Code, ConnectError, FakeController, Message, Outage

from fray import ClusterUnavailableError, create_cluster
from fray.cluster import Entrypoint, JobRequest, JobStatus, create_environment

NAME = "/ada/job-1"
TRUE = Entrypoint.from_binary("true")


@pytest.fixture
def cluster(controller: FakeController) -> Any:
    return create_cluster("iris", controller="http://nowhere", user="ada", shared_files=True)


@pytest.mark.parametrize(("code", "request_takes"), [(Code.UNAVAILABLE, 0.0), (Code.DEADLINE_EXCEEDED, 30.0)])
def test_a_job_is_waited_for_across_an_outage(
    cluster: Any, controller: FakeController, outage: Outage, code: Code, request_takes: float
) -> None:
    controller.add(NAME)
    looked = False

    def goes_away_and_ends(method: str, request: Any) -> None:
        nonlocal looked
        if method == "list_tasks" and not looked:
            looked = True
            outage.code, outage.request = code, request_takes
            outage.begin(75.0)
            controller.add(NAME, "SUCCEEDED")

    controller.after = goes_away_and_ends
    assert cluster.wait("job-1").status is JobStatus.SUCCEEDED


def test_a_log_is_followed_across_an_outage(cluster: Any, controller: FakeController, outage: Outage) -> None:
    controller.add(NAME)
    controller.logs[f"{NAME}/0:0"] = ["first"]
    lines = cluster.monitor("job-1")
    assert next(lines) == "first"
    outage.begin(75.0)
    controller.add(NAME, "SUCCEEDED")
    controller.logs[f"{NAME}/0:0"] += ["second", "fray-replica-ended {}"]
    assert list(lines) == ["second"]


def test_a_controller_that_stays_away_is_reported(
    cluster: Any, controller: FakeController, outage: Outage
) -> None:
    controller.add(NAME)
    assert cluster.poll("job-1").status is JobStatus.RUNNING
    outage.begin(3600.0)
    began = outage.now()
    with pytest.raises(ClusterUnavailableError):
        cluster.poll("job-1")
    assert 60.0 < outage.now() - began < 300.0


@pytest.mark.parametrize(("code", "request_takes"), [(Code.UNAVAILABLE, 0.0), (Code.DEADLINE_EXCEEDED, 30.0)])
def test_an_address_that_never_answered_is_named_soon(
    cluster: Any, outage: Outage, code: Code, request_takes: float
) -> None:
    outage.code, outage.request = code, request_takes
    outage.begin(3600.0)
    began = outage.now()
    with pytest.raises(ClusterUnavailableError, match="http://nowhere cannot be asked"):
        cluster.poll("job-1")
    assert outage.now() - began < 35.0


def test_a_task_registers_its_server_across_an_outage_and_once(
    cluster: Any, controller: FakeController, outage: Outage
) -> None:
    def loses_the_answer(method: str, request: Any) -> None:
        if method == "register_endpoint" and controller.asked.count(method) == 1:
            outage.begin(60.0)
            raise ConnectError(Code.UNAVAILABLE, "the answer is lost")

    controller.after = loses_the_answer
    cluster.iris.register({"name": f"{NAME}/server", "task_id": f"{NAME}/0"})
    assert [each.name for each in controller.endpoints.values()] == [f"{NAME}/server"]


def late_launch(method: str, request: Any) -> None:
    if method == "launch_job":
        raise ConnectError(Code.DEADLINE_EXCEEDED, "the launch is late")


def test_a_launch_whose_answer_is_late_has_launched(
    cluster: Any, controller: FakeController, outage: Outage
) -> None:
    controller.after = late_launch
    job_id = cluster.launch(JobRequest("late", TRUE))
    assert list(controller.jobs) == [f"/ada/{job_id}"]
    assert cluster.poll(job_id).status is JobStatus.RUNNING


def test_a_launch_that_was_lost_on_its_way_fails(
    cluster: Any, controller: FakeController, outage: Outage
) -> None:
    controller.before = late_launch
    with pytest.raises(ClusterUnavailableError, match="the launch is late"):
        cluster.launch(JobRequest("lost", TRUE))
    outage.begin(3600.0)
    controller.before = outage.fail
    with pytest.raises(ClusterUnavailableError) as raised:
        cluster.launch(JobRequest("unknown", TRUE))
    (note,) = raised.value.__notes__
    assert "/ada/unknown-" in note


def test_a_large_launch_has_more_time(cluster: Any, controller: FakeController, tmp_path: Path) -> None:
    def timeout(size: int) -> float:
        (tmp_path / "data.bin").write_bytes(random.Random(1).randbytes(size))  # which cannot be compressed
        cluster.launch(JobRequest("large", TRUE, environment=create_environment(tmp_path), snapshot=True))
        return controller.timeouts["launch_job"]

    small = timeout(1)
    assert 30.0 <= small < 31.0
    assert timeout(8 << 20) >= small + 10.0


@pytest.mark.parametrize(("ended", "seconds"), [(3600.0, 5.0), (1.0, 90.0)], ids=["long ago", "just now"])
def test_a_log_whose_end_iris_has_dropped_is_waited_for_only_where_it_may_come(
    cluster: Any, controller: FakeController, outage: Outage, ended: float, seconds: float
) -> None:
    at = {"epoch_ms": str(int((time.time() - ended) * 1000))}
    controller.add(NAME, "SUCCEEDED", finished_at=at)
    controller.logs[f"{NAME}/0:0"] = ["first"]
    controller.requests[NAME] = Message(submit_argv=["fray-request", '{"name": "job"}'])
    began = outage.now()
    assert list(cluster.monitor("job-1", follow=False)) == ["first"]
    assert seconds / 3 < outage.now() - began < seconds
