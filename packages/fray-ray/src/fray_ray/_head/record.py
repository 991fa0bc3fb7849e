"""What a scheduler needs to go on with a job when the one before it was killed."""

import pickle
import time
from dataclasses import dataclass, field, replace
from typing import Any

from fray.backend import ClearTree, EndTree, Noticed, RestartRequested, StopRequested, Supervision
from fray_ray._packed_tasks import EARLIER_IN_ENTRY
from fray_ray._scheduler import VERSION


@dataclass(kw_only=True)
class ReplicaActorRecord:
    """The actor that was made for a replica.

    Args:
        name: What Ray knows it by.
        node: Where it is; empty before it is up.
        attempt: The attempt that runs on it; 0 before one began.
        log: How long the job's log was when the attempt began.
    """

    name: str
    node: str = ""
    attempt: int = 0
    log: int = 0


@dataclass(kw_only=True)
class JobRecord:
    """All that is known of a job and that its plan does not say.

    Args:
        machine: The state of its supervision.
        takers: How many schedulers have taken it up from another one.
        requests: What users and providers have said, in their order, and the supervision does not know.
        ending: What was begun to end replicas, and is not done.
        ports: By replica and attempt.
        endpoints: Those that replicas have registered.
        generation: Counts the times that room was asked for; the names of placement groups have it.
        units: How many units it was asked for.
        leaving: Whether the room is to be given back.
        avoid: Nodes that are lost, which Ray may not know yet.
        meeting: Where the replicas of a gang meet: the address and the ports.
        notices: Why the node of a replica goes away, by replica.
        orphans: Until when the program of a replica may run on whose actor has ended, by replica.
        submitted: Whether Ray has started the job's own process, or was asked to.
        config: What Ray gave that process about the job, as JSON.
        preceded: Whether all jobs that it runs after have succeeded; they may be removed then.
        told: Whether the command for the end of the job was run.
        warnings: What its users should know of how it runs.
    """

    machine: Supervision
    takers: int = 0
    requests: list[Noticed | RestartRequested | StopRequested] = field(default_factory=list)
    ending: ClearTree | EndTree | None = None
    ports: dict[tuple[int, int], dict[str, int]] = field(default_factory=dict)
    endpoints: list[dict[str, Any]] = field(default_factory=list)
    generation: int = 0
    units: int = 0
    leaving: bool = False
    avoid: list[str] = field(default_factory=list)
    actors: dict[int, ReplicaActorRecord] = field(default_factory=dict)
    meeting: tuple[str, list[int]] | None = None
    notices: dict[int, str] = field(default_factory=dict)
    orphans: dict[int, float] = field(default_factory=dict)
    submitted: bool = False
    config: str | None = None
    preceded: bool = False
    told: bool = False
    warnings: tuple[str, ...] = ()

    def packed(self) -> bytes:
        """Return it as it is stored; a file has the earlier attempts that are too many."""
        machine = self.machine.trimmed(EARLIER_IN_ENTRY)
        attempts = {(each.replica, each.attempt) for task in machine.tasks for each in (task, *task.previous)}
        ports = {attempt: ports for attempt, ports in self.ports.items() if attempt in attempts}
        kept = replace(self, machine=machine, ports=ports)
        return _VERSION + pickle.dumps((time.monotonic(), time.time(), kept))


def unpacked(data: bytes) -> JobRecord | None:
    """Return what was stored, with its times by this machine's clock; None for another version's."""
    if not data.startswith(_VERSION):
        return None
    monotonic, wall, record = pickle.loads(data[len(_VERSION) :])
    if not isinstance(record, JobRecord):
        raise TypeError(f"not the record of a job: {type(record).__name__}")
    passed = time.time() - wall
    ahead = time.monotonic() - (monotonic + passed)
    if abs(ahead) > _ANOTHER_CLOCK:
        record.machine.shift(ahead)
    return record


_VERSION = f"{VERSION}\n".encode()
_ANOTHER_CLOCK = 5.0  # seconds by which two monotonic clocks differ that are not one: the head was restarted
