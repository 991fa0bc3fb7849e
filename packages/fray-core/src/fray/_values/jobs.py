"""Requests to a cluster."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fray._values.checks import check_count, check_seconds, invalid
from fray._values.entrypoint import Entrypoint
from fray._values.environment import EnvironmentConfig
from fray._values.job_states import ExitReason as ExitReason
from fray._values.job_states import JobId as JobId
from fray._values.job_states import JobInfo as JobInfo
from fray._values.job_states import JobStatus as JobStatus
from fray._values.job_states import SweepId as SweepId
from fray._values.job_states import TaskStatus as TaskStatus
from fray_resources import GpuConfig, ResourceConfig, TpuConfig, parse_size

_NAME_LENGTH = 200
_LABEL_LENGTH = 256
_PORT = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
_LEAST_LOG = 64 * 1024


@dataclass(frozen=True)
class JobRequest:
    """A job to launch.

    Args:
        name: Any printable text of up to 200 characters; the id starts with its letters and digits.
        entrypoint: An `Entrypoint`, a callable, or the name of a module to run as `python -m`.
        entrypoint_args: Arguments of a module or callable; they end up in `entrypoint`.
        resources: What one replica needs; `resources.replicas` of them run.
        environment: None for an environment like the launcher's own.
        max_retries_failure: How often a replica is started again after it failed.
        max_retries_preemption: How often the job is started again after its machine was taken away.
        timeout: Seconds that each attempt may run; waiting for room is not counted.
        gang: Whether the replicas start, end and are retried together, and have the variables for their
            rendezvous. By default (None) replicas with TPUs or GPUs are a gang, and others are not.
        after: Ids of jobs that must have succeeded before this one starts.
        labels: Texts by which the job is found; every user who sees the job sees them.
        ports: Names. Each replica gets a free port for each name, in a variable such as `FRAY_PORT_HTTP`.
        snapshot: Run a copy of the workspace as it is at launch.
        log_limit: Bytes to keep of what one attempt of a replica writes, e.g. `"64m"`: its beginning and its
            end. None keeps all, as far as the disk has room.
        backend: Native options of one kind of cluster, by its name; the others ignore them.
        on_exit: A shell command that runs once when the job has ended, on the host that supervised it, with
            the variables of the job's supervisor: on `local` the launcher's, on Slurm the batch step's, on
            Ray those of the job's process on the head. `FRAY_JOB_STATUS`, `FRAY_JOB_REASON` and others say
            how the job ended.

    Raises:
        ValueError: A field is wrong; the message names it and its value.
    """

    name: str
    entrypoint: Entrypoint | Callable[..., Any] | str
    entrypoint_args: Iterable[Any] = ()
    resources: ResourceConfig = field(default_factory=ResourceConfig)
    environment: EnvironmentConfig | None = None
    max_retries_failure: int = 0
    max_retries_preemption: int = 100
    timeout: float | None = None
    gang: bool | None = None
    after: Iterable[str | int] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    ports: Iterable[str] = ()
    snapshot: bool = False
    log_limit: int | str | None = None
    backend: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    on_exit: str | None = None

    def __post_init__(self) -> None:
        _check_name(self.name)
        # The arguments move into the entry point, so that `dataclasses.replace` does not add them twice.
        self._set("entrypoint", Entrypoint.of(self.entrypoint, self.entrypoint_args))
        self._set("entrypoint_args", ())
        if not isinstance(self.resources, ResourceConfig):
            raise invalid("resources", "a ResourceConfig", self.resources)
        if not isinstance(self.environment, EnvironmentConfig | None):
            raise invalid("environment", "what create_environment() returns", self.environment)
        for name in ("max_retries_failure", "max_retries_preemption"):
            check_count(name, getattr(self, name))
        if self.timeout is not None:
            check_seconds("timeout", self.timeout)
        if not isinstance(self.gang, bool | None):
            raise invalid("gang", "True, False or None", self.gang)
        if self.gang is False and isinstance(self.resources.device, TpuConfig):
            raise invalid("gang", "True or None for TPUs: the hosts of a slice are one program", self.gang)
        if not isinstance(self.snapshot, bool):
            raise invalid("snapshot", "True or False", self.snapshot)
        if self.on_exit is not None and (not isinstance(self.on_exit, str) or not self.on_exit.strip()):
            raise invalid("on_exit", "a shell command", self.on_exit)
        self._set("after", _after(self.after))
        self._set("labels", _labels(self.labels))
        self._set("ports", _ports(self.ports))
        self._set("log_limit", _log_limit(self.log_limit))
        self._set("backend", _backend(self.backend))

    @property
    def is_gang(self) -> bool:
        """Whether the replicas start, end and are retried together; one alone may be a gang of one."""
        if self.gang is None:
            return isinstance(self.resources.device, TpuConfig | GpuConfig)
        return self.gang

    def to_dict(self) -> dict[str, Any]:
        """Return what may be shown of the request: no value of a variable, no argument of a callable."""
        return {
            "name": self.name,
            "entrypoint": str(self.entrypoint),
            "resources": self.resources.to_dict(),
            "environment": (self.environment or EnvironmentConfig()).to_dict(),
            "max_retries_failure": self.max_retries_failure,
            "max_retries_preemption": self.max_retries_preemption,
            "timeout": self.timeout,
            "gang": self.gang,
            "after": list(self.after),
            "labels": dict(self.labels),
            "ports": list(self.ports),
            "snapshot": self.snapshot,
            "log_limit": self.log_limit,
            "backend": sorted(self.backend),
            "on_exit": self.on_exit,
        }

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """What `prune` deleted.

    Args:
        jobs: The jobs whose records were deleted.
        environments: How many environments were deleted because nothing used them any more.
        size: The size of the deleted files in bytes.
        sizes: The same by kind: `records`, `logs`, `snapshots`, `environments`.
    """

    jobs: tuple[JobId, ...] = ()
    environments: int = 0
    size: int = 0
    sizes: Mapping[str, int] = field(default_factory=dict)


def _check_name(name: Any) -> None:
    printable = isinstance(name, str) and name.isprintable() and name.strip()
    if not printable or len(name) > _NAME_LENGTH:
        raise invalid("name", f"printable text of 1 to {_NAME_LENGTH} characters", name)


def _after(given: Any) -> tuple[str | int, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise invalid("after", "a list of job ids", given)
    found = tuple(given)
    for each in found:
        if not isinstance(each, str | int) or isinstance(each, bool) or each == "":
            raise invalid("each of after", "a job id, or a position in launch_many", each)
    return found


def _labels(given: Any) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise invalid("labels", "a mapping of texts", given)
    for text in (*given, *given.values()):
        if not isinstance(text, str) or not text.isprintable() or len(text) > _LABEL_LENGTH:
            raise invalid(
                "each key and value of labels", f"printable text of up to {_LABEL_LENGTH} characters", text
            )
    return dict(given)


def _ports(given: Any) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise invalid("ports", "a list of names", given)
    names = tuple(given)
    for name in names:
        if not isinstance(name, str) or not _PORT.fullmatch(name):
            raise invalid("each of ports", "a name of letters, digits, '_' and '-'", name)
    if len({name.upper().replace("-", "_") for name in names}) < len(names):
        raise invalid("ports", "names of which no two give the same variable", names)
    return names


def _log_limit(given: Any) -> int | None:
    if given is None:
        return None
    size = parse_size(given, field="log_limit")
    if size < _LEAST_LOG:
        raise invalid("log_limit", f"a size of {_LEAST_LOG >> 10} KiB or more", given)
    return size


def _backend(given: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(given, Mapping) or not all(isinstance(each, Mapping) for each in given.values()):
        raise invalid("backend", 'options by the name of a cluster, e.g. {"slurm": {...}}', given)
    for name in given:
        if not isinstance(name, str) or not name:
            raise invalid("each key of backend", "the name of a cluster", name)
    return {name: dict(options) for name, options in given.items()}
