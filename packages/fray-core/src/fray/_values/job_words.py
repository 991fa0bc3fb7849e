"""The words for where a job is and why an attempt ended; a job's supervisor starts with them."""

from __future__ import annotations

import enum

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import overload


class _Finished:
    """A property that the class answers as a function, with a warning."""

    def __init__(self, test: Callable[[JobStatus], bool]) -> None:
        self._test, self.__doc__ = test, test.__doc__

    if TYPE_CHECKING:

        @overload
        def __get__(self, status: None, owner: type) -> Callable[[str], bool]: ...
        @overload
        def __get__(self, status: JobStatus, owner: type) -> bool: ...

    def __get__(self, status: JobStatus | None, owner: type) -> Callable[[str], bool] | bool:
        return self._older if status is None else self._test(status)

    def _older(self, status: str) -> bool:
        from fray._values.older import warn_older  # not in a supervisor

        warn_older("JobStatus.finished(status)", "status.finished")
        return self._test(JobStatus(status))


class JobStatus(enum.StrEnum):
    """Where a job, or one replica of it, is in its life; only the first two change any more."""

    PENDING = "pending"
    """Accepted; its environment is being built, or it waits for room."""
    RUNNING = "running"
    """A replica has started."""
    SUCCEEDED = "succeeded"
    """Every replica returned 0."""
    FAILED = "failed"
    """A replica failed for good, or the job could not start, ran too long, or lost its supervisor."""
    STOPPED = "stopped"
    """A user stopped it, or the job that launched it."""

    @_Finished
    def finished(self) -> bool:
        """Whether nothing will change any more; `JobStatus.finished(status)` is an older spelling."""
        return self not in (JobStatus.PENDING, JobStatus.RUNNING)


class ExitReason(enum.StrEnum):
    """Why a replica's attempt ended."""

    EXITED = "exited"
    """Its main process returned an exit code."""
    SIGNALLED = "signalled"
    """A signal ended it; `exit_code` is the signal's number, negative."""
    OUT_OF_MEMORY = "out_of_memory"
    """The system ended it to regain memory."""
    TIMED_OUT = "timed_out"
    """It ran longer than the request's `timeout`."""
    PREEMPTED = "preempted"
    """Its machine was taken away; counted by `max_retries_preemption`."""
    STOPPED = "stopped"
    """The job was stopped, the replica restarted, or another member of its gang failed or was preempted."""
    COULD_NOT_START = "could_not_start"
    """Its environment could not be built, or its program not be started."""
    DEPENDENCY_FAILED = "dependency_failed"
    """A job that it was to run after has not succeeded."""
    LOST = "lost"
    """Its supervisor died, with the machine or alone, so that its end is unknown."""
