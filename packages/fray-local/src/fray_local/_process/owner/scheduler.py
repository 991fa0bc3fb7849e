"""Gives tasks to workers: how many run, which worker takes which, and what is sent ahead.

A worker is idle (no call), busy, lent (its task waits for others: its slot is free), parked (its
stream waits for a consumer: the same), or retiring. Short tasks are sent ahead, so that a worker
need not wait for the next one; calls that wait behind a long task are recalled.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import count
from typing import Any

from fray.backend import dispatch
from fray_local._process.owner.actor_reservations import ActorReservation, ActorReservations
from fray_local._process.owner.calls import died
from fray_local._process.owner.event_loop import EventLoop
from fray_local._process.owner.resources import Needs, Resources, environment
from fray_local._process.owner.serial_queue import SerialQueue
from fray_local._process.owner.worker_connection import WorkerConnection
from fray_local._process.owner.worker_slot import Decisions, WorkerSlot, idle_since, work_ahead

_AHEAD_SECONDS = 0.01  # of work that a worker may have beyond the task it runs
_SHORTEST = 20e-6  # that a task is taken to last, so that the number sent ahead is bounded
_STUCK_SECONDS = 0.01  # without an end, after which the calls that were sent ahead are recalled
_TRIES = 3  # workers in a row that end before they have run anything, after which a call fails
_LOOK_SECONDS = 0.1  # after which a call that holds others up is looked at again
_RETIRES = "it retires"  # why a worker with GPUs takes no CPU
_END_SECONDS = 12.0  # that a worker without calls has to end: four steps of 3 s, see `leaving`
_SPARE_SECONDS = 5.0  # that a worker beyond the size, made because others waited, is kept warm


class Scheduler:
    """Decides which worker runs what; its state changes in a serial queue only, so that nobody waits."""

    def __init__(
        self,
        size: int,
        resources: Resources,
        loop: EventLoop,
        start_worker: Callable[["Scheduler", dict[str, str]], WorkerConnection],
        expect_more: Callable[[], None],
        max_tasks_per_worker: int | None,
        is_stuck: Callable[[], bool],
    ) -> None:
        self._size, self._free, self._loop, self._start_worker = size, resources, loop, start_worker
        self._most_tasks, self._expect_more = max_tasks_per_worker, expect_more
        self._serial = SerialQueue()
        self._lines: dict[Needs, deque[Any]] = {}
        self._slots: dict[WorkerConnection, WorkerSlot] = {}
        self._idle: dict[tuple[tuple[str, str], ...], list[WorkerSlot]] = {}  # by environment
        self._busy: dict[Needs, set[WorkerSlot]] = {}
        self._retiring: dict[WorkerConnection, WorkerSlot] = {}
        self._actors = ActorReservations(resources, self._lines, self._later, is_stuck)
        self._ticking = self._trimming = self._looking = False
        self._ends = count(1)
        self._stillborn = 0  # workers, since a call has ended, that ended before they had run anything
        self._closed = False
        self._empty = threading.Event()

    # The engine's side.

    def start(self, calls: Sequence[Any]) -> None:
        """Take calls whose arguments are there, each with its `CallState`."""
        self._serial.run(partial(self._start, calls))

    def close(self, *, wait: bool = False) -> None:
        """Let every worker end after what it has; with `wait`, block until all have."""
        self._serial.run(self._close)
        if wait:
            self._empty.wait()

    def kill(self) -> None:
        """End every worker now."""

        def act() -> None:
            for worker in [*self._slots, *self._retiring]:
                worker.kill()

        self._serial.run(act)

    # The side of the actors, each of which has its own process.

    def reserve(self, reservation: ActorReservation) -> None:
        """Have what an actor needs reserved for it, as soon as there is room."""
        self._serial.run(partial(self._reserve, reservation))

    def release(self, reservation: ActorReservation) -> None:
        """End a reservation, or its wait."""
        self._serial.run(partial(self._release, reservation))

    # The workers' side; see `WorkerOwner`.

    def done(self, worker: WorkerConnection, call: Any, seconds: float) -> None:
        """Have a slot for another call."""
        self._serial.run(partial(self._done, worker, call, seconds))

    def parked(self, worker: WorkerConnection, call: Any) -> None:
        """Have a slot while the stream waits for its consumer."""
        self.lend(worker, call)

    def returned(self, worker: WorkerConnection, calls: list[Any]) -> None:
        """Put calls back at the front."""
        self._serial.run(partial(self._returned, worker, calls))

    def lend(self, worker: WorkerConnection, reason: Hashable) -> None:
        """Have a slot while what runs waits; recall the calls that wait behind it."""
        self._serial.run(partial(self._lend, worker, reason))

    def reclaim(self, worker: WorkerConnection, reason: Hashable) -> None:
        """The slot is taken again, though that be one too many for a while."""
        self._serial.run(partial(self._reclaim, worker, reason))

    def ended(self, worker: WorkerConnection, how: str, started: list[Any], unstarted: list[Any]) -> None:
        """Fail, or run again, what the worker had."""
        self._serial.run(partial(self._ended, worker, how, started, unstarted))

    # One at a time, in the serial queue.

    def _start(self, calls: Sequence[Any]) -> None:
        room = False
        for call in calls:
            needs = call.state.needs
            self._lines.setdefault(needs, deque()).append(call)
            room = room or self._free.has_cpus(needs)
        # Nothing is sent ahead from here: the next end of a task sends many at once instead.
        if room:
            self._carry_out(self._decide(ahead=False))

    def _reserve(self, reservation: ActorReservation) -> None:
        self._actors.add(reservation)
        self._carry_out(self._decide(ahead=False))

    def _release(self, reservation: ActorReservation) -> None:
        self._actors.remove(reservation)
        self._carry_out(self._decide())

    def _close(self) -> None:
        self._closed = True
        if not self._slots and not self._retiring:
            self._empty.set()
        for worker in list(self._slots):
            self._retire(worker)

    def _done(self, worker: WorkerConnection, call: Any, seconds: float) -> None:
        self._stillborn = 0
        function = call.state.function
        if function is not None and seconds:
            function.took(seconds)
        slot = self._slots.get(worker)
        if slot is None:
            return
        decisions = Decisions()
        slot.drop(call)
        slot.served += 1
        slot.last_end = next(self._ends)
        if not slot.runs:
            self._rest(slot, decisions)
        self._carry_out(self._decide(decisions))

    def _returned(self, worker: WorkerConnection, calls: list[Any]) -> None:
        decisions = Decisions()
        slot = self._slots.get(worker)
        if slot is not None:
            slot.revoking = False
            for call in calls:
                slot.drop(call)
            if calls and not slot.runs:
                self._rest(slot, decisions)
        self._put_back(calls)
        self._carry_out(self._decide(decisions))

    def _lend(self, worker: WorkerConnection, reason: Hashable) -> None:
        slot = self._slots.get(worker)
        if slot is None or not slot.runs or reason in slot.away:
            return  # a thread that a task has left behind, say, holds no slot
        slot.away.add(reason)
        self._expect_more()
        if len(slot.away) == 1:
            self._free.cpu += slot.needs.cpu
        stuck = len(slot.runs) > 1
        decisions = self._decide()
        if stuck:
            worker.revoke()
        self._carry_out(decisions)

    def _reclaim(self, worker: WorkerConnection, reason: Hashable) -> None:
        slot = self._slots.get(worker)
        if slot is None or reason not in slot.away:
            return
        slot.away.discard(reason)
        if not slot.away:
            self._free.cpu -= slot.needs.cpu

    def _ended(self, worker: WorkerConnection, how: str, started: list[Any], unstarted: list[Any]) -> None:
        slot = self._slots.pop(worker, None) or self._retiring.pop(worker, None)
        if slot is not None:
            self._leave(slot)
        pid = worker.pid
        if unstarted and not started and pid:
            self._stillborn += 1
            if self._stillborn >= _TRIES:
                pid, how = 0, f"could not be started: the last {_TRIES} {how} before they ran anything"
        if not pid:  # starting workers over and over would not end
            started, unstarted = [*started, *unstarted], []
        for call in unstarted:
            call.unclaim()
        self._put_back(unstarted)
        decisions = self._decide()
        if self._closed and not self._slots and not self._retiring:
            self._empty.set()
        self._carry_out(decisions)
        for call in started:
            dispatch(call.lost(died(call, pid, how)))

    def _decide(self, decisions: Decisions | None = None, *, ahead: bool = True) -> Decisions:
        """Decide which waiting calls go where: older ones first, whose CPUs no younger one takes."""
        decisions = Decisions() if decisions is None else decisions
        decisions.granted += self._actors.grant()
        for needs in [needs for needs, line in self._lines.items() if not _waits(line)]:
            del self._lines[needs]
        lines = list(self._lines.items())
        if len(lines) > 1:
            lines.sort(key=lambda one: one[1][0].state.order)
        reserved = 0
        wanted: set[str] = set()  # by older lines
        for needs, line in lines:
            if wanted and needs.amounts and not wanted.isdisjoint(needs.names):
                continue
            self._decide_line(needs, line, decisions, ahead)
            if not line:
                del self._lines[needs]
                continue
            if needs.amounts and len(lines) > 1 and self._comes_next(needs):
                wanted |= needs.names
            if len(lines) > 1 and not self._free.has_cpus(needs):
                self._free.cpu -= needs.cpu
                reserved += needs.cpu
                ahead = False  # a younger one that is sent ahead keeps the CPUs that this one waits for
        self._free.cpu += reserved
        self._actors.watch()
        if (reserved or wanted) and not self._looking:
            self._looking = True
            self._later(_LOOK_SECONDS, self._look)
        return decisions

    def _look(self) -> None:
        """Look whether what holds younger calls up was cancelled, which is not reported here."""
        self._looking = False
        self._carry_out(self._decide(ahead=False))

    def _comes_next(self, needs: Needs) -> bool:
        """Whether a line that waits need only wait for the ends of tasks, not for those of younger ones.

        An actor may live on, and a task that waits may do so for a younger one that needs the same.
        """
        away = [slot for busy in self._busy.values() for slot in busy if slot.away - {_RETIRES}]
        lent = any(not needs.names.isdisjoint(slot.needs.names) for slot in away)
        return not lent and not self._free.waits_for_actors(needs)

    def _decide_line(self, needs: Needs, line: deque[Any], decisions: Decisions, ahead: bool) -> None:
        while _waits(line):
            try:
                slot = self._free_slot(needs) or (self._slot_ahead(needs, line[0]) if ahead else None)
            except Exception as error:  # noqa: BLE001 - no more descriptors, say
                if self._works() or self._retire_idle() or self._retiring:
                    return  # the end of what runs leaves a slot, or makes room for one
                call = line.popleft()
                if call.claim():
                    lost = died(call, 0, f"could not be started: {error}")
                    lost.__cause__ = error
                    decisions.lost.append((call, lost))
                continue
            if slot is None:
                return
            calls = self._take(slot, line, decisions)
            if calls:
                decisions.given.append((slot.worker, calls))
            elif not slot.runs:
                self._rest(slot, decisions)

    def _works(self) -> bool:
        return any(not slot.away for busy in self._busy.values() for slot in busy)

    def _free_slot(self, needs: Needs) -> WorkerSlot | None:
        if not self._free.fits(needs):
            return None
        gpus = self._free.take(needs)
        try:
            return self._idle_slot(needs) or self._new_slot(needs, gpus)
        except BaseException:
            self._free.give_back(needs, gpus)
            raise

    def _slot_ahead(self, needs: Needs, call: Any) -> WorkerSlot | None:
        """Return a busy slot that a short call may be sent to already; only one that runs low."""
        seconds = call.state.seconds
        busy = self._busy.get(needs)
        if not busy or seconds is None or seconds > _AHEAD_SECONDS / 2 or call.streaming:
            return None
        slot = min(busy, key=work_ahead)
        blocked = slot.away or slot.revoking or self._most_tasks or needs.max_calls or needs.gpus
        return None if blocked or slot.ahead > _AHEAD_SECONDS / 2 else slot

    def _idle_slot(self, needs: Needs) -> WorkerSlot | None:
        kept = self._idle.get(needs.env)
        if not kept or needs.gpus:
            return None
        slot = kept.pop()
        if not kept:
            del self._idle[needs.env]
        slot.needs = needs
        self._busy.setdefault(needs, set()).add(slot)
        return slot

    def _new_slot(self, needs: Needs, gpus: list[str]) -> WorkerSlot:
        if self._spare() >= 0:
            self._retire_idle()
        worker = self._start_worker(self, environment(needs, gpus))
        slot = self._slots[worker] = WorkerSlot(worker, needs, gpus)
        self._busy.setdefault(needs, set()).add(slot)
        return slot

    def _take(self, slot: WorkerSlot, line: deque[Any], decisions: Decisions) -> list[Any]:
        """Take from a line what the slot is to have: one call, or as many short ones as it has room for."""
        calls: list[Any] = []
        share = -(-len(line) // max(1, len(self._busy[slot.needs])))
        while line and len(calls) < share:
            call = line[0]
            seconds = call.state.seconds
            estimate = 1.0 if seconds is None else max(seconds, _SHORTEST)
            stream = call.streaming
            if slot.runs and (stream or slot.ahead + estimate > _AHEAD_SECONDS):
                break
            line.popleft()
            if not call.claim():  # cancelled
                continue
            slot.take(call, estimate)
            calls.append(call)
            if stream or self._most_tasks or slot.needs.max_calls or slot.needs.gpus:
                break
        if len(slot.runs) > 1 and not self._ticking:
            self._ticking = True
            self._later(_STUCK_SECONDS, partial(self._ask_back, {}))
        return calls

    def _rest(self, slot: WorkerSlot, decisions: Decisions) -> None:
        """Make a slot idle, or let its worker be retired."""
        needs = slot.needs
        if needs.gpus:
            self._keep_gpus(slot)
        else:
            self._leave(slot)
            slot.away = set()
        tired = self._most_tasks is not None and slot.served >= self._most_tasks
        used_up = needs.max_calls is not None and slot.served >= needs.max_calls
        if tired or used_up or needs.gpus or self._closed:
            decisions.retired.append(slot.worker)
        else:
            slot.idle_since = time.monotonic()
            self._idle.setdefault(needs.env, []).append(slot)
            if not self._trimming and self._spare() > 0:
                self._trimming = True
                self._later(_SPARE_SECONDS, self._trim)

    def _keep_gpus(self, slot: WorkerSlot) -> None:
        """Give back the CPUs of a worker that retires; memory of its GPUs is free when it has ended."""
        if not slot.away:
            self._free.cpu += slot.needs.cpu
        slot.away.add(_RETIRES)

    def _spare(self) -> int:
        return sum(map(len, self._idle.values())) - self._size

    def _leave(self, slot: WorkerSlot) -> None:
        """Give back what a slot holds, and take it out of the lists."""
        busy = self._busy.get(slot.needs)
        if busy and slot in busy:
            busy.discard(slot)
            self._free.give_back(slot.needs, slot.gpus)
            if slot.away:
                self._free.cpu -= slot.needs.cpu
            if not busy:
                del self._busy[slot.needs]
        kept = self._idle.get(slot.needs.env)
        if kept and slot in kept:
            kept.remove(slot)
            if not kept:
                del self._idle[slot.needs.env]

    def _put_back(self, calls: list[Any]) -> None:
        for call in reversed(calls):
            if not call.over:
                self._lines.setdefault(call.state.needs, deque()).appendleft(call)

    def _carry_out(self, decisions: Decisions) -> None:
        for worker, calls in decisions.given:
            worker.give(calls)
        for worker in decisions.retired:
            self._retire(worker)
        for call, error in decisions.lost:
            dispatch(call.fail(error))
        for reservation in decisions.granted:
            reservation.granted()

    def _retire(self, worker: WorkerConnection) -> None:
        slot = self._slots.pop(worker, None)
        if slot is not None:
            if _RETIRES not in slot.away:
                self._leave(slot)
            self._retiring[worker] = slot
            worker.retire()
            if not slot.runs:
                self._loop.call_later(_END_SECONDS, worker.kill)

    def _ask_back(self, before: dict[WorkerSlot, int]) -> None:
        """Recall the calls that wait behind a task that has not ended since the last look."""
        ahead = [slot for busy in self._busy.values() for slot in busy if len(slot.runs) > 1]
        stuck = [slot for slot in ahead if before.get(slot) == slot.last_end and not slot.revoking]
        for slot in stuck:
            slot.revoking = True
            slot.worker.revoke()
        self._ticking = bool(ahead)
        if ahead:
            self._later(_STUCK_SECONDS, partial(self._ask_back, {slot: slot.last_end for slot in ahead}))

    def _trim(self) -> None:
        """Retire the workers beyond the size that were idle for long; those used last are the last to go."""
        idle = self._idle_slots()
        before = time.monotonic() - _SPARE_SECONDS
        old = [slot.worker for slot in idle[: max(0, self._spare())] if slot.idle_since <= before]
        for worker in old:
            self._retire(worker)
        self._trimming = self._spare() > 0
        if self._trimming:
            self._later(_SPARE_SECONDS, self._trim)

    def _retire_idle(self) -> bool:
        """Retire the worker that was idle for longest, which has another environment than is needed now."""
        idle = self._idle_slots()
        if idle:
            self._retire(idle[0].worker)
        return bool(idle)

    def _idle_slots(self) -> list[WorkerSlot]:
        return sorted((slot for kept in self._idle.values() for slot in kept), key=idle_since)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self._loop.call_later(seconds, lambda: self._serial.run(act))


def _waits(line: deque[Any]) -> bool:
    """Whether a line has a call; those at its head that were cancelled leave it."""
    while line and line[0].over:
        line.popleft()
    return bool(line)
