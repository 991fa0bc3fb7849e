"""Derived from a backend's primitives: waiting by polling, following by reading.

Nothing here knows a backend. A cluster whose `poll` is a request over a network passes a longer
`interval`; everything else is the same.
"""

import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from fray._telemetry import listeners as _listeners
from fray._values.delays import poll_delays
from fray._values.errors import GetTimeoutError, JobFailedError
from fray._values.jobs import JobId, JobInfo, JobStatus

if TYPE_CHECKING:
    from fray._contracts.cluster import Cluster, LogStream

# Reads a log from a byte offset: of a replica's attempt, or, for replica None, what the job itself
# wrote before its replicas started. b"" where there is nothing (yet).
ReadLog = Callable[[int | None, int, int], bytes]

# As text files have them: a progress bar that goes back to the start of its line is one line per step. A
# \r that comes last may be half of \r\n.
_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")


def parent_job() -> JobId | None:
    """Return the id of the job that this process is part of, which a job launched from here goes under."""
    job_id = os.environ.get("FRAY_JOB_ID")
    return JobId(job_id) if job_id else None


def wait_for_jobs(
    cluster: "Cluster",
    job_id: str | Iterable[str],
    *,
    timeout: float | None = None,
    raise_on_failure: bool = False,
    stream_logs: bool = False,
    interval: float = 0.1,
) -> JobInfo | list[JobInfo]:
    """Be a backend's `wait`: poll the jobs, at most `interval` seconds apart, until each is finished."""
    single = isinstance(job_id, str)
    ids = [job_id] if isinstance(job_id, str) else list(job_id)
    if any(not isinstance(each, str) for each in ids):
        raise ValueError(f"wait takes job ids, got {ids!r}")
    found = {each: cluster.poll(each) for each in ids}
    printers = {each: _print_logs(cluster, each, several=not single) for each in found} if stream_logs else {}
    try:
        _poll_until_finished(cluster, found, timeout, raise_on_failure, interval)
    finally:
        # Also before a failure is told: why a job failed is in its last lines, often.
        for each, printer in printers.items():
            if found[each].finished:
                printer.join()
    return found[ids[0]] if single else [found[each] for each in ids]


def complete_lines(output: bytes) -> tuple[list[str], bytes]:
    """Return the lines of a piece of output that have their end, without it, and what is left."""
    *lines, rest = _LINE_END.split(output)
    return [line.decode(errors="replace") for line in lines], rest


def follow_logs(
    poll: Callable[[], JobInfo],
    read: ReadLog,
    *,
    replica: int | None = None,
    tail: int | None = None,
    follow: bool = True,
    interval: float = 0.02,
) -> "LogStream":
    """Be a backend's `monitor`: merge what `read` gives until `poll` says finished."""
    from fray._contracts.cluster import LogStream

    count = len(poll().tasks)
    if replica is not None and not 0 <= replica < count:
        raise ValueError(f"replica must be 0 to {count - 1}, got {replica}")
    if tail is not None and tail < 0:
        raise ValueError(f"tail must be 0 or more, got {tail}")
    logs, setup = _Logs(read, replica), _Lines(partial(read, None, 0))
    return LogStream(_lines(poll, setup, logs, tail, follow, interval), partial(_final, poll))


class _Lines:
    """The complete lines of one growing log."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._offset, self._rest = 0, b""

    def new(self) -> Iterator[str]:
        while chunk := self._read(self._offset):
            self._offset += len(chunk)
            lines, self._rest = complete_lines(self._rest + chunk)
            yield from lines

    def last(self) -> Iterator[str]:
        """What is left when nobody writes any more: a last line may lack its end."""
        yield from self.new()
        if self._rest:
            lines, self._rest = complete_lines(self._rest + b"\n")
            yield from lines


class _ReplicaLog:
    """The lines of a replica, attempt after attempt."""

    def __init__(self, read: ReadLog, replica: int) -> None:
        self._read, self._replica = read, replica
        self._attempt = 1
        self._lines = self._open()

    def new(self, info: JobInfo) -> Iterator[str]:
        if self._replica >= len(info.tasks):  # a gang that may have fewer replicas has them for now
            return
        while self._attempt < info.tasks[self._replica].attempt:
            yield from self._lines.last()
            self._attempt += 1
            self._lines = self._open()
        yield from self._lines.last() if info.finished else self._lines.new()

    def _open(self) -> _Lines:
        return _Lines(partial(self._read, self._replica, self._attempt))


class _Logs:
    """The lines of one replica, or of all: a gang may have more of them when it starts again."""

    def __init__(self, read: ReadLog, replica: int | None) -> None:
        self._read, self._replica = read, replica
        self._logs: dict[int, _ReplicaLog] = {}

    def new(self, info: JobInfo) -> Iterator[str]:
        for number in range(len(info.tasks)) if self._replica is None else [self._replica]:
            if number not in self._logs:
                self._logs[number] = _ReplicaLog(self._read, number)
        for number, log in self._logs.items():
            prefix = f"[replica-{number}] " if len(self._logs) > 1 else ""
            for line in log.new(info):
                yield prefix + line


def _lines(
    poll: Callable[[], JobInfo],
    setup: _Lines,
    logs: _Logs,
    tail: int | None,
    follow: bool,
    interval: float,
) -> Iterator[str]:
    # The state is read before the logs: what a job wrote before it ended is there when its end is seen.
    info = poll()
    yield from _last(_written(info, setup, logs), tail)
    delays = poll_delays(longest=interval)
    while follow and not info.finished:
        time.sleep(next(delays))
        info = poll()
        for line in _written(info, setup, logs):
            yield line
            delays = poll_delays(longest=interval)  # who writes, writes more: look again soon


def _written(info: JobInfo, setup: _Lines, logs: _Logs) -> Iterator[str]:
    yield from setup.new() if info.status is JobStatus.PENDING else setup.last()
    yield from logs.new(info)


def _last(lines: Iterator[str], tail: int | None) -> Iterator[str]:
    return lines if tail is None else iter(deque(lines, maxlen=tail))


def _final(poll: Callable[[], JobInfo]) -> JobInfo:
    info = poll()
    for delay in poll_delays():
        if info.finished:
            break
        time.sleep(delay)
        info = poll()
    _seen(info)
    return info


def _seen(info: JobInfo) -> None:
    if info.finished and _listeners.watching and _listeners.listening():
        from fray._telemetry.job_instrumentation import job_ended  # for listeners only

        job_ended(info)


def _poll_until_finished(
    cluster: "Cluster",
    found: dict[str, JobInfo],
    timeout: float | None,
    raise_on_failure: bool,
    interval: float,
) -> None:
    deadline = None if timeout is None else time.monotonic() + timeout
    for delay in poll_delays(longest=interval):
        for info in found.values():
            _seen(info)
            if raise_on_failure and info.finished and info.status is not JobStatus.SUCCEEDED:
                raise JobFailedError(info)
        unfinished = [job_id for job_id, info in found.items() if not info.finished]
        if not unfinished:
            return
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                states = ", ".join(f"{job_id} ({found[job_id].status})" for job_id in unfinished)
                raise GetTimeoutError(f"not finished after {timeout:g} s: {states}; they go on")
            delay = min(delay, left)
        time.sleep(delay)
        found.update((job_id, cluster.poll(job_id)) for job_id in unfinished)


def _print_logs(cluster: "Cluster", job_id: str, several: bool) -> threading.Thread:
    prefix = f"[{job_id}] " if several else ""

    def copy() -> None:
        for line in cluster.monitor(job_id):
            # One write per line: lines of several jobs do not run into each other.
            sys.stdout.write(f"{prefix}{line}\n")
            sys.stdout.flush()

    # A daemon: after a timeout or another's failure the caller goes on, and the job may never end.
    thread = threading.Thread(target=copy, name=f"fray-logs-{job_id}", daemon=True)
    thread.start()
    return thread
