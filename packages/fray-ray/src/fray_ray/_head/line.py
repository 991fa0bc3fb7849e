"""Whose turn it is among jobs that wait for room: in the order of submission. Pure.

Two kinds of jobs wait. `slice_turns` orders gangs that want TPU slices, by the number of slices.
`bundle_turns` orders all others, by the resources of their replicas on the nodes. In both the first in the
line waits for what it lacks, and a later job has what is left over. A job that asks for more than the cluster
has at all delays no other; it asks when no job asks for the same, because an autoscaler sees only what is
asked for.
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_SLACK = 1e-9  # of a copy: sums of floats such as three times 0.1 are a little less than they should be


@dataclass(frozen=True, order=True)
class SliceTicket:
    """The place of a gang in the line.

    Args:
        since: When its job was submitted, also of a gang that was preempted: it is not sent to the end.
        submission: What Ray calls its job.
        kind: What slices it can use: those that ask for the same have the same.
        choices: The acceptable numbers of slices.
        most: How many slices there are that it could use.
        held: How many it has now, and keeps until it has all.
        paused: Whether it has let go of what it held, and asks again in a moment. It keeps its place: no
            later gang of its kind takes what it could use.
    """

    since: float
    submission: str
    kind: str
    choices: tuple[int, ...]
    most: int
    held: int = 0
    paused: bool = False


def slice_turns(tickets: Iterable[SliceTicket], free: Mapping[str, int]) -> dict[str, int]:
    """Return for how many slices each gang may ask now; 0 for one whose turn has not come.

    Args:
        free: The slices of each kind that nobody has.
    """
    line = sorted(tickets)
    left = dict(free)
    for ticket in line:
        left[ticket.kind] = left.get(ticket.kind, 0) + ticket.held
    may = dict.fromkeys((ticket.submission for ticket in line), 0)
    for ticket in line:
        there, least = left[ticket.kind], min(ticket.choices)
        fitting = max((count for count in ticket.choices if count <= there), default=0)
        if fitting:
            may[ticket.submission] = fitting
            left[ticket.kind] -= fitting
        elif least <= ticket.most and there > 0:  # it takes what there is, and waits for the rest
            may[ticket.submission] = least
            left[ticket.kind] = 0
    asks = {
        ticket.kind
        for ticket in line
        if may[ticket.submission] or (ticket.paused and min(ticket.choices) <= ticket.most)
    }
    for ticket in line:
        if ticket.paused:
            may[ticket.submission] = 0
        elif ticket.kind not in asks:  # an autoscaler sees what is asked for, and nobody else could use it
            may[ticket.submission] = min(ticket.choices)
            asks.add(ticket.kind)
    return may


@dataclass(frozen=True)
class BundleTicket:
    """The place of a job without TPUs in the line.

    Args:
        since: When the job was submitted, also of one that was preempted: it is not sent to the end.
        submission: What Ray calls the job.
        bundle: What one replica reserves, by Ray's names.
        choices: The acceptable numbers of replicas.
        nodes: The ids of the nodes that it accepts; None for all.
        held: Whether it has asked Ray, and waits for its placement.
    """

    since: float
    submission: str
    bundle: Mapping[str, float]
    choices: tuple[int, ...]
    nodes: frozenset[str] | None = None
    held: bool = False


@dataclass(frozen=True)
class Turn:
    """What a job of bundles may ask for now.

    Args:
        copies: How many of its bundle; 0 when its turn has not come.
        without: The nodes that it must avoid, although it could use them: an earlier job waits for them.
    """

    copies: int
    without: frozenset[str] = frozenset()


def bundle_turns(
    tickets: Iterable[BundleTicket],
    nodes: Mapping[str, tuple[Mapping[str, float], Mapping[str, float]]],
) -> dict[str, Turn]:
    """Return what each job of bundles may ask for now.

    A job that fits into what is free asks for the largest number that fits. One that does not, but would on
    nodes where nobody else is, asks for the smallest, and reserves what it lacks on those nodes: until it has
    started no later job takes any of that there. What it needs and does not lack is not reserved, so a job
    for CPUs goes on while a gang waits for GPUs. A job that could only fit on reserved nodes waits.

    Args:
        nodes: Of each node its resources: all of them, and those that are free.
    """
    line = sorted(tickets, key=lambda ticket: (ticket.since, ticket.submission))
    free = _FreeResources(nodes)
    may = {ticket.submission: Turn(0) for ticket in line}
    unfit = []
    for ticket in line:
        lacking = free.never_enough(ticket)
        if lacking is None:
            may[ticket.submission] = free.turn(ticket)
        else:
            unfit.append((ticket, (lacking, ticket.nodes)))
    asks = set()
    for ticket, demand in sorted(unfit, key=lambda each: not each[0].held):
        if demand not in asks:
            asks.add(demand)
            may[ticket.submission] = Turn(min(ticket.choices))
    return may


@dataclass
class _Shape:
    """What all jobs share that have the same bundle and accept the same nodes.

    Args:
        needs: The bundle, without amounts of zero.
        accepted: The nodes.
        start: How many of them, from the first, are known to have nothing for it.
        never_enough: What there is too little of for so many copies where nobody else is; None if they fit.
        too_many: The least number that is known not to fit on the nodes that are not reserved.
        closed: The nodes that it could use, and on which an earlier job waits for what it needs.
        seen: How many reservations there were when they were found.
    """

    needs: dict[str, float]
    accepted: list[str]
    start: int = 0
    never_enough: dict[int, frozenset[str] | None] = field(default_factory=dict)
    too_many: int = sys.maxsize
    closed: frozenset[str] = frozenset()
    seen: int = 0


class _FreeResources:
    """What is left on the nodes while the line is gone through; it only becomes less.

    With many jobs and nodes, most jobs are answered without a look at each node: a shape remembers where to
    look, and a resource that is reserved wherever it exists ends the search.
    """

    def __init__(self, nodes: Mapping[str, tuple[Mapping[str, float], Mapping[str, float]]]) -> None:
        self._total = {node: total for node, (total, _) in nodes.items()}
        self._free = {node: dict(free) for node, (_, free) in nodes.items()}
        self._reserved: dict[str, set[str]] = {}  # the nodes, of each resource
        self._reservations = 0
        self._all_reserved: set[str] = set()  # the resources that are reserved on all nodes that have them
        self._shapes: dict[tuple[frozenset[tuple[str, float]], frozenset[str] | None], _Shape] = {}

    def never_enough(self, ticket: BundleTicket) -> frozenset[str] | None:
        """Return what all nodes together have too little of for a job; None if it could fit with no other."""
        shape, least = self._shape(ticket), min(ticket.choices)
        if least not in shape.never_enough:
            fits = self._suffice(shape.needs, shape.accepted, least, self._total)
            lacking = None if fits else self._lacking(shape.needs, shape.accepted, least, self._total)
            shape.never_enough[least] = lacking
        return shape.never_enough[least]

    def turn(self, ticket: BundleTicket) -> Turn:
        """Take room for a job that fits, reserve it for one that may wait for it, and return its turn."""
        shape, least = self._shape(ticket), min(ticket.choices)
        if least >= shape.too_many or not self._all_reserved.isdisjoint(shape.needs):
            return Turn(0)
        closed = self._closed(shape)
        places = self._first_fit(shape, max(ticket.choices))
        found = sum(places.values())
        fitting = max((count for count in ticket.choices if count <= found), default=0)
        if fitting:
            self._take(shape.needs, places, fitting)
            return Turn(fitting, closed)
        nodes = [node for node in shape.accepted if node not in closed and self._usable(shape, node)]
        if not self._suffice(shape.needs, nodes, least, self._total):
            shape.too_many = least
            return Turn(0)
        for name in self._lacking(shape.needs, nodes, least, self._free):
            self._reserve(name, nodes)
        shape.too_many = 1
        return Turn(least, closed)

    def _shape(self, ticket: BundleTicket) -> _Shape:
        key = frozenset(ticket.bundle.items()), ticket.nodes
        if key not in self._shapes:
            needs = {name: amount for name, amount in ticket.bundle.items() if amount > 0}
            accepted = [node for node in self._total if ticket.nodes is None or node in ticket.nodes]
            self._shapes[key] = _Shape(needs, accepted)
        return self._shapes[key]

    def _usable(self, shape: _Shape, node: str) -> bool:
        return _copies(shape.needs, self._total[node]) > 0

    def _closed(self, shape: _Shape) -> frozenset[str]:
        if shape.seen < self._reservations:
            reserved = set().union(*self._reserved_sets(shape)).intersection(shape.accepted)
            shape.closed = frozenset(node for node in reserved if self._usable(shape, node))
            shape.seen = self._reservations
        return shape.closed

    def _reserved_sets(self, shape: _Shape) -> list[set[str]]:
        return [self._reserved[name] for name in shape.needs if name in self._reserved]

    def _first_fit(self, shape: _Shape, wanted: int) -> dict[str, int]:
        """Return how many copies go on which nodes, at most as many as wanted."""
        reserved = self._reserved_sets(shape)
        places: dict[str, int] = {}
        for index in range(shape.start, len(shape.accepted)):
            node = shape.accepted[index]
            is_reserved = any(node in nodes for nodes in reserved)
            copies = 0 if is_reserved else min(wanted, _copies(shape.needs, self._free[node]))
            if copies:
                places[node] = copies
                wanted -= copies
            elif not places:
                shape.start = index + 1
            if not wanted:
                break
        return places

    def _take(self, needs: Mapping[str, float], places: Mapping[str, int], count: int) -> None:
        for node, there in places.items():
            copies = min(count, there)
            count -= copies
            for name, amount in needs.items():
                self._free[node][name] -= copies * amount

    def _reserve(self, name: str, nodes: Iterable[str]) -> None:
        reserved = self._reserved.setdefault(name, set())
        reserved.update(nodes)
        self._reservations += 1
        if all(node in reserved for node, total in self._total.items() if total.get(name)):
            self._all_reserved.add(name)

    @staticmethod
    def _suffice(
        needs: Mapping[str, float], nodes: Iterable[str], wanted: int, what: Mapping[str, Mapping[str, float]]
    ) -> bool:
        """Whether so many copies fit on the nodes: into all that they have, or what is free."""
        for node in nodes:
            wanted -= min(wanted, _copies(needs, what[node]))
            if not wanted:
                return True
        return False

    @classmethod
    def _lacking(
        cls,
        needs: Mapping[str, float],
        nodes: Iterable[str],
        wanted: int,
        what: Mapping[str, Mapping[str, float]],
    ) -> frozenset[str]:
        """Return the resources that alone suffice for too few copies; all, where it is how they are mixed."""
        nodes = list(nodes)
        lacking = (
            name for name, amount in needs.items() if not cls._suffice({name: amount}, nodes, wanted, what)
        )
        return frozenset(lacking) or frozenset(needs)


def _copies(needs: Mapping[str, float], there: Mapping[str, float]) -> int:
    """Return how many copies of what is needed are there."""
    fits = float(sys.maxsize)
    for name, amount in needs.items():
        fits = min(fits, there.get(name, 0.0) / amount)
        if fits < 1 - _SLACK:
            return 0
    return int(fits + _SLACK)
