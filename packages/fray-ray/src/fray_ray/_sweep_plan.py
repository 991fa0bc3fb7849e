"""What the coordinator of a sweep needs to know; pickled, it travels apart from what Ray lists."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fray_ray._plan import Plan, restored, withheld


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

    @property
    def withheld(self) -> tuple[str, ...]:
        """The names of variables whose values the plans of its members do not have."""
        return tuple(sorted({name for member in self.members for name in member.plan.withheld}))


def withheld_of_sweep(plan: SweepPlan) -> SweepPlan:
    """Return a plan as it is kept for a retry: see `withheld` of `_plan`."""
    return replace(plan, members=tuple(Member(withheld(each.plan), each.about) for each in plan.members))


def restored_sweep(plan: SweepPlan, given: Mapping[str, str]) -> SweepPlan:
    """Return a plan that was kept as it is run again: each member has its own variables back."""
    members = []
    for each in plan.members:
        own = {name: given[name] for name in each.plan.withheld}
        members.append(Member(restored(each.plan, own, each.plan.submission, each.plan.tries), each.about))
    return replace(plan, members=tuple(members))
