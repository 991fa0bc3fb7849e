"""What the scheduler makes of what others have left in the head's store; nothing here needs a cluster."""

from pathlib import Path
from typing import Any

import pytest
from head_in_memory import HeadInMemory, plan_of, queued, scheduler_of

from fray.testing.gates import until
from fray_ray._sweep_plan import Member, SweepPlan


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> HeadInMemory:
    return HeadInMemory(monkeypatch)


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
    submission = queued(head, "train-1", plan, first="train-1", tries=2)
    with scheduler_of(head, monkeypatch, tmp_path):
        until(lambda: "SERVICE_TOKEN" in message_of(head, submission), "it has failed", 20)
        until(lambda: not [name for name in head.packages if submission in name], "nothing of it is kept", 20)
