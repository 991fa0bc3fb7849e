"""Jobs on a Ray cluster, each a job in Ray's own table."""

import os
import pickle
import re
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import ray

from fray import JobNotFoundError, UnsupportedError
from fray.backend import Spec, check_seconds, invalid, refuse_fields
from fray.cluster import (
    ClusterCalls,
    Entrypoint,
    EnvironmentConfig,
    JobId,
    JobInfo,
    JobRequest,
    LogStream,
    follow_logs,
    launching,
    parent_job,
)
from fray_ray import _job_kv, _job_table, _plan
from fray_ray._finding import UNREACHED
from fray_ray._launcher.job_log import JobLog
from fray_ray._launcher.jobs_client import JobsClient
from fray_ray._launcher.shipping import payload_of
from fray_ray._launcher.stopping import stop_job
from fray_ray._plan import Plan
from fray_ray.deps import pip_list

_ID = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")
_LOG_INTERVAL = 0.3  # seconds; each look fetches the whole log, which is the only way that Ray offers
_EXCLUDED = (
    ".git",
    ".venv",
    "venv",
    "__pycache__",
    "*.pyc",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    "node_modules",
)


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
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        dashboard_address: str | None = None,
        placement_timeout: float | None = None,
        ship_workspace: bool | None = None,
    ) -> None:
        if placement_timeout is not None:
            check_seconds("placement_timeout", placement_timeout)
        options = {"placement_timeout": placement_timeout, "ship_workspace": ship_workspace}
        self._inside_spec = str(
            Spec("ray", {key: str(value) for key, value in options.items() if value is not None})
        )
        self._client = JobsClient(dashboard_address or address or _current_address())
        self._placement_timeout, self._ship = placement_timeout, ship_workspace

    def __repr__(self) -> str:
        return f"<RayCluster at {self._client.url}>"

    def launch(self, request: JobRequest, /, *, key: str | None = None) -> JobId:
        """See `fray.cluster.Cluster.launch`."""
        if not isinstance(request, JobRequest):
            raise invalid("request", "a JobRequest", request)
        if key is not None:
            raise UnsupportedError(f"RayCluster cannot launch once by a key ({key!r}); launch without one")
        _check_supported(request)
        here = self._shares_files()
        ships = not here if self._ship is None else self._ship
        job_id = JobId.new(request.name, parent_job())
        with launching(request, job_id) as variables:
            self._submit(request, self._plan(request, job_id, ships, variables), here, ships)
        self._note_launched(job_id)
        return job_id

    def _submit(self, request: JobRequest, plan: Plan, here: bool, ships: bool) -> None:
        data = pickle.dumps(plan)
        if len(data) >= _job_kv.LIMIT:
            raise ValueError(
                f"job {request.name!r}: its entry point and arguments are {len(data) >> 20} MiB pickled, and "
                f"Ray takes less than {_job_kv.LIMIT >> 20} MiB; read large data in the job, where it lies"
            )
        stored = _job_kv.plan_name(plan.submission)
        self._client.upload(stored, data)
        python = shlex.quote(sys.executable) if here else "python"
        try:
            self._client.submit(
                f"exec {python} -m fray_ray._head.driver {plan.submission}",
                plan.submission,
                _job_table.describe(JobId(plan.job_id), request.name, plan.replicas),
                {"working_dir": os.fspath(_workspace(request)), "excludes": list(_EXCLUDED)} if ships else {},
            )
        except Exception as error:
            if not isinstance(error.__cause__, UNREACHED):  # then it was refused; else it may have started
                self._client.forget(stored)
            raise

    def poll(self, job_id: str, /) -> JobInfo:
        """See `fray.cluster.Cluster.poll`."""
        details = self._client.details(_job_table.submission_of(job_id)) if _ID.fullmatch(job_id) else None
        info = _job_table.read(details) if details is not None else None
        if info is None:
            raise JobNotFoundError(job_id, f"the Ray cluster at {self._client.url}")
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
        """See `fray.cluster.Cluster.monitor`."""
        self.poll(job_id)
        log = JobLog(lambda: self._client.log(_job_table.submission_of(job_id)))

        known: list[object] = []

        def poll() -> JobInfo:
            info = self.poll(job_id)
            state = [info.finished, [task.attempt for task in info.tasks]]
            if state != known:  # what an attempt wrote before it ended is read before the next one is
                known[:] = state
                log.stale()
            return info

        return follow_logs(
            poll,
            log.read,
            replica=replica,
            tail=tail,
            since=since,
            grep=grep,
            follow=follow,
            interval=_LOG_INTERVAL,
        )

    def terminate(self, job_id: str, grace: float = 10.0) -> None:
        """See `fray.cluster.Cluster.terminate`."""
        check_seconds("grace", grace, zero=True)
        if not self.poll(job_id).finished:
            stop_job(self._client, _job_table.submission_of(job_id), grace)

    def _all_jobs(self, parent: str | None) -> list[JobInfo]:
        """Return the jobs in Ray's table; those that others gave to Ray are left out."""
        if parent is not None:
            self.poll(parent)
        infos = [
            info for details in self._client.all_details() if (info := _job_table.read(details)) is not None
        ]
        return [info for info in infos if info is not None and parent in (None, info.job_id.parent)]

    def get_runtime_env(self, request: JobRequest) -> dict[str, Any]:
        """Return the environment of a request as `@ray.remote(runtime_env=...)` takes it."""
        environment = request.environment or EnvironmentConfig()
        workspace = _workspace(request)
        pip = list(pip_list(workspace, environment))
        accelerated = not _plan.is_cpu_only(request)
        variables = ({} if accelerated else {"JAX_PLATFORMS": "cpu"}) | dict(environment.env_vars)
        parts = {"pip": pip, "env_vars": variables}
        return {name: part for name, part in parts.items() if part}

    def get_ray_resources(self, request: JobRequest) -> dict[str, float]:
        """Return what a request needs beside CPUs, GPUs and memory, for `@ray.remote(resources=...)`."""
        bundle = _plan.bundle_of(request.resources, {})
        return {name: amount for name, amount in bundle.items() if name not in ("CPU", "GPU", "memory")}

    def _plan(self, request: JobRequest, job_id: JobId, ships: bool, variables: dict[str, str]) -> Plan:
        environment = request.environment or EnvironmentConfig()
        workspace, entrypoint = _workspace(request), request.entrypoint
        assert isinstance(entrypoint, Entrypoint)
        choices = _plan.unit_counts(request.resources, gang=request.is_gang)
        hosts = _plan.hosts_of(request.resources)
        own = {
            "FRAY_JOB_ID": job_id,
            "FRAY_REPLICA_COUNT": str(choices[0] * hosts),
            "FRAY_CLUSTER_SPEC": self._inside_spec,
            "FRAY_CONTEXT_SPEC": "ray",
        }
        return Plan(
            job_id=job_id,
            submission=_job_table.submission_of(job_id),
            submitted_at=time.time(),
            name=request.name,
            choices=choices,
            hosts=hosts,
            gang=request.is_gang,
            resources=request.resources,
            labels=_plan.labels_of(request.resources),
            command=None if entrypoint.callable is not None else entrypoint.command,
            payload=payload_of(entrypoint, workspace if ships else None),
            environ=dict(environment.env_vars) | own | variables,
            secrets=tuple(environment.env_vars.values()),
            confidential=tuple(environment.env_vars.keys() - own.keys() - variables.keys()),
            cwd=None if ships else os.fspath(workspace),
            pip=pip_list(workspace, environment),
            max_retries_failure=request.max_retries_failure,
            max_retries_preemption=request.max_retries_preemption,
            timeout=request.timeout,
            placement_timeout=self._placement_timeout,
        )

    def _shares_files(self) -> bool:
        """Whether every node of the cluster is this machine."""
        own = {"127.0.0.1", "localhost", "::1", ray.util.get_node_ip_address()}  # type: ignore[no-untyped-call]
        return self._client.node_addresses() <= own


def _current_address() -> str:
    if ray.is_initialized():
        return str(ray.get_runtime_context().gcs_address)
    return os.environ.get("RAY_ADDRESS") or "auto"


def _workspace(request: JobRequest) -> Path:
    environment = request.environment or EnvironmentConfig()
    workspace = Path(environment.workspace or Path.cwd())
    if not workspace.is_dir():
        raise ValueError(f"workspace {os.fspath(workspace)!r} is not a directory")
    return workspace.resolve()


def _check_supported(request: JobRequest) -> None:
    environment = request.environment or EnvironmentConfig()
    refuse_fields("RayCluster", request)
    if wanted := [*environment.dependency_groups, *([environment.python] if environment.python else ())]:
        raise UnsupportedError(
            f"RayCluster installs no dependency groups and no Python ({', '.join(wanted)}); "
            "its jobs have the Python of its nodes, with pip_packages= and extras="
        )
    image = environment.docker_image
    if image is not None:
        raise UnsupportedError(
            f"RayCluster runs jobs in the containers that its nodes are, not in {image!r}; "
            "start the cluster from that image, or name packages with pip_packages= and extras="
        )
