"""What the plans of jobs and of sweeps are made of; imports as little as they do."""

from __future__ import annotations

from fray._values.light_tuples import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from fray._values.job_words import ExitReason


class Grant(NamedTuple):
    """Room for a job, and the ids of the GPUs that are its own."""

    gpus: tuple[str, ...] = ()


class HostEnding(NamedTuple):
    """Why the host takes a job's supervisor away, and how many seconds it leaves."""

    reason: ExitReason
    message: str
    grace: float


class Keep(NamedTuple):
    """Which records of finished jobs are kept: so many, and for so many days; None for all.

    `shared` is a folder of environments, which go when no record leads to them any more.
    """

    jobs: int | None = None
    days: float | None = None
    shared: str | None = None


NO_VALUES: Mapping[str, Any] = {}
