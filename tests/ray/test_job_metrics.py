"""A job's figures as they are counted from its state; nothing here needs a cluster."""

from pathlib import Path

from fray.cluster import ExitReason, JobId, JobInfo, JobStatus, TaskStatus
from fray_ray._head.job_metrics import figures_of, figures_of_gang, replicas_of
from fray_ray._head.usage_file import UsageFile


def ended(attempt: int, reason: ExitReason, exit_code: int | None) -> TaskStatus:
    return TaskStatus(replica=0, attempt=attempt, status=JobStatus.FAILED, reason=reason, exit_code=exit_code)


def job(*tasks: TaskStatus) -> JobInfo:
    return JobInfo(job_id=JobId("job-1"), name="job", status=JobStatus.RUNNING, tasks=tasks)


def test_attempts_are_counted_by_how_they_ended() -> None:
    before = (
        ended(1, ExitReason.EXITED, 1),
        ended(2, ExitReason.PREEMPTED, None),
        ended(3, ExitReason.STOPPED, -15),  # somebody asked for another attempt
        ended(4, ExitReason.OUT_OF_MEMORY, -9),
        ended(5, ExitReason.PREEMPTED, 0),
    )
    runs = TaskStatus(replica=0, status=JobStatus.RUNNING, attempt=6, previous=before)
    good = TaskStatus(replica=1, status=JobStatus.SUCCEEDED, attempt=1, reason=ExitReason.EXITED, exit_code=0)
    starts_again = TaskStatus(replica=2, attempt=1, reason=ExitReason.LOST)
    info = job(runs, good, starts_again, TaskStatus(replica=3))
    figures = figures_of(info, {})
    assert (figures["attempts"], figures["failures"], figures["preemptions"]) == (8, 3, 2)
    counts = {status: count for status, count in replicas_of(info).items() if count}
    assert counts == {JobStatus.RUNNING: 1, JobStatus.SUCCEEDED: 1, JobStatus.PENDING: 2}


def test_a_gang_has_as_many_slices_as_run_and_starts_again_as_a_whole() -> None:
    before = (ended(1, ExitReason.PREEMPTED, None), ended(2, ExitReason.STOPPED, -15))
    runs = [
        TaskStatus(replica=number, status=JobStatus.RUNNING, attempt=3, previous=before)
        for number in range(8)
    ]
    assert figures_of_gang(job(*runs), hosts=4) == {"gang_size": 2, "gang_restarts": 2}
    good = TaskStatus(replica=0, status=JobStatus.SUCCEEDED, attempt=3, previous=before)
    assert figures_of_gang(job(good, *runs[1:]), hosts=4)["gang_size"] == 2, "a host that is done"
    waits = [TaskStatus(replica=number, attempt=1, reason=ExitReason.PREEMPTED) for number in range(8)]
    assert figures_of_gang(job(*waits), hosts=4) == {"gang_size": 0, "gang_restarts": 0}
    new = [TaskStatus(replica=number) for number in range(8)]
    assert figures_of_gang(job(*new), hosts=4) == {"gang_size": 0, "gang_restarts": 0}


def test_memory_is_of_what_runs_and_cpu_time_of_all_attempts() -> None:
    usage = UsageFile(None)
    usage.take(0, 1, "100.5 7000 1.5\n101.5 9000 2.5\n")
    usage.take(0, 2, "102.5 500 0.25\n103.5 4")  # a line that is being written
    usage.take(1, 1, "102.5 300 0.5\n")
    usage.take(2, 1, "no samples at all\n")
    runs = [TaskStatus(replica=number, status=JobStatus.RUNNING, attempt=2 - number) for number in (0, 1)]
    figures = figures_of(job(*runs), usage.latest())
    assert (figures["memory_bytes"], figures["cpu_seconds"]) == (800, 3.25)


def test_the_file_of_what_thousands_of_attempts_used_is_bounded_and_has_the_last_of_each(
    tmp_path: Path,
) -> None:
    usage = UsageFile(str(tmp_path / "usage"))
    samples = "".join(f"{100 + number}.5 7000 {number}.5\n" for number in range(16))
    for attempt in range(1, 5_001):
        usage.take(0, attempt, samples)
    usage.write(last=True)
    lines = (tmp_path / "usage").read_text().splitlines()
    assert 5_000 <= len(lines) <= 24_000
    assert sum(line.endswith(" 115.5 7000 15.5") for line in lines) == 5_000
    assert usage.latest().keys() == {(0, attempt) for attempt in range(1, 5_001)}
