"""What is asked of a cluster: requests."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from fray._values.checks import check_count, check_seconds, invalid
from fray._values.entrypoint import Entrypoint
from fray._values.environment import EnvironmentConfig
from fray._values.job_states import ExitReason as ExitReason
from fray._values.job_states import JobId as JobId
from fray._values.job_states import JobInfo as JobInfo
from fray._values.job_states import JobStatus as JobStatus
from fray._values.job_states import TaskStatus as TaskStatus
from fray_resources import GpuConfig, ResourceConfig, TpuConfig

_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")


@dataclass(frozen=True)
class JobRequest:
    """A job to launch.

    Args:
        name: Letters, digits, `.`, `_` and `-`; the id starts with it.
        entrypoint: An `Entrypoint`, a callable, or the name of a module to run as `python -m`.
        entrypoint_args: Arguments of a module or callable; they end up in `entrypoint`.
        resources: What one replica needs; `resources.replicas` of them run.
        environment: None for an environment like the launcher's own.
        max_retries_failure: How often a replica is started again after it failed.
        max_retries_preemption: How often the job is started again after its machine was taken away.
        timeout: Seconds the job may run, all attempts together; waiting for room is not counted.
        gang: Whether the replicas start, end and are retried together, and find the variables by which they
            meet; None for what their device asks for: replicas with TPUs or GPUs are a gang.

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

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise invalid("name", "1 to 128 letters, digits, '.', '_' and '-'", self.name)
        # The arguments move into the entry point, so that `dataclasses.replace` does not add them twice.
        _set(self, "entrypoint", Entrypoint.of(self.entrypoint, self.entrypoint_args))
        _set(self, "entrypoint_args", ())
        if not isinstance(self.resources, ResourceConfig):
            raise invalid("resources", "a ResourceConfig", self.resources)
        if not isinstance(self.environment, EnvironmentConfig | None):
            raise invalid("environment", "what create_environment() returns", self.environment)
        for name in ("max_retries_failure", "max_retries_preemption"):
            check_count(name, getattr(self, name))
        if self.timeout is not None:
            check_seconds("timeout", self.timeout)
        if self.gang not in (None, True, False):
            raise invalid("gang", "True, False or None", self.gang)
        if self.gang is False and isinstance(self.resources.device, TpuConfig):
            raise invalid("gang", "True or None for TPUs: the hosts of a slice are one program", self.gang)

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
        }


def _set(target: Any, name: str, value: Any) -> None:
    object.__setattr__(target, name, value)
