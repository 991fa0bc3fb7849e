"""Supervision: events go in, actions come out."""

from __future__ import annotations

from fray._values.job_words import ExitReason, JobStatus
from fray._values.light_tuples import NamedTuple


class Policy(NamedTuple):
    """The part of a request about the life of its replicas, of which the first has this number.

    Where it `places` them, an attempt starts when `Placed` has said that its replica has a place.
    """

    replicas: int
    gang: bool = False
    max_retries_failure: int = 0
    max_retries_preemption: int = 0
    timeout: float | None = None
    first_replica: int = 0
    places: bool = False


# --- events ---


class AttemptEnd(NamedTuple):
    """How an attempt ended: `how` completes "replica 0 ...", `details` are further lines of the message."""

    reason: ExitReason
    exit_code: int | None
    how: str = ""
    details: str = ""
    peak_memory: int | None = None
    cpu_time: float | None = None

    @property
    def good(self) -> bool:
        return self.exit_code == 0 and self.reason is ExitReason.EXITED


class Begin(NamedTuple):
    """The job has what it needs: its replicas may start."""


class Placed(NamedTuple):
    """Replicas have a place, each for one attempt."""

    replicas: tuple[int, ...]


class StartFailed(NamedTuple):
    """An attempt could not be started."""

    replica: int
    attempt: int
    end: AttemptEnd


class Ended(NamedTuple):
    """The main process of an attempt has ended."""

    replica: int
    attempt: int
    end: AttemptEnd


class Noticed(NamedTuple):
    """The host of a replica goes in so many seconds."""

    replica: int
    attempt: int
    grace: float


class RestartRequested(NamedTuple):
    """A user wants an attempt to end within so many seconds, and the next one to start; a gang's as one."""

    replica: int
    attempt: int
    grace: float


class StopRequested(NamedTuple):
    """A user wants the job to end, and gives it so many seconds."""

    grace: float


class CannotRun(NamedTuple):
    """The job cannot start, or not be supervised any more."""

    reason: ExitReason
    message: str
    grace: float = 0.0


class TreeEnded(NamedTuple):
    """After `EndTree` or `ClearTree`: no process of the job is left."""


class Tick(NamedTuple):
    """Time has passed."""


Event = (
    Begin
    | Placed
    | StartFailed
    | Ended
    | Noticed
    | RestartRequested
    | StopRequested
    | CannotRun
    | TreeEnded
    | Tick
)

# --- actions ---


class StartReplica(NamedTuple):
    """Start an attempt; those of a gang come in one list, with one attempt number."""

    replica: int
    attempt: int


class NotifyReplica(NamedTuple):
    """Notify a replica that its host is taken away, before `StopReplica` does."""

    replica: int
    attempt: int
    grace: float


class StopReplica(NamedTuple):
    """SIGTERM to the session of a replica, or SIGKILL where it is forced."""

    replica: int
    attempt: int
    grace: float
    forced: bool = False


class ClearReplica(NamedTuple):
    """The main process of an attempt has ended, or did not start: kill what is left in its session."""

    replica: int
    attempt: int


class ClearTree(NamedTuple):
    """No replica runs: kill what is left of the tree, and report `TreeEnded`; another attempt may follow."""


class EndTree(NamedTuple):
    """End the job's tree and the jobs below it: SIGTERM, or SIGKILL where it is forced; then `TreeEnded`."""

    grace: float
    forced: bool = False


class SettleJob(NamedTuple):
    """Nothing is left: write down how the job ended."""

    status: JobStatus
    error_message: str | None


Action = StartReplica | NotifyReplica | StopReplica | ClearReplica | ClearTree | EndTree | SettleJob
