"""What living actors have reserved, and what waits for that.

An actor waits for room like a task. A program that makes more actors than there is room for would wait
without a word: what only the end of an actor makes room for is named after a while, and fails when the
context ends, because its own actors end after everything else.
"""

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from fray import DeadlockError
from fray_local._process.owner.resources import Needs, Resources, in_words

_SILENT_SECONDS = 5.0  # of waiting for an actor's end, after which it is said
_log = logging.getLogger("fray.process")


class ActorReservation:
    """That of one actor, from its constructor's call to the end of its last process.

    Args:
        label: Of the actor, in messages.
        granted: Called once there is room.
        refused: Called instead where there never will be.
    """

    __slots__ = ("gpus", "granted", "held", "label", "needs", "refused")

    def __init__(
        self, needs: Needs, label: str, granted: Callable[[], None], refused: Callable[[Exception], None]
    ) -> None:
        self.needs, self.label, self.granted, self.refused = needs, label, granted, refused
        self.held = False
        self.gpus: list[str] = []


class ActorReservations:
    """All of a context; changed in the scheduler's serial queue only."""

    def __init__(self, free: Resources) -> None:
        self._free = free
        self._waiting: list[ActorReservation] = []
        self._held: list[ActorReservation] = []
        self._since: dict[Any, float] = {}  # when each that waits for an actor's end was found to; inf: told

    @property
    def in_the_way(self) -> bool:
        """Whether anything is reserved that something may wait for."""
        return bool(self._held)

    @property
    def waits(self) -> bool:
        """Whether one waits for room."""
        return bool(self._waiting)

    def add(self, reservation: ActorReservation) -> None:
        """Take one that is to have room."""
        self._waiting.append(reservation)

    def grant(self) -> list[ActorReservation]:
        """Reserve for those that there is room for; an older one first, where both need the same."""
        granted: list[ActorReservation] = []
        wanted: set[str] = set()
        for one in self._waiting:
            names = {name for name, _ in one.needs.amounts}
            if wanted.isdisjoint(names) and self._free.fits(one.needs):
                one.gpus, one.held = self._free.take_for_actor(one.needs), True
                granted.append(one)
            else:
                wanted |= names
        if granted:
            self._waiting = [one for one in self._waiting if not one.held]
            self._held += granted
        return granted

    def remove(self, reservation: ActorReservation) -> None:
        """End one, whether it has room or waits for it; one that has ended stays so."""
        if reservation.held:
            reservation.held = False
            self._held.remove(reservation)
            self._free.give_back_of_actor(reservation.needs, reservation.gpus)
        elif reservation in self._waiting:
            self._waiting.remove(reservation)

    def blocked(self, lines: Iterable[Needs]) -> tuple[list[ActorReservation], list[Needs]]:
        """Return what only the end of an actor makes room for: actors, and tasks by what they need."""
        waits = self._free.wait_for_actors
        return [one for one in self._waiting if waits(one.needs)], [needs for needs in lines if waits(needs)]

    def say(self, blocked: Iterable[tuple[Any, str, Needs]]) -> None:
        """Name what waits for long, once."""
        now = time.monotonic()
        since = {key: self._since.get(key, now) for key, _, _ in blocked}
        for key, label, needs in blocked:
            if now - since[key] >= _SILENT_SECONDS:
                since[key] = float("inf")
                _log.warning("%s", self.problem(label, needs))
        self._since = since

    def problem(self, label: str, needs: Needs) -> str:
        """Say what waits for what."""
        names = {name for name, _ in needs.amounts}
        holders = [
            f"{one.label} ({in_words(one.needs)})"
            for one in self._held
            if names & {name for name, _ in one.needs.amounts}
        ]
        return (
            f"{label} needs {in_words(needs)}, which living actors hold: {', '.join(holders)}; end one of "
            "them with kill(handle), or give the context more"
        )

    def error(self, label: str, needs: Needs) -> DeadlockError:
        """Return that of what waits for an actor that ends only after it."""
        return DeadlockError(f"the context ends, and {self.problem(label, needs)}")
