"""The plan of the coordinator of a sweep; it starts in the place of a supervisor and imports as little."""

from __future__ import annotations

from fray._jobs.plans.values import NO_VALUES
from fray._values.light_tuples import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from fray._jobs.plans.parts import Admission, HostEnd, Preparation
    from fray._jobs.plans.values import Grant, Keep

TURN = "waiting for its turn in the sweep"
"""What a member waits for that nobody has started."""
_NOBODY: Mapping[int, tuple[int | str, ...]] = {}
_NO_SECRETS: Mapping[int, Mapping[str, str]] = {}


class SweepPlan(NamedTuple):
    """A sweep: its members have records of their own in its own, made with it.

    Args:
        members: How many there are.
        max_parallel: How many may run at the same time; None for as many as there is room for.
        runs_after: What each member that runs after others waits for: positions, or ids of jobs elsewhere.
        paths: Where the members' supervisors import from.
        secrets: Variables of members that are in no file, and that their supervisors are given.
        resumed: Whether members may have ended before: those that failed are run again.
        described: The `JobInfo` that the sweep begins with, fit for JSON; the coordinator writes over it.
    """

    job_id: str
    members: int
    max_parallel: int | None = None
    runs_after: Mapping[int, tuple[int | str, ...]] = _NOBODY
    paths: tuple[str, ...] = ()
    secrets: Mapping[int, Mapping[str, str]] = _NO_SECRETS
    resumed: bool = False
    shown: Mapping[str, Any] = NO_VALUES
    described: Mapping[str, Any] = NO_VALUES
    submitted_at: float = 0.0
    keep: Keep | None = None
    # As of a job of one replica, which has nothing to prepare and takes no room.
    replicas: int = 1
    payload: bytes | None = None
    preparation: Preparation | None = None
    admission: Admission | None = None
    granted: Grant | None = None
    host_end: HostEnd | None = None
    after: tuple[str, ...] = ()
    withheld: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        return f"<SweepPlan of {self.job_id}>"  # some of its variables are secret
