"""Gives tasks to workers: how many run, which worker takes which, and what is sent ahead.

A worker is idle (no call), busy, lent (its task waits for others: its place is free), parked (its
stream waits for a consumer: the same), or retiring. Short tasks are sent ahead, so that a worker
need not wait for the next one; what turns out to sit behind a long task is asked back.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

from fray._engine.tasks import shutting_down
from fray_local._process.owner.calls import AnyCall, RemoteProducer, died
from fray_local._process.owner.event_loop import Hub
from fray_local._process.owner.resources import Needs, Resources, environment
from fray_local._process.owner.worker_connection import Link
from fray_local._process.owner.worker_slot import Place, Plan, idle_since, sorted_out, work_ahead

_AHEAD_SECONDS = 0.01  # of work that a worker may have beyond the task it runs
_SHORTEST = 20e-6  # that a task is taken to last, so that the number sent ahead is bounded
_STUCK_SECONDS = 0.01  # without an end, after which what was sent ahead is asked back
_SPARE_SECONDS = 5.0  # that a worker beyond the size, made because others waited, is kept warm


class Fleet:
    """The pool of a `ProcessContext`; the engine's `Pool`."""

    inline = False

    def __init__(
        self,
        size: int,
        resources: Resources,
        hub: Hub,
        hire: Callable[["Fleet", dict[str, str]], Link],
        max_tasks_per_worker: int | None,
    ) -> None:
        self._size, self._free, self._hub, self._hire = size, resources, hub, hire
        self._most_tasks = max_tasks_per_worker
        self._lock = threading.Lock()
        self._lines: dict[Needs, deque[AnyCall]] = {}
        self._places: dict[Link, Place] = {}
        self._idle: dict[tuple[Any, ...], list[Place]] = {}
        self._busy: dict[Needs, set[Place]] = {}
        self._retiring: set[Link] = set()
        self._ticking = self._trimming = False
        self._ends, self._arrivals = count(1), count(1)
        self._closed = False
        self._empty = threading.Event()

    # The engine's side.

    def start(self, job: Any) -> None:
        """Take a call whose arguments are there, or a stream that is to go on."""
        call: AnyCall = job
        if isinstance(call, RemoteProducer) and call.worker is not None:
            self._resume(call, call.worker)
            return
        with self._lock:
            call.order = next(self._arrivals)
            self._lines.setdefault(call.needs, deque()).append(call)
            # Nothing is sent ahead from here: the next end of a task sends many at once instead.
            plan = self._plan(ahead=False) if self._free.cpu >= call.needs.cpu else None
        if plan is not None:
            self._carry_out(plan)

    submit = start

    def close(self, *, wait: bool = False) -> None:
        """Let every worker end after what it has; with `wait`, block until all have."""
        with self._lock:
            self._closed = True
            workers = list(self._places)
            if not workers and not self._retiring:
                self._empty.set()
        for worker in workers:
            self._retire(worker)
        if wait:
            self._empty.wait()

    def kill(self) -> None:
        """End every worker now."""
        with self._lock:
            workers = [*self._places, *self._retiring]
        for worker in workers:
            worker.kill()

    # The workers' side; see `Employer`.

    def done(self, worker: Link, call: AnyCall, seconds: float) -> None:
        """Have a place for another call."""
        if call.export is not None and seconds:
            call.export.took(seconds)
        plan = Plan()
        with self._lock:
            place = self._places.get(worker)
            if place is None:
                return
            place.drop(call)
            place.served += 1
            place.last_end = next(self._ends)
            if not place.runs:
                self._rest(place, plan)
            self._plan(plan)
        self._carry_out(plan)

    def parked(self, worker: Link, call: AnyCall) -> None:
        """Have a place while the stream waits for its consumer."""
        self.lend(worker)

    def returned(self, worker: Link, calls: list[AnyCall]) -> None:
        """Put calls back at the front."""
        plan = Plan()
        with self._lock:
            place = self._places.get(worker)
            if place is not None:
                place.revoking = False
                for call in calls:
                    place.drop(call)
                if calls and not place.runs:
                    self._rest(place, plan)
            self._put_back(calls)
            self._plan(plan)
        self._carry_out(plan)

    def lend(self, worker: Link) -> None:
        """Have a place while what runs waits; ask back what sits behind it."""
        with self._lock:
            place = self._places.get(worker)
            if place is None or not place.runs:
                return
            place.away += 1
            if place.away == 1:
                self._free.cpu += place.needs.cpu
            stuck = len(place.runs) > 1
            plan = self._plan()
        if stuck:
            worker.revoke()
        self._carry_out(plan)

    def reclaim(self, worker: Link) -> None:
        """The place is taken again, though that be one too many for a while."""
        with self._lock:
            place = self._places.get(worker)
            if place is None or not place.away:
                return
            place.away -= 1
            if not place.away:
                self._free.cpu -= place.needs.cpu

    def ended(self, worker: Link, how: str, started: list[AnyCall], unstarted: list[AnyCall]) -> None:
        """Fail, or run again, what the worker had."""
        with self._lock:
            place = self._places.pop(worker, None)
            self._retiring.discard(worker)
            if place is not None:
                self._leave(place)
        again, lost = sorted_out(worker, how, started, unstarted)
        for call in [*again, *unstarted]:
            call.unclaim()
        with self._lock:
            self._put_back([*again, *unstarted])
            plan = self._plan()
            if self._closed and not self._places and not self._retiring:
                self._empty.set()
        self._carry_out(plan)
        for call, error in lost:
            call.lost(error)

    # Under the lock.

    def _plan(self, plan: Plan | None = None, *, ahead: bool = True) -> Plan:
        """Decide which waiting calls go where: older ones first, whose CPUs no younger one takes."""
        plan = Plan() if plan is None else plan
        lines = list(self._lines.items())
        if len(lines) > 1:
            lines.sort(key=lambda one: one[1][0].order)
        reserved = 0.0
        for needs, line in lines:
            self._plan_line(needs, line, plan, ahead)
            if not line:
                del self._lines[needs]
            elif len(lines) > 1 and self._free.cpu < needs.cpu:
                self._free.cpu -= needs.cpu
                reserved += needs.cpu
        self._free.cpu += reserved
        return plan

    def _plan_line(self, needs: Needs, line: deque[AnyCall], plan: Plan, ahead: bool) -> None:
        while line:
            try:
                place = self._free_place(needs) or (self._place_ahead(needs, line[0]) if ahead else None)
            except Exception as error:  # noqa: BLE001 - no more descriptors, say
                if self._works():
                    return  # the end of what runs leaves a place, or makes room for one
                self._give_up(line.popleft(), error, plan)
                continue
            if place is None:
                return
            calls = self._take(place, line, plan)
            if calls:
                plan.given.append((place.worker, calls))
            elif not place.runs:
                self._rest(place, plan)

    def _works(self) -> bool:
        return any(not place.away for busy in self._busy.values() for place in busy)

    def _give_up(self, call: AnyCall, error: Exception, plan: Plan) -> None:
        if call.claim():
            lost = died(call, 0, f"could not be started: {error}")
            lost.__cause__ = error
            plan.lost.append((call, lost))

    def _free_place(self, needs: Needs) -> Place | None:
        if not self._free.fits(needs):
            return None
        gpus = self._free.take(needs)
        try:
            return self._idle_place(needs) or self._new_place(needs, gpus)
        except BaseException:
            self._free.give_back(needs, gpus)
            raise

    def _place_ahead(self, needs: Needs, call: AnyCall) -> Place | None:
        """Return a busy place that a short call may be sent to already; only one that runs low."""
        seconds = call.export.seconds if call.export is not None else None
        busy = self._busy.get(needs)
        if not busy or seconds is None or seconds > _AHEAD_SECONDS / 2 or isinstance(call, RemoteProducer):
            return None
        place = min(busy, key=work_ahead)
        blocked = place.away or place.revoking or self._most_tasks or needs.max_calls or needs.gpus
        return None if blocked or place.ahead > _AHEAD_SECONDS / 2 else place

    def _idle_place(self, needs: Needs) -> Place | None:
        kept = self._idle.get((needs.env,))
        if not kept or needs.gpus:
            return None
        place = kept.pop()
        place.needs = needs
        self._busy.setdefault(needs, set()).add(place)
        return place

    def _new_place(self, needs: Needs, gpus: list[str]) -> Place:
        worker = self._hire(self, environment(needs, gpus))
        place = self._places[worker] = Place(worker, needs, gpus)
        self._busy.setdefault(needs, set()).add(place)
        return place

    def _take(self, place: Place, line: deque[AnyCall], plan: Plan) -> list[AnyCall]:
        """Take from a line what the place is to have: one call, or as many short ones as it has room for."""
        calls: list[AnyCall] = []
        share = -(-len(line) // max(1, len(self._busy[place.needs])))
        while line and len(calls) < share:
            call = line[0]
            seconds = call.export.seconds if call.export is not None else None
            estimate = 1.0 if seconds is None else max(seconds, _SHORTEST)
            stream = isinstance(call, RemoteProducer)
            if place.runs and (stream or place.ahead + estimate > _AHEAD_SECONDS):
                break
            line.popleft()
            if call.scope.cancelling:
                plan.unwanted.append(call)
                continue
            if not call.claim():
                continue
            place.take(call, estimate)
            calls.append(call)
            if stream or self._most_tasks or place.needs.max_calls or place.needs.gpus:
                break
        if len(place.runs) > 1 and not self._ticking:
            self._ticking = True
            self._hub.call_later(_STUCK_SECONDS, lambda: self._ask_back({}))
        return calls

    def _rest(self, place: Place, plan: Plan) -> None:
        """Make a place idle, or let its worker be retired."""
        needs = place.needs
        self._leave(place)
        place.gpus, place.away = [], 0
        tired = self._most_tasks is not None and place.served >= self._most_tasks
        used_up = needs.max_calls is not None and place.served >= needs.max_calls
        if tired or used_up or needs.gpus or self._closed:
            plan.retired.append(place.worker)
        else:
            place.idle_since = time.monotonic()
            self._idle.setdefault((needs.env,), []).append(place)
            if not self._trimming and self._spare() > 0:
                self._trimming = True
                self._hub.call_later(_SPARE_SECONDS, self._trim)

    def _spare(self) -> int:
        return sum(map(len, self._idle.values())) - self._size

    def _leave(self, place: Place) -> None:
        """Give back what a place holds, and take it out of the lists."""
        busy = self._busy.get(place.needs)
        if busy and place in busy:
            busy.discard(place)
            self._free.give_back(place.needs, place.gpus)
            if place.away:
                self._free.cpu -= place.needs.cpu
            if not busy:
                del self._busy[place.needs]
        kept = self._idle.get((place.needs.env,))
        if kept and place in kept:
            kept.remove(place)

    def _put_back(self, calls: list[AnyCall]) -> None:
        for call in reversed(calls):
            self._lines.setdefault(call.needs, deque()).appendleft(call)

    # Outside the lock.

    def _carry_out(self, plan: Plan) -> None:
        for worker, calls in plan.given:
            worker.give(calls)
        for worker in plan.retired:
            self._retire(worker)
        for call in plan.unwanted:
            call.cancel(shutting_down(call))
        for call, error in plan.lost:
            call.lost(error)

    def _resume(self, call: RemoteProducer, worker: Link) -> None:
        self.reclaim(worker)
        worker.resume(call)

    def _retire(self, worker: Link) -> None:
        with self._lock:
            place = self._places.pop(worker, None)
            if place is None:
                return
            self._leave(place)
            self._retiring.add(worker)
        worker.retire()

    def _ask_back(self, before: dict[Place, int]) -> None:
        """Ask back what sits behind a task that has not ended since the last look."""
        with self._lock:
            ahead = [place for busy in self._busy.values() for place in busy if len(place.runs) > 1]
            stuck = [place for place in ahead if before.get(place) == place.last_end and not place.revoking]
            for place in stuck:
                place.revoking = True
            self._ticking = bool(ahead)
            now = {place: place.last_end for place in ahead}
        for place in stuck:
            place.worker.revoke()
        if ahead:
            self._hub.call_later(_STUCK_SECONDS, lambda: self._ask_back(now))

    def _trim(self) -> None:
        """Retire the workers beyond the size that were idle for long; those used last are the last to go."""
        with self._lock:
            idle = sorted((place for kept in self._idle.values() for place in kept), key=idle_since)
            before = time.monotonic() - _SPARE_SECONDS
            old = [place.worker for place in idle[: max(0, self._spare())] if place.idle_since <= before]
            self._trimming = self._spare() > len(old)
            again = self._trimming
        for worker in old:
            self._retire(worker)
        if again:
            self._hub.call_later(_SPARE_SECONDS, self._trim)
