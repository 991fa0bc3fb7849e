"""Turn a request into the plan that the scheduler carries out, where the job is launched."""

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fray import UnsupportedError
from fray.backend import (
    FAMILY,
    about_request,
    own_family,
    refuse_fields,
    refuse_native_options,
    refuse_other_python,
    take_snapshot,
)
from fray.cluster import Entrypoint, EnvironmentConfig, JobId, JobRequest
from fray_ray._job_table import submission_of
from fray_ray._launcher.shipping import payload_of
from fray_ray._packed_tasks import shortened
from fray_ray._plan import Plan, hosts_of, labels_of, unit_counts
from fray_ray.deps import pip_list

EXCLUDED = (
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
_SHOWN = ("entrypoint", "resources", "environment", "labels", "after", "directory", "user", "commit", "dirty")
_LONGEST_ID = 200  # characters: the name of a file has 255, of which logs, runs and attempts need some
_LONGEST_COMMAND = 4_000  # characters that are shown of it
_SUPPORTED = frozenset({"after", "ports", "snapshot", "on_exit", "labels"})


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Makes the plans of one cluster.

    Args:
        spec: What opens the cluster, inside of it.
        remote: Whether the cluster has another machine than this one.
        ships: Whether workspaces are uploaded.
        python: Returns the version of Python of the cluster; None where that is not known.
    """

    spec: str
    remote: bool
    ships: bool
    python: Callable[[], str | None]
    placement_timeout: float | None

    def ships_for(self, request: JobRequest) -> bool:
        """Whether the workspace of a request is uploaded."""
        return self.ships or request.snapshot

    def plan(self, request: JobRequest, job_id: JobId, variables: Mapping[str, str]) -> Plan:
        """Return the plan of a checked request.

        Raises:
            ValueError: The workspace is no directory, or its project cannot be resolved; the cluster has
                another version of Python than a callable needs; the id is too long.
            SerializationError: The callable or an argument cannot be pickled.
        """
        if len(job_id) > _LONGEST_ID:
            raise ValueError(
                f"job {request.name!r}: its id, {job_id}, has {len(job_id)} characters; it may have "
                f"{_LONGEST_ID}, because files are named by it: give it and the jobs above it shorter names"
            )
        environment = request.environment or EnvironmentConfig()
        workspace, entrypoint = workspace_of(request), Entrypoint.of(request.entrypoint)
        if entrypoint.callable is not None and (python := self.python()) is not None:
            refuse_other_python(request, python)
        choices = unit_counts(request.resources, gang=request.is_gang)
        hosts, ships = hosts_of(request.resources), self.ships_for(request)
        own = {
            "FRAY_JOB_ID": str(job_id),
            "FRAY_REPLICA_COUNT": str(choices[0] * hosts),
            "FRAY_CLUSTER_SPEC": self.spec,
            FAMILY: os.environ.get(FAMILY) or own_family(),
        }
        if job_id.sweep is not None:
            own |= {"FRAY_SWEEP_ID": job_id.sweep, "FRAY_SWEEP_INDEX": job_id.leaf}
        return Plan(
            job_id=str(job_id),
            submission=submission_of(job_id),
            submitted_at=time.time(),
            name=request.name,
            choices=choices,
            hosts=hosts,
            gang=request.is_gang,
            resources=request.resources,
            labels=labels_of(request.resources),
            command=None if entrypoint.callable is not None else entrypoint.command,
            payload=payload_of(entrypoint, workspace if ships else None),
            environ={"FRAY_CONTEXT_SPEC": "ray"} | dict(environment.env_vars) | own | dict(variables),
            secrets=tuple(environment.env_vars.values()),
            confidential=tuple(environment.env_vars.keys() - own.keys() - variables.keys()),
            cwd=None if ships else os.fspath(workspace),
            pip=pip_list(workspace, environment),
            max_retries_failure=request.max_retries_failure,
            max_retries_preemption=request.max_retries_preemption,
            timeout=request.timeout,
            placement_timeout=self.placement_timeout,
            after=tuple(str(each) for each in request.after),
            ports=tuple(request.ports),
            on_exit=request.on_exit,
        )

    @contextlib.contextmanager
    def runtime_env(self, request: JobRequest) -> Iterator[dict[str, Any]]:
        """Give the environment that a job is submitted with; a snapshot is there for that long."""
        if not self.ships_for(request):
            yield {}
            return
        workspace = workspace_of(request)
        if not request.snapshot:
            yield {"working_dir": os.fspath(workspace), "excludes": list(EXCLUDED)}
            return
        with tempfile.TemporaryDirectory(prefix="fray-") as folder:
            take_snapshot(workspace, Path(folder, "workspace"))
            yield {"working_dir": f"{folder}/workspace", "excludes": list(EXCLUDED)}


def about(request: JobRequest) -> dict[str, Any]:
    """Return what may be shown of a request, small enough for Ray's table."""
    shown = about_request(request, workspace_of(request))
    command = shortened(shown["entrypoint"], _LONGEST_COMMAND)
    return {name: shown[name] for name in _SHOWN} | {"entrypoint": command}


def workspace_of(request: JobRequest) -> Path:
    """Return the directory that a request's job runs in.

    Raises:
        ValueError: It is none.
    """
    environment = request.environment or EnvironmentConfig()
    workspace = Path(environment.workspace or Path.cwd())
    if not workspace.is_dir():
        raise ValueError(f"workspace {os.fspath(workspace)!r} is not a directory")
    return workspace.resolve()


def check_supported(request: JobRequest) -> None:
    """Refuse what no job on Ray can have.

    Raises:
        UnsupportedError: The message says what was asked, and what can be.
    """
    environment = request.environment or EnvironmentConfig()
    refuse_fields("RayCluster", request, _SUPPORTED)
    refuse_native_options("RayCluster", "ray", request)
    if environment.python:
        raise UnsupportedError(
            f"RayCluster installs no Python ({environment.python}); its jobs have the Python of its nodes, "
            "with pip_packages=, extras= and dependency_groups="
        )
    image = environment.docker_image
    if image is not None:
        raise UnsupportedError(
            f"RayCluster runs jobs in the containers that its nodes are, not in {image!r}; "
            "start the cluster from that image, or name packages with pip_packages= and extras="
        )
