"""What the coordinator of a sweep needs to know; pickled, it travels apart from what Ray lists."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fray_ray._plan import Plan


@dataclass(frozen=True)
class Member:
    """A job of a sweep.

    Args:
        about: What may be shown of its request.
    """

    plan: Plan
    about: Mapping[str, Any]


@dataclass(frozen=True)
class SweepPlan:
    """The members of a sweep, and which of them may run when.

    Args:
        after: What each member that runs after others waits for: positions, or ids of jobs elsewhere.
        max_parallel: How many members may run at a time; None for as many as there is room for.
    """

    job_id: str
    members: tuple[Member, ...]
    after: Mapping[int, tuple[int | str, ...]] = field(default_factory=dict)
    max_parallel: int | None = None
