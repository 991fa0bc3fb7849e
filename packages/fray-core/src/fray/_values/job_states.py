"""The states of a job and its replicas, and a job's id.

What a job's supervisor itself keeps, and writes down, is `fray._jobs.rules.states`.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Self

from fray._values.checks import check_count
from fray._values.job_words import ExitReason as ExitReason
from fray._values.job_words import JobStatus as JobStatus

if TYPE_CHECKING:
    from fray_resources import ResourceConfig

_SLUG_LENGTH = 80  # a folder of a job of a job of a job holds three of them, and 255 bytes
_NOT_IN_A_SLUG = re.compile(r"[^A-Za-z0-9._]+")


class JobId(str):
    """An id that reads well: `train-3f9a2c`; a job launched by a job is `train-3f9a2c/rollout-1b22d0`."""

    __slots__ = ()

    @classmethod
    def new(cls, name: str, parent: str | None = None) -> Self:
        """Make an id for a job of that name, under its parent's where it has one.

        The id starts with the name's slug: of `step:tokenized/fineweb` it is `step-tokenized-fineweb`.
        """
        leaf = f"{_slug(name)}-{os.urandom(3).hex()}"
        return cls(f"{parent}/{leaf}" if parent else leaf)

    @property
    def parent(self) -> "JobId | None":
        """The id of the job that launched this one."""
        parent, slash, _ = self.rpartition("/")
        return JobId(parent) if slash else None

    @property
    def sweep(self) -> "SweepId | None":
        """The sweep that it is a member of: its last part is its position there."""
        return SweepId(self.rpartition("/")[0]) if "/" in self and self.leaf.isdecimal() else None

    @property
    def leaf(self) -> str:
        """The last part: the job's own, without its parents."""
        return self.rpartition("/")[2]


class SweepId(JobId):
    """The id of a sweep: of jobs `lr-3f9a2c/0`, `lr-3f9a2c/1`, …, that are followed and stopped as one."""

    __slots__ = ()

    def member(self, position: int) -> JobId:
        """Return the id of the job that was the request of this position in `launch_many`."""
        return JobId(f"{self}/{position}")


@dataclass(frozen=True, kw_only=True)
class TaskStatus:
    """The state of one replica: of its latest attempt, with the earlier ones in `previous`.

    Args:
        replica: Its number, from 0: what it sees as `FRAY_REPLICA_ID`.
        attempt: From 1; 0 while it has not been started.
        exit_code: Of its main process; negative for a signal, as `subprocess` has it.
        started_at: Seconds since the epoch, as all times here.
        peak_memory: The most memory that the attempt's processes held at one time, in bytes, as far as it
            was measured.
        cpu_time: Seconds of CPU that they used.
        ports: The ports that it has, by the names of the request.
    """

    replica: int
    status: JobStatus = JobStatus.PENDING
    attempt: int = 0
    exit_code: int | None = None
    reason: ExitReason | None = None
    error_message: str | None = None
    started_at: float | None = None
    finished_at: float | None = None
    peak_memory: int | None = None
    cpu_time: float | None = None
    ports: Mapping[str, int] = field(default_factory=dict)
    previous: tuple["TaskStatus", ...] = ()

    def __post_init__(self) -> None:
        _set(self, "status", JobStatus(self.status))
        _set(self, "reason", None if self.reason is None else ExitReason(self.reason))
        _set(self, "previous", tuple(self.previous))
        _set(self, "ports", dict(self.ports))
        check_count("replica", self.replica)
        check_count("attempt", self.attempt)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, fit for JSON."""
        shown = {item.name: getattr(self, item.name) for item in fields(self)}
        return _plain(shown) | {"previous": [task.to_dict() for task in self.previous]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_dict` gave; keys of a later version are passed over."""
        known = _known(cls, data)
        return cls(**known | {"previous": tuple(cls.from_dict(task) for task in known.get("previous", ()))})


@dataclass(frozen=True, kw_only=True)
class LastSeen:
    """When and where a job's supervisor was last seen at work, if a reader cannot check that it lives."""

    host: str
    time: float


@dataclass(frozen=True, kw_only=True)
class JobInfo:
    """The state of a job at one moment.

    Args:
        error_message: Why it failed: the replica, its exit code or exception, its last lines.
        pending_reason: What a pending job waits for.
        last_seen: Set if this host cannot determine whether the job still runs, because its supervisor is on
            another host, or on a file system without locks. `status` is then what the supervisor wrote last.
        command: What it runs, without the arguments of a callable.
        directory: The working directory of its replicas.
        resources: Those of one replica.
        children: The jobs that it launched.
        logs: Where its logs are: files, for a cluster that has files.
        user: Who launched it.
        commit: The commit of the workspace at launch; None if it is not in a git repository.
        dirty: Whether the workspace had changes that are not in the commit.
        warnings: What a user of the job should know, e.g. that files changed before it started.
        progress: For a sweep, how many of its members have each status; else None.
        after: The jobs that it runs after.
        environment: The environment that was requested; of variables only the names.
    """

    job_id: JobId
    name: str
    status: JobStatus
    tasks: tuple[TaskStatus, ...]
    error_message: str | None = None
    pending_reason: str | None = None
    submitted_at: float | None = None
    started_at: float | None = None
    finished_at: float | None = None
    last_seen: LastSeen | None = None
    command: str | None = None
    directory: str | None = None
    resources: "ResourceConfig | None" = None
    labels: Mapping[str, str] = field(default_factory=dict)
    children: tuple[JobId, ...] = ()
    logs: tuple[str, ...] = ()
    user: str | None = None
    commit: str | None = None
    dirty: bool | None = None
    warnings: tuple[str, ...] = ()
    progress: Mapping[str, int] | None = None
    after: tuple[JobId, ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _set(self, "job_id", JobId(self.job_id))
        _set(self, "status", JobStatus(self.status))
        for name in ("tasks", "logs", "warnings"):
            _set(self, name, tuple(getattr(self, name)))
        for name in ("children", "after"):
            _set(self, name, tuple(map(JobId, getattr(self, name))))
        for name in ("labels", "environment"):
            _set(self, name, dict(getattr(self, name)))
        _set(self, "progress", None if self.progress is None else dict(self.progress))

    if not TYPE_CHECKING:  # mypy would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            read = self.__dict__.get("_read_tasks") if name == "tasks" else None
            if read is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            _set(self, "tasks", tuple(read()))
            return self.tasks

    def __getstate__(self) -> dict[str, Any]:
        whole = {**vars(self), "tasks": self.tasks}
        whole.pop("_read_tasks", None)
        return whole

    @property
    def finished(self) -> bool:
        """Whether nothing about the job will change any more."""
        return self.status.finished

    @property
    def sweep(self) -> SweepId | None:
        """The sweep that it is a member of."""
        return self.job_id.sweep

    @property
    def is_sweep(self) -> bool:
        """Whether it is a sweep: many jobs that are followed and stopped as one."""
        return self.progress is not None

    @property
    def exit_code(self) -> int | None:
        """What a shell would report: 0, the first failed replica's code, 128 + signal; None while it runs."""
        if not self.finished:
            return None
        if self.status is JobStatus.SUCCEEDED:
            return 0
        if self.status is JobStatus.STOPPED:
            return 143  # as a process that SIGTERM ended
        return next((_shell_code(task) for task in self.tasks if task.status is JobStatus.FAILED), 1)

    def _repr_html_(self) -> str:
        from fray._values.notebooks import job_html  # in a notebook alone

        return job_html(self)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, fit for JSON."""
        shown = {item.name: getattr(self, item.name) for item in fields(self)}
        seen = self.last_seen and {"host": self.last_seen.host, "time": self.last_seen.time}
        return _plain(shown) | {
            "tasks": [task.to_dict() for task in self.tasks],
            "last_seen": seen,
            "sweep": None if self.sweep is None else str(self.sweep),
            "resources": None if self.resources is None else self.resources.to_dict(),
            "children": [str(child) for child in self.children],
            "after": [str(each) for each in self.after],
            "logs": list(self.logs),
            "warnings": list(self.warnings),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_dict` gave; keys of a later version are passed over."""
        known = _known(cls, data)
        seen = known.get("last_seen")
        tasks = tuple(TaskStatus.from_dict(task) for task in known["tasks"])
        if known.get("resources") is not None:
            from fray_resources import ResourceConfig

            known["resources"] = ResourceConfig.from_dict(known["resources"])
        return cls(**known | {"tasks": tasks, "last_seen": LastSeen(**seen) if seen else None})


def defer_tasks(info: JobInfo, read: Callable[[], tuple[TaskStatus, ...]]) -> JobInfo:
    """Return a job whose replicas are read at their first use: few readers of a long list use them.

    Args:
        read: Returns them. It is not to fail: what is stored should be checked before.
    """
    deferred = object.__new__(JobInfo)
    vars(deferred).update({**vars(info), "_read_tasks": read})
    vars(deferred).pop("tasks", None)
    return deferred


def _shell_code(task: TaskStatus) -> int:
    if task.reason is ExitReason.TIMED_OUT:
        return 124  # as timeout(1)
    if task.reason is ExitReason.COULD_NOT_START:
        return 127  # as a shell
    code = task.exit_code
    return 1 if not code else 128 - code if code < 0 else code


def _slug(name: str) -> str:
    slug = _NOT_IN_A_SLUG.sub("-", name)[:_SLUG_LENGTH].strip("-.")
    return slug or "job"


def _set(target: Any, name: str, value: Any) -> None:
    object.__setattr__(target, name, value)


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, str) else value for name, value in values.items()}


def _known(cls: type, data: Mapping[str, Any]) -> dict[str, Any]:
    names = _names(cls)
    return {name: value for name, value in data.items() if name in names}


@cache
def _names(cls: Any) -> frozenset[str]:
    return frozenset(item.name for item in fields(cls))
