"""Most of a `Cluster`, derived from five primitives."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import ClassVar

from fray._contracts.cluster import LogStream
from fray._jobs.clusters.calls import ClusterCalls
from fray._jobs.clusters.following import parent_job
from fray._jobs.clusters.log_stream import follow_logs
from fray._jobs.clusters.sweep_log import follow_members
from fray._jobs.logs.reader import LogSource, OffsetLog
from fray._jobs.plans.plan import JobPlan
from fray._jobs.plans.planning import plan_of
from fray._jobs.plans.refusals import refuse_fields, refuse_python
from fray._jobs.plans.sweep_plan import SweepPlan
from fray._jobs.plans.sweeps import as_members, checked_requests, sweep_name, sweep_plan
from fray._jobs.records.launch_keys import HeldKey, check_key
from fray._telemetry.job_instrumentation import launching
from fray._values.capabilities import ClusterCapabilities
from fray._values.checks import check_seconds, invalid
from fray._values.delays import poll_delays
from fray._values.environment import EnvironmentConfig
from fray._values.errors import JobNotFoundError, UnsupportedError
from fray._values.jobs import JobId, JobInfo, JobRequest, SweepId
from fray_resources import CpuConfig


class ClusterBase(ClusterCalls, ABC):
    """Derive `launch`, `monitor`, `wait`, `terminate` and `list_jobs` from what a backend can do with a job.

    A backend provides the first five. All hooks are called on the user's thread, which may be any thread. An
    exception of a hook propagates to the caller. `wait` and `monitor` call `_info` and `_read_log` again and
    again, so these two must not write anything.

    Hooks:
        _submit(plan): Start a job, or let it wait, and return at once; if this raises, nothing was done.
        _info(job_id): Return the state of a job as it is now; None if there is no such job.
        _ids(): Return the ids of all jobs, in any order.
        _read_log(job_id, replica, attempt, offset): Return what was written, from a byte offset.
        _stop(job_id, grace): Begin to stop a job; `terminate` waits until it is gone.
        _plan(request, job_id, variables): Turn a checked request into what has to be run.
        _check_supported(request): Refuse what this cluster cannot do, with `UnsupportedError`.
        _described(info): Add what is known of a job beside its state.
        _log(job_id, replica, attempt): Return a log to read from, if more is possible than `_read_log`.
        _held_key(key, parent): Hold a key of launches, for a cluster that declares `keys`.
        _submit_many(sweep, plans): Start a sweep, for a cluster that declares `sweeps`.
        _all_jobs(parent): Return all jobs, if that is less work than `_info` of each id.

    Attributes:
        capabilities: A `ClusterCapabilities`: what the class can do at most.
        _SUPPORTED: The fields of a request that not every cluster supports, but this one does
            (`refuse_fields`).
        _shortest_pause, _longest_pause: Seconds between two polls of `wait`.
        _log_pause: Seconds between two looks at a log that is followed; set more if a look is a network
            request.

    Args:
        spec: What opens the same cluster again; jobs find it in `FRAY_CLUSTER_SPEC`.
    """

    capabilities: ClusterCapabilities
    _SUPPORTED: ClassVar[frozenset[str]] = frozenset()
    _log_pause = 0.02

    def __init__(self, spec: str) -> None:
        self.spec = spec

    @abstractmethod
    def _submit(self, plan: JobPlan) -> None:
        """Start a job, or let it wait for its start, at once; where it raises, nothing was done."""

    def _plan(self, request: JobRequest, job_id: JobId, variables: Mapping[str, str]) -> JobPlan:
        """Turn a checked request into what has to be run."""
        return plan_of(request, job_id, self.spec, variables)

    @abstractmethod
    def _info(self, job_id: str) -> JobInfo | None:
        """Return the state of a job as it is now; None where there is no such job."""

    @abstractmethod
    def _ids(self) -> Iterable[str]:
        """Return the ids of all jobs, in any order."""

    @abstractmethod
    def _read_log(self, job_id: str, replica: int | None, attempt: int, offset: int) -> bytes:
        """Return what a replica's attempt (from 1) wrote, from a byte offset; b"" where there is no more.

        For replica None: what the job wrote before its replicas started.
        """

    def _log(self, job_id: str, replica: int | None, attempt: int) -> LogSource:
        """Return a log to read from; a backend that can do more than read from an offset overrides this."""
        return OffsetLog(partial(self._read_log, job_id, replica, attempt))

    @abstractmethod
    def _stop(self, job_id: str, grace: float) -> None:
        """Begin to stop a job: SIGTERM, and after `grace` seconds SIGKILL, for all of its processes."""

    def _check_supported(self, request: JobRequest) -> None:
        """Refuse what this cluster cannot do; a backend that can do more than run programs overrides this.

        Raises:
            UnsupportedError: The message says what was asked, and what can be.
        """
        environment, device = request.environment or EnvironmentConfig(), request.resources.device
        name = type(self).__name__
        if not isinstance(device, CpuConfig):
            kind = type(device).__name__.removesuffix("Config").upper()
            raise UnsupportedError(
                f"{name} has no {kind} for job {request.name!r} ({device}); 'ray' may have one"
            )
        if environment.docker_image is not None:
            raise UnsupportedError(
                f"{name} runs no containers (docker_image={environment.docker_image!r}); "
                "its jobs have the environment of their launcher"
            )
        refuse_python(name, request)
        refuse_fields(name, request, self._SUPPORTED)
        able, job = ClusterCapabilities.of(self) or ClusterCapabilities(), f"of job {request.name!r}"
        if request.is_gang:
            able.check("gangs", f"{name}: a gang {job}", "with gang=False its replicas are independent")
        if request.max_retries_failure:
            asked = f"{name}: max_retries_failure={request.max_retries_failure} {job}"
            able.check("retries", asked, "launch the job again when it has failed")

    def _held_key(self, key: str, parent: JobId | None) -> AbstractContextManager[HeldKey]:
        """Hold a key against other launches; a backend that has where to keep keys overrides this."""
        raise UnsupportedError(
            f"{type(self).__name__} keeps no keys of launches ({key!r}); launch without one"
        )

    def launch(self, request: JobRequest, /, *, key: str | None = None) -> JobId:
        """See `Cluster.launch`."""
        if not isinstance(request, JobRequest):
            raise invalid("request", "a JobRequest", request)
        self._check_supported(request)
        self._check_predecessors(request)
        parent = self._parent()
        job_id = JobId.new(request.name, parent)
        return self._once(key, parent, job_id, lambda: self._launch(request, job_id))

    def launch_many(
        self,
        requests: Iterable[JobRequest],
        max_parallel: int | None = None,
        *,
        key: str | None = None,
        name: str | None = None,
    ) -> SweepId:
        """See `Cluster.launch_many`."""
        capabilities = ClusterCapabilities.of(self) or ClusterCapabilities()
        capabilities.check("sweeps", f"{type(self).__name__}: launch_many", "launch the jobs one by one")
        asked = checked_requests(requests, max_parallel)
        for request in asked:
            self._check_supported(request)
            self._check_predecessors(request, positions=True)
        parent, called = self._parent(), sweep_name(asked) if name is None else name
        sweep_id = SweepId.new(called, parent)

        def launch() -> None:
            plans = []
            for position, request in enumerate(as_members(asked, sweep_id)):
                member = sweep_id.member(position)
                with launching(request, member) as variables:
                    plans.append(self._plan(request, member, variables))
            self._submit_many(sweep_plan(sweep_id, called, asked, plans, max_parallel), plans)
            self._note_launched(sweep_id)

        return SweepId(self._once(key, parent, sweep_id, launch))

    def _submit_many(self, sweep: SweepPlan, plans: Sequence[JobPlan]) -> None:
        """Start a sweep at once: all of it, or, where this raises, nothing; for a backend that has sweeps."""
        raise NotImplementedError(f"{type(self).__name__} declares sweeps and has no `_submit_many`")

    def _once(
        self, key: str | None, parent: JobId | None, job_id: JobId, launch: Callable[[], None]
    ) -> JobId:
        """Launch, unless a launch with the same key has done so; return the id of the job that there is."""
        if key is None:
            launch()
            return job_id
        check_key(key)
        with self._held_key(key, parent) as held:
            if held.job_id is not None:
                return held.job_id
            held.record(job_id)
            launch()
        return job_id

    def _parent(self) -> JobId | None:
        """The job that launches, where it is one of this cluster."""
        parent = parent_job()
        return None if parent is None or self._info(parent) is None else parent

    def _launch(self, request: JobRequest, job_id: JobId) -> None:
        with launching(request, job_id) as variables:
            self._submit(self._plan(request, job_id, variables))
        self._note_launched(job_id)

    def poll(self, job_id: str, /) -> JobInfo:
        """See `Cluster.poll`."""
        info = self._info(job_id)
        if info is None:
            raise JobNotFoundError(job_id, f"the cluster {self.spec!r}")
        return self._described(info)

    def _described(self, info: JobInfo) -> JobInfo:
        """Add what is known of a job beside its state; a backend that keeps its request overrides this."""
        return info

    def monitor(
        self,
        job_id: str,
        /,
        *,
        replica: int | None = None,
        tail: int | None = None,
        since: float | None = None,
        grep: str | None = None,
        follow: bool = True,
    ) -> LogStream:
        """See `Cluster.monitor`."""
        started = partial(follow_logs, partial(self.poll, job_id), open_log=partial(self._log, job_id))
        able = ClusterCapabilities.of(self) or ClusterCapabilities()
        if able.sweeps and self.poll(job_id).is_sweep:
            members = partial(self.list_jobs, parent=job_id)
            started = partial(follow_members, self.poll, job_id, members, self._log)
        return started(
            replica=replica, tail=tail, since=since, grep=grep, follow=follow, interval=self._log_pause
        )

    def terminate(self, job_id: str, grace: float = 10.0) -> None:
        """See `Cluster.terminate`. The jobs that it launched are stopped with it."""
        check_seconds("grace", grace, zero=True)
        if self.poll(job_id).finished:
            return
        told: set[str] = set()
        family: set[str] = set()
        for pause in poll_delays(longest=0.05):
            # Looked for again and again: until it is gone a job may launch another, and what is being
            # launched has an id before it has a state.
            before, family = family, {each for each in self._ids() if f"{each}/".startswith(f"{job_id}/")}
            infos = {each: self._info(each) for each in family}
            unfinished = [each for each, info in infos.items() if info is not None and not info.finished]
            if not unfinished and family == before:
                return
            for each in unfinished:
                if each not in told:
                    self._stop(each, grace)
                    told.add(each)
            time.sleep(pause)

    def _all_jobs(self, parent: str | None) -> Iterable[JobInfo]:
        if parent is not None:
            self.poll(parent)
        ids = [each for each in self._ids() if parent is None or JobId(each).parent == parent]
        return [info for job_id in ids if (info := self._info(job_id)) is not None]
