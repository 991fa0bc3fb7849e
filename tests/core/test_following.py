"""Reading logs while a job changes; no cluster is needed."""

from itertools import chain, repeat

from fray.cluster import JobId, JobInfo, JobStatus, TaskStatus, follow_logs


def info(*attempts: int, status: JobStatus = JobStatus.RUNNING) -> JobInfo:
    tasks = tuple(TaskStatus(replica=number, attempt=one) for number, one in enumerate(attempts))
    return JobInfo(job_id=JobId("job-1"), name="job", status=status, tasks=tasks)


def test_replicas_that_a_gang_has_only_when_it_starts_again_are_followed_too() -> None:
    written = {(0, 1): b"first\n", (0, 2): b"second\n", (1, 2): b"beside it\n"}

    def read(replica: int | None, attempt: int, offset: int) -> bytes:
        return b"" if replica is None else written.get((replica, attempt), b"")[offset:]

    grown = info(2, 2, status=JobStatus.SUCCEEDED)
    states = chain([info(1), info(1)], repeat(grown))
    lines = list(follow_logs(lambda: next(states), read, interval=0.001))
    assert lines == ["first", "[replica-0] second", "[replica-1] beside it"]
