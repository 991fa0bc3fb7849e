"""One attempt of a gang: all replicas start when the last of their actors is up, and end together.

assembling  an actor for each replica comes up, and the first says where all may meet
running     every replica runs; the first that fails, or whose node gets notice, ends the attempt
saving      a replica has notice that its node goes; its peers run on, as they may save with it
stopping    the others get SIGTERM, then SIGKILL; the actor of one that does not answer is killed
"""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import ray

from fray.backend import PORTS, Meeting
from fray.cluster import ExitReason
from fray_ray._head import nodes as nodes_
from fray_ray._head.attempts import Attempt, End
from fray_ray._head.gang_result import GangResult
from fray_ray._head.job_state import Progress
from fray_ray._head.ranks import variables_of
from fray_ray._head.record import GangRecord, HostRecord
from fray_ray._head.replica_log import ReplicaLog, log_size
from fray_ray._head.reservation import Reservation
from fray_ray._plan import Plan

_LOOK = 0.2  # seconds
_LOOKS_FOR_NOTICES = 0.5  # seconds
_GRACE = 10.0  # seconds from SIGTERM to SIGKILL for the peers of a replica that failed
_LONGEST_GRACE = 30.0  # seconds for the peers of one that was preempted
_MARGIN = 5.0  # seconds beyond a grace until an actor that has not answered is ended
_RESERVE = 2.0  # seconds before a node's end in which no replica is left running


def _nodes_of(progress: Progress) -> dict[int, str]:
    return {number: known.node for number, known in progress.record.hosts.items()}


StopOf = Callable[[], tuple[float, ExitReason]]


class GangAttempt:
    """The replicas of one attempt."""

    def __init__(
        self, plan: Plan, room: Reservation, progress: Progress, logs: list[ReplicaLog], number: int
    ) -> None:
        self._plan, self._room, self._progress = plan, room, progress
        self._logs, self._number = logs, number
        self._goes_on = progress.record.gang  # an attempt that another driver has started
        self._nodes = room.nodes() if self._goes_on is None else _nodes_of(progress)
        self._hosts: dict[int, Any] = {}
        self._events: queue.SimpleQueue[tuple[int, End | str]] = queue.SimpleQueue()
        self._ends: dict[int, End] = {}
        self._culprit: int | None = None
        self._noticed: dict[int, str] = {}
        self._gone: set[str] = set()
        self._told: set[int] = set()
        self._grace = _GRACE
        self._close_at: float | None = None
        self._look_at = 0.0
        self._restart_grace: float | None = None

    @property
    def restarting(self) -> bool:
        """Whether the attempt was ended for another, because somebody asked for that."""
        return self._restart_grace is not None

    def restart(self, grace: float) -> None:
        """End the attempt, for the next one."""
        with self._progress.recording() as record:
            if record.gang is not None:
                record.gang.restart = grace
        self._restart_grace = grace

    def run(self, stopping: threading.Event, stop_of: StopOf) -> GangResult:
        """Run the attempt from start to end."""
        if self._goes_on is not None:
            self._go_on(self._goes_on)
            self._follow(stopping, stop_of)
        elif self._assemble(stopping) and self._start():
            self._follow(stopping, stop_of)
        for number in self._nodes:  # those that never started
            self._ends.setdefault(number, End(ExitReason.STOPPED, None, None))
        return self._story()

    def _assemble(self, stopping: threading.Event) -> bool:
        """Bring all actors up; return whether they are."""
        self._hosts = self._room.hosts(self._nodes)
        waiting = {host.node_id.remote(): number for number, host in self._hosts.items()}
        while waiting and not stopping.is_set():
            ready, _ = ray.wait(list(waiting), timeout=_LOOK)
            for ref in ready:
                number = waiting.pop(ref)
                try:
                    ray.get(ref)
                except Exception as error:  # noqa: BLE001 - whatever it was, this attempt cannot start
                    self._blame(number, self._attempt(number).broken(error))
                    return False
            if not ready and not self._room.intact():
                number = next(iter(waiting.values()))
                self._blame(number, End(ExitReason.LOST, None, f"replica {number} lost its place"))
                return False
        return not stopping.is_set()

    def _start(self) -> bool:
        """Start all replicas at once; return whether they run."""
        try:
            ports = ray.get(self._hosts[0].free_ports.remote(PORTS))
        except Exception as error:  # noqa: BLE001 - as above
            self._blame(0, self._attempt(0).broken(error))
            return False
        node = nodes_.living_and_dead().get(self._nodes[0])
        if node is None:  # it vanished after the placing
            self._blame(0, End(ExitReason.LOST, None, "replica 0 lost its place"))
            return False
        meeting = Meeting(node["NodeManagerAddress"], tuple(ports))
        with self._progress.recording() as record:
            record.gang = GangRecord(attempt=self._number, address=meeting.address, ports=list(ports))
            for number, node_id in self._nodes.items():
                self._progress.begin(number, self._number)
                if (known := record.hosts.get(number)) is not None:
                    known.node, known.attempt, known.log = node_id, self._number, log_size()
        for number in self._nodes:
            self._logs[number].begin(self._number)
            self._start_following(number, meeting)
        return True

    def _go_on(self, begun: GangRecord) -> None:
        """Take up an attempt that another driver has started."""
        meeting = Meeting(begun.address, tuple(begun.ports))
        self._culprit, self._told, self._noticed = begun.culprit, set(begun.told), dict(begun.noticed)
        self._restart_grace = begun.restart
        if begun.told or begun.noticed:
            self._grace = begun.grace
        for number in self._nodes:
            try:
                self._hosts[number] = self._room.take_up(number)
            except LookupError as error:
                self._events.put((number, self._attempt(number).broken(error)))
                continue
            self._start_following(number, meeting)
        for number in self._hosts.keys() & (self._told | self._noticed.keys()):
            self._hosts[number].stop.remote(self._grace)
        if self._told:
            self._close_at = time.monotonic() + self._grace + _MARGIN

    def _start_following(self, number: int, meeting: Meeting) -> None:
        variables = variables_of(self._plan, number, self._room.units, meeting)
        variables = {**variables, "FRAY_ATTEMPT": str(self._number)}
        known = None if self._goes_on is None else self._room.recorded(number)
        run = threading.Thread(
            target=self._run, args=(number, variables, known), name=f"replica-{number}", daemon=True
        )
        run.start()

    def _run(self, number: int, variables: dict[str, str], known: HostRecord | None) -> None:
        attempt = self._attempt(number, variables)
        try:
            end = attempt.run(self._hosts[number], known)
        except Exception as error:  # noqa: BLE001 - a replica that nobody watches must not read running for ever
            end = attempt.broken(error)
        self._logs[number].end()
        self._events.put((number, end))

    def _record(self) -> None:
        """Note for whose sake the attempt ends, before any replica is stopped."""
        with self._progress.recording() as record:
            if record.gang is not None:
                record.gang.culprit, record.gang.noticed = self._culprit, dict(self._noticed)
                record.gang.told, record.gang.grace = sorted(self._told), self._grace

    def _attempt(self, number: int, variables: dict[str, str] | None = None) -> Attempt:
        return Attempt(
            self._plan,
            number,
            self._logs[number],
            variables or {},
            lambda why: self._events.put((number, why)),
            lambda ports: self._progress.ports(number, ports),
            lambda samples: self._progress.used(number, samples),
        )

    def _follow(self, stopping: threading.Event, stop_of: StopOf) -> None:
        """Book the ends and the notices, and do what follows from them, until no replica is left."""
        ended_by_user = False
        while self._running:
            self._book_event()
            if stopping.is_set() and not ended_by_user:
                ended_by_user = True
                self._grace, _ = stop_of()
                self._tell_all()
            elif self._restart_grace is not None and not self._told:
                self._grace = self._restart_grace
                self._tell_all()
            elif not self._told:
                self._look_for_notices()
                if self._culprit is not None and not self._saving:
                    self._tell_all()
            if self._close_at is not None and time.monotonic() >= self._close_at:
                self._room.close()
                self._close_at = None

    @property
    def _running(self) -> list[int]:
        return [number for number in self._nodes if number not in self._ends]

    @property
    def _saving(self) -> bool:
        return any(number not in self._ends for number in self._noticed)

    def _book_event(self) -> None:
        try:
            number, event = self._events.get(timeout=_LOOK)
        except queue.Empty:
            return
        if isinstance(event, str):
            self._notice(number, event, _LONGEST_GRACE - _RESERVE)
            return
        self._ends[number] = event
        if not event.good and not self._told and self._culprit is None:
            self._blame(number, event)

    def _blame(self, number: int, end: End) -> None:
        self._ends[number] = end
        self._culprit = number
        self._gone |= nodes_.gone_of(self._nodes.values())

    def _look_for_notices(self) -> None:
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + _LOOKS_FOR_NOTICES
        leaving = nodes_.draining()
        for number in self._running:
            node = self._nodes[number]
            if node in leaving and number not in self._noticed:
                self._notice(number, f"its node {node} is drained", max(1.0, leaving[node] - _RESERVE))

    def _notice(self, number: int, why: str, seconds: float) -> None:
        """Tell a replica that its machine goes; it has so long to save."""
        if number in self._ends or number in self._told:
            return
        self._noticed[number] = why
        if self._culprit is None:
            self._culprit, self._grace = number, min(seconds, _LONGEST_GRACE)
        self._record()
        self._hosts[number].notify.remote(time.time() + seconds)
        self._hosts[number].stop.remote(seconds)

    def _tell_all(self) -> None:
        running = self._running
        self._told |= set(running)
        self._record()
        for number in running:
            if number in self._hosts:
                self._hosts[number].stop.remote(self._grace)
        self._close_at = time.monotonic() + self._grace + _MARGIN

    def _story(self) -> GangResult:
        if self._culprit is not None:
            self._gone |= nodes_.gone_of(self._nodes.values())
        preempted = dict(self._noticed)
        for number, node in self._nodes.items():
            if node in self._gone and not (self._ends[number].good and number not in self._told):
                preempted.setdefault(number, f"it lost its node {node}")
        told = self._told | {number for number, end in self._ends.items() if end.reason is ExitReason.STOPPED}
        leaving = {self._nodes[number] for number in self._noticed}
        return GangResult(self._ends, self._culprit, told, preempted, self._gone | leaving)
