"""Finds a place for each replica that wants one: room for the job, then an actor that is up in it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from fray.backend import PORTS, AttemptEnd, Begin, CannotRun, JobPhase, Placed
from fray.cluster import ExitReason
from fray_ray._head import nodes
from fray_ray._head.attempts import end_from_outside
from fray_ray._head.job_board import JobBoard
from fray_ray._head.job_tasks import JobTasks
from fray_ray._head.joining import Joining
from fray_ray._head.lost_nodes import ActorLostError, LostNodes
from fray_ray._head.orphans import Orphans
from fray_ray._head.output import Output
from fray_ray._head.reservation import Reservation
from fray_ray._head.reservation_queue import ReservationQueue
from fray_ray._plan import Plan

_LOOK = 0.5  # seconds between looks at the places of actors
# What Ray raises for a request that it refuses. All else is an error of a call of the head, which may be away
# for a moment: the job is taken up again.
_REFUSALS = TypeError, ValueError

Say = Callable[[str], None]
"""Says for what a job waits."""
Prepare = Callable[[Say], Awaitable[CannotRun | None]]
"""Waits for what a job needs before it asks for room."""


class Placing:
    """The places of one job's replicas.

    Args:
        prepare: Waited for before the job asks for room for the first time.
        tell: Called with events for the job's machine: replicas are placed, the job cannot run.

    Attributes:
        unstartable: By replica that is placed: why it has no actor.
    """

    def __init__(
        self,
        plan: Plan,
        board: JobBoard,
        queue: ReservationQueue,
        reservation: Reservation,
        output: Output,
        *,
        lost: LostNodes,
        orphans: Orphans,
        joining: Joining,
        tasks: JobTasks,
        prepare: Prepare,
        say: Say,
        tell: Callable[[Any], None],
    ) -> None:
        self._plan, self._board, self._machine, self._record = plan, board, board.machine, board.record
        self._queue, self._reservation, self._output = queue, reservation, output
        self._lost, self._orphans, self._joining, self._tasks = lost, orphans, joining, tasks
        self._prepare, self._say, self._tell = prepare, say, tell
        self.unstartable: dict[int, AttemptEnd] = {}
        self._searches: dict[int, asyncio.Task[None]] = {}  # by replica
        self._entering: asyncio.Task[CannotRun | None] | None = None
        self._looks_at = 0.0
        self._waiting: set[int] = set()  # replicas that wait for the nodes of their places to go
        # Replicas on such nodes by the last look, which serves until that time.
        self._leaving: set[int] = set()
        self._leaving_until = 0.0

    def search(self) -> None:
        """Begin to find a place for each replica that wants one; for a gang all at once."""
        wanted = [number for number in self._machine.unplaced if number not in self._searches]
        if not wanted:
            return
        if self._plan.gang:
            self._searches.update(dict.fromkeys(wanted, self._tasks.start(self._place_gang())))
            return
        self._leaving_until = 0.0
        for number in wanted:
            self._searches[number] = self._tasks.start(self._place(number))

    def note_placed(self, replicas: Iterable[int]) -> None:
        """Note that the machine knows these as placed."""
        for number in replicas:
            self._searches.pop(number, None)

    def take_up(self) -> None:
        """Go on in the room that another scheduler has found."""
        self._entering = asyncio.create_task(_entered())

    def cancel(self) -> None:
        """Find no place any more."""
        for task in set(self._searches.values()):
            task.cancel()
        self._searches.clear()
        if self._entering is not None and not self._entering.done():
            self._entering.cancel()
            self._entering = None

    # --- a replica, a gang ---

    async def _place(self, number: int) -> None:
        """Find a place for one of several replicas that know nothing of each other."""
        await self._orphans.ended(number)
        while await self._enter():
            if not await self._await_usable_place(number):
                continue
            end = await self._bring_up(number)
            if end is None or end.reason is not ExitReason.PREEMPTED:
                await self._joining.variables()
                self.unstartable.pop(number, None)
                if end is not None:
                    self.unstartable[number] = end
                self._tell_placed([number])
                return
            # It has not started: that is no attempt.
            self._leaving_until = 0.0
            self._output.write(f"[fray] replica {number} is placed again{end.details}\n".encode())

    async def _await_usable_place(self, number: int) -> bool:
        """Wait while a replica's place is on a node that goes, or is gone and Ray does not know it yet.

        Ray would start it there. It gives the replica another place when it knows that the node is gone. When
        all replicas of the job wait for that, the room is given back, and the job asks for other room.

        Returns:
            Whether the job has its room still.
        """
        generation = self._record.generation
        self._waiting.add(number)
        try:
            while self._record.generation == generation and not self._record.leaving:
                if number not in self._look_at_leaving():
                    return True
                if len(self._waiting) == len(self._machine.tasks):
                    self._reservation.close()
                    self._leaving_until = 0.0
                    self._queue.look_soon()
                    return False
                await asyncio.sleep(_LOOK)
            return False
        finally:
            self._waiting.discard(number)

    def _look_at_leaving(self) -> set[int]:
        """Return the replicas whose places are on nodes that go; one look serves all that ask in its time."""
        now = time.monotonic()
        if now >= self._leaving_until:
            self._leaving, self._leaving_until = self._lost.leaving(), now + _LOOK
        return self._leaving

    async def _bring_up(self, number: int) -> AttemptEnd | None:
        """Have an actor for a replica; return why there is none."""
        try:
            await self._await_up(self._reservation.make_actors([number]))
        except _ActorFailedError as error:
            return await self._lost.why_gone(number, error.end)
        except _REFUSALS as error:  # this attempt cannot start
            return await self._lost.why_gone(number, end_from_outside(error))
        return None

    async def _place_gang(self) -> None:
        """Find a place for all replicas; they meet at the first."""
        if not await self._enter():
            return
        if self._reservation.replicas != len(self._machine.tasks):
            self._machine.resize(self._reservation.replicas)
        numbers = list(range(self._reservation.replicas))
        self.unstartable.clear()
        try:
            actors = self._reservation.make_actors(numbers)
            await self._await_up(actors)
            ports = await self._lost.reach(0, lambda: actors[0].free_ports.remote(PORTS))
            node = nodes.living_and_dead()[self._record.actors[0].node]
            self._record.meeting = node["NodeManagerAddress"], list(ports)
        except _ActorFailedError as error:
            self.unstartable[error.number] = await self._lost.why_gone(error.number, error.end)
        except ActorLostError as error:
            self.unstartable[0] = await self._lost.why_gone(0, end_from_outside(error.cause))
        except _REFUSALS as error:  # as above
            self.unstartable[0] = await self._lost.why_gone(0, end_from_outside(error))
        await self._joining.variables()
        self._tell_placed(numbers)

    def _tell_placed(self, numbers: list[int]) -> None:
        if self._machine.phase is JobPhase.PENDING:
            self._tell(Begin())
        self._tell(Placed(tuple(numbers)))

    # --- room ---

    async def _enter(self) -> bool:
        """Wait until the job has room; return whether it has."""
        if self._entering is None or (self._entering.done() and self._record.leaving):
            self._entering = asyncio.create_task(self._find_room())
        try:
            problem = await asyncio.shield(self._entering)
        except _REFUSALS as error:
            problem = CannotRun(ExitReason.COULD_NOT_START, f"it could not be placed: {error!r}")
        if problem is not None:
            self._tell(problem)
        return problem is None

    async def _find_room(self) -> CannotRun | None:
        began = bool(self._machine.started_at)
        problem = None if began else await self._prepare(self._say)
        if problem is not None:
            return problem
        limit = self._plan.placement_timeout
        try:
            async with asyncio.timeout(limit) as time_limit:
                await self._queue.find(self._plan, self._reservation, self._say)
        except TimeoutError:
            if limit is None or not time_limit.expired():  # Ray's: the head does not answer
                raise
            waited = self._board.info.pending_reason
            message = f"not placed within {limit:g} s: {waited}"
            return CannotRun(ExitReason.COULD_NOT_START, message)
        self._say("starting its replicas")
        self._joining.begin()
        return None

    # --- actors ---

    async def _await_up(self, actors: Mapping[int, Any]) -> None:
        """Wait until actors are up, and note where they are.

        Raises:
            _ActorFailedError: One does not come up.
        """
        waiting = {
            asyncio.ensure_future(self._lost.reach(number, actor.node_id.remote)): number
            for number, actor in actors.items()
        }
        try:
            while waiting:
                done, _ = await asyncio.wait(waiting, timeout=_LOOK, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    number = waiting.pop(task)
                    self._note_up(number, task)
                if not done:
                    self._look_at_places(next(iter(waiting.values())))
        finally:
            for task in waiting:
                task.cancel()

    def _note_up(self, number: int, task: "asyncio.Future[str]") -> None:
        try:
            node = task.result()
        except ActorLostError as error:
            raise _ActorFailedError(number, end_from_outside(error.cause)) from error
        if (known := self._record.actors.get(number)) is not None:
            known.node = node

    def _look_at_places(self, number: int) -> None:
        """See where actors come up; a gang that has lost a place does not wait for another.

        One look serves all replicas: each asks Ray, and the loop of all jobs waits for that.
        """
        now = time.monotonic()
        if now < self._looks_at:
            return
        self._looks_at = now + _LOOK
        if self._plan.gang and not self._reservation.intact():
            raise _ActorFailedError(number, AttemptEnd(ExitReason.LOST, None, "lost its place"))
        living = {node_id for node_id, node in nodes.living_and_dead().items() if node["Alive"]}
        for replica, node in self._reservation.nodes().items():
            known = self._record.actors.get(replica)
            if known is not None and node in living and not known.attempt:
                known.node = node


class _ActorFailedError(Exception):
    """An actor does not come up."""

    def __init__(self, number: int, end: AttemptEnd) -> None:
        super().__init__(number, end)
        self.number, self.end = number, end


async def _entered() -> None:
    return None
