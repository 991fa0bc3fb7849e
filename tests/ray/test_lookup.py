"""How a job is found in Ray's table: its runs, the members of a sweep, what a retry has. Needs no cluster."""

import json
from dataclasses import replace
from typing import Any

import pytest

from fray import ResourceConfig
from fray.cluster import ExitReason, JobId, JobInfo, JobStatus, TaskStatus
from fray_ray._job_table import MEMBERS, UNSTARTED, JobEntry, again, describe, key_of, read, submission_of
from fray_ray._launcher.lookup import find, latest, members_of
from fray_ray._plan import Plan, restored, withheld

ABOUT = {"entrypoint": "train", "labels": {"team": "a"}, "resources": ResourceConfig(cpu=2).to_dict()}


def entry(
    job_id: str, status: str = "RUNNING", *, tries: int = 1, state: JobStatus | None = None, **more: Any
) -> JobEntry:
    """An entry as Ray gives it, with the state that a driver wrote."""
    metadata = describe(JobId(job_id), "train", 1, ABOUT, tries=tries) | more
    if state is not None:
        task = TaskStatus(replica=0, status=state, attempt=tries)
        progress = {"failed": 1} if MEMBERS in more else None
        info = JobInfo(job_id=JobId(job_id), name="train", status=state, tasks=(task,), progress=progress)
        metadata["fray.info"] = json.dumps(info.to_dict())
    submission = submission_of(job_id, tries)
    return JobEntry.of({"submission_id": submission, "status": status, "metadata": metadata})


def table(*entries: JobEntry) -> Any:
    return {each.submission: each for each in entries}.get


def test_a_job_is_what_its_latest_run_is() -> None:
    first = entry("a-1", "FAILED", state=JobStatus.FAILED)
    second = entry("a-1", "RUNNING", tries=2, state=JobStatus.RUNNING)
    found = find(table(first, second), "a-1")
    assert found is not None
    assert (found.info.status, found.runs, found.over) == (JobStatus.RUNNING, ("a-1", "a-1-r2"), False)
    assert latest([second, first])[JobId("a-1")][1] is second
    assert find(table(first, second), "a-2") is None


@pytest.mark.parametrize("status", ["RUNNING", "SUCCEEDED"])
def test_a_run_that_succeeded_or_goes_on_is_the_last(status: str) -> None:
    asked: list[str] = []
    states = {"RUNNING": JobStatus.RUNNING, "SUCCEEDED": JobStatus.SUCCEEDED}
    known = entry("a-1", status, state=states[status])

    def look(submission: str) -> JobEntry | None:
        asked.append(submission)
        return known if submission == "a-1" else None

    assert find(look, "a-1") is not None
    assert asked == ["a-1"]


def test_what_was_asked_for_is_shown_with_the_state() -> None:
    info = read(entry("a-1", state=JobStatus.RUNNING))
    assert info is not None
    assert (info.command, info.labels, info.resources) == ("train", {"team": "a"}, ResourceConfig(cpu=2))


def sweep(status: str = "RUNNING", state: JobStatus | None = None, **more: Any) -> JobEntry:
    members = [{"name": f"try-{each}", "replicas": 2, "labels": {}, "after": []} for each in range(3)]
    return entry("s-1", status, state=state, **{MEMBERS: json.dumps(members), **more})


def test_a_member_that_waits_is_found_in_its_sweep_until_it_has_an_entry() -> None:
    found = find(table(sweep()), "s-1/1")
    assert found is not None
    assert (found.info.name, found.info.status, len(found.info.tasks)) == ("try-1", JobStatus.PENDING, 2)
    assert (found.runs, found.submission, found.over) == ((), "s-1~1", True)
    started = find(table(sweep(), entry("s-1/1", state=JobStatus.RUNNING)), "s-1/1")
    assert started is not None
    assert started.info.status is JobStatus.RUNNING
    assert find(table(sweep()), "s-1/3") is None
    assert find(table(entry("s-1")), "s-1/0") is None  # a job that is no sweep
    whole = find(table(sweep()), "s-1")
    assert whole is not None
    assert (members_of(whole), whole.info.is_sweep, whole.info.progress) == (3, True, {"pending": 3})


def test_members_that_never_ran_end_as_their_sweep_says() -> None:
    ended = {"1": {"status": "failed", "reason": "dependency_failed", "message": "another failed"}}
    known = sweep("FAILED", JobStatus.FAILED, **{UNSTARTED: json.dumps(ended)})
    by_reason, lost = (find(table(known), f"s-1/{position}") for position in (1, 2))
    assert by_reason is not None
    assert lost is not None
    assert by_reason.info.tasks[0].reason is ExitReason.DEPENDENCY_FAILED
    assert by_reason.info.error_message == "another failed"
    assert (lost.info.status, lost.info.tasks[0].reason) == (JobStatus.FAILED, ExitReason.LOST)
    stopped = find(table(sweep("STOPPED")), "s-1/0")
    assert stopped is not None
    assert stopped.info.status is JobStatus.STOPPED


@pytest.mark.parametrize(
    "data", [None, [], {}, {"metadata": "x"}, {"metadata": {"fray.job_id": 3}}, {"status": 7, "message": []}]
)
def test_whatever_ray_says_of_a_job_is_read(data: Any) -> None:
    assert read(JobEntry.of(data)) is None


def test_another_run_has_the_jobs_metadata_and_its_own_number() -> None:
    metadata = entry(
        "a-1", state=JobStatus.FAILED, **dict[str, Any]({"fray.key": "k", "fray.kept": "{}"})
    ).metadata
    following = again(metadata, 2)
    assert (following["fray.job_id"], following["fray.key"], following["fray.tries"]) == ("a-1", "k", "2")
    assert not {"fray.info", "fray.kept"} & following.keys()


def test_keys_are_those_of_the_job_that_launches() -> None:
    assert key_of("k", None) == key_of("k", None)
    assert len({key_of("k", None), key_of("k", "a-1"), key_of("l", None)}) == 3


def test_a_plan_is_kept_without_secrets_and_restored_with_what_is_brought() -> None:
    plan = Plan(
        job_id="a-1",
        submission="a-1",
        submitted_at=0.0,
        name="a",
        choices=(1,),
        hosts=1,
        gang=False,
        resources=ResourceConfig(),
        labels={},
        command=("true",),
        payload=None,
        environ={"HF_TOKEN": "hidden", "LR": "0.1", "FRAY_JOB_ID": "a-1"},
        secrets=("hidden", "0.1"),
        cwd=None,
        pip=(),
        max_retries_failure=0,
        max_retries_preemption=0,
        timeout=None,
        placement_timeout=None,
        confidential=("HF_TOKEN", "LR"),
    )
    kept = withheld(plan)
    assert (kept.withheld, kept.secrets) == (("HF_TOKEN",), ("0.1",))
    assert kept.environ == {"LR": "0.1", "FRAY_JOB_ID": "a-1"}
    assert "hidden" not in repr(kept.environ)
    brought = restored(kept, {"HF_TOKEN": "hidden"}, "a-1-r2", 2)
    assert replace(brought, submission="a-1", tries=1, secrets=plan.secrets) == plan
