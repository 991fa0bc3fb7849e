"""What happens to jobs, tasks, actors and leases, as listeners receive it."""

import enum
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


class EventKind(enum.StrEnum):
    """What happened. Something that is submitted in one process may start and end in another."""

    JOB_SUBMITTED = "job_submitted"
    """`launch` was called. What a listener writes into `carrier` the job finds in its environment."""
    JOB_LAUNCHED = "job_launched"
    """The cluster has taken the job, or refused it."""
    JOB_ENDED = "job_ended"
    """A process that waited for the job has seen its end; reported once in each such process."""
    REPLICA_STARTED = "replica_started"
    """In the job: its function is about to be called. Commands report no events."""
    REPLICA_ENDED = "replica_ended"
    TASK_SUBMITTED = "task_submitted"
    """What a listener writes into `carrier` arrives with the task."""
    TASK_STARTED = "task_started"
    TASK_ENDED = "task_ended"
    ACTOR_SUBMITTED = "actor_submitted"
    ACTOR_STARTED = "actor_started"
    """Where the actor lives: its constructor is about to be called."""
    ACTOR_READY = "actor_ready"
    """Its constructor has returned, or raised."""
    CALL_STARTED = "call_started"
    """Where the actor lives: one of its methods is about to be called."""
    CALL_ENDED = "call_ended"
    LEASE_TAKEN = "lease_taken"
    LEASE_SETTLED = "lease_settled"
    """Its item is done, was released, or the lease turned out to be no longer held."""
    POOL_REPORTED = "pool_reported"
    """A pool of workers reports its counts, every 10 seconds and at its end; `details` has its counts."""

    @property
    def subject(self) -> str:
        """What it happened to: job, replica, task, actor, call, lease or pool."""
        return self.value.partition("_")[0]

    @property
    def phase(self) -> str:
        """What happened to it: submitted, started, ended …"""
        return self.value.partition("_")[2]


class Outcome(enum.StrEnum):
    """How something ended."""

    OK = "ok"
    ERROR = "error"
    CANCELLED = "cancelled"
    """A task was cancelled, a stream closed, a job stopped."""
    RELEASED = "released"
    """A lease was given back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One thing that happened. It never carries arguments, results, items or values of variables.

    Args:
        id: The id of the job, task, actor, call or lease; the same in all its events.
        name: The name of the job, function, class, method or queue.
        parent_id: The id of the job, replica, task or call that submitted it; for a call, that of its actor.
        time: Seconds since the epoch.
        seconds: At the end, how long it took. At the start, how long it had waited since it was submitted.
            For a lease that is taken, the time since its item was pushed.
        error: The name of the exception's type, or why a job failed.
        details: What only some kinds have: `replica`, `item_id`, `attempt`, the counts of a pool.
        carrier: What a listener passes on from the place where something is submitted to the place where it
            starts.
    """

    kind: EventKind
    id: str
    name: str
    parent_id: str | None = None
    time: float = field(default_factory=time.time)
    seconds: float | None = None
    outcome: Outcome | None = None
    error: str | None = None
    details: Mapping[str, str | int] = field(default_factory=dict)
    carrier: dict[str, str] = field(default_factory=dict)


class Listener(Protocol):
    """Receives events in the thread where they happen; it must be quick and thread-safe, and run no task.

    An exception that it raises is logged once and changes nothing.
    """

    def on_event(self, event: Event, /) -> None:
        """Receive an event."""
