"""How jobs end, and what they wait for, by what Slurm has printed of such jobs."""

import json
import re
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fray import ClusterUnavailableError
from fray.backend import JOB_VARIABLE
from fray.cluster import (
    Cluster,
    ExitReason,
    JobId,
    JobInfo,
    JobRequest,
    JobStatus,
    ResourceConfig,
    create_cluster,
)
from fray.job import register_endpoint
from fray.testing.cluster import launch, program, until
from fray_slurm import SlurmError
from fray_slurm.testing import RecordedSlurm


@pytest.fixture
def cluster(recorded: RecordedSlurm, tmp_path: Path) -> Cluster:
    return create_cluster(f"slurm?root={tmp_path}/records&poll_interval=0.05")


def polled(cluster: Cluster, job_id: JobId, *, finished: bool = True) -> JobInfo:
    until(lambda: cluster.poll(job_id).finished is finished, "the queue is asked again", 10)
    return cluster.poll(job_id)


def ended(cluster: Cluster, recorded: RecordedSlurm, queue: str) -> JobInfo:
    """Return a job of which squeue prints this line."""
    job_id = launch(cluster, program("pass"))
    recorded.says("squeue", f"{queue}\n")
    return polled(cluster, job_id)


@pytest.mark.parametrize(
    ("queue", "status", "reason", "says"),
    [
        ("77|TIMEOUT|1:00|TimeLimit", "failed", "timed_out", "time limit"),
        ("77|DEADLINE|1:00|None", "failed", "timed_out", "deadline"),
        ("77|OUT_OF_MEMORY|1:00|OutOfMemory", "failed", "out_of_memory", "more memory than it asked for"),
        ("77|NODE_FAIL|1:00|NodeDown", "failed", "lost", "nodes failed"),
        ("77|BOOT_FAIL|1:00|None", "failed", "lost", "boot"),
        ("77|PREEMPTED|1:00|None", "failed", "preempted", "room for another"),
        ("77|CANCELLED by 1000|1:00|None", "stopped", "stopped", "by user 1000"),
        ("77|CANCELLED+|1:00|None", "stopped", "stopped", "not through Fray"),
        ("77|CANCELLED|1:00|DependencyNeverSatisfied", "failed", "dependency_failed", "did not succeed"),
        ("77|FAILED|1:00|BadConstraints", "failed", "could_not_start", "constraints"),
        ("77|LAUNCH_FAILED|1:00|None", "failed", "could_not_start", "launched"),
        ("77|REVOKED|1:00|None", "failed", "lost", "federation"),
    ],
    ids=lambda value: value.split("|")[1] if "|" in value else None,
)
def test_every_end_has_a_reason_and_words(
    cluster: Cluster, recorded: RecordedSlurm, queue: str, status: str, reason: str, says: str
) -> None:
    info = ended(cluster, recorded, queue)
    assert (info.status, info.tasks[0].reason) == (JobStatus(status), ExitReason(reason))
    assert says in str(info.error_message)
    assert "job 77" in str(info.error_message)


@pytest.mark.parametrize(
    ("code", "reason", "says"),
    [
        ("96:0", "lost", "supervisor .* was killed"),
        ("97:0", "could_not_start", "all nodes must share"),
        ("98:0", "lost", "another process holds the job's record"),
        ("3:0", "lost", "exited with code 3"),
        ("127:0", "could_not_start", "could not start Fray's interpreter"),
        ("0:53", "could_not_start", "could not write into the folder of records"),
        ("0:9", "lost", "signal 9"),
    ],
)
def test_a_batch_step_that_failed_without_a_word_is_asked_for_its_code(
    cluster: Cluster, recorded: RecordedSlurm, code: str, reason: str, says: str
) -> None:
    why = "JobLaunchFailure" if code == "0:9" else "NonZeroExitCode"
    recorded.says(
        "scontrol", f"JobId=77 JobName=job JobState=FAILED Reason={why} ExitCode={code} Restarts=0\n"
    )
    info = ended(cluster, recorded, f"77|FAILED|1:00|{why}")
    assert (info.status, info.tasks[0].reason) == (JobStatus.FAILED, ExitReason(reason))
    assert re.search(says, str(info.error_message))


def test_a_batch_step_that_failed_says_its_last_words(
    cluster: Cluster, recorded: RecordedSlurm, tmp_path: Path
) -> None:
    job_id = launch(cluster, program("pass"))
    log = tmp_path / "records" / job_id / "slurm" / "slurm.log"
    log.write_text("one\n/opt/python: No such file or directory\n")
    recorded.says("scontrol", "JobId=77 JobState=FAILED Reason=NonZeroExitCode ExitCode=127:0\n")
    recorded.says("squeue", "77|FAILED|1:00|NonZeroExitCode\n")
    message = str(polled(cluster, job_id).error_message)
    assert message.endswith(f"{log} ends: /opt/python: No such file or directory")


def test_a_member_whose_batch_step_had_begun_was_not_cancelled(
    cluster: Cluster, recorded: RecordedSlurm, tmp_path: Path
) -> None:
    """It failed before it could note anything, and neither queue nor accounts know it any more."""
    sweep = cluster.launch_many([JobRequest("one", program("pass"))] * 2)
    (tmp_path / "records" / sweep / "slurm" / "slurm-77_0.log").write_text("no such interpreter\n")
    polled(cluster, sweep)
    begun, never = (cluster.poll(f"{sweep}/{position}") for position in range(2))
    assert (begun.status, begun.tasks[0].reason) == (JobStatus.FAILED, ExitReason.LOST)
    assert never.status is JobStatus.STOPPED


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING", "SUSPENDED", "A_STATE_OF_2031"])
def test_a_job_that_goes_on_has_not_ended(cluster: Cluster, recorded: RecordedSlurm, state: str) -> None:
    job_id = launch(cluster, program("pass"))
    recorded.says(
        "squeue", f"CLUSTER: gpu\nsqueue: a warning\n77|{state}|1-00:00:00|None\n78|TIMEOUT|1:00|a|b\n"
    )
    until(lambda: cluster.poll(job_id).warnings, "the queue is asked again", 10)
    info = cluster.poll(job_id)
    assert info.status is JobStatus.PENDING
    assert "after 1-00:00:00 (its time limit)" in info.warnings[0]


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        ("Resources", "waiting for nodes (Resources)"),
        ("(Priority)", "waiting behind jobs of higher priority (Priority)"),
        ("PartitionNodeLimit", "will never start: it asks for more nodes than the partition"),
        ("QOSMaxWallDurationPerJobLimit", "will never start: it asks for more time than its QOS"),
        ("ReqNodeNotAvail, UnavailableNodes:n7", "down, drained or reserved (ReqNodeNotAvail, Unav"),
        ("launch failed requeued held", "its node could not start it (scontrol release)"),
        ("JobHoldMaxRequeue", "requeued it too often (scontrol release)"),
        ("NewReason", "waiting in the queue (NewReason)"),
        ("None", "waiting for Slurm to look at it"),
    ],
)
def test_what_a_pending_job_waits_for_is_said_in_words_with_slurms_own(
    cluster: Cluster, recorded: RecordedSlurm, reason: str, says: str
) -> None:
    job_id = launch(cluster, program("pass"))
    recorded.says("squeue", f"77|PENDING|UNLIMITED|{reason}\n")
    until(lambda: says in str(cluster.poll(job_id).pending_reason), "the queue is asked again", 10)


def test_a_job_that_left_the_queue_is_looked_up_in_the_accounts(
    cluster: Cluster, recorded: RecordedSlurm
) -> None:
    job_id = launch(cluster, program("pass"))
    recorded.says("sacct", "77|PREEMPTED|0:0|None\n77|TIMEOUT|0:15|None\n8|COMPLETED|0:0|None\n")
    info = polled(cluster, job_id)
    assert info.tasks[0].reason is ExitReason.TIMED_OUT  # the last run of a requeued job
    assert "--starttime=" in recorded.calls("sacct")[0]


def test_the_account_of_another_job_that_got_the_number_is_not_its_end(
    cluster: Cluster, recorded: RecordedSlurm
) -> None:
    job_id = launch(cluster, program("pass"))
    recorded.says("sacct", "77|CANCELLED by 1000|0:0|None|another\n")
    info = polled(cluster, job_id)
    assert (info.status, info.tasks[0].reason) == (JobStatus.FAILED, ExitReason.LOST)
    assert "slurmctld has lost it" in str(info.error_message)


def test_a_job_that_nobody_knows_is_lost_and_it_says_why(cluster: Cluster, recorded: RecordedSlurm) -> None:
    info = polled(cluster, launch(cluster, program("pass")))
    assert (info.status, info.tasks[0].reason) == (JobStatus.FAILED, ExitReason.LOST)
    assert "MinJobAge" in str(info.error_message)
    assert len(recorded.calls("sacct")) == 1  # which said that it keeps no accounts


def test_a_job_that_left_the_queue_is_lost_where_there_is_no_sacct(
    cluster: Cluster, recorded: RecordedSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "recorded"
    (programs / "sacct").unlink()
    for name in ("cat", "env"):  # which the recorded commands call
        (programs / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(programs))
    info = polled(cluster, launch(cluster, program("pass")))
    assert (info.status, info.tasks[0].reason) == (JobStatus.FAILED, ExitReason.LOST)


def test_a_job_is_not_lost_because_the_accounts_answer_slowly(
    cluster: Cluster, recorded: RecordedSlurm, tmp_path: Path
) -> None:
    """Both were asked once: the queue may have answered before the job was there."""
    sacct = tmp_path / "recorded" / "sacct"
    sacct.write_text(sacct.read_text().replace("#!/bin/sh\n", "#!/bin/sh\nsleep 0.5\n"))
    job_id = launch(cluster, program("pass"))
    assert cluster.poll(job_id).status is JobStatus.PENDING
    assert len(recorded.calls("sacct")) == 1
    assert polled(cluster, job_id).tasks[0].reason is ExitReason.LOST


def test_accounts_that_do_not_answer_lose_no_job(cluster: Cluster, recorded: RecordedSlurm) -> None:
    job_id = launch(cluster, program("pass"))
    recorded.says("sacct", "", error="sacct: error: slurm_persist_conn_open: Connection refused", code=1)
    until(lambda: "does not answer (sacct" in str(cluster.poll(job_id).pending_reason), "they are asked", 10)
    asked = len(recorded.calls("sacct"))
    until(lambda: [cluster.poll(job_id)] and len(recorded.calls("sacct")) > asked, "they are asked again", 10)
    assert cluster.poll(job_id).status is JobStatus.PENDING
    recorded.says("sacct", "77|NODE_FAIL|0:0|None\n")
    assert polled(cluster, job_id).tasks[0].reason is ExitReason.LOST


def test_an_end_is_remembered_when_slurm_has_forgotten_it(cluster: Cluster, recorded: RecordedSlurm) -> None:
    info = ended(cluster, recorded, "77|TIMEOUT|1:00|None")
    recorded.says("squeue", "")
    asked = len(recorded.calls("squeue"))
    recorded.says("sbatch", "78\n")
    other = launch(cluster, program("pass"), "other")
    until(
        lambda: not cluster.poll(other).finished and len(recorded.calls("squeue")) > asked, "it is asked", 10
    )
    assert cluster.poll(info.job_id) == info


def test_the_end_of_a_job_is_not_that_of_another_which_got_its_number(
    cluster: Cluster, recorded: RecordedSlurm, tmp_path: Path
) -> None:
    """As where slurmctld has lost its state, and numbers begin again."""
    before = launch(cluster, program("pass"), "before")
    recorded.says("squeue", f"77|TIMEOUT|1:00|TimeLimit|{before}\n")
    assert polled(cluster, before).tasks[0].reason is ExitReason.TIMED_OUT
    job_id = launch(cluster, program("pass"))
    recorded.says("squeue", f"77|RUNNING|1:00|None|{job_id}\n")
    allocation = tmp_path / "records" / job_id / "slurm" / "allocation.json"
    for variables in ({}, {"SLURM_JOB_ID": "77"}):  # before it has started, and after
        allocation.write_text(json.dumps({"variables": variables}))
        until(lambda: cluster.poll(job_id).warnings, "the queue is asked again", 10)
    assert cluster.poll(before).tasks[0].reason is ExitReason.TIMED_OUT


@pytest.mark.parametrize("what", ["job", "sweep"])
def test_a_job_that_another_process_launched_is_not_lost_where_slurm_was_last_asked_before(
    recorded: RecordedSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    shift = shifted_clock(monkeypatch)
    spec = f"slurm?root={tmp_path}/records"
    watching, other = create_cluster(spec), create_cluster(spec)
    first = launch(watching, program("pass"))
    recorded.says("squeue", "77|RUNNING|1:00|None\n")
    for _ in range(10):  # nothing changes: it asks every thirty seconds in the end
        assert not watching.poll(first).finished
        shift(40)
    assert not watching.poll(first).finished
    recorded.says("sbatch", "78\n")
    request = JobRequest("job", program("pass"))
    job_id = other.launch(request) if what == "job" else other.launch_many([request] * 2)
    tasks = ("",) if what == "job" else ("_0", "_1")
    recorded.says(
        "squeue",
        "".join(f"{number}|RUNNING|1:00|None\n" for number in ("77", *(f"78{task}" for task in tasks))),
    )
    for _ in range(6):
        info = watching.poll(job_id)
        assert not info.finished, info
        shift(5)


def shifted_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return what lets seconds pass at once."""
    now, passed = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now() + sum(passed))
    return passed.append


@pytest.mark.parametrize(
    ("printed", "number"),
    [
        ("123\n", "123"),
        ("123;gpu\n", "123"),
        ("Welcome to the cluster!\nToday: 12 jobs\n123\n", "123"),
        ("** maintenance on 24 **\nSubmitted batch job 77 on cluster east\nhave fun 3\n", "77"),
    ],
)
def test_the_number_of_a_job_is_found_behind_banners(
    cluster: Cluster, recorded: RecordedSlurm, printed: str, number: str
) -> None:
    recorded.says("sbatch", printed)
    recorded.says("squeue", f"{number}|TIMEOUT|1:00|None\n")
    assert f"Slurm job {number}" in str(polled(cluster, launch(cluster, program("pass"))).error_message)


def test_a_job_without_a_number_is_looked_up_by_its_name_and_else_refused(
    cluster: Cluster, recorded: RecordedSlurm
) -> None:
    recorded.says("sbatch", "thank you for using sbatch\n")
    with pytest.raises(SlurmError, match="thank you for using"):
        launch(cluster, program("pass"))
    assert "--name=job-" in recorded.calls("squeue")[0]
    assert cluster.list_jobs() == []


def test_the_line_that_squeue_prints_of_a_cluster_is_no_job(recorded: RecordedSlurm, tmp_path: Path) -> None:
    cluster = create_cluster(f"slurm?root={tmp_path}/records&cluster=gpu")
    recorded.says("sbatch", "thank you for using sbatch\n")
    recorded.says("squeue", "CLUSTER: gpu\n")
    with pytest.raises(SlurmError, match="thank you for using"):
        launch(cluster, program("pass"))
    assert cluster.list_jobs() == []


def test_a_job_that_was_taken_though_sbatch_got_no_answer_is_found_by_its_name(
    cluster: Cluster, recorded: RecordedSlurm
) -> None:
    recorded.says("sbatch", "", error="sbatch: error: Socket timed out on send/recv operation", code=1)
    recorded.says("squeue", "77\n")
    job_id = launch(cluster, program("pass"))
    assert recorded.calls("squeue")[0].count(f"--name={job_id}") == 1
    recorded.says("squeue", "77|TIMEOUT|1:00|None\n")
    assert "Slurm job 77" in str(polled(cluster, job_id).error_message)


@pytest.mark.parametrize(
    "error",
    [
        "sbatch: error: Unable to contact slurm controller (connect failure)",
        "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
    ],
)
def test_a_slurm_that_is_away_is_an_unavailable_cluster_and_no_job(
    cluster: Cluster, recorded: RecordedSlurm, error: str
) -> None:
    recorded.says("sbatch", "", error=error, code=1)
    with pytest.raises(ClusterUnavailableError, match=error.split("(")[0].strip()):
        launch(cluster, program("pass"))
    assert cluster.list_jobs() == []


def test_a_slurm_that_is_away_leaves_jobs_as_they_were(cluster: Cluster, recorded: RecordedSlurm) -> None:
    job_id = launch(cluster, program("pass"))
    recorded.says("squeue", "", error="slurm_load_jobs error: Unable to contact slurm controller", code=1)
    until(lambda: "does not answer" in str(cluster.poll(job_id).pending_reason), "it is asked again", 10)
    assert cluster.poll(job_id).status is JobStatus.PENDING
    recorded.says("squeue", "77|TIMEOUT|1:00|None\n")
    assert polled(cluster, job_id).status is JobStatus.FAILED


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_number_that_another_job_got_since_the_last_look_is_not_cancelled(
    recorded: RecordedSlurm, tmp_path: Path, replicas: int
) -> None:
    cluster = create_cluster(f"slurm?root={tmp_path}/records&poll_interval=30")
    job_id = launch(cluster, program("pass"), resources=ResourceConfig(ram="200m", replicas=replicas))
    recorded.says("squeue", f"77|PENDING|1:00|Priority|{job_id}\n")
    assert "higher priority" in str(cluster.poll(job_id).pending_reason)
    recorded.says("squeue", "77|PENDING|1:00|Priority|another\n")
    cluster.terminate(job_id)
    assert cluster.poll(job_id).status is JobStatus.STOPPED
    assert recorded.calls("scancel") == []


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_job_does_not_wait_for_another_that_has_the_number_of_the_one_before_it(
    cluster: Cluster, recorded: RecordedSlurm, replicas: int
) -> None:
    resources = ResourceConfig(ram="200m", replicas=replicas)
    before = launch(cluster, program("pass"), "before", resources=resources)
    recorded.says("squeue", "77|PENDING|1:00|Priority|another\n")
    info = cluster.poll(launch(cluster, program("pass"), "last", after=[before]))
    assert (info.status, info.tasks[0].reason) == (JobStatus.FAILED, ExitReason.DEPENDENCY_FAILED)
    assert before in str(info.error_message)
    assert len(recorded.calls("sbatch")) == 1


def test_a_thousand_jobs_are_one_question(recorded: RecordedSlurm, tmp_path: Path) -> None:
    """All jobs are polled again and again within an interval: one squeue, and no sacct."""
    cluster = create_cluster(f"slurm?root={tmp_path}/many&poll_interval=30")
    jobs = []
    for number in range(100, 200):
        recorded.says("sbatch", f"{number}\n")
        jobs.append(launch(cluster, program("pass")))
    recorded.says("squeue", "".join(f"{number}|RUNNING|UNLIMITED|None\n" for number in range(100, 1100)))
    for _ in range(3):
        assert {cluster.poll(job_id).status for job_id in jobs} == {JobStatus.PENDING}
    assert len(recorded.calls("squeue")) == 1
    assert recorded.calls("sacct") == []


def test_jobs_that_left_the_queue_are_one_question_to_the_accounting(
    recorded: RecordedSlurm, tmp_path: Path
) -> None:
    cluster = create_cluster(f"slurm?root={tmp_path}/many&poll_interval=0.5")
    jobs = []
    for number in range(100, 120):
        recorded.says("sbatch", f"{number}\n")
        jobs.append(launch(cluster, program("pass")))
    recorded.says("sacct", "".join(f"{number}|TIMEOUT|0:15|None\n" for number in range(100, 120)))

    def all_ended() -> bool:
        return {cluster.poll(job_id).status for job_id in jobs} == {JobStatus.FAILED}

    started = time.monotonic()
    until(all_ended, "the accounts are asked", 60)
    seconds = time.monotonic() - started
    assert len(recorded.calls("sacct")) <= 2 + seconds / 0.5, "one in each interval"


def test_a_slurm_that_answered_slowly_once_leaves_no_sweep_as_it_was(
    cluster: Cluster, recorded: RecordedSlurm, tmp_path: Path
) -> None:
    """Many records are read seldom, by the time that this takes; what Slurm takes is none of it."""
    sweep = cluster.launch_many([JobRequest("one", program("pass"))] * 2)
    recorded.says("squeue", "77_0|RUNNING|1:00|None\n77_1|RUNNING|1:00|None\n")
    squeue, slept = tmp_path / "recorded" / "squeue", tmp_path / "slept"
    quick = squeue.read_text()
    squeue.write_text(f"{quick.splitlines()[0]}\nsleep 2\ntouch '{slept}'\n{quick}")

    def was_asked() -> bool:
        cluster.poll(sweep)
        return slept.exists()

    until(was_asked, "it was asked", 30)
    squeue.write_text(quick)
    recorded.says("squeue", "77_0|TIMEOUT|1:00|None\n77_1|TIMEOUT|1:00|None\n")
    assert polled(cluster, sweep).status is JobStatus.FAILED


def test_a_job_that_was_requeued_is_stopped_though_nobody_can_be_asked(
    cluster: Cluster,
    recorded: RecordedSlurm,
    tmp_path: Path,
    runs_elsewhere: Callable[[Path], None],
) -> None:
    """Its supervisor was on a node that was taken away; from here, nobody sees whether it lives."""
    job_id = launch(cluster, program("pass"))
    runs_elsewhere(tmp_path / "records" / job_id)
    recorded.says("squeue", "77|PENDING|1:00|BeginTime\n")
    with ThreadPoolExecutor(1) as threads:
        stopped = threads.submit(cluster.terminate, job_id)
        until(lambda: recorded.calls("scancel"), "it is taken out of the queue", 20)
        recorded.says("squeue", "77|CANCELLED by 1|1:00|None\n")
        stopped.result(20)
    assert cluster.poll(job_id).status is JobStatus.STOPPED


@pytest.mark.parametrize("final", [True, False])
def test_terminate_comes_back_from_a_job_that_slurm_cannot_end(
    cluster: Cluster,
    recorded: RecordedSlurm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    final: bool,
    runs_elsewhere: Callable[[Path], None],
) -> None:
    """As on a node that hangs. The record says that the job was stopped, or that it runs there."""
    job_id = launch(cluster, program("pass"))
    if not final:
        runs_elsewhere(tmp_path / "records" / job_id)
    recorded.says("squeue", "77|COMPLETING|1:00|None\n")
    recorded.says("scontrol", "JobId=77 JobState=COMPLETING NodeList=n5\n")
    now = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: 60 * now())
    says = "job 77 on n5 .*COMPLETING"
    comes_back = (
        pytest.warns(RuntimeWarning, match=says)
        if final
        else pytest.raises(ClusterUnavailableError, match=says)
    )
    with ThreadPoolExecutor(1) as threads:
        stopped = threads.submit(cluster.terminate, job_id)
        try:
            with comes_back:
                stopped.result(60)
        finally:
            recorded.says("squeue", "")
    assert cluster.poll(job_id).finished is final
    assert "scancel 77" in recorded.calls("scancel")


@pytest.mark.parametrize("queue", ["77|PENDING|1:00|BeginTime", "77|NODE_FAIL|1:00|None"])
def test_a_server_that_slurm_has_taken_away_is_no_endpoint(
    cluster: Cluster,
    recorded: RecordedSlurm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    queue: str,
    runs_elsewhere: Callable[[Path], None],
) -> None:
    """Its supervisor ended with its host, and the record says that it runs."""
    job_id = launch(cluster, program("pass"))
    runs_elsewhere(tmp_path / "records" / job_id)
    recorded.says("squeue", "77|RUNNING|1:00|None\n")
    with monkeypatch.context() as replica:
        replica.setenv("FRAY_JOB_ID", job_id)
        replica.setenv(JOB_VARIABLE, str(tmp_path / "records" / job_id))
        register_endpoint("server", "10.0.0.5:8000")
    assert [each.name for each in cluster.endpoints()] == ["server"]
    recorded.says("squeue", f"{queue}\n")
    until(lambda: cluster.poll(job_id).status is not JobStatus.RUNNING, "it is asked again", 10)
    assert cluster.endpoints() == []


@pytest.mark.parametrize("text", ["", "{}", '{"variables": {}}'])
def test_a_job_is_seen_though_what_was_noted_of_its_allocation_cannot_be_read(
    cluster: Cluster, recorded: RecordedSlurm, tmp_path: Path, text: str
) -> None:
    job_id = launch(cluster, program("pass"))
    (tmp_path / "records" / job_id / "slurm" / "allocation.json").write_text(text)
    recorded.says("squeue", "77|TIMEOUT|1:00|None\n")
    assert polled(cluster, job_id).status is JobStatus.FAILED
