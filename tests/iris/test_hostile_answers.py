"""Whatever programs and controllers say of a task: it reads as some end of a replica."""

import json
import os
from typing import Any

import pytest
from fake_controller import FakeController
from hypothesis import given, settings
from hypothesis import strategies as st

from fray import JobNotFoundError, create_cluster
from fray.cluster import ExitReason, JobId, JobStatus
from fray_iris.translations import how_it_ended, job_info, task_status

DRAWN = settings(max_examples=200 * int(os.environ.get("TORTURE", "1")), deadline=None, database=None)
STATES = st.sampled_from(
    [
        f"TASK_STATE_{word}"
        for word in ("PENDING", "RUNNING", "SUCCEEDED", "FAILED", "KILLED", "PREEMPTED", "NEW")
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=3,
)
WORDS = st.sampled_from(
    [
        "fray",
        "fray-replica-state ",
        "fray-replica-ended ",
        "{",
        "}",
        "OOM killed",
        "Exit code: 3",
        "signal",
        "\n",
        "```json\n",
        "```",
    ]
)
# Reports of this version, of a later one, and of none.
REASONS = st.sampled_from(["exited", "signalled", "stopped", "evicted by a later version"]) | JSON
REPORTS = st.fixed_dictionaries({}, optional={"reason": REASONS, "exit_code": JSON, "message": JSON}) | JSON
STATES_SAID = st.fixed_dictionaries(
    {"attempt": st.integers(0, 2)},
    optional={"ports": st.dictionaries(st.text(), JSON) | JSON, "ended": REPORTS},
)
SAID = st.builds(
    lambda report: f"Exit code: 3. fray-replica-ended {json.dumps(report)}", REPORTS
) | st.builds(lambda state: f"fray-replica-state {json.dumps(state)}", STATES_SAID)
TEXTS = SAID | st.text(max_size=40) | st.lists(WORDS | st.text(max_size=8), max_size=6).map("".join)
TIMES = st.none() | st.integers(0, 2**53).map(lambda time: {"epoch_ms": str(time)})
ATTEMPTS = st.lists(
    st.fixed_dictionaries(
        {
            "attempt_id": st.integers(0, 2),
            "state": STATES,
            "error": TEXTS,
            "exit_code": st.integers(-300, 300),
        },
        optional={"started_at": TIMES, "finished_at": TIMES},
    ),
    max_size=3,
)
TASKS = st.fixed_dictionaries(
    {
        "task_id": st.integers(0, 3).map(lambda number: f"/ada/job-1/{number}"),
        "state": STATES,
        "attempts": ATTEMPTS,
    },
    optional={"error": TEXTS, "status_text_summary_md": TEXTS, "exit_code": st.integers(-300, 300)},
)


@DRAWN
@given(TASKS)
def test_tasks_of_any_shape(task: dict[str, object]) -> None:
    status = task_status(task)
    assert isinstance(status.status, JobStatus)
    assert status.replica >= 0
    json.dumps(status.to_dict())


@DRAWN
@given(STATES | TEXTS, TEXTS, st.integers(-1000, 1000), st.dictionaries(st.text(), JSON) | STATES_SAID)
def test_ends_of_any_words(state: str, error: str, code: int, report: dict[str, object]) -> None:
    assert isinstance(how_it_ended(state, error, code, report).status, JobStatus)


@DRAWN
@given(st.lists(TASKS, max_size=3), st.sampled_from(["JOB_STATE_RUNNING", "JOB_STATE_FAILED", ""]), TEXTS)
def test_jobs_of_any_shape(tasks: list[dict[str, object]], state: str, error: str) -> None:
    info = job_info(JobId("job-1"), {"state": state, "error": error}, tasks, {}, now=0.0)
    assert len(info.tasks) == len(tasks)


def list_jobs(cluster: Any) -> dict[str, Any]:
    return {info.job_id: info for info in cluster.list_jobs()}


@pytest.fixture
def cluster(controller: FakeController) -> Any:
    return create_cluster("iris", controller="http://nowhere", user="ada", shared_files=True)


def test_a_report_of_a_later_version_is_one_row_among_others(
    cluster: Any, controller: FakeController
) -> None:
    controller.add("/ada/good", "SUCCEEDED")
    said = {"reason": "evicted", "exit_code": 3, "message": "replica 0 was evicted"}
    error = f"Exit code: 3. stderr: fray-replica-ended {json.dumps(said)}"
    controller.add("/ada/later", "FAILED", error=error, exit_code=3)
    controller.add(
        "/ada/none", "FAILED", error='Exit code: 3. stderr: fray-replica-ended {"x": 1}', exit_code=3
    )
    rows = list_jobs(cluster)
    assert {job_id: row.status for job_id, row in rows.items()} == {
        "good": JobStatus.SUCCEEDED, "later": JobStatus.FAILED, "none": JobStatus.FAILED,
    }  # fmt: skip
    assert rows["later"].error_message == "replica 0 was evicted"
    assert rows["none"].tasks[0].reason is ExitReason.EXITED
    assert (rows["none"].tasks[0].exit_code, rows["later"].tasks[0].exit_code) == (3, 3)


def test_a_job_that_iris_removes_meanwhile_is_no_row(cluster: Any, controller: FakeController) -> None:
    for name in ("/ada/kept", "/ada/removed"):
        controller.add(name, "SUCCEEDED")

    def remove(method: str, request: Any) -> None:
        if method in ("list_jobs", "get_job_status"):
            controller.tasks.pop("/ada/removed", None)

    controller.after = remove
    assert list(list_jobs(cluster)) == ["kept"]
    with pytest.raises(JobNotFoundError):
        cluster.poll("removed")
