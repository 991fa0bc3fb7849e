"""Runs the replicas of one job: `Supervision` decides, and this carries its actions out on Ray.

placing     all replicas wait for room, then for their actors (`Rooms`, `Reservation`)
running     an actor runs each attempt; what it says is followed (`Attempt`)
ending      attempts are asked to end, then their actors are ended; the room is given back

Everything happens on one event loop. What takes long runs on a thread of its own (`aside`).
"""

import asyncio
import contextlib
import functools
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import ray

from fray.backend import (
    PORTS,
    AttemptEnd,
    Begin,
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
from fray.cluster import ExitReason
from fray_ray._head import nodes as nodes_
from fray_ray._head.asides import aside
from fray_ray._head.attempts import Attempt, end_from_outside
from fray_ray._head.job_board import JobBoard
from fray_ray._head.log_marks import LogMarks
from fray_ray._head.outliving import LEASE
from fray_ray._head.output import Output
from fray_ray._head.ranks import variables_of
from fray_ray._head.replica_log import ReplicaLog
from fray_ray._head.reservation import Reservation
from fray_ray._head.rooms import Rooms
from fray_ray._plan import Plan

_LOOK = 0.5  # seconds between looks at the places of actors
_MARGIN = 5.0  # seconds beyond a grace until an actor that has not answered is ended
_LONGEST_GRACE = 30.0  # seconds for a gang whose provider gave notice without a time
_RESERVE = 2.0  # seconds before a node's end in which no replica is left running
# Seconds between looks at what is to be shown: of a job that runs, and of one that waits.
_PUBLISH, _PUBLISH_WAITING = 0.2, 2.0
_GATHER = 0.1  # seconds in which several changes become one

Prepare = Callable[[Callable[[str], None]], Awaitable[CannotRun | None]]
"""Waits for what a job needs before it asks for room; it is given what says for what it waits."""


async def _nothing(*_: Any) -> None:
    return None


class JobRun:
    """One run of a job.

    Args:
        prepare: Waited for before the job asks for room.
        join: Called when there is room; returns the variables that all replicas have beside those of the
            plan. Actors come up meanwhile; no replica starts before.
        end_family: Called on a thread with a grace: ends what the job has started beside its replicas.
        log_path: Where the log is that another scheduler goes on with.
    """

    def __init__(
        self,
        plan: Plan,
        board: JobBoard,
        rooms: Rooms,
        output: Output,
        *,
        runtime_env: Mapping[str, Any] | None = None,
        prepare: Prepare = _nothing,
        join: Callable[[], Awaitable[Mapping[str, str] | CannotRun]] | None = None,
        end_family: Callable[[float], None] | None = None,
        log_path: str | None = None,
    ) -> None:
        self._plan, self._board, self._rooms, self._output = plan, board, rooms, output
        self._machine, self._record = board.machine, board.record
        self._room = Reservation(plan, board, runtime_env or {})
        self._prepare, self._join, self._end_family = prepare, join, end_family
        self._log_path = log_path
        marks = LogMarks()
        self._logs = [ReplicaLog(number, plan.secrets, output, marks) for number in range(plan.replicas)]
        self._events: asyncio.Queue[Any] = asyncio.Queue()
        self._changed = asyncio.Event()  # what is to be shown
        self._places: dict[int, asyncio.Task[None]] = {}  # what finds a place for a replica
        self._entered: asyncio.Task[CannotRun | None] | None = None
        self._joining: asyncio.Task[None] | None = None
        self._joined = asyncio.Event()
        self._variables: Mapping[str, str] = {}  # that replicas have as a part of the job
        self._unstartable: dict[int, AttemptEnd] = {}  # by replica: why its actor is not there
        self._followers: dict[int, asyncio.Task[None]] = {}
        self._lost_nodes: dict[int, set[str]] = {}  # by replica: where it must not be placed again
        self._ending: asyncio.Task[None] | None = None
        # The grace of what the job has started beside its replicas; None where that runs on.
        self._grace_of_family: float | None = None
        self._results: dict[int, bytes] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    # --- for others ---

    async def run(self) -> None:
        """Run the job to its end; nothing of it is left then."""
        beside = [asyncio.create_task(each) for each in (self._publish(), self._keep_leases())]
        try:
            self._take_up()
            self._dispatch(Tick())
            while self._machine.phase is not JobPhase.FINISHED:
                self._find_places()
                self._dispatch(await self._next())
        finally:
            beside += [*self._tasks, *self._followers.values(), *self._places.values()]
            for task in (*beside, self._joining):
                if task is not None:
                    task.cancel()
            self._room.close()
            self._rooms.look_soon()

    def stop(self, grace: float) -> None:
        """End the job."""
        self._events.put_nowait(StopRequested(grace))

    def lose(self, message: str, grace: float) -> None:
        """End a job that Ray has lost."""
        self._events.put_nowait(CannotRun(ExitReason.LOST, message, grace))

    def restart(self, replica: int, attempt: int, grace: float) -> None:
        """End an attempt, where it is the one that runs, and start the next."""
        self._events.put_nowait(RestartRequested(replica, attempt, grace))

    def show_again(self) -> None:
        """Write all into the job's entry in Ray's table: it is a new one."""
        self._board.show_again()
        self._changed.set()

    def notice(self, leaving: Mapping[str, float]) -> None:
        """Give notice to replicas on nodes that go, each in so many seconds."""
        for each in self._machine.running:
            known = self._record.hosts.get(each.replica)
            if known is None or known.node not in leaving or each.replica in self._record.notices:
                continue
            seconds = max(1.0, leaving[known.node] - _RESERVE)
            self._give_notice(each.replica, each.attempt, _drained(known.node), seconds)

    @property
    def results(self) -> list[bytes | None]:
        """What the entry points returned, by replica; of a job that failed, what the first one raised."""
        verdict = self._machine.verdict
        if verdict is not None and verdict[2] is None:
            return [self._results.get(task.replica) for task in self._machine.tasks]
        failed = sorted(self._machine.tasks, key=lambda task: task.finished_at or 0.0)
        raised = [self._results[task.replica] for task in failed if task.replica in self._results]
        return list(raised[:1])

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
            for number in event.replicas:
                self._places.pop(number, None)
        actions = self._machine.handle(event, time.monotonic())
        self._changed.set()
        for action in actions:
            match action:
                case StartReplica(replica, attempt):
                    self._note_start(replica, attempt)
                case ClearTree() | EndTree():
                    self._record.ending = action
                case _:
                    continue
        if actions or not isinstance(event, Tick):
            self._board.store()
        for action in actions:
            self._perform(action)

    def _perform(self, action: Any) -> None:
        match action:
            case StartReplica(replica, attempt):
                self._start(replica, attempt)
            case NotifyReplica(replica, _, grace):
                if replica in self._followers:
                    self._room.host(replica).notify.remote(time.time() + grace)
            case StopReplica(replica, attempt, grace, forced):
                self._stop_replica(replica, attempt, grace, forced=forced)
            case ClearReplica(replica, _):
                self._record.notices.pop(replica, None)
                if not self._plan.gang:  # the next attempt has an actor of its own
                    self._room.release(replica)
            case ClearTree():
                self._ending = self._spawn(self._end(0.0))
            case EndTree(grace, forced):
                self._grace_of_family = grace
                if self._ending is None:
                    self._ending = self._spawn(self._end(grace))
                elif forced:
                    self._stop_hosts(0.0)

    # --- places ---

    def _find_places(self) -> None:
        """Have what finds a place for each replica that wants one; of a gang for all at once."""
        wanted = [number for number in self._machine.unplaced if number not in self._places]
        if not wanted or self._ending is not None:
            return
        if self._plan.gang:
            task = self._spawn(self._place_gang())
            self._places.update(dict.fromkeys(wanted, task))
            return
        for number in wanted:
            self._places[number] = self._spawn(self._place(number))

    async def _place(self, number: int) -> None:
        """Find a place for one of several replicas that know nothing of each other."""
        while await self._enter():
            await self._await_loss(number)
            end = await self._bring_up(number)
            if end is None or end.reason is not ExitReason.PREEMPTED:
                await self._joined.wait()
                self._unstartable.pop(number, None)
                if end is not None:
                    self._unstartable[number] = end
                self._tell_placed([number])
                return
            # It has not started: that is no attempt.
            self._output.write(f"[fray] replica {number} is placed again{end.details}\n".encode())

    async def _bring_up(self, number: int) -> AttemptEnd | None:
        """Have an actor for a replica; return why there is none."""
        try:
            await self._await_up(self._room.hosts([number]))
        except _HostFailedError as error:
            return await self._why_gone(number, error.end)
        except Exception as error:  # noqa: BLE001 - whatever it was, this attempt cannot start
            return await self._why_gone(number, end_from_outside(error))
        return None

    async def _place_gang(self) -> None:
        """Find a place for all replicas; they meet at the first."""
        if not await self._enter():
            return
        if self._room.replicas != len(self._machine.tasks):
            self._machine.resize(self._room.replicas)
        numbers = list(range(self._room.replicas))
        self._unstartable.clear()
        try:
            hosts = self._room.hosts(numbers)
            await self._await_up(hosts)
            ports = await hosts[0].free_ports.remote(PORTS)
            node = nodes_.living_and_dead()[self._record.hosts[0].node]
            self._record.meeting = node["NodeManagerAddress"], list(ports)
        except _HostFailedError as error:
            self._unstartable[error.number] = await self._why_gone(error.number, error.end)
        except Exception as error:  # noqa: BLE001 - as above
            self._unstartable[0] = await self._why_gone(0, end_from_outside(error))
        await self._joined.wait()
        self._tell_placed(numbers)

    def _tell_placed(self, numbers: list[int]) -> None:
        if self._machine.phase is JobPhase.PENDING:
            self._events.put_nowait(Begin())
        self._events.put_nowait(Placed(tuple(numbers)))

    async def _enter(self) -> bool:
        """Wait until the job has room; return whether it has."""
        if self._entered is None or (self._entered.done() and self._record.leaving):
            self._entered = asyncio.create_task(self._find_room())
        try:
            problem = await asyncio.shield(self._entered)
        except Exception as error:  # noqa: BLE001 - a request that Ray refuses, say
            problem = CannotRun(ExitReason.COULD_NOT_START, f"it could not be placed: {error!r}")
        if problem is not None:
            self._events.put_nowait(problem)
        return problem is None

    async def _find_room(self) -> CannotRun | None:
        began = bool(self._machine.started_at)
        problem = None if began else await self._prepare(self._say)
        if problem is not None:
            return problem
        limit = self._plan.placement_timeout
        try:
            async with asyncio.timeout(limit):
                await self._rooms.find(self._plan, self._room, self._say)
        except TimeoutError:
            waited = self._board.info.pending_reason
            message = f"not placed within {limit:g} s: {waited}"
            return CannotRun(ExitReason.COULD_NOT_START, message)
        self._say("starting its replicas")
        self._begin_to_join()
        return None

    def _begin_to_join(self) -> None:
        if self._joining is None:
            self._joining = self._spawn(self._join_job())

    async def _join_job(self) -> None:
        joined: Mapping[str, str] | CannotRun = {} if self._join is None else await self._join()
        if isinstance(joined, CannotRun):
            self._events.put_nowait(joined)
        else:
            self._variables = joined
            self._joined.set()

    async def _await_up(self, hosts: Mapping[int, Any]) -> None:
        """Wait until actors are up, and note where they are.

        Raises:
            _HostFailedError: One does not come up.
        """
        waiting = {asyncio.ensure_future(_node_of(host)): number for number, host in hosts.items()}
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
        except Exception as error:
            raise _HostFailedError(number, end_from_outside(error)) from error
        if (known := self._record.hosts.get(number)) is not None:
            known.node = node

    def _look_at_places(self, number: int) -> None:
        """See where actors come up; a gang that has lost a place does not wait for another."""
        if self._plan.gang and not self._room.intact():
            raise _HostFailedError(number, AttemptEnd(ExitReason.LOST, None, "lost its place"))
        for replica, node in self._room.nodes().items():
            known = self._record.hosts.get(replica)
            if known is not None and node and not known.attempt and not nodes_.loss_is_known(node):
                known.node = node

    async def _await_loss(self, number: int) -> None:
        """Wait while a replica's place is on a node that goes, or is gone and Ray does not know it yet.

        Ray would start it there. When it knows that the node is gone, it gives the replica another place.
        """
        lost = self._lost_nodes.pop(number, set())
        while True:
            node = self._room.nodes().get(number, "")
            if not nodes_.is_drained(node) and (node not in lost or nodes_.loss_is_known(node)):
                return
            await asyncio.sleep(_LOOK)

    # --- attempts ---

    def _note_start(self, replica: int, attempt: int) -> None:
        known = self._record.hosts.get(replica)
        if known is not None:
            known.attempt, known.log = attempt, self._output.size()

    def _start(self, replica: int, attempt: int) -> None:
        if self._unstartable:  # a gang starts as a whole
            end = self._unstartable.get(replica)
            if end is not None:
                self._tell_ended(replica, attempt, end)
                return
            if self._plan.gang:
                return  # `StopReplica` is to come
        self._logs[replica].begin(attempt)
        self._follow(replica, attempt, taken_up=False)

    def _follow(self, replica: int, attempt: int, *, taken_up: bool) -> None:
        self._followers[replica] = self._spawn(self._carry(replica, attempt, taken_up=taken_up))

    async def _carry(self, replica: int, attempt: int, *, taken_up: bool) -> None:
        """Follow an attempt to its end."""
        run = Attempt(
            self._plan,
            replica,
            self._logs[replica],
            self._log_path,
            lambda why: self._give_notice(replica, attempt, why, _LONGEST_GRACE - _RESERVE),
            lambda ports: self._note_ports(replica, attempt, ports),
            lambda samples: self._board.usage.take(replica, attempt, samples),
            lambda result: self._results.__setitem__(replica, result),
        )
        self._results.pop(replica, None)
        try:
            record = self._record.hosts.get(replica) if taken_up else None
            end = await run.run(
                self._room.host(replica), functools.partial(self._environ, replica, attempt), record
            )
        except Exception as error:  # noqa: BLE001 - a replica that nobody watches must not read running for ever
            end = await self._why_gone(replica, run.broken(error))
        self._logs[replica].end()
        if not end.good and self._plan.gang:
            await self._look_for_lost(replica)
        end = self._end_of_noticed(replica, end)
        self._followers.pop(replica, None)
        self._tell_ended(replica, attempt, end)

    def _end_of_noticed(self, replica: int, end: AttemptEnd) -> AttemptEnd:
        """Say in the end of an attempt that its machine was to be taken away.

        A program may know that from elsewhere, and end before it is given notice.
        """
        why, known = self._record.notices.get(replica), self._record.hosts.get(replica)
        if why is None and known is not None and end.exit_code and nodes_.is_drained(known.node):
            why = _drained(known.node)
            end = end._replace(reason=ExitReason.PREEMPTED)
        return end if why is None else end._replace(details=f": {why}{end.details}")

    async def _environ(self, replica: int, attempt: int) -> dict[str, str]:
        own = {"FRAY_REPLICA_ID": str(replica), "FRAY_ATTEMPT": str(attempt)}
        ranks: Mapping[str, str] = {}
        if self._plan.gang and self._record.meeting is not None:
            address, ports = self._record.meeting
            ranks = variables_of(self._plan, replica, self._room.units, Meeting(address, tuple(ports)))
        await self._joined.wait()
        return {**self._plan.environ, **self._variables, **ranks, **own}

    async def _why_gone(self, replica: int, end: AttemptEnd) -> AttemptEnd:
        """Tell a machine that was taken away from all else that can end an attempt from outside."""
        known = self._record.hosts.get(replica)
        node = "" if known is None else known.node
        if end.reason not in (ExitReason.LOST, ExitReason.COULD_NOT_START) or not node:
            return end
        if node in await aside(nodes_.gone_of, [node]):
            return self._preempted(replica, node)
        return end

    def _preempted(self, replica: int, node: str) -> AttemptEnd:
        self._room.avoid({node})
        self._lost_nodes.setdefault(replica, set()).add(node)
        return AttemptEnd(ExitReason.PREEMPTED, None, "was preempted", f": it lost its node {node}")

    async def _look_for_lost(self, failed: int) -> None:
        """End the replicas of a gang whose nodes are gone: peers fail before that is seen."""
        nodes = {
            each.replica: known.node
            for each in self._machine.running
            if (known := self._record.hosts.get(each.replica)) is not None
        }
        gone = await aside(nodes_.gone_of, list(nodes.values()))
        for each in self._machine.running:
            node = nodes.get(each.replica, "")
            if node in gone and each.replica != failed:
                follower = self._followers.pop(each.replica, None)
                if follower is not None:
                    follower.cancel()
                    self._logs[each.replica].end()
                self._tell_ended(each.replica, each.attempt, self._preempted(each.replica, node))

    def _tell_ended(self, replica: int, attempt: int, end: AttemptEnd) -> None:
        kind = StartFailed if end.reason is ExitReason.COULD_NOT_START else Ended
        self._events.put_nowait(kind(replica, attempt, end))

    def _note_ports(self, replica: int, attempt: int, ports: dict[str, int]) -> None:
        self._record.ports[replica, attempt] = ports
        self._board.store()

    def _give_notice(self, replica: int, attempt: int, why: str, seconds: float) -> None:
        self._record.notices[replica] = why
        known = self._record.hosts.get(replica)
        if known is not None and self._plan.gang:
            self._room.avoid({known.node})
        self._events.put_nowait(Noticed(replica, attempt, seconds))

    def _stop_replica(self, replica: int, attempt: int, grace: float, *, forced: bool) -> None:
        if replica not in self._followers:  # it was never started
            self._tell_ended(replica, attempt, AttemptEnd(ExitReason.STOPPED, None, "was stopped"))
        elif forced:
            self._later(_MARGIN, self._kill, replica, attempt)
        else:
            self._tell_host(replica, grace)

    def _kill(self, replica: int, attempt: int) -> None:
        """End the actor of an attempt that did not end when it was asked to."""
        running = [each for each in self._machine.running if each.replica == replica]
        if running and running[0].attempt == attempt and replica in self._followers:
            with contextlib.suppress(LookupError):
                ray.kill(self._room.host(replica))

    def _tell_host(self, replica: int, grace: float) -> None:
        with contextlib.suppress(LookupError):
            self._room.host(replica).stop.remote(grace)

    def _stop_hosts(self, grace: float) -> None:
        for replica in self._followers:
            self._tell_host(replica, grace)

    # --- the end of all ---

    async def _end(self, grace: float) -> None:
        """End all replicas, give back the room, and end what the job has started where that is to end too."""
        for task in {*self._places.values()}:
            task.cancel()
        self._places.clear()
        if self._entered is not None and not self._entered.done():
            self._entered.cancel()
            self._entered = None
        self._stop_hosts(grace)
        followers = list(self._followers.values())
        if followers:
            _, left = await asyncio.wait(followers, timeout=grace + _MARGIN)
            if left:
                self._kill_hosts()
                await asyncio.wait(left, timeout=_MARGIN)
        try:
            self._room.close()
            self._rooms.look_soon()
            if self._grace_of_family is not None and self._end_family is not None:
                await aside(self._end_family, self._grace_of_family)
        finally:
            self._ending = None
            self._events.put_nowait(TreeEnded())

    def _kill_hosts(self) -> None:
        for replica in list(self._followers):
            with contextlib.suppress(LookupError):
                ray.kill(self._room.host(replica))

    # --- another scheduler's job ---

    def _take_up(self) -> None:
        """Go on where another scheduler was killed."""
        for each in self._machine.running:
            self._follow(each.replica, each.attempt, taken_up=True)
            if each.kill_at is not None:
                left = max(0.0, each.kill_at - time.monotonic())
                self._tell_host(each.replica, left)
        if self._machine.started_at:
            self._begin_to_join()
            if not self._plan.gang and self._room.asked:
                self._entered = asyncio.create_task(_nothing())
        ending = self._record.ending
        if ending is not None:
            self._perform(ending)

    # --- small things ---

    async def _keep_leases(self) -> None:
        """Call actors that wait, for their peers or for the job's own process: one that nobody calls ends."""
        while True:
            await asyncio.sleep(LEASE / 4)
            for replica in set(self._record.hosts) - set(self._followers):
                with contextlib.suppress(Exception):  # it has ended, or the head is away for a moment
                    self._room.host(replica).node_id.remote()

    def _say(self, reason: str) -> None:
        """Say what the job waits for."""
        if reason != self._board.waits_for:
            self._board.waits_for = reason
            self._changed.set()

    async def _publish(self) -> None:
        while True:
            try:
                self._board.publish()
            except Exception:  # noqa: BLE001 - the head's store is away for a moment
                traceback.print_exc()
            pause = _PUBLISH if self._machine.started_at else _PUBLISH_WAITING
            # `wait_for` of Python 3.11 goes on where it is cancelled when the event comes: the state of a job
            # that runs would be written over how it ended.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._changed.wait()
            self._changed.clear()
            await asyncio.sleep(_GATHER)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Do something beside the loop; where it fails the job ends, and says why."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._check)
        return task

    def _check(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            traceback.print_exception(error)
            self.lose(f"the scheduler failed: {error!r}", 0.0)

    def _later(self, seconds: float, act: Callable[..., None], *args: Any) -> None:
        async def wait() -> None:
            await asyncio.sleep(seconds)
            act(*args)

        task = asyncio.create_task(wait())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _HostFailedError(Exception):
    """An actor does not come up."""

    def __init__(self, number: int, end: AttemptEnd) -> None:
        super().__init__(number, end)
        self.number, self.end = number, end


def _drained(node: str) -> str:
    return f"its node {node} is drained"


async def _node_of(host: Any) -> str:
    return str(await host.node_id.remote())
