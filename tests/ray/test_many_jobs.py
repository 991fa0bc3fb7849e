"""What many jobs that wait cost the head: a scheduler on a store that counts what it is asked."""

import time
from pathlib import Path

import pytest
from head_in_memory import HeadInMemory, plan_of, queued, scheduler_of

from fray.testing.gates import until

MANY = 40
WATCHED = 3.0  # seconds in which it is counted what is asked; of nothing there is no event to wait for


def reason(head: HeadInMemory, job_id: str) -> str:
    """Return what the table says of a job, as text."""
    return str(head.entry(job_id))


def calls_of_a_while(head: HeadInMemory, what: str) -> int:
    """Return how many of the calls in the next seconds are these."""
    before, end = head.calls.count(what), time.monotonic() + WATCHED
    until(lambda: time.monotonic() > end, "a while is over")
    return head.calls.count(what) - before


def test_one_look_serves_all_that_run_after_a_job(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    queued(head, "first", plan_of("first"))
    for number in range(MANY):
        queued(head, f"then-{number}", plan_of(f"then-{number}", after=("first",)))
    with scheduler_of(head, monkeypatch, tmp_path):
        for number in range(MANY):
            until(lambda: "runs after first" in reason(head, f"then-{number}"), "it waits")  # noqa: B023
        looks = calls_of_a_while(head, "get _ray_internal_job_info_first")
        assert 1 <= looks < MANY, looks
        head.put("fray-first.stop", b"0")
        for number in range(MANY):
            until(lambda: "was stopped" in reason(head, f"then-{number}"), "it fails")  # noqa: B023


def test_a_head_that_was_away_once_is_looked_at_soon_again(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with scheduler_of(head, monkeypatch, tmp_path):
        head.away_for = 2.0
        until(lambda: not head.away_for, "the head has been away")
        queued(head, "soon", plan_of("soon"))
        until(lambda: "fray.info" in reason(head, "soon"), "it is taken", 10)


def test_a_job_that_waits_and_of_which_nothing_changes_is_not_written_again(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    queued(head, "waits", plan_of("waits"))
    with scheduler_of(head, monkeypatch, tmp_path):
        until(lambda: "fray.info" in reason(head, "waits"), "it is shown")
        assert calls_of_a_while(head, "put _ray_internal_job_info_waits") <= 1
