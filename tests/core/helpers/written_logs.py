"""Logs that a test writes, and how they are read."""

from pathlib import Path

from fray.backend import LogReader, LogWriter
from fray.cluster import JobId, JobInfo, JobStatus, LogStream, TaskStatus, follow_logs

KIB = 1024


def job(*attempts: int, status: JobStatus = JobStatus.RUNNING) -> JobInfo:
    """Return a job of replicas that are at these attempts."""
    tasks = tuple(TaskStatus(replica=number, attempt=one) for number, one in enumerate(attempts))
    return JobInfo(job_id=JobId("job-1"), name="job", status=status, tasks=tasks)


def written(path: Path, *pieces: bytes, limit: int | None = None) -> LogReader:
    """Write a log."""
    writer = LogWriter(str(path), limit)
    for piece in pieces:
        writer.write(piece)
    writer.close()
    return LogReader(path)


def everything(log: LogReader) -> bytes:
    """Read a log from its beginning to its end."""
    found, offset = b"", 0
    while True:
        data, after = log.read(offset)
        if after == offset:
            return found
        found, offset = found + data, after


def monitor(folder: Path, info: JobInfo, **options: object) -> LogStream:
    """Follow the logs in a folder as those of a job."""

    def open_log(replica: int | None, attempt: int) -> LogReader:
        return LogReader(folder / f"replica-{replica}.attempt-{attempt}.log")

    return follow_logs(lambda: info, open_log=open_log, interval=0.001, **options)  # type: ignore[arg-type]


def numbered(first: int, last: int) -> bytes:
    """Return lines that say their number."""
    return b"".join(b"line %d\n" % number for number in range(first, last))


class CountedReader(LogReader):
    """A log that notes in a list how many bytes each look read."""

    def __init__(self, path: Path, sizes: list[int]) -> None:
        super().__init__(path)
        self._sizes = sizes

    def read(self, offset: int) -> tuple[bytes, int]:
        data, after = super().read(offset)
        self._sizes.append(len(data))
        return data, after

    def read_before(self, offset: int, size: int) -> tuple[bytes, int]:
        data, start = super().read_before(offset, size)
        self._sizes.append(len(data))
        return data, start
