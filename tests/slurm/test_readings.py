"""What Slurm's commands print, and what it means for a job: no Slurm is needed for these."""

import pytest

from fray.cluster import ExitReason, JobStatus
from fray_slurm._readings import (
    SlurmJob,
    fields_of,
    read_accounts,
    read_details,
    read_nodes,
    read_queue,
    submitted_id,
    tasks_per_node,
)
from fray_slurm._states import end_of, forgotten, pending_reason


@pytest.mark.parametrize(
    ("printed", "job_id"),
    [
        ("123\n", "123"),
        ("123;gpu\n", "123;gpu"),
        ("Welcome to the cluster!\nToday: 12 jobs\n123\n", "123"),
        ("** maintenance on 24 **\nSubmitted batch job 77 on cluster east\nhave fun 3\n", "77;east"),
        ("Submitted batch job 77\n", "77"),
        ("nothing of use\n", None),
        ("", None),
    ],
)
def test_the_id_of_a_submitted_job_is_found_behind_banners(printed: str, job_id: str | None) -> None:
    assert submitted_id(printed) == job_id


def test_the_queue_is_read_and_foreign_lines_are_passed_over() -> None:
    text = """CLUSTER: gpu
        12|PENDING|1:00|Resources
        13|RUNNING|UNLIMITED|None
        14|CANCELLED by 1000|2-00:00:00|Nodes required for job are DOWN, DRAINED | or reserved
        slurm_load_jobs error: something
        6_[1-4%2]|PENDING|1:00|Resources
    """
    jobs = read_queue(text)
    assert set(jobs) == {"12", "13", "14"}
    assert jobs["12"] == SlurmJob("12", "PENDING", "Resources", limit="1:00")
    assert jobs["13"] == SlurmJob("13", "RUNNING")
    assert (jobs["14"].state, jobs["14"].by) == ("CANCELLED", "1000")
    assert jobs["14"].reason.endswith("or reserved")


def test_the_accounting_is_read_and_the_last_run_counts() -> None:
    jobs = read_accounts(
        "5|PREEMPTED|0:0|None\n5|TIMEOUT|0:15|None\n6|OUT_OF_ME+|0:125|\n7|CANCELLED by 0|0:0\n"
    )
    assert (jobs["5"].state, jobs["5"].signal) == ("TIMEOUT", 15)
    assert jobs["7"].by == "0"


def test_details_of_a_job_are_read() -> None:
    line = (
        "JobId=6 JobName=a b=c UserId=root(0) JobState=COMPLETING Reason=None Requeue=1 Restarts=2 "
        "ExitCode=3:0 TimeLimit=00:01:00 PreemptTime=2026-11-22T01:37:51 WorkDir=/tmp/a b"
    )
    job = read_details(line)
    assert job == SlurmJob("6", "COMPLETING", exit_code=3, restarts=2, preempted=True, limit="00:01:00")
    assert fields_of(line)["WorkDir"] == "/tmp/a b"
    assert read_details("") is None


def test_nodes_and_layouts_are_read() -> None:
    nodes = read_nodes("NodeName=n1 NodeAddr=10.0.0.1 NodeHostName=a\nNodeName=n2 NodeAddr=10.0.0.2\n")
    assert {name: fields["NodeAddr"] for name, fields in nodes.items()} == {
        "n1": "10.0.0.1",
        "n2": "10.0.0.2",
    }
    assert tasks_per_node("2,1(x2)") == [2, 1, 1]
    with pytest.raises(ValueError, match="two"):
        tasks_per_node("two")


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING", "SUSPENDED", "A_STATE_OF_2031"])
def test_a_job_that_goes_on_has_no_end(state: str) -> None:
    assert end_of(SlurmJob("1", state)) is None


@pytest.mark.parametrize(
    ("job", "status", "reason", "says"),
    [
        (SlurmJob("1", "TIMEOUT"), "failed", "timed_out", "time limit"),
        (SlurmJob("1", "DEADLINE"), "failed", "timed_out", "deadline"),
        (SlurmJob("1", "OUT_OF_MEMORY"), "failed", "out_of_memory", "memory"),
        (SlurmJob("1", "NODE_FAIL"), "failed", "lost", "nodes failed"),
        (SlurmJob("1", "BOOT_FAIL"), "failed", "lost", "boot"),
        (SlurmJob("1", "PREEMPTED"), "failed", "preempted", "room for another"),
        (SlurmJob("1", "CANCELLED", by="1000"), "stopped", "stopped", "by user 1000"),
        (
            SlurmJob("1", "CANCELLED", "DependencyNeverSatisfied"),
            "failed",
            "could_not_start",
            "did not succeed",
        ),
        (SlurmJob("1", "FAILED", "BadConstraints"), "failed", "could_not_start", "constraints"),
        (SlurmJob("1", "FAILED", "NonZeroExitCode", exit_code=3), "failed", "lost", "code 3"),
        (SlurmJob("1", "FAILED", exit_code=97), "failed", "could_not_start", "must share"),
        (SlurmJob("1", "FAILED", "JobLaunchFailure", exit_code=0, signal=9), "failed", "lost", "signal 9"),
    ],
    ids=lambda value: value.state if isinstance(value, SlurmJob) else None,
)
def test_every_end_has_a_reason_and_words(job: SlurmJob, status: str, reason: str, says: str) -> None:
    end = end_of(job)
    assert end is not None
    assert (end.status, end.reason) == (JobStatus(status), ExitReason(reason))
    assert says in end.message
    assert "job 1" in end.message


def test_what_a_pending_job_waits_for_is_said_in_words_with_slurms_own() -> None:
    assert pending_reason(SlurmJob("1", "PENDING", "Resources")) == "waiting for nodes (Resources)"
    never = pending_reason(SlurmJob("1", "PENDING", "PartitionNodeLimit"))
    assert never.startswith("will never start: it asks for more nodes")
    assert pending_reason(SlurmJob("1", "PENDING", "NewReason")) == "waiting in the queue (NewReason)"
    assert pending_reason(SlurmJob("1", "PENDING")) == "waiting for Slurm to look at it"


def test_a_job_that_nobody_knows_is_lost_and_it_says_why() -> None:
    assert "MinJobAge" in forgotten("9").message
