"""Whose turn it is among jobs that wait for room: in the order of submission. Pure.

Two kinds of jobs wait: gangs that want TPU slices, and jobs without TPUs. Gangs that can use the same slices
are ordered by the number of slices, all others by the resources of their replicas on the nodes. In both the
first in the line waits for what it lacks, and a later job has what is left over. What a gang lacks on the
hosts of slices is not taken by later jobs without TPUs either.

A job that asks for more than the cluster has at all is unfit. It delays no other. The first of the unfit that
request the same has an open request, because an autoscaler sees only what is asked for.
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_SLACK = 1e-9  # of a copy: sums of floats such as three times 0.1 are a little less than they should be

Resources = Mapping[str, tuple[Mapping[str, float], Mapping[str, float]]]
"""Of each node its resources: all of them, and those that are free."""


@dataclass(frozen=True)
class SliceTicket:
    """The place of a gang in the line.

    Args:
        since: When its job was submitted, also of a gang that was preempted: it is not sent to the end.
        submission: What Ray calls its job.
        kind: What slices it can use: those that ask for the same have the same.
        choices: The acceptable numbers of slices.
        slices: The hosts of each slice that it could use, were nobody else there; by rank.
        bundle: What it reserves on each host.
        free: How many of its slices have all that it needs now.
        avoided: Hosts that it does not take for a while.
        held: How many slices it has now, and keeps until it has all.
        hosts: The hosts of these.
        paused: Whether it has let go of what it held, and asks again in a moment. It keeps its place: no
            later gang of its kind takes what it could use.
    """

    since: float
    submission: str
    kind: str
    choices: tuple[int, ...]
    slices: tuple[tuple[str, ...], ...]
    bundle: Mapping[str, float] = field(default_factory=dict)
    free: int = sys.maxsize
    avoided: frozenset[str] = frozenset()
    held: int = 0
    hosts: frozenset[str] = frozenset()
    paused: bool = False

    @property
    def least(self) -> int:
        """The smallest acceptable number of slices."""
        return min(self.choices)

    @property
    def unfit(self) -> bool:
        """Whether there are too few slices that it could use."""
        return self.least > len(self.slices)


@dataclass(frozen=True)
class BundleTicket:
    """The place of a job without TPUs in the line.

    Args:
        since: When the job was submitted, also of one that was preempted: it is not sent to the end.
        submission: What Ray calls the job.
        bundle: What one replica reserves, by Ray's names.
        choices: The acceptable numbers of replicas.
        nodes: The ids of the nodes that it accepts; None for all.
    """

    since: float
    submission: str
    bundle: Mapping[str, float]
    choices: tuple[int, ...]
    nodes: frozenset[str] | None = None


@dataclass(frozen=True)
class Turn:
    """What a job may ask for now.

    Args:
        copies: How many replicas, of a gang how many slices; 0 when its turn has not come. An unfit gang
            may ask for fewer slices than it can start with: they are those that are missing.
        without: The nodes that it must avoid, although it could use them: others wait for them.
        unfit: Whether it cannot start on what exists, however long it waits.
    """

    copies: int
    without: frozenset[str] = frozenset()
    unfit: bool = field(default=False, compare=False)


def turns(
    gangs: Iterable[SliceTicket],
    others: Iterable[BundleTicket],
    nodes: Resources,
    free_slices: Mapping[str, int],
) -> dict[str, Turn]:
    """Return what each job that waits may ask for now.

    A job without TPUs that fits into what is free asks for the largest number that fits. One that does not,
    but would on nodes where nobody else is, asks for the smallest, and reserves what it lacks on those nodes:
    until it has started no later job without TPUs takes any of that there. What it needs and does not lack is
    not reserved, so a job for CPUs goes on while a gang waits for GPUs. A job that could only fit on reserved
    nodes waits.

    A gang that fits asks for the largest number of free slices, and the first that does not takes the free
    ones and waits for the rest. It reserves what it lacks on the hosts of its slices in the same way.

    An unfit gang takes no slice that a job waits for which could start there. It asks for the others, and
    for those that do not exist: an autoscaler sees these, and does not end the others because they are idle.
    So a gang that is alone asks for all its slices, and one whose slices are all waited for asks for the
    missing ones on none of the nodes that exist. When one of these comes, it is a slice that exists: the gang
    gives it back where another job waits for it, until there are enough for the gang to be in the line of
    those that fit.

    Args:
        free_slices: The slices of each kind that nobody has.
    """
    fit, unfit = _in_line(gangs)
    held: dict[str, int] = {}
    for gang in (*fit, *unfit):
        held[gang.kind] = held.get(gang.kind, 0) + gang.held
    asked = _slice_turns(fit, free_slices, held)
    free = _FreeResources(nodes)
    may = _bundle_turns(fit, asked, others, free)
    for gang in fit:
        may[gang.submission] = Turn(0 if gang.paused else asked[gang.submission])
    return may | _unfit_turns(unfit, fit, nodes, free)


def _in_line(gangs: Iterable[SliceTicket]) -> tuple[list[SliceTicket], list[SliceTicket]]:
    """Return the gangs that could run on what exists, and those that are unfit."""
    line = sorted(gangs, key=_place)
    return [gang for gang in line if not gang.unfit], [gang for gang in line if gang.unfit]


def _place(ticket: SliceTicket | BundleTicket) -> tuple[float, str]:
    return ticket.since, ticket.submission


def _slice_turns(line: list[SliceTicket], free: Mapping[str, int], held: Mapping[str, int]) -> dict[str, int]:
    """Return for how many slices each gang may ask, or could if it were not paused; 0 if it has to wait.

    Args:
        free: The slices of each kind that nobody has.
        held: Those that gangs which wait have.
    """
    may: dict[str, int] = {}
    asks: set[str] = set()
    left = {kind: free.get(kind, 0) + count for kind, count in held.items()}
    for gang in line:
        there = left[gang.kind]
        fitting = min(there, gang.free + held[gang.kind])  # another bundle may fit on more slices
        units = max((count for count in gang.choices if count <= fitting), default=0)
        # It takes what there is, and waits for the rest. The first asks also where there is nothing.
        if not units and (there > 0 or gang.kind not in asks):
            units = gang.least
        if units:
            asks.add(gang.kind)
            left[gang.kind] = max(0, there - units)
        may[gang.submission] = units
    return may


def _unfit_turns(
    unfit: list[SliceTicket], fit: Iterable[SliceTicket], nodes: Resources, free: "_FreeResources"
) -> dict[str, Turn]:
    """Return what unfit gangs may ask for: the first that requests the same, for all but what others want."""
    firsts = {(gang.kind, frozenset(gang.bundle.items())): gang for gang in reversed(unfit)}
    # Many gangs have the same slices, and it takes time to compare them.
    wanted = {id(gang.slices): gang.slices for gang in fit}.values() if unfit else ()
    contested = {host for slices in wanted for hosts in slices for host in hosts}
    contested |= free.awaited({host for gang in firsts.values() for hosts in gang.slices for host in hosts})
    may = {gang.submission: Turn(0, unfit=True) for gang in unfit}
    for gang in firsts.values():
        avoided = [
            hosts
            for hosts in gang.slices
            if not contested.isdisjoint(hosts)
            or (not free.given.isdisjoint(hosts) and _is_open(gang, hosts, nodes))
        ]
        if not gang.paused:  # a slice is placed as a whole: without its first host none of it is
            without = frozenset(hosts[0] for hosts in avoided)
            may[gang.submission] = Turn(gang.least - len(avoided), without, unfit=True)
    return may


def _is_open(gang: SliceTicket, hosts: Iterable[str], nodes: Resources) -> bool:
    """Whether Ray would give a slice to a gang at once, before another job gets its place there."""
    needs = {name: amount for name, amount in gang.bundle.items() if amount > 0}
    return gang.hosts.isdisjoint(hosts) and all(_copies(needs, nodes[host][1]) for host in hosts)


def _bundle_turns(
    gangs: Iterable[SliceTicket],
    asked: Mapping[str, int],
    others: Iterable[BundleTicket],
    free: "_FreeResources",
) -> dict[str, Turn]:
    """Return what each job without TPUs may ask for, where those gangs ask for so many slices."""
    waiting = list(others)
    line: list[SliceTicket | BundleTicket] = [*waiting]
    if waiting:  # else there is nothing to keep from anyone
        line += [gang for gang in gangs if asked[gang.submission]]
    may = {ticket.submission: Turn(0) for ticket in waiting}
    demands = set()
    for ticket in sorted(line, key=_place):
        if isinstance(ticket, SliceTicket):
            free.keep_slices(ticket, asked[ticket.submission])
        elif not free.is_unfit(ticket):
            may[ticket.submission] = free.turn(ticket)
        elif (demand := (frozenset(ticket.bundle.items()), ticket.nodes)) not in demands:
            demands.add(demand)
            may[ticket.submission] = Turn(min(ticket.choices), unfit=True)
    return may


@dataclass
class _Shape:
    """What all jobs share that have the same bundle and accept the same nodes.

    Args:
        needs: The bundle, without amounts of zero.
        accepted: The nodes.
        start: How many of them, from the first, are known to have nothing for it.
        unfit: Whether there is too little for so many copies, where nobody else is.
        too_many: The least number that is known not to fit on the nodes that are not reserved.
        closed: The nodes that it could use, and on which an earlier job waits for what it needs.
        seen: How many reservations there were when they were found.
        waits: Whether a job waits that could fit with no other.
    """

    needs: dict[str, float]
    accepted: list[str]
    start: int = 0
    unfit: dict[int, bool] = field(default_factory=dict)
    too_many: int = sys.maxsize
    closed: frozenset[str] = frozenset()
    seen: int = 0
    waits: bool = False


class _FreeResources:
    """What is left on the nodes while the line is gone through; it only becomes less.

    With many jobs and nodes, most jobs are answered without a look at each node: a shape remembers where to
    look, and a resource that is reserved wherever it exists ends the search.
    """

    def __init__(self, nodes: Resources) -> None:
        self._total = {node: total for node, (total, _) in nodes.items()}
        self._free = {node: dict(free) for node, (_, free) in nodes.items()}
        self._reserved: dict[str, set[str]] = {}  # the nodes, of each resource
        self._reservations = 0
        self.given: set[str] = set()  # nodes that jobs without TPUs are about to get places on
        # By slices and what is needed on each host: how many, from the first, are known not to have it.
        self._starts: dict[tuple[int, frozenset[tuple[str, float]]], int] = {}
        self._all_reserved: set[str] = set()  # the resources that are reserved on all nodes that have them
        self._shapes: dict[tuple[frozenset[tuple[str, float]], frozenset[str] | None], _Shape] = {}

    def is_unfit(self, ticket: BundleTicket) -> bool:
        """Whether a job could not start if no other job were there."""
        shape, least = self._shape(ticket), min(ticket.choices)
        if least not in shape.unfit:
            shape.unfit[least] = not self._suffice(shape.needs, shape.accepted, least, self._total)
        return shape.unfit[least]

    def turn(self, ticket: BundleTicket) -> Turn:
        """Take room for a job that fits, reserve it for one that may wait for it, and return its turn."""
        shape, least = self._shape(ticket), min(ticket.choices)
        if least >= shape.too_many or not self._all_reserved.isdisjoint(shape.needs):
            shape.waits = True
            return Turn(0)
        closed = self._closed(shape)
        places = self._first_fit(shape, max(ticket.choices))
        found = sum(places.values())
        fitting = max((count for count in ticket.choices if count <= found), default=0)
        if fitting:
            self._take(shape.needs, places, fitting)
            self.given.update(places)
            return Turn(fitting, closed)
        shape.waits = True
        nodes = [node for node in shape.accepted if node not in closed and self._usable(shape, node)]
        if not self._suffice(shape.needs, nodes, least, self._total):
            shape.too_many = least
            return Turn(0)
        for name in self._lacking(shape.needs, nodes, least, self._free):
            self._reserve(name, nodes)
        shape.too_many = 1
        return Turn(least, closed)

    def awaited(self, nodes: set[str]) -> set[str]:
        """Return those of these nodes that a job without TPUs waits for, and could use."""
        found: set[str] = set()
        for shape in [shape for shape in self._shapes.values() if shape.waits and nodes]:
            there = nodes.intersection(shape.accepted) - found
            found.update(node for node in there if self._usable(shape, node))
        return found

    def keep_slices(self, gang: SliceTicket, units: int) -> None:
        """Take so many slices for a gang; if there are too few, reserve what it lacks on the hosts of all.

        What is left on the hosts of those that it holds is for others.
        """
        needs = {name: amount for name, amount in gang.bundle.items() if amount > 0}
        whole = self._first_whole(gang, needs, max(0, units - gang.held))
        fitting = next((count for count in (units, gang.least) if count - gang.held <= len(whole)), None)
        if fitting is not None:
            for hosts in whole[: max(0, fitting - gang.held)]:
                self._take(needs, dict.fromkeys(hosts, 1), len(hosts))
            return
        missing, unusable = gang.least - gang.held, gang.hosts | gang.avoided
        slices = [hosts for hosts in gang.slices if unusable.isdisjoint(hosts)]
        alone = {name: sum(self._has(hosts, {name: needs[name]}) for hosts in slices) for name in needs}
        for name in [name for name in needs if alone[name] < missing] or needs:
            self._reserve(name, (host for hosts in slices for host in hosts))

    def _first_whole(
        self, gang: SliceTicket, needs: Mapping[str, float], count: int
    ) -> list[tuple[str, ...]]:
        """Return slices with all that a gang needs, at most so many."""
        found: list[tuple[str, ...]] = []
        key = id(gang.slices), frozenset(needs.items())
        start = self._starts.get(key, 0)
        for index in range(start, len(gang.slices)):
            if len(found) == count:
                break
            hosts = gang.slices[index]
            if not self._has(hosts, needs):
                start += index == start
            elif gang.avoided.isdisjoint(hosts):
                found.append(hosts)
        self._starts[key] = start
        return found

    def _has(self, hosts: Iterable[str], needs: Mapping[str, float]) -> bool:
        return all(_copies(needs, self._free.get(host, {})) for host in hosts)

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
