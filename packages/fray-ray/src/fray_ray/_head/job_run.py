"""Runs the replicas of one job: `Supervision` decides, and this carries its actions out on Ray.

placing     all replicas wait for room, then for their actors (`Placing`)
running     an actor runs each attempt; what it says is followed (`AttemptRun`)
ending      attempts are asked to end, then their actors are ended; the room is given back

Everything happens on one event loop. What takes long runs on a thread of its own (`aside`).
"""

import asyncio
import contextlib
import functools
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import ray

from fray import ClusterUnavailableError
from fray.backend import (
    AttemptEnd,
    CannotRun,
    ClearReplica,
    ClearTree,
    Ended,
    EndTree,
    JobPhase,
    Meeting,
    Noticed,
    NotifyReplica,
    Placed,
    RestartRequested,
    StartFailed,
    StartReplica,
    StopReplica,
    StopRequested,
    Tick,
    TreeEnded,
)
from fray.cluster import ExitReason, JobStatus
from fray_ray._head import nodes as nodes_
from fray_ray._head.asides import aside, insist
from fray_ray._head.attempts import AttemptRun
from fray_ray._head.job_board import JobBoard
from fray_ray._head.job_tasks import JobTasks
from fray_ray._head.joining import Join, Joining
from fray_ray._head.log_marks import LogMarks
from fray_ray._head.lost_nodes import ActorLostError, LostNodes
from fray_ray._head.orphans import Orphans
from fray_ray._head.outliving import LEASE
from fray_ray._head.output import Output
from fray_ray._head.placing import Placing, Prepare, Say
from fray_ray._head.ranks import variables_of
from fray_ray._head.replica_log import ReplicaLog
from fray_ray._head.reservation import Reservation
from fray_ray._head.reservation_queue import ReservationQueue
from fray_ray._packed_tasks import shortened
from fray_ray._plan import Plan

_MARGIN = 5.0  # seconds beyond a grace until an actor that has not answered is ended
_LONGEST_GRACE = 30.0  # seconds for a replica whose provider gave notice without a time
_RESERVE = 2.0  # seconds before a node's end in which no replica is left running
# Seconds between looks at what is to be shown: of a job that runs, and of one that waits.
_PUBLISH, _PUBLISH_WAITING = 0.2, 2.0
_LONGEST = 8 * 1024  # characters of what ended an attempt; of its last lines there are 4 KiB
_GATHER = 0.1  # seconds in which several changes become one
# Exit codes of a program that SIGTERM ended, and the seconds within which the node of such a program is gone
# where the signal was that of a machine which shuts down: that signals all of its processes at once.
_BY_SIGTERM, _SHUTS_DOWN_WITHIN = (-15, 143), 5.0
_LOOK = 0.5  # seconds between looks at that node


async def _needs_nothing(_: Say) -> None:
    return None


class JobRun:
    """One run of a job.

    Args:
        prepare: Waited for before the job asks for room.
        join: Called when there is room; returns the variables that all replicas have beside those of the
            plan. Actors come up meanwhile; no replica starts before.
        stop_family: Called with a grace, as soon as the job is to end: requests that the jobs below it end.
        end_family: Called on a thread with a grace: ends what the job has started beside its replicas.
        log_path: Where the log is that another scheduler goes on with.
    """

    def __init__(
        self,
        plan: Plan,
        board: JobBoard,
        queue: ReservationQueue,
        output: Output,
        *,
        runtime_env: Mapping[str, Any] | None = None,
        prepare: Prepare = _needs_nothing,
        join: Join | None = None,
        stop_family: Callable[[float], None] | None = None,
        end_family: Callable[[float], None] | None = None,
        log_path: str | None = None,
    ) -> None:
        self._plan, self._board, self._queue, self._output = plan, board, queue, output
        self._machine, self._record = board.machine, board.record
        self._stop_family, self._end_family, self._log_path = stop_family, end_family, log_path
        self._marks = LogMarks()
        self._logs: dict[int, ReplicaLog] = {}  # of those that have begun: a waiting job costs little
        self._events: asyncio.Queue[Any] = asyncio.Queue()
        for event in self._record.requests:  # of which another scheduler had no time to take care
            self._events.put_nowait(event)
        self._changed = asyncio.Event()  # what is to be shown
        self._tasks = JobTasks(self._note_failure)
        self._reservation = Reservation(plan, board, runtime_env or {})
        self._lost = LostNodes(self._record, self._reservation)
        self._orphans = Orphans(self._record, gang=plan.gang)
        self._joining = Joining(join, self._tasks, self._events.put_nowait)
        self._placing = Placing(
            plan,
            board,
            queue,
            self._reservation,
            output,
            lost=self._lost,
            orphans=self._orphans,
            joining=self._joining,
            tasks=self._tasks,
            prepare=prepare,
            say=self._say,
            tell=self._events.put_nowait,
        )
        self._followers: dict[int, asyncio.Task[None]] = {}
        self._ending: asyncio.Task[None] | None = None
        # The grace of what the job has started beside its replicas; None where that runs on.
        self._grace_of_family: float | None = None
        self._results: dict[int, bytes] = {}
        self._goes_at: dict[int, float] = {}  # by replica that had a notice

    # --- for others ---

    async def run(self) -> None:
        """Run the job to its end; nothing of it is left then.

        Where it fails, or a task of it does, replicas that have names run on: a scheduler takes them up.
        """
        self._tasks.start(self._publish())
        self._tasks.start(self._keep_leases())
        try:
            self._take_up()
            self._dispatch(Tick())
            while self._machine.phase is not JobPhase.FINISHED:
                if self._ending is None:
                    self._placing.search()
                event = await self._next()
                if isinstance(event, BaseException):
                    raise event
                self._dispatch(event)
        finally:
            self._placing.cancel()
            self._tasks.cancel()
            if self._machine.phase is JobPhase.FINISHED or not self._board.listed:
                self._reservation.close()
            self._queue.look_soon()

    def request(self, event: Noticed | RestartRequested | StopRequested) -> None:
        """Do what somebody requests; it is recorded at once: nobody will say it to another scheduler."""
        self._record.requests.append(event)
        self._events.put_nowait(event)
        self._board.store()

    def lose(self, message: str, grace: float) -> None:
        """End a job that Ray has lost."""
        self._events.put_nowait(CannotRun(ExitReason.LOST, message, grace))

    def _note_failure(self, error: BaseException) -> None:
        """Have `run` raise what a task has raised: the head may be away, and the job is taken up again.

        A job that no scheduler takes up is lost.
        """
        if self._board.listed:
            self._events.put_nowait(error)
        else:
            self.lose(f"the scheduler failed: {error!r}", 0.0)

    def show_again(self) -> None:
        """Write all into the job's entry in Ray's table: it is a new one."""
        self._board.show_again()
        self._changed.set()

    def notice(self, leaving: Mapping[str, float]) -> None:
        """Give notice to replicas on nodes that go, each in so many seconds."""
        for each in self._machine.running:
            known = self._record.actors.get(each.replica)
            if known is None or known.node not in leaving or each.replica in self._record.notices:
                continue
            seconds = max(1.0, leaving[known.node] - _RESERVE)
            self._give_notice(each.replica, each.attempt, _drained(known.node), seconds)

    @property
    def results(self) -> list[bytes | None]:
        """What the entry points returned, by replica; of a job that failed, those of the ones that did.

        They are in the order in which they failed; one that ended without a word is None.
        """
        verdict, tasks = self._machine.verdict, self._machine.tasks
        if verdict is None or verdict[2] is not None:
            failed = [task for task in tasks if task.status is JobStatus.FAILED]
            tasks = tuple(sorted(failed, key=lambda task: task.finished_at or 0.0))
        return [self._results.get(task.replica) for task in tasks]

    # --- the loop ---

    async def _next(self) -> Any:
        due = self._machine.due
        if due is None:
            return await self._events.get()
        try:
            async with asyncio.timeout(max(0.0, due - time.monotonic())):
                return await self._events.get()
        except TimeoutError:
            return Tick()

    def _dispatch(self, event: Any) -> None:
        """Give an event to the machine, and carry its actions out once they are recorded."""
        if isinstance(event, TreeEnded):
            self._record.ending = None
        elif isinstance(event, Placed):
            self._placing.note_placed(event.replicas)
        self._record.requests = [each for each in self._record.requests if each is not event]
        now = time.monotonic()
        self._machine.epoch = time.time() - now  # one of the clocks may have been set, or have stood still
        actions = self._machine.handle(event, now)
        self._changed.set()
        for action in actions:
            match action:
                case StartReplica(replica, attempt):
                    self._note_start(replica, attempt)
                case ClearReplica(replica, _):  # or a scheduler that takes the job up gives no notice again
                    self._record.notices.pop(replica, None)
                case ClearTree() | EndTree():
                    self._record.ending = action
                case _:
                    continue
        if actions or not isinstance(event, Tick):
            self._board.store()
        if any(isinstance(action, StartReplica) for action in actions):
            self._show(self._board.publish_start)
        for action in actions:
            self._perform(action)

    def _perform(self, action: Any) -> None:
        match action:
            case StartReplica(replica, attempt):
                self._start(replica, attempt)
            case NotifyReplica(replica, _, grace):  # `StopReplica` follows, and says it with the signal
                self._goes_at[replica] = time.time() + grace
            case StopReplica(replica, attempt, grace, forced):
                self._stop_replica(replica, attempt, grace, forced=forced)
            case ClearReplica(replica, _):
                self._goes_at.pop(replica, None)
                if not self._plan.gang:  # the next attempt has an actor of its own
                    self._reservation.release(replica)
            case ClearTree():
                self._ending = self._tasks.start(self._end(0.0))
            case EndTree(grace, forced):
                self._grace_of_family = grace
                if self._stop_family is not None:
                    self._stop_family(grace)
                if self._ending is None:
                    self._ending = self._tasks.start(self._end(grace))
                elif forced:
                    self._stop_actors(0.0)

    # --- attempts ---

    def _note_start(self, replica: int, attempt: int) -> None:
        known = self._record.actors.get(replica)
        if known is not None:
            known.attempt, known.log = attempt, self._output.size()

    def _start(self, replica: int, attempt: int) -> None:
        if self._placing.unstartable:  # a gang starts as a whole
            end = self._placing.unstartable.get(replica)
            if end is not None:
                self._tell_ended(replica, attempt, end)
                return
            if self._plan.gang:
                return  # `StopReplica` is to come
        self._log(replica).begin(attempt)
        self._follow(replica, attempt, taken_up=False)

    def _log(self, replica: int) -> ReplicaLog:
        if replica not in self._logs:
            self._logs[replica] = ReplicaLog(replica, self._plan.secrets, self._output, self._marks)
        return self._logs[replica]

    def _follow(self, replica: int, attempt: int, *, taken_up: bool) -> None:
        self._followers[replica] = self._tasks.start(self._carry(replica, attempt, taken_up=taken_up))

    async def _carry(self, replica: int, attempt: int, *, taken_up: bool) -> None:
        """Follow an attempt to its end."""
        run = AttemptRun(
            self._plan,
            replica,
            self._record.takers,
            functools.partial(self._lost.reach, replica),
            self._log(replica),
            self._log_path,
            lambda why: self._give_notice(replica, attempt, why, _LONGEST_GRACE - _RESERVE),
            lambda ports: self._note_ports(replica, attempt, ports),
            lambda samples: self._board.usage.take(replica, attempt, samples),
            lambda result: self._results.__setitem__(replica, result),
        )
        self._results.pop(replica, None)
        has_actor = True
        try:
            record = self._record.actors.get(replica) if taken_up else None
            environ = functools.partial(self._environ, replica, attempt)
            end = await run.run(self._lost.actor(replica), environ, record)
        except ActorLostError as error:  # any other is the scheduler's own: the actor may be well
            end = await self._lost.why_gone(replica, run.broken(error.cause))
            has_actor = False
        self._log(replica).end()
        if self._is_signalled_from_outside(replica, end):
            end = await self._await_shutdown(replica, end)
        if not end.good and self._plan.gang:
            end = await self._look_for_lost(replica, end)
        end = self._end_of_noticed(replica, end)
        if not has_actor and end.reason in (ExitReason.LOST, ExitReason.OUT_OF_MEMORY):  # its node lives
            self._orphans.note(replica)
        self._followers.pop(replica, None)
        self._tell_ended(replica, attempt, end)

    def _end_of_noticed(self, replica: int, end: AttemptEnd) -> AttemptEnd:
        """Say in the end of an attempt that its machine was to be taken away.

        A program may know that from elsewhere, and end before it is given notice.
        """
        why, known = self._record.notices.get(replica), self._record.actors.get(replica)
        by_itself = end.exit_code and end.reason is not ExitReason.PREEMPTED
        if why is None and known is not None and by_itself and nodes_.is_drained(known.node):
            why = _drained(known.node)
            end = end._replace(reason=ExitReason.PREEMPTED)
        return end if why is None else end._replace(details=f": {why}{end.details}")

    def _is_signalled_from_outside(self, replica: int, end: AttemptEnd) -> bool:
        """Whether SIGTERM ended a program that this scheduler did not ask to end."""
        unasked = any(each.replica == replica and each.kill_at is None for each in self._machine.running)
        return end.exit_code in _BY_SIGTERM and unasked

    async def _await_shutdown(self, replica: int, end: AttemptEnd) -> AttemptEnd:
        """Wait a moment for the node of such a program to go; return its end, which is a preemption then.

        It waits on when a peer in its gang fails: that may have failed because of this one.
        """
        known = self._record.actors.get(replica)
        until = time.monotonic() + _SHUTS_DOWN_WITHIN
        while known is not None and time.monotonic() < until and self._machine.phase is JobPhase.RUNNING:
            if replica in self._record.notices or nodes_.is_drained(known.node):
                break
            if known.node in await self._lost.gone([known.node]):
                return self._lost.preempted(known.node, end)
            await asyncio.sleep(_LOOK)
        return end

    async def _environ(self, replica: int, attempt: int) -> dict[str, str]:
        own = {"FRAY_REPLICA_ID": str(replica), "FRAY_ATTEMPT": str(attempt)}
        ranks: Mapping[str, str] = {}
        if self._plan.gang and self._record.meeting is not None:
            address, ports = self._record.meeting
            ranks = variables_of(self._plan, replica, self._reservation.units, Meeting(address, tuple(ports)))
        return {**self._plan.environ, **await self._joining.variables(), **ranks, **own}

    async def _look_for_lost(self, failed: int, end: AttemptEnd) -> AttemptEnd:
        """End the replicas of a gang whose nodes are gone: peers fail before that is seen.

        Returns:
            The end of the one that failed, which its own node may have taken away.
        """
        nodes = {
            each.replica: known.node
            for each in self._machine.running
            if (known := self._record.actors.get(each.replica)) is not None
        }
        gone = await self._lost.gone(list(nodes.values()))
        for each in self._machine.running:
            node = nodes.get(each.replica, "")
            if node in gone and each.replica != failed:
                follower = self._followers.pop(each.replica, None)
                if follower is not None:
                    follower.cancel()
                    self._log(each.replica).end()
                self._tell_ended(each.replica, each.attempt, self._lost.preempted(node))
        node = nodes.get(failed, "")
        if node not in gone or end.reason is ExitReason.PREEMPTED:
            return end
        return self._lost.preempted(node, end)

    def _tell_ended(self, replica: int, attempt: int, end: AttemptEnd) -> None:
        # What Ray says of an actor may be long, and is stored again with each change of the job.
        end = end._replace(
            how=shortened(end.how, _LONGEST) or "", details=shortened(end.details, _LONGEST) or ""
        )
        kind = StartFailed if end.reason is ExitReason.COULD_NOT_START else Ended
        self._events.put_nowait(kind(replica, attempt, end))

    def _note_ports(self, replica: int, attempt: int, ports: dict[str, int]) -> None:
        self._record.ports[replica, attempt] = ports
        self._board.store()

    def _give_notice(self, replica: int, attempt: int, why: str, seconds: float) -> None:
        self._record.notices[replica] = why
        known = self._record.actors.get(replica)
        if known is not None:
            self._reservation.avoid({known.node})
        self.request(Noticed(replica, attempt, seconds))

    def _stop_replica(self, replica: int, attempt: int, grace: float, *, forced: bool) -> None:
        if replica not in self._followers:  # it was never started
            self._tell_ended(replica, attempt, AttemptEnd(ExitReason.STOPPED, None, "was stopped"))
        elif forced:
            self._tasks.start(self._kill_later(replica, attempt))
        else:
            self._stop_actor(replica, grace)

    async def _kill_later(self, replica: int, attempt: int) -> None:
        await asyncio.sleep(_MARGIN)
        await insist(functools.partial(self._kill, replica, attempt))  # who takes the job up does not do it

    async def _kill(self, replica: int, attempt: int) -> None:
        """End the actor of an attempt that did not end when it was asked to."""
        running = [each for each in self._machine.running if each.replica == replica]
        if running and running[0].attempt == attempt and replica in self._followers:
            with contextlib.suppress(LookupError):
                ray.kill(self._reservation.actor(replica))

    def _stop_actor(self, replica: int, grace: float) -> None:
        with contextlib.suppress(LookupError):
            self._reservation.actor(replica).stop.remote(grace, self._goes_at.get(replica))

    def _stop_actors(self, grace: float) -> None:
        for replica in self._followers:
            self._stop_actor(replica, grace)

    # --- the end of all ---

    async def _end(self, grace: float) -> None:
        """End all replicas, give back the room, and end what the job has started where that is to end too.

        Where that fails the job has not ended: who takes it up does it again.
        """
        try:
            self._placing.cancel()
            await self._end_replicas(grace)
            self._reservation.close()
            self._queue.look_soon()
            if self._grace_of_family is not None and self._end_family is not None:
                await aside(self._end_family, self._grace_of_family)
        except ClusterUnavailableError:  # the jobs below know that they are to end; no dashboard says more
            traceback.print_exc()
        except Exception:
            if not self._board.listed:  # nobody takes it up
                self._ending = None  # or no place is looked for, and no later end begins
                self._events.put_nowait(TreeEnded())
            raise
        self._ending = None
        self._events.put_nowait(TreeEnded())

    async def _end_replicas(self, grace: float) -> None:
        self._stop_actors(grace)
        followers = list(self._followers.values())
        if followers:
            _, left = await asyncio.wait(followers, timeout=grace + _MARGIN)
            if left:
                self._kill_actors()
                await asyncio.wait(left, timeout=_MARGIN)
        await self._orphans.ended()

    def _kill_actors(self) -> None:
        for replica in list(self._followers):
            with contextlib.suppress(LookupError):
                ray.kill(self._reservation.actor(replica))

    # --- another scheduler's job ---

    def _take_up(self) -> None:
        """Go on where another scheduler was killed."""
        for each in self._machine.running:
            self._follow(each.replica, each.attempt, taken_up=True)
            if each.kill_at is not None:
                left = max(0.0, each.kill_at - time.monotonic())
                self._stop_actor(each.replica, left)
        if self._machine.started_at:
            self._joining.begin()
            if not self._plan.gang and self._reservation.is_granted():  # else it is in the line, as before
                self._placing.take_up()
        ending = self._record.ending
        if ending is not None:
            self._perform(ending)

    # --- small things ---

    async def _keep_leases(self) -> None:
        """Call actors that wait, for their peers or for the job's own process: one that nobody calls ends."""
        while True:
            await asyncio.sleep(LEASE / 4)
            for replica in set(self._record.actors) - set(self._followers):
                with contextlib.suppress(Exception):  # it has ended, or the head is away for a moment
                    self._reservation.actor(replica).node_id.remote()

    def _say(self, reason: str) -> None:
        """Say what the job waits for."""
        if reason != self._board.waits_for:
            self._board.waits_for = reason
            self._changed.set()

    @staticmethod
    def _show(publish: Callable[[], None]) -> None:
        try:
            publish()
        except Exception:  # noqa: BLE001 - the head's store is away for a moment
            traceback.print_exc()

    async def _publish(self) -> None:
        while True:
            self._show(self._board.publish)
            pause = _PUBLISH if self._machine.started_at else _PUBLISH_WAITING
            # `wait_for` of Python 3.11 goes on where it is cancelled when the event comes: the state of a job
            # that runs would be written over how it ended.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._changed.wait()
            self._changed.clear()
            await asyncio.sleep(_GATHER)


def _drained(node: str) -> str:
    return f"its node {node} is drained"
