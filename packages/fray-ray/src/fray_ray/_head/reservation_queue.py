"""The line of the jobs that wait for room: one look at the cluster serves all of them.

A look asks Ray for its nodes and its placement groups, decides by `line` which jobs may ask for room now, and
has those ask. The head of the line always has an open request, so that an autoscaler sees the demand.
"""

import asyncio
import contextlib
import random
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fray_ray._head.line import BundleTicket, Resources, SliceTicket, Turn, turns
from fray_ray._head.nodes import Nodes, nodes_now
from fray_ray._head.placement import BundleLayout
from fray_ray._head.reservation import Reservation
from fray_ray._plan import Plan

_SHORTEST, _LONGEST = 0.02, 0.5  # seconds between two looks at placement groups
_COUNTS_EVERY = 1.0  # seconds between two looks at nodes while nothing is known to have changed
# Two gangs that are not in one line (another region, say) and each hold one of the slices that the other
# waits for would wait for ever: each lets go after a time, and asks again after another, which differ. It
# keeps its place meanwhile, so no later gang of its own line takes what it let go of.
_HOLDS_FOR, _LETS_GO_FOR = (60.0, 120.0), (0.5, 5.0)
# Seconds between two times that a job says what it waits for, and as many more as there are jobs that wait.
_SAYS_EVERY, _SAYS_EVERY_OF_ONE = 1.0, 0.03
_GROWS_AFTER = 10.0  # seconds for which an unfit gang could have asked for more
_LETS_GO_AFTER = 3.0  # seconds for which its turn has not come: what Ray says of its nodes lags behind


@dataclass(eq=False)
class _WaitingJob:
    """A job in the line."""

    plan: Plan
    reservation: Reservation
    say: Callable[[str], None]
    placed: "asyncio.Future[None]"
    holds_until: float | None = None
    asks_again_at: float = 0.0
    paused: bool = False
    blocked_since: float | None = None
    grows_since: float | None = None
    says_at: float = 0.0

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """Have an error be that of this job alone: Ray refuses its request, or the head is away."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the job's own task raises it
            self.placed.set_exception(error)

    def may_grow(self, turn: Turn, now: float) -> bool:
        """Whether it may ask Ray for what its turn says.

        An unfit gang asks for less at once, and for more only after a time: jobs that start within seconds
        would have it make all its requests again, twice each.
        """
        if not (turn.unfit and self.reservation.asked and turn.copies > self.reservation.units):
            self.grows_since = None
            return True
        self.grows_since = self.grows_since or now
        return now - self.grows_since >= _GROWS_AFTER


class ReservationQueue:
    """All that wait for room under one scheduler."""

    def __init__(self) -> None:
        self._line: list[_WaitingJob] = []
        self._changed = asyncio.Event()
        self._changed_at = self._counted_at = 0.0

    async def find(self, plan: Plan, reservation: Reservation, say: Callable[[str], None]) -> None:
        """Wait until every replica of a job has its place.

        Args:
            say: Called with what is waited for, again and again.
        """
        job = _WaitingJob(plan, reservation, say, asyncio.get_running_loop().create_future())
        self._line.append(job)
        self.look_soon()
        try:
            await job.placed
        finally:
            self._line.remove(job)
            self.look_soon()

    def look_soon(self) -> None:
        """Look at the cluster: room was given back, or is wanted."""
        self._changed_at, self._counted_at = time.monotonic(), 0.0
        self._changed.set()

    async def run(self) -> None:
        """Serve the line, for ever."""
        while True:
            if not self._line:
                await self._changed.wait()
            self._changed.clear()
            try:
                self._look()
            except Exception:  # noqa: BLE001 - the head is away for a moment
                traceback.print_exc()
            quiet = time.monotonic() - self._changed_at
            # `wait_for` of Python 3.11 goes on where it is cancelled when the event comes, as a job leaves.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(_LONGEST, max(_SHORTEST, quiet / 8))):
                    await self._changed.wait()

    def _look(self) -> None:
        if not self._line:
            return
        tables = {name: table for job in self._line for name, table in job.reservation.tables().items()}
        waiting = []
        for job in self._line:
            if job.placed.done():
                continue
            if job.reservation.whole(tables):
                job.placed.set_result(None)
            else:
                waiting.append(job)
        now = time.monotonic()
        if waiting and now >= self._counted_at + _COUNTS_EVERY:
            self._counted_at = now
            self._ask(waiting, tables, now)

    def _ask(self, waiting: list[_WaitingJob], tables: Mapping[str, Mapping[str, Any]], now: float) -> None:
        """Have each that may ask do so; have those that wait for too long let go of a part."""
        nodes = nodes_now()
        for job in waiting:
            with job.failing():
                job.reservation.look_at_avoided(nodes.living)
                self._let_go_in_time(job, tables, now)
        waiting = [job for job in waiting if not job.placed.done()]
        may = turns_of(waiting, nodes, tables)
        texts: dict[Any, str] = {}
        for job in waiting:
            with job.failing():
                if not job.paused:
                    self._take_turn(job, may[job.plan.submission], now)
                # What is free changes all the time, and each job writes what it waits for.
                if now >= job.says_at and not job.placed.done():
                    job.says_at = now + max(_SAYS_EVERY, _SAYS_EVERY_OF_ONE * len(waiting))
                    job.say(_why_not(job, nodes, texts))

    @staticmethod
    def _let_go_in_time(job: _WaitingJob, tables: Mapping[str, Mapping[str, Any]], now: float) -> None:
        """Have a job that has held a part for too long let go of it, and ask for nothing for a moment."""
        job.paused = now < job.asks_again_at
        if not job.reservation.placed(tables):
            job.holds_until = None
            return
        job.holds_until = job.holds_until or now + random.uniform(*_HOLDS_FOR)  # noqa: S311 - no secret
        if now >= job.holds_until:
            job.reservation.close()
            job.holds_until, job.paused = None, True
            job.asks_again_at = now + random.uniform(*_LETS_GO_FOR)  # noqa: S311

    @staticmethod
    def _take_turn(job: _WaitingJob, turn: Turn, now: float) -> None:
        reservation = job.reservation
        if turn.copies:
            job.blocked_since = None
            if reservation.asked_for(turn.copies, turn.without) or not job.may_grow(turn, now):
                return
        else:
            job.blocked_since = job.blocked_since or now
            if not reservation.asked or now - job.blocked_since < _LETS_GO_AFTER:
                return
        # Its room may have been found since the groups were looked at: the turn does not know that.
        if reservation.asked and reservation.intact():
            job.placed.set_result(None)
        elif turn.copies:
            reservation.ask(turn.copies, turn.without)
        else:
            reservation.close()


def turns_of(jobs: Iterable[Any], nodes: Nodes, tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Turn]:
    """Return what each job of the line may ask for now."""
    slices: list[Any] = []
    bundles: list[Any] = []
    for job in jobs:
        (bundles if isinstance(job.reservation.layout, BundleLayout) else slices).append(job)
    counts = _Counts(nodes)
    tickets = [counts.ticket(job, tables) for job in slices]
    return turns(tickets, _bundle_tickets(bundles, nodes), _resources_by_node(nodes), counts.free)


def _resources_by_node(nodes: Nodes) -> Resources:
    return {node["NodeID"]: (node["Resources"], free) for node, free in nodes.usable}


def _bundle_tickets(jobs: list[Any], nodes: Nodes) -> list[BundleTicket]:
    tickets = []
    accepted: dict[Any, frozenset[str] | None] = {}
    for job in jobs:
        layout, avoided = job.reservation.layout, job.reservation.avoided
        key = job.plan.resources.regions, avoided
        if key not in accepted:
            fits = frozenset(
                node["NodeID"]
                for node, _ in nodes.usable
                if node["NodeID"] not in avoided and layout.acceptable(node)
            )
            accepted[key] = None if len(fits) == len(nodes.usable) else fits
        plan = job.plan
        ticket = BundleTicket(plan.submitted_at, plan.submission, layout.bundle, plan.choices, accepted[key])
        tickets.append(ticket)
    return tickets


@dataclass
class _Counts:
    """The slices of each kind; those that are asked for alike are looked for once."""

    nodes: Nodes
    free: dict[str, int] = field(default_factory=dict)
    _known: dict[Any, tuple[int, tuple[tuple[str, ...], ...]]] = field(default_factory=dict)

    def ticket(self, job: Any, tables: Mapping[str, Mapping[str, Any]]) -> SliceTicket:
        """Return the place of a gang in the line."""
        plan, reservation = job.plan, job.reservation
        layout, avoided = reservation.layout, reservation.avoided
        key = layout.kind, tuple(layout.bundle.items()), avoided
        if key not in self._known:
            self._known[key] = layout.free(avoided, self.nodes), layout.slices(self.nodes)
        free, slices = self._known[key]
        self.free[layout.kind] = max(free, self.free.get(layout.kind, 0))
        return SliceTicket(
            plan.submitted_at,
            plan.submission,
            layout.kind,
            plan.choices,
            slices,
            layout.bundle,
            free=free,
            avoided=avoided,
            held=reservation.placed(tables),
            hosts=reservation.hosts(tables),
            paused=job.paused,
        )


def _why_not(job: _WaitingJob, nodes: Nodes, texts: dict[Any, str]) -> str:
    """Return what a job waits for; the text of jobs that want the same is made once."""
    layout = job.reservation.layout
    key = layout.kind, tuple(layout.bundle.items()), tuple(job.plan.labels.items()), job.reservation.units
    if key not in texts:
        texts[key] = job.reservation.why_not_placed(nodes)
    return texts[key]
