"""The state of all jobs from one call to Slurm, made as seldom as possible."""

import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

from fray import ClusterUnavailableError
from fray_slurm._client import SlurmClient, SlurmError
from fray_slurm._readings import SlurmJob
from fray_slurm._states import ENDED

_GROWTH = 1.5
_EARLIER = 60.0  # seconds by which clocks of hosts may differ
_SOONEST = 0.5  # seconds between two questions, whatever happens
_RUNAWAY = 60.0  # seconds after which a job that the accounting alone has is gone: its slurmctld has lost it
Key = tuple[str, str | None]
"""A job's number, and the name under which it was submitted: numbers alone may begin again."""


class _Missing(NamedTuple):
    """A job that the queue has not.

    Args:
        since: When it was missed first, by the table's clock.
        asked_at: When the last answer was requested that has not got it either.
        name: What it is called, or None; see `JobTable.look`.
    """

    since: float
    asked_at: float
    submitted: float
    name: str | None


class JobTable:
    """The last answer of `squeue` for all jobs of this user, requested again when it is old.

    The age at which it is old grows while nothing changes, and shrinks back when something does, or is to. A
    Slurm that does not answer leaves the last answer standing: jobs run on without slurmctld.

    Args:
        shortest: Seconds between two questions while jobs come and go.
        longest: The same when nothing has changed for long.
    """

    def __init__(self, client: SlurmClient, shortest: float = 2.0, longest: float = 30.0) -> None:
        self._client = client
        self._shortest, self._longest = shortest, max(shortest, longest)
        self._lock = threading.Lock()
        self._jobs: dict[str, SlurmJob] = {}
        self._numbers: dict[str | None, str] = {}  # of jobs and arrays, by their names
        self._missing: dict[Key, _Missing] = {}
        self._unfinished: set[Key] = set()  # of these, those that have not ended by the accounting
        self._ended: dict[Key, SlurmJob] = {}
        self._pause = shortest
        self._next = 0.0
        self._asked_at = self._asked_back_at = -1.0
        self.answered_at = 0.0
        """When the last answer was requested, in seconds since the epoch."""
        self.error: str | None = None
        """Why the last question was not answered; None when it was."""

    def look(self, key: Key, submitted: float, name: str | None = None) -> SlurmJob | None:
        """Return the last state that Slurm gave of a job; None if it no longer knows it, or has not answered.

        Args:
            submitted: Seconds since the epoch.
            name: What it is called: a slurmctld that has lost jobs gives their numbers to others. None where
                it is not known, or known to have started.
        """
        with self._lock:
            if key in self._ended:
                return self._ended[key]
            if time.monotonic() >= self._next:
                self._ask()
            job = found_job(self._jobs, key[0], name)
            if job is not None:
                self._missing.pop(key, None)
            elif self.error is None:
                job = self._look_back(key, submitted, name)
            if job is not None and job.state in ENDED:
                self._ended[key] = job
            return job

    def number(self, name: str) -> str | None:
        """Return the number of the job or array of this name, by the last answer."""
        with self._lock:
            if time.monotonic() >= self._next:
                self._ask()
            return self._numbers.get(name)

    def is_gone(self, key: Key) -> bool:
        """Whether neither the queue nor the accounting has had a job for long enough to be sure.

        The time counts until Slurm was asked last: an answer from before the job was there is no sign.
        """
        with self._lock:
            if self.error is not None or key not in self._missing:
                return False
            missing = self._missing[key]
            enough = _RUNAWAY if key in self._unfinished else 2 * self._shortest
            return missing.asked_at - missing.since >= enough

    def is_taken(self, job_id: str, name: str | None) -> bool:
        """Whether, by the last answer, another job has this number: that of this name is as good as gone."""
        with self._lock:
            others = found_job(self._jobs, job_id) is not None
            return others and self.error is None and found_job(self._jobs, job_id, name) is None

    def expect_change(self) -> None:
        """Call sooner: something was submitted or stopped."""
        with self._lock:
            self._pause = self._shortest
            earliest = self._asked_at + min(self._shortest, _SOONEST)
            self._next = min(self._next, max(time.monotonic(), earliest))

    def _ask(self) -> None:
        self._asked_at, now = time.monotonic(), time.time()
        try:
            found = self._client.queue()
        except (ClusterUnavailableError, SlurmError) as error:
            self.error = str(error)
            self._pause = min(self._longest, self._pause * 2)
        else:
            changed = found != self._jobs
            self.error, self._jobs, self.answered_at = None, found, now
            self._numbers = {job.name: number.partition("_")[0] for number, job in found.items()}
            self._pause = self._shortest if changed else min(self._longest, self._pause * _GROWTH)
        self._next = time.monotonic() + self._pause

    def _look_back(self, key: Key, submitted: float, name: str | None) -> SlurmJob | None:
        """Query the accounting for all that have left the queue: one call for each of the queue."""
        is_new = key not in self._missing
        since = time.monotonic() if is_new else self._missing[key].since
        self._missing[key] = _Missing(since, self._asked_at, submitted, name)
        if is_new:  # the queue's answer may be older than the job
            self._pause = self._shortest
            self._next = min(self._next, self._asked_at + self._shortest)
        if self._asked_back_at < self._asked_at:
            self._asked_back_at = time.monotonic()
            earliest = min(each.submitted for each in self._missing.values())
            try:
                found = self._client.accounts([number for number, _ in self._missing], earliest - _EARLIER)
            except ClusterUnavailableError as error:
                self.error = str(error)
                # There is no report that they are gone.
                now = time.monotonic()
                self._missing = {each: job._replace(since=now) for each, job in self._missing.items()}
                return None
            if is_new:  # from the answer on, which may have taken long
                self._missing[key] = self._missing[key]._replace(since=time.monotonic())
            for each, missing in list(self._missing.items()):
                job = found_job(found, each[0], missing.name)
                if job is not None and job.state in ENDED:
                    del self._missing[each]
                    self._ended[each] = job
                elif job is not None:
                    self._unfinished.add(each)
        return self._ended.get(key)


def found_job(jobs: Mapping[str, SlurmJob], job_id: str, name: str | None = None) -> SlurmJob | None:
    """Return a job; a task of an array that was cancelled as a whole is shown as the array.

    Args:
        name: See `JobTable.look`; a job of another name is not this one.
    """
    job = jobs.get(job_id) or jobs.get(job_id.partition("_")[0])
    return None if job is not None and None not in (name, job.name) and job.name != name else job
