"""What a cluster may give a job's supervisor to be asked: each is pickled with the plan."""

from typing import Protocol

from fray._jobs.plan_values import Grant, HostEnding


class Preparation(Protocol):
    """What is done in a job before its replicas start, in a child of the supervisor; pickled."""

    @property
    def waits_for(self) -> str:
        """What a pending job is said to wait for meanwhile."""
        ...

    def prepare(self, record: str) -> None:
        """Do it; what is printed goes to the job's environment log, and `SystemExit` fails the job."""
        ...


class HostEnd(Protocol):
    """What says why the supervisor itself got SIGTERM. Pickled with the plan."""

    def why(self) -> HostEnding | None:
        """Say how the job ends by that; None where it is to be started again, on this host or another."""
        ...


class Admission(Protocol):
    """Where a job waits for room. Pickled with the plan."""

    def enter(self) -> Grant | str:
        """Ask for room, or ask again; where there is none yet, return what the job waits for."""
        ...

    def leave(self) -> None:
        """Give back the room, or the place in line."""
        ...
