"""What a scheduler knows of each of its workers, and what it decides about them."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from fray import WorkerDiedError
from fray_local._process.owner.actor_reservations import ActorReservation
from fray_local._process.owner.resources import Needs
from fray_local._process.owner.worker_connection import WorkerConnection


@dataclass(slots=True)
class Decisions:
    """What was decided, to be carried out."""

    given: list[tuple[WorkerConnection, list[Any]]] = field(default_factory=list)
    retired: list[WorkerConnection] = field(default_factory=list)
    lost: list[tuple[Any, WorkerDiedError]] = field(default_factory=list)
    granted: list[ActorReservation] = field(default_factory=list)


class WorkerSlot:
    """What the scheduler knows of one of its workers; in the scheduler's serial queue."""

    __slots__ = (
        "ahead",
        "away",
        "gpus",
        "idle_since",
        "last_end",
        "needs",
        "revoking",
        "runs",
        "served",
        "worker",
    )

    def __init__(self, worker: WorkerConnection, needs: Needs, gpus: list[str]) -> None:
        self.worker, self.needs, self.gpus = worker, needs, gpus
        self.runs: dict[Any, float] = {}  # what it has, with what each is expected to take
        self.ahead = 0.0  # the sum of that
        self.away: set[Hashable] = set()  # why it takes no slot: it waits for others, or for a consumer
        self.served = self.last_end = 0
        self.revoking = False
        self.idle_since = 0.0

    def take(self, call: Any, seconds: float) -> None:
        """Have a call more, which is expected to take so long."""
        self.runs[call] = seconds
        self.ahead += seconds

    def drop(self, call: Any) -> None:
        """Have a call less."""
        self.ahead -= self.runs.pop(call, 0.0)
        if not self.runs:
            self.ahead = 0.0


def work_ahead(slot: WorkerSlot) -> float:
    return slot.ahead


def idle_since(slot: WorkerSlot) -> float:
    return slot.idle_since
