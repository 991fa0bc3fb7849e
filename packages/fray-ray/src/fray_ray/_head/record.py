"""What another driver needs to go on with a job when this one was killed: data, as JSON and back. Pure."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(kw_only=True)
class HostRecord:
    """The actor that was made for a replica.

    Args:
        name: What Ray knows it by.
        node: Where it is; empty before it is up.
        attempt: The attempt that runs on it; 0 before one began.
        log: How long the job's log was when the attempt began.
        restarting: Whether the attempt was ended for another one.
    """

    name: str
    node: str = ""
    attempt: int = 0
    log: int = 0
    restarting: bool = False


@dataclass(kw_only=True)
class GangRecord:
    """The attempt of a gang that runs.

    Args:
        address: Where the replicas meet, with `ports`.
        culprit: The replica for which the others are ended.
        told: Those that were asked to end.
        noticed: Why the node of a replica goes away.
        grace: Seconds that those have.
        restart: The grace with which somebody asked for the next attempt.
    """

    attempt: int
    address: str
    ports: list[int]
    culprit: int | None = None
    told: list[int] = field(default_factory=list)
    noticed: dict[int, str] = field(default_factory=dict)
    grace: float = 0.0
    restart: float | None = None


@dataclass(kw_only=True)
class DriverRecord:
    """All that a driver knows and the plan does not say.

    Args:
        state: The job and its replicas, as the entry of Ray's table has them.
        beyond: Replicas that a gang of fewer units leaves out, packed.
        endpoints: Those that replicas have registered.
        failures: By replica; of a gang, that of all is replica 0's.
        first_failure: The message of the first attempt that failed.
        generation: Counts the times that room was asked for; the names of placement groups have it.
        units: How many units it was asked for.
        leaving: Whether the room is to be given back.
        avoid: Nodes that are lost, which Ray may not know yet.
        outcome: How the job ended: status, reason, message.
        told: Whether the command for the end of the job was run.
    """

    state: dict[str, str] = field(default_factory=dict)
    beyond: str = ""
    endpoints: list[dict[str, Any]] = field(default_factory=list)
    preemptions: int = 0
    failures: dict[int, int] = field(default_factory=dict)
    first_failure: str | None = None
    generation: int = 0
    units: int = 0
    leaving: bool = False
    avoid: list[str] = field(default_factory=list)
    hosts: dict[int, HostRecord] = field(default_factory=dict)
    gang: GangRecord | None = None
    outcome: tuple[str, str, str | None] | None = None
    told: bool = False

    def to_json(self) -> bytes:
        """Return it as it is stored."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "DriverRecord":
        """Return what was stored."""
        said = json.loads(data)
        hosts = {int(replica): HostRecord(**host) for replica, host in said["hosts"].items()}
        gang = said["gang"]
        if gang is not None:
            gang = GangRecord(**{**gang, "noticed": _by_number(gang["noticed"])})
        outcome = None if said["outcome"] is None else tuple(said["outcome"])
        failures = _by_number(said["failures"])
        return cls(**{**said, "hosts": hosts, "gang": gang, "outcome": outcome, "failures": failures})


def _by_number(said: Mapping[str, Any]) -> dict[int, Any]:
    return {int(number): value for number, value in said.items()}
