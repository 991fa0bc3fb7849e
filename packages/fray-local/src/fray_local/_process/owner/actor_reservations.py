"""What living actors have reserved, and what waits for that.

An actor waits for room like a task. A program that makes more actors than there is room for would wait
without a word: what only the end of an actor makes room for is named after a while, and fails when the
context ends, because its own actors end after everything else.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Hashable
from enum import Enum
from typing import Any

from fray import DeadlockError
from fray.backend import dispatch
from fray_local._process.owner.resources import Needs, Resources, in_words

_LOOK_SECONDS = 1.0  # between looks for what waits for an actor's end
_SILENT_SECONDS = 5.0  # of waiting for an actor's end, after which it is said
_log = logging.getLogger("fray.process")


class ReservationState(Enum):
    """How far a reservation is; no step leads back."""

    NEW = "new"
    WAITING = "waiting"
    HELD = "held"
    ENDED = "ended"


class ActorReservation:
    """That of one actor, from its constructor's call to the end of its last process.

    Args:
        label: Of the actor, in messages.
        granted: Called once there is room.
        refused: Called instead where there never will be.
    """

    __slots__ = ("ends", "gpus", "granted", "label", "needs", "refused", "state")

    def __init__(
        self, needs: Needs, label: str, granted: Callable[[], None], refused: Callable[[Exception], None]
    ) -> None:
        self.needs, self.label, self.granted, self.refused = needs, label, granted, refused
        self.state = ReservationState.NEW  # changed in the scheduler's serial queue only
        self.ends = False  # the actor's process is asked to end
        self.gpus: list[str] = []

    @property
    def held(self) -> bool:
        """Whether the actor has what it needs."""
        return self.state is ReservationState.HELD


class ActorReservations:
    """All of a context; changed in the scheduler's serial queue only.

    Args:
        lines: The tasks that wait, by what they need.
        later: Has a function called in the serial queue after so many seconds.
        is_stuck: Says whether the context is ending, and nothing runs in it that could end an actor.
    """

    def __init__(
        self,
        free: Resources,
        lines: dict[Needs, deque[Any]],
        later: Callable[[float, Callable[[], None]], None],
        is_stuck: Callable[[], bool],
    ) -> None:
        self._free, self._lines, self._later, self._is_stuck = free, lines, later, is_stuck
        self._waiting: list[ActorReservation] = []
        self._held: list[ActorReservation] = []
        self._looking = False
        self._was_stuck = False  # at the last look
        self._since: dict[Any, float] = {}  # when each that waits for an actor's end was found to; inf: told

    def add(self, reservation: ActorReservation) -> None:
        """Take one that is to have room; an actor asks for its own with every call until it is granted."""
        if reservation.state is ReservationState.NEW:
            reservation.state = ReservationState.WAITING
            self._waiting.append(reservation)

    def grant(self) -> list[ActorReservation]:
        """Reserve for those that there is room for; an older one first, where both need the same."""
        granted: list[ActorReservation] = []
        wanted: set[str] = set()
        for one in self._waiting:
            names = {name for name, _ in one.needs.amounts}
            if wanted.isdisjoint(names) and self._free.fits(one.needs):
                one.gpus, one.state = self._free.take_for_actor(one.needs), ReservationState.HELD
                granted.append(one)
            else:
                wanted |= names
        if granted:
            self._waiting = [one for one in self._waiting if not one.held]
            self._held += granted
        return granted

    def remove(self, reservation: ActorReservation) -> None:
        """End one, whether it has room or waits for it; one that has ended stays so."""
        before, reservation.state = reservation.state, ReservationState.ENDED
        if before is ReservationState.HELD:
            self._held.remove(reservation)
            self._free.give_back_of_actor(reservation.needs, reservation.gpus)
        elif before is ReservationState.WAITING:
            self._waiting.remove(reservation)

    def watch(self) -> None:
        """Look for what waits for the end of an actor, as long as anything may."""
        if self._held and not self._looking and (self._lines or self._waiting):
            self._looking = True
            self._later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        tasks = [needs for needs in self._lines if self._free.waits_for_actors(needs)]
        actors = [one for one in self._waiting if self._free.waits_for_actors(one.needs)]
        self._say(
            [
                *((needs, self._lines[needs][0].label, needs) for needs in tasks),
                *((one, one.label, one.needs) for one in actors),
            ]
        )
        stuck = bool(tasks or actors) and self._is_stuck() and not any(one.ends for one in self._held)
        # Twice: that a task has ended is known a moment before the end of an actor that only it could call.
        if stuck and self._was_stuck:
            self._fail(tasks, actors)
        self._was_stuck = stuck
        self._looking = False
        if tasks or actors:
            self.watch()

    def _say(self, blocked: list[tuple[Hashable, str, Needs]]) -> None:
        """Name what waits for long, once."""
        now = time.monotonic()
        since = {key: self._since.get(key, now) for key, _, _ in blocked}
        for key, label, needs in blocked:
            if now - since[key] >= _SILENT_SECONDS:
                since[key] = float("inf")
                _log.warning("%s", self._problem(label, needs))
        self._since = since

    def _fail(self, tasks: list[Needs], actors: list[ActorReservation]) -> None:
        for needs in tasks:
            for call in self._lines.pop(needs):
                if call.claim():
                    dispatch(call.fail(self._error(call.label, needs)))
        for one in actors:
            one.refused(self._error(one.label, one.needs))

    def _problem(self, label: str, needs: Needs) -> str:
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

    def _error(self, label: str, needs: Needs) -> DeadlockError:
        """Return that of what waits for an actor that ends only after it."""
        return DeadlockError(f"the context ends, and {self._problem(label, needs)}")
