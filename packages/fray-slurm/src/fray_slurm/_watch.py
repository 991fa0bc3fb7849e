"""The state of all jobs from one call to Slurm, made as seldom as possible."""

import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from fray import ClusterUnavailableError
from fray_slurm._client import SlurmClient, SlurmError
from fray_slurm._readings import SlurmJob
from fray_slurm._states import ENDED

_GROWTH = 1.5
_EARLIER = 60.0  # seconds by which clocks of hosts may differ
_SOONEST = 0.5  # seconds between two questions, whatever happens
_RUNAWAY = 60.0  # seconds after which a job that the accounting alone has is gone: its slurmctld has lost it


class _Missing(NamedTuple):
    """A job that the queue has not: since when, by the table's clock; its submission, and its name."""

    since: float
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

    def __init__(
        self,
        client: SlurmClient,
        shortest: float = 2.0,
        longest: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._clock = client, clock
        self._shortest, self._longest = shortest, max(shortest, longest)
        self._lock = threading.Lock()
        self._jobs: dict[str, SlurmJob] = {}
        self._numbers: dict[str | None, str] = {}  # of jobs and arrays, by their names
        self._missing: dict[str, _Missing] = {}
        self._unfinished: set[str] = set()  # of these, those that have not ended by the accounting
        self._ended: dict[str, SlurmJob] = {}
        self._pause = shortest
        self._next = 0.0
        self._asked_at = self._asked_back_at = -1.0
        self.answered_at = 0.0
        """When the last answer was requested, in seconds since the epoch."""
        self.error: str | None = None
        """Why the last question was not answered; None when it was."""

    def look(self, job_id: str, submitted: float, name: str | None = None) -> SlurmJob | None:
        """Return the last state that Slurm gave of a job; None if it no longer knows it, or has not answered.

        Args:
            submitted: Seconds since the epoch.
            name: What it is called: a slurmctld that has lost jobs gives their numbers to others. None where
                it is not known, or known to have started.
        """
        with self._lock:
            if job_id in self._ended:
                return self._ended[job_id]
            if self._clock() >= self._next:
                self._ask()
            job = found_job(self._jobs, job_id, name)
            if job is not None:
                self._missing.pop(job_id, None)
            elif self.error is None:
                job = self._look_back(job_id, submitted, name)
            if job is not None and job.state in ENDED:
                self._ended[job_id] = job
            return job

    def number(self, name: str) -> str | None:
        """Return the number of the job or array of this name, by the last answer."""
        with self._lock:
            if self._clock() >= self._next:
                self._ask()
            return self._numbers.get(name)

    def is_gone(self, job_id: str) -> bool:
        """Whether neither the queue nor the accounting has had a job for long enough to be sure."""
        with self._lock:
            if self.error is not None:
                return False
            since = self._missing[job_id].since if job_id in self._missing else math.inf
            enough = _RUNAWAY if job_id in self._unfinished else 2 * self._shortest
            return self._clock() - since >= enough

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
            self._next = min(self._next, max(self._clock(), earliest))

    def _ask(self) -> None:
        self._asked_at, now = self._clock(), time.time()
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
        self._next = self._clock() + self._pause

    def _look_back(self, job_id: str, submitted: float, name: str | None) -> SlurmJob | None:
        """Query the accounting for all that have left the queue: one call for each of the queue."""
        is_new = job_id not in self._missing
        self._missing.setdefault(job_id, _Missing(self._clock(), submitted, name))
        if self._asked_back_at < self._asked_at:
            self._asked_back_at = self._clock()
            since = min(each.submitted for each in self._missing.values())
            try:
                found = self._client.accounts(list(self._missing), since - _EARLIER)
            except ClusterUnavailableError as error:
                self.error = str(error)
                # There is no report that they are gone.
                now = self._clock()
                self._missing = {key: each._replace(since=now) for key, each in self._missing.items()}
                return None
            if is_new:  # from the answer on, which may have taken long
                self._missing[job_id] = self._missing[job_id]._replace(since=self._clock())
            for key, each in list(self._missing.items()):
                job = found_job(found, key, each.name)
                if job is not None and job.state in ENDED:
                    del self._missing[key]
                    self._ended[key] = job
                elif job is not None:
                    self._unfinished.add(key)
        return self._ended.get(job_id)


def found_job(jobs: Mapping[str, SlurmJob], job_id: str, name: str | None = None) -> SlurmJob | None:
    """Return a job; a task of an array that was cancelled as a whole is shown as the array.

    Args:
        name: See `JobTable.look`; a job of another name is not this one.
    """
    job = jobs.get(job_id) or jobs.get(job_id.partition("_")[0])
    return None if job is not None and None not in (name, job.name) and job.name != name else job
