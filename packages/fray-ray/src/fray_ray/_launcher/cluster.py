"""Jobs on a Ray cluster, each a job in Ray's own table."""

import contextlib
import functools
import json
import os
import pickle
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ray

from fray import ClusterUnavailableError, JobNotFoundError, UnsupportedError
from fray.backend import (
    FAMILY,
    ClusterCapabilities,
    Spec,
    TreeKill,
    check_key,
    check_retry,
    check_seconds,
    invalid,
    poll_delays,
    tasks_to_restart,
)
from fray.cluster import (
    ClusterCalls,
    Endpoint,
    EnvironmentConfig,
    JobId,
    JobInfo,
    JobRequest,
    JobStatus,
    LogStream,
    Pruned,
    SweepId,
    UsageSample,
    launching,
    parent_job,
)
from fray_ray import _entrypoints as entrypoints
from fray_ray import _job_kv, _job_table, _plan
from fray_ray import _lookup as lookup
from fray_ray._jobs_client import JobsClient
from fray_ray._launcher import logs
from fray_ray._launcher.earlier_attempts import EarlierAttempts
from fray_ray._launcher.planning import Planner, about, check_supported, workspace_of
from fray_ray._launcher.queueing import KeyTakenError, SchedulerClient
from fray_ray._launcher.sweeps import submit_sweep
from fray_ray._launcher.usage import usage_of
from fray_ray._queued_job import QueuedJob
from fray_ray._scheduler import GRACE_OF_LOST
from fray_ray._stopping import await_settled, stop_found
from fray_ray.deps import pip_list

_LAUNCHES = 3  # with one key, while the job that had it is removed again and again
_SEEN_WITHIN = 10.0  # seconds in which a job that is queued has an entry: any run of it
_ID = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")


class _ProcessStillThereError(ClusterUnavailableError):
    """A job has ended, and its process on the head runs on."""


class RayCluster(ClusterCalls):
    """Run jobs on a Ray cluster; spec `ray`.

    Jobs go on when their launcher ends. Used in a `with` statement, the cluster stops the jobs that were
    launched through it.

    Args:
        address: The cluster's head as `host:port`, its dashboard's URL, or `auto`; by default the cluster
            that this process is in, else that of `RAY_ADDRESS`, else the one running on this machine.
        dashboard_address: The dashboard's URL, where it is not found by the address.
        placement_timeout: Seconds that a job may wait for room before it fails; None for ever.
        ship_workspace: Whether workspaces are uploaded; by default where the cluster has another machine
            than this one.
        driver_exit_timeout: Seconds that `retry`, `remove` and `prune` wait for the process of a job that has
            ended: it may still run the job's `on_exit`.
        agent_timeout: Seconds that `launch` waits for the agent of a cluster that has just started.
        scheduler_timeout: Seconds within which the scheduler of the cluster, which the first launch starts,
            takes a job.
        reconnect_timeout: Seconds for which a call other than `launch` is repeated while nobody answers.
        answer_timeout: Seconds that a dashboard may take to begin an answer, or to go on with it.
    """

    # A poll takes milliseconds of the dashboard's CPU, and no job is done in less than a second.
    _shortest_pause, _longest_pause = 0.1, 0.2

    capabilities = ClusterCapabilities(
        environments=True,
        gpus=True,
        tpus=True,
        multislice=True,
        gangs=True,
        ports=True,
        retries=True,
        preemptible=True,
        tree_kill=TreeKill.SUBREAPER,
        admission=True,
        dependencies=True,
        sweeps=True,
        endpoints=True,
        retry=True,
        restart=True,
        snapshots=True,
        usage=True,
        shared_between_machines=True,
        removal=True,
        keys=True,
        labels=True,
        on_exit=True,
    )

    def __init__(
        self,
        address: str | None = None,
        *,
        dashboard_address: str | None = None,
        placement_timeout: float | None = None,
        ship_workspace: bool | None = None,
        driver_exit_timeout: float = 30.0,
        agent_timeout: float = 30.0,
        scheduler_timeout: float = 90.0,
        reconnect_timeout: float = 5.0,
        answer_timeout: float = 60.0,
    ) -> None:
        if placement_timeout is not None:
            check_seconds("placement_timeout", placement_timeout)
        check_seconds("driver_exit_timeout", driver_exit_timeout, zero=True)
        options = {"placement_timeout": placement_timeout, "ship_workspace": ship_workspace}
        self._inside_spec = str(
            Spec("ray", {key: str(value) for key, value in options.items() if value is not None})
        )
        check_seconds("agent_timeout", agent_timeout)
        self._client = JobsClient(
            dashboard_address or address or _current_address(),
            agent_timeout=agent_timeout,
            reconnect_timeout=check_seconds("reconnect_timeout", reconnect_timeout, zero=True),
            answer_timeout=check_seconds("answer_timeout", answer_timeout),
        )
        self._attempts = EarlierAttempts(self._client)
        check_seconds("scheduler_timeout", scheduler_timeout)
        self._scheduler = SchedulerClient(self._client, lambda: not self._planner().remote, scheduler_timeout)
        self._doubt = functools.partial(self._scheduler.ensure, doubted=True)
        self._placement_timeout, self._ship = placement_timeout, ship_workspace
        self._driver_exit_timeout = driver_exit_timeout

    def __repr__(self) -> str:
        return f"<RayCluster at {self._client.url}>"

    # --- launch ---

    def launch(self, request: JobRequest, /, *, key: str | None = None) -> JobId:
        """See `fray.cluster.Cluster.launch`."""
        if not isinstance(request, JobRequest):
            raise invalid("request", "a JobRequest", request)
        check_supported(request)
        self._check_predecessors(request)
        parent = parent_job()

        def launch(key: str | None) -> JobId:
            job_id = JobId.new(request.name, parent)
            with launching(request, job_id) as variables:
                self._submit(request, job_id, variables, key)
            return job_id

        return self._once(key, parent, launch)

    def launch_many(
        self,
        requests: Iterable[JobRequest],
        max_parallel: int | None = None,
        *,
        key: str | None = None,
        name: str | None = None,
    ) -> SweepId:
        """See `fray.cluster.Cluster.launch_many`."""
        asked = tuple(requests)
        parent = parent_job()

        def launch(key: str | None) -> JobId:
            return submit_sweep(
                self._client,
                self._scheduler,
                self._planner(),
                asked,
                max_parallel,
                name=name,
                parent=parent,
                key=key,
                check=lambda request: self._check_predecessors(request, positions=True),
            )

        return SweepId(self._once(key, parent, launch))

    def _submit(
        self, request: JobRequest, job_id: JobId, variables: Mapping[str, str], key: str | None
    ) -> None:
        planner = self._planner()
        plan = planner.plan(request, job_id, variables)
        data = pickle.dumps(plan)
        if len(data) >= _job_kv.LIMIT:
            raise ValueError(
                f"job {request.name!r}: its entry point and arguments are {len(data) >> 20} MiB pickled, and "
                f"Ray takes less than {_job_kv.LIMIT >> 20} MiB; read large data in the job, where it lies"
            )
        metadata = _job_table.describe(job_id, request.name, plan.replicas, about(request), key=key)
        command = entrypoints.job_process(
            plan.submission, here=not planner.remote, command=plan.command, name=plan.name
        )
        with planner.runtime_env(request) as runtime_env:
            uploaded = self._client.with_workspace(runtime_env)
        queued = QueuedJob(command=command, metadata=metadata, runtime_env=uploaded)
        self._scheduler.put(plan.submission, {_job_kv.plan_name(plan.submission): data}, queued)

    def _once(self, key: str | None, parent: JobId | None, launch: Callable[[str | None], JobId]) -> JobId:
        """Launch, unless a launch with the same key has done so; return the id of the job that there is."""
        if key is None:
            job_id = launch(None)
            self._note_launched(job_id)
            return job_id
        check_key(key)
        known = _job_table.key_of(key, parent)
        for _ in range(_LAUNCHES):
            before = self._with_key(known)
            if before is not None:
                return before
            with contextlib.suppress(KeyTakenError):  # the table has the other one now
                return self._first_of(known, launch(known))
        raise ClusterUnavailableError(
            f"the cluster at {self._client.url} has a job with the launch key {key!r}, and does not list it"
        )

    def _first_of(self, key: str, job_id: JobId) -> JobId:
        """Return a job that was launched with a key, or one that Ray's table had before it.

        The scheduler takes one of them, but two versions of Fray on one cluster have a scheduler each.
        """
        first = self._with_key(key)
        if first is not None and first != job_id:
            self.terminate(job_id, grace=0.0)
            return first
        self._note_launched(job_id)
        return job_id

    def _with_key(self, key: str) -> JobId | None:
        """Return the first job that was launched with a key."""
        found = [
            (_job_table.taken_at(entry), info.job_id)
            for entry in self._client.entries()
            if entry.metadata.get(_job_table.KEY) == key and (info := _job_table.read(entry)) is not None
        ]
        return min(found)[1] if found else None

    def _planner(self) -> Planner:
        """Made again for each launch: nodes come and go."""
        own = {"127.0.0.1", "localhost", "::1", ray.util.get_node_ip_address()}  # type: ignore[no-untyped-call]
        remote = not self._client.node_addresses() <= own
        return Planner(
            spec=self._inside_spec,
            remote=remote,
            ships=remote if self._ship is None else self._ship,
            python=functools.cache(self._client.python),
            placement_timeout=self._placement_timeout,
        )

    # --- look ---

    def poll(self, job_id: str, /) -> JobInfo:
        """See `fray.cluster.Cluster.poll`."""
        return self._attempts.complete(self._find(job_id))

    def _find(self, job_id: str) -> lookup.FoundJob:
        if not _ID.fullmatch(job_id):
            raise JobNotFoundError(job_id, f"the Ray cluster at {self._client.url}")
        started = time.monotonic()
        for pause in poll_delays(longest=0.2):
            found = lookup.find(self._client.entry, job_id)
            if found is not None and not found.may_be_followed:
                return found
            # Of a run that is queued the entry as one that waits may be gone, and Ray's own not there yet.
            following = _job_table.submission_of(job_id, 1 if found is None else len(found.runs) + 1)
            queued = self._client.holds(_job_kv.waiting_name(following))
            if not queued or time.monotonic() - started > _SEEN_WITHIN:
                break
            time.sleep(pause)
        found = found or lookup.find(self._client.entry, job_id)  # it may have been taken just now
        if found is None:
            raise JobNotFoundError(job_id, f"the Ray cluster at {self._client.url}")
        return found

    def _all_jobs(self, parent: str | None) -> list[JobInfo]:
        """Return the jobs in Ray's table; those that others gave to Ray are left out."""
        above = None if parent is None else self._find(parent)
        found = {job_id: info for job_id, (info, _) in lookup.latest(self._client.entries()).items()}
        if above is None:
            return [info for info in found.values() if info.sweep is None]
        if not above.info.is_sweep:
            return [info for info in found.values() if info.job_id.parent == parent]
        members = (JobId(f"{parent}/{position}") for position in range(lookup.members_of(above)))
        return [found.get(each) or _known(lookup.unstarted_member(above, int(each.leaf))) for each in members]

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
        """See `fray.cluster.Cluster.monitor`."""
        choice = {"replica": replica, "tail": tail, "since": since, "grep": grep, "follow": follow}
        if self.poll(job_id).is_sweep:
            return logs.of_sweep(self._client, self.poll, lambda: self._all_jobs(job_id), job_id, **choice)
        return logs.of_job(self._client, lambda: self._find(job_id), **choice)

    def usage(self, job_id: str) -> list[UsageSample]:
        """Return what the attempts of a job used over time, by replica, attempt and time.

        Raises:
            JobNotFoundError: No job has this id.
        """
        return usage_of(self._client, self._find(job_id).runs)

    def endpoints(self, prefix: str = "", *, everywhere: bool | None = None) -> list[Endpoint]:
        """See `fray.cluster.Cluster.endpoints`."""
        family = None if everywhere or parent_job() is None else os.environ.get(FAMILY)
        found: list[Endpoint] = []
        for info, entry in lookup.latest(self._client.entries()).values():
            for endpoint, own in _job_table.endpoints_in(entry):
                fits = endpoint.name.startswith(prefix) and family in (None, own)
                if fits and _job_table.runs(info, endpoint.replica, endpoint.attempt):
                    found.append(endpoint)
        return sorted(found, key=lambda endpoint: endpoint.registered_at)

    def _register(self, endpoint: Endpoint) -> None:
        """Make an endpoint of this replica known: the scheduler writes it into the job's entry."""
        data = {**endpoint.to_dict(), "family": os.environ.get(FAMILY)}
        submission = self._find(endpoint.job_id).submission
        name = _job_kv.endpoint_name(submission, endpoint.replica, endpoint.attempt, endpoint.name)
        self._client.upload(name, json.dumps(data).encode())

    # --- change ---

    def terminate(self, job_id: str, grace: float = 10.0) -> None:
        """See `fray.cluster.Cluster.terminate`."""
        check_seconds("grace", grace, zero=True)
        stop_found(self._client, lambda: self._find(job_id), grace, self._doubt)

    def restart(self, job_id: str, replica: int | None = None, grace: float = 10.0) -> None:
        """See `fray.cluster.Cluster.restart`. A gang is started again as a whole."""
        check_seconds("grace", grace, zero=True)
        found = self._find(job_id)
        if found.info.is_sweep:
            raise UnsupportedError(f"{job_id} is a sweep: restart its members, e.g. {job_id}/0")
        for task in tasks_to_restart(found.info, replica):
            name = _job_kv.restart_name(found.submission, task.replica, task.attempt)
            self._client.upload(name, str(grace).encode())

    def retry(self, job_id: str, /) -> JobId:
        """See `fray.cluster.Cluster.retry`. The next run is a Ray job of its own: `ID-r2`."""
        found = self._find(job_id)
        check_retry(found.info)
        if not found.runs:
            raise UnsupportedError(f"{job_id} was never started: retry its sweep, {found.info.sweep}")
        # Readers know that a job is lost before its scheduler does, which notes then what is not kept of it.
        await_settled(self._client, self._over(job_id).submission, GRACE_OF_LOST, self._doubt)
        entry = self._find(job_id).entry
        kept = _job_table.kept_in(entry)
        if kept is None:
            raise UnsupportedError(
                f"job {job_id} cannot be run again: its plan is not kept in the memory of the head, because "
                "it is too large with its workspace, or could not be read; launch it again"
            )
        submission = _job_table.submission_of(job_id, len(found.runs) + 1)
        packages = {_job_kv.secrets_name(submission): pickle.dumps(_given(job_id, kept["withheld"]))}
        queued = QueuedJob(
            command=entrypoints.job_process(
                submission,
                here=not self._planner().remote,
                shown=found.info.command,
                name=found.info.name,
            ),
            metadata=_job_table.again(entry.metadata, len(found.runs) + 1),
            runtime_env=kept["runtime_env"],
            previous_run=found.runs[-1],
        )
        self._scheduler.put(submission, packages, queued)
        return JobId(job_id)

    def _over(self, job_id: str) -> lookup.FoundJob:
        """Return a job that has ended, when Ray says so too.

        Raises:
            _ProcessStillThereError: Ray does not say so within `driver_exit_timeout`.
        """
        deadline = time.monotonic() + self._driver_exit_timeout
        for pause in poll_delays(longest=0.2):
            found = self._find(job_id)
            if found.over:
                return found
            if time.monotonic() > deadline:
                raise _ProcessStillThereError(
                    f"job {job_id} has ended, and its driver has not, after {self._driver_exit_timeout:g} s: "
                    "it may run the job's on_exit; try later, or give a longer driver_exit_timeout"
                )
            time.sleep(pause)
        raise AssertionError("the pauses do not end")

    def remove(self, job_id: str, force: bool = False) -> None:
        """See `fray.cluster.Cluster.remove`. Its log stays on the head for as long as Ray keeps it."""
        self._remove(job_id, lookup.jobs_in(self._client.entries()))

    def _remove(self, job_id: str, listed: Iterable[tuple[JobInfo, _job_table.JobEntry]]) -> None:
        """Remove a job and those below it, which are among the listed ones as they are now, or were."""
        found = self._find(job_id)
        self._check_removal(found.info.job_id)
        below = [entry for info, entry in listed if f"{info.job_id}/".startswith(f"{job_id}/")]
        jobs = [(found.info, found.entry)]
        for info, entry in lookup.latest(below).values():
            if info.status is JobStatus.SUCCEEDED:
                jobs.append((info, entry))
            elif info.job_id != job_id:  # it may have been run again since
                with contextlib.suppress(JobNotFoundError):
                    again = self._find(info.job_id)
                    jobs.append((again.info, again.entry))
        for info, _ in jobs:
            if not info.finished:
                raise ValueError(f"job {info.job_id} is {info.status}: terminate it, then remove it")
        for info, entry in jobs:
            if entry.status not in _job_table.TERMINAL:  # Ray removes no job whose process is about to go
                self._over(info.job_id)
        # A job is found by its first run: while that is there what is left of it can be removed.
        for entry in sorted(below, key=_job_table.tries_of, reverse=True):
            self._client.remove(entry.submission)
            self._client.forget_job(entry.submission)

    def prune(self, older_than: float = 0.0, *, dry_run: bool = False) -> Pruned:
        """See `fray.cluster.Cluster.prune`."""
        check_seconds("older_than", older_than, zero=True)
        before = time.time() - older_than
        entries = self._client.entries()
        listed = lookup.jobs_in(entries)
        old = [
            info.job_id
            for info, entry in lookup.latest(entries).values()
            if info.finished
            and info.sweep is None
            and (info.finished_at or 0.0) <= before
            and entry.status in _job_table.TERMINAL
        ]
        gone = []
        for job_id in old:
            try:
                if not dry_run:
                    self._remove(job_id, listed)
            except (JobNotFoundError, ValueError, _ProcessStillThereError):
                # With its parent, or one below it runs, or is not quite gone.
                continue
            gone.append(job_id)
        return Pruned(jobs=tuple(gone))

    # --- for code that calls Ray itself ---

    def get_runtime_env(self, request: JobRequest) -> dict[str, Any]:
        """Return the environment of a request as `@ray.remote(runtime_env=...)` takes it."""
        environment = request.environment or EnvironmentConfig()
        pip = list(pip_list(workspace_of(request), environment))
        accelerated = not _plan.is_cpu_only(request)
        variables = ({} if accelerated else {"JAX_PLATFORMS": "cpu"}) | dict(environment.env_vars)
        parts = {"pip": pip, "env_vars": variables}
        return {name: part for name, part in parts.items() if part}

    def get_ray_resources(self, request: JobRequest) -> dict[str, float]:
        """Return what a request needs beside CPUs, GPUs and memory, for `@ray.remote(resources=...)`."""
        bundle = _plan.bundle_of(request.resources, {})
        return {name: amount for name, amount in bundle.items() if name not in ("CPU", "GPU", "memory")}


def _current_address() -> str:
    if ray.is_initialized():
        return str(ray.get_runtime_context().gcs_address)
    return os.environ.get("RAY_ADDRESS") or "auto"


def _known(info: JobInfo | None) -> JobInfo:
    assert info is not None, "a member that its sweep names has a state"
    return info


def _given(job_id: str, withheld: Iterable[str]) -> Mapping[str, str]:
    """Return the variables that a plan was kept without, from the environment of who runs it again.

    Raises:
        ValueError: One is not there.
    """
    missing = [name for name in withheld if name not in os.environ]
    if missing:
        raise ValueError(
            f"job {job_id} was launched with {', '.join(missing)} in env_vars, and the values of such "
            "variables are not kept: set them in your environment, and run it again"
        )
    return {name: os.environ[name] for name in withheld}
