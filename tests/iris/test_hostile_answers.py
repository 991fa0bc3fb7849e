"""Whatever programs and controllers say of a task: it reads as some end of a replica."""

import os

from hypothesis import given, settings
from hypothesis import strategies as st

from fray.cluster import JobId, JobStatus
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
    max_leaves=6,
)
WORDS = st.sampled_from(
    [
        "fray",
        "fray-state: ",
        "fray-end: ",
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
TEXTS = st.text(max_size=40) | st.lists(WORDS | st.text(max_size=8), max_size=6).map("".join)
TIMES = st.none() | st.integers(0, 2**53).map(lambda time: {"epoch_ms": str(time)})
ATTEMPTS = st.lists(
    st.fixed_dictionaries(
        {
            "attempt_id": st.integers(0, 9),
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


@DRAWN
@given(STATES | TEXTS, TEXTS, st.integers(-1000, 1000))
def test_ends_of_any_words(state: str, error: str, code: int) -> None:
    assert isinstance(how_it_ended(state, error, code, {}).status, JobStatus)


@DRAWN
@given(st.lists(TASKS, max_size=3), st.sampled_from(["JOB_STATE_RUNNING", "JOB_STATE_FAILED", ""]), TEXTS)
def test_jobs_of_any_shape(tasks: list[dict[str, object]], state: str, error: str) -> None:
    info = job_info(JobId("job-1"), {"state": state, "error": error}, tasks, {}, now=0.0)
    assert len(info.tasks) == len(tasks)
