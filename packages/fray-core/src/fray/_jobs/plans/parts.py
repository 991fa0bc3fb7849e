"""Parts of a cluster that a job's supervisor calls: each is pickled with the plan."""

from typing import Protocol

from fray._jobs.plans.values import Grant, HostEnding


class Preparation(Protocol):
    """What is done in a job before its replicas start, in a child of the supervisor; pickled."""

    @property
    def waits_for(self) -> str:
        """What a pending job reports that it waits for meanwhile."""
        ...

    def prepare(self, record: str) -> None:
        """Do it; what is printed goes to the job's environment log, and `SystemExit` fails the job."""
        ...


class HostEnd(Protocol):
    """Finds out why the supervisor itself got SIGTERM. Pickled with the plan."""

    def why(self) -> HostEnding | None:
        """Return how the job ends by that; None where it is to be started again, on this host or another."""
        ...


class Admission(Protocol):
    """Where a job waits for room. Pickled with the plan."""

    def enter(self) -> Grant | str:
        """Request room, or request it again; where there is none yet, return what the job waits for."""
        ...

    def leave(self) -> None:
        """Give back the room, or the place in line."""
        ...
