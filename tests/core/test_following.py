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


def test_a_tail_leaves_the_line_that_is_being_written_to_what_follows() -> None:
    """Also a line of what prepares a job, and one of a replica that has started since the job was polled."""
    logs = {(None, 1): bytearray(b"resolving\nbuilding a wh"), (0, 1): bytearray(b"start")}

    def read(replica: int | None, attempt: int, offset: int) -> bytes:
        return bytes(logs.get((replica, attempt), b"")[offset:])

    pending = info(0, status=JobStatus.PENDING)
    states = chain([pending] * 3, repeat(info(1, status=JobStatus.SUCCEEDED)))
    stream = iter(follow_logs(lambda: next(states), read, tail=5, interval=0.001))
    assert next(stream) == "resolving"
    logs[None, 1] += b"eel\n"
    logs[0, 1] += b"ed\n"
    assert list(stream) == ["building a wheel", "started"]
