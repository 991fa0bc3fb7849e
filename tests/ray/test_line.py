"""The order among jobs that wait for room, by models; nothing here needs a cluster."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from fray_ray._head import reservation_queue
from fray_ray._head.line import BundleTicket, SliceTicket, Turn, turns

KIND = "v4-16"
NOTHING = Turn(0)

Amounts = dict[str, float]
Nodes = dict[str, tuple[Amounts, Amounts]]


def ticket(number: int, *choices: int, most: int = 2, held: int = 0, kind: str = KIND) -> SliceTicket:
    slices = tuple((f"{kind}-{each}",) for each in range(most))  # of one host each
    return SliceTicket(float(number), f"job-{number}", kind, choices, slices, held=held)


def slice_turns(line: Iterable[SliceTicket], free: Mapping[str, int]) -> dict[str, int]:
    """Return for how many slices each may ask, where only gangs wait."""
    return {job: turn.copies for job, turn in turns(line, (), {}, free).items()}


def bundle_turns(line: Iterable[BundleTicket], nodes: Nodes) -> dict[str, Turn]:
    return turns((), line, nodes, {})


def test_a_gang_of_two_slices_is_not_overtaken_by_smaller_ones() -> None:
    line = [ticket(2, 1), ticket(0, 2), ticket(1, 1)]
    assert slice_turns(line, {KIND: 1}) == {"job-0": 2, "job-1": 0, "job-2": 0}
    assert slice_turns([ticket(0, 2, held=1), ticket(1, 1)], {KIND: 1}) == {"job-0": 2, "job-1": 0}


def test_a_gang_that_lets_go_for_a_moment_keeps_its_place() -> None:
    first = replace(ticket(0, 2), paused=True)
    for free in (0, 1, 2):
        assert slice_turns([first, ticket(1, 1)], {KIND: free}) == {"job-0": 0, "job-1": 0}
    assert slice_turns([first, ticket(1, 1)], {KIND: 3}) == {"job-0": 0, "job-1": 1}
    gone = replace(ticket(0, 2, most=1), paused=True)  # its slices are gone meanwhile
    assert slice_turns([gone, ticket(1, 1)], {KIND: 0}) == {"job-0": 0, "job-1": 1}


def test_what_is_left_over_goes_to_the_next_in_the_line() -> None:
    line = [ticket(0, 2), ticket(1, 1), ticket(2, 1), ticket(3, 1, kind="v4-8")]
    assert slice_turns(line, {KIND: 3, "v4-8": 1}) == {
        "job-0": 2,
        "job-1": 1,
        "job-2": 0,
        "job-3": 1,
    }


def test_of_several_acceptable_numbers_the_largest_that_there_is_is_taken() -> None:
    assert slice_turns([ticket(0, 4, 2, 1)], {KIND: 3}) == {"job-0": 2}


def test_a_gang_for_more_than_there_is_delays_none_and_asks_for_what_is_missing() -> None:
    def asked(*line: SliceTicket) -> list[Turn]:
        may = turns(line, (), {}, {KIND: 1})
        return [may[each.submission] for each in line]

    exist = frozenset({f"{KIND}-0", f"{KIND}-1"})
    assert asked(ticket(0, 4), ticket(1, 1)) == [Turn(2, exist), Turn(1)]
    assert asked(ticket(0, 4), ticket(1, 2, held=1)) == [Turn(2, exist), Turn(2)]
    # What nobody else waits for it takes: an autoscaler would end slices that are idle while others come.
    assert asked(ticket(0, 4), ticket(1, 5)) == [Turn(4), Turn(0)]
    assert asked(ticket(0, 4), ticket(1, 1, kind="v4-8")) == [Turn(4), Turn(1)]
    assert slice_turns([ticket(0, 4, most=0), ticket(1, 4, most=0)], {}) == {"job-0": 4, "job-1": 0}


def test_of_two_kinds_that_can_use_the_same_slice_the_one_that_fits_has_it() -> None:
    spot_too, not_spot = ticket(0, 3), replace(ticket(1, 1, kind="not spot"), slices=((f"{KIND}-1",),))
    may = turns([spot_too, not_spot], (), {}, {KIND: 1})
    assert may == {"job-0": Turn(2, frozenset({f"{KIND}-1"})), "job-1": Turn(1)}


def test_the_first_asks_also_where_nothing_is_free_and_a_later_one_is_paused() -> None:
    assert slice_turns([ticket(0, 2), replace(ticket(1, 1), paused=True)], {}) == {"job-0": 2, "job-1": 0}


@dataclass
class Gang:
    """A gang of the model: its request to Ray, and the slices that it was granted."""

    comes: int
    runs: int
    ticket: SliceTicket
    request: Turn = NOTHING
    has: set[str] = field(default_factory=set)
    ends: int | None = None  # it runs until then

    @property
    def is_whole(self) -> bool:
        return self.request.copies in self.ticket.choices and len(self.has) == self.request.copies

    def ask(self, turn: Turn) -> bool:
        """Ask for what it may; return whether that is another request, which gives back what it has."""
        if turn == self.request:
            return False
        self.request = turn
        self.has.clear()
        return True


@dataclass
class SliceCluster:
    """Grants slices to requests: new ones in their order, and slices that come to any that waits."""

    random: Random
    slices: list[str]
    waiting: list[Gang] = field(default_factory=list)
    running: list[Gang] = field(default_factory=list)
    started: list[Gang] = field(default_factory=list)

    def free(self) -> list[str]:
        taken = [each for gang in (*self.waiting, *self.running) for each in gang.has]
        assert len(taken) == len(set(taken)), "two have the same"
        return [each for each in self.slices if each not in taken]

    def come(self, slices: list[str]) -> None:
        """Add slices; Ray grants them to any that wait, before the next look."""
        self.slices += slices
        self.random.shuffle(self.waiting)
        self.grant()
        self.waiting.sort(key=lambda gang: gang.ticket.since)

    def grant(self) -> None:
        for slice_ in self.free():
            want = [
                gang
                for gang in self.waiting
                if len(gang.has) < gang.request.copies and slice_ not in gang.request.without
            ]
            if want:
                want[0].has.add(slice_)

    def start(self, now: int) -> bool:
        """Start those that are whole; what they were granted was theirs by what existed at the last look."""
        whole = [gang for gang in self.waiting if gang.is_whole]
        for gang in whole:
            earlier = [each for each in self.waiting if each.ticket.since < gang.ticket.since]
            late = [each for each in earlier if not (each.ticket.unfit or each.is_whole)]
            assert not late, "a gang that fits was overtaken"
            gang.ends = now + gang.runs
            self.running.append(gang)
            self.started.append(gang)
        self.waiting = [gang for gang in self.waiting if gang not in whole]
        return bool(whole)

    def pause(self, *, lets_go: bool) -> None:
        """Have those that hold a part let go of it until the next step."""
        for gang in self.waiting:
            gang.ticket = replace(gang.ticket, paused=lets_go and bool(gang.has))
            if gang.ticket.paused:
                gang.ask(NOTHING)

    def look(self) -> bool:
        """Have all ask for what they may; return whether a request has changed."""
        slices = tuple((each,) for each in self.slices)
        for gang in self.waiting:
            gang.ticket = replace(gang.ticket, slices=slices, held=len(gang.has))
        may = turns([gang.ticket for gang in self.waiting], (), {}, {KIND: len(self.free())})
        changed = [gang.ask(may[gang.ticket.submission]) for gang in self.waiting]
        return any(changed)

    def check(self) -> None:
        """Nothing can start: check that nothing is idle that a job waits for, and that the first asks."""
        line = self.waiting
        if not line or any(gang.ticket.paused for gang in line):
            return
        assert line[0].request.copies, "an autoscaler does not see what the first wants"
        if any(not gang.ticket.unfit for gang in line):
            idle = [*self.free(), *(each for gang in line if gang.ticket.unfit for each in gang.has)]
            assert not idle, "a slice is idle, and a gang waits that could start with one like it"


GANGS = st.lists(
    st.tuples(st.integers(0, 6), st.lists(st.integers(1, 6), min_size=1, max_size=2), st.integers(1, 4)),
    max_size=8,
)


@settings(max_examples=300)
@given(
    total=st.integers(0, 3),
    jobs=GANGS,
    pauses=st.sets(st.integers(0, 20), max_size=5),
    arrivals=st.lists(st.integers(0, 20), max_size=4),
    random=st.randoms(use_true_random=False),
)
def test_gangs_start_in_order_and_no_slice_is_idle_for_which_a_gang_waits(
    total: int, jobs: list[tuple[int, list[int], int]], pauses: set[int], arrivals: list[int], random: Random
) -> None:
    """A step of the clock at a time: jobs and slices come, jobs take what they may, run, and give back.

    At times those that hold a part let go of it for a step.
    """
    gangs = [
        Gang(comes, runs, replace(ticket(number, *choices), since=comes + number / 100))
        for number, (comes, choices, runs) in enumerate(jobs)
    ]
    cluster = SliceCluster(random, [f"slice-{number}" for number in range(total)])
    for now in range(60):
        cluster.running = [gang for gang in cluster.running if gang.ends is None or gang.ends > now]
        cluster.come([f"slice-{now}-{number}" for number in range(arrivals.count(now))])
        cluster.start(now)
        cluster.waiting += [gang for gang in gangs if gang.comes == now]
        cluster.pause(lets_go=now in pauses)
        for _ in range(100):
            changed = cluster.look()
            cluster.grant()
            if not cluster.start(now) and not changed:
                break
        else:
            raise AssertionError("requests change for ever")
        cluster.check()
    assert all(gang.ticket.unfit for gang in cluster.waiting), "a gang waits for ever"


class TwoSlices:
    """The reservation of a gang that wants two of the slices that are free."""

    def __init__(self, free: list[str], held: str) -> None:
        self.free, self.held = free, [held]

    def placed(self, tables: Mapping[str, Mapping[str, Any]]) -> int:
        return len(self.held)

    def take(self) -> None:
        while self.free and len(self.held) < 2:
            self.held.append(self.free.pop())

    def close(self) -> None:
        self.free += self.held
        self.held.clear()


@given(random=st.randoms(use_true_random=False))
def test_two_gangs_of_two_lines_that_hold_a_slice_each_both_start_within_minutes(random: Random) -> None:
    """Each waits for the slice that the other holds; a look at a time, in which one may give its own back."""
    queue: Any = reservation_queue
    free: list[str] = []
    gangs = [TwoSlices(free, held) for held in ("slice-a", "slice-b")]
    jobs = [queue._WaitingJob(plan=None, reservation=gang, say=None, placed=None) for gang in gangs]
    started: list[float] = []
    with mock.patch.object(queue, "random", random):
        for now in (1000.0 + tenths / 10 for tenths in range(3000)):
            for job in jobs:
                queue.ReservationQueue._let_go_in_time(job, {}, now)
            assert now >= 1060.0 or not free, "a gang may hold a part for a minute"
            for job in jobs:
                if not job.paused:
                    job.reservation.take()
            for job in [job for job in jobs if len(job.reservation.held) == 2]:
                started.append(now)
                jobs.remove(job)
                job.reservation.close()  # it has ended at once
    assert not jobs, "two gangs wait for each other for ever"
    assert started[0] < 1126.0


def node(cpu: float, gpu: float = 0.0, *, of: tuple[float, float] | None = None) -> tuple[Amounts, Amounts]:
    """Return all that a node has, and what is free: everything, or less than `of`."""
    total = (cpu, gpu) if of is None else of
    return {"CPU": total[0], "GPU": total[1]}, {"CPU": cpu, "GPU": gpu}


def packed(
    number: int,
    *choices: int,
    cpu: float = 1.0,
    gpu: float = 0.0,
    nodes: Iterable[str] | None = None,
) -> BundleTicket:
    accepted = None if nodes is None else frozenset(nodes)
    return BundleTicket(float(number), f"job-{number}", {"CPU": cpu, "GPU": gpu}, choices, accepted)


def copies(line: list[BundleTicket], nodes: Nodes) -> list[int]:
    """Return for how many copies each may ask, in the order of their submission."""
    may = bundle_turns(line, nodes)
    return [may[each.submission].copies for each in sorted(line, key=lambda each: each.since)]


def test_a_gang_for_gpus_is_not_overtaken_by_smaller_jobs() -> None:
    nodes = {"a": node(8, 1, of=(8, 4)), "b": node(8, 2, of=(8, 4))}
    line = [packed(2, 1, gpu=1), packed(0, 1, gpu=2), packed(1, 2, gpu=4)]
    assert copies(line, nodes) == [1, 2, 0]


def test_a_job_for_cpus_goes_on_while_a_gang_waits_for_gpus() -> None:
    nodes = {"a": node(8, 3, of=(8, 4)), "b": node(8, 3, of=(8, 4))}
    # The GPUs that are free suffice by their sum: what is lacking is whole nodes of them, and no CPU.
    assert copies([packed(0, 1, gpu=4), packed(1, 8), packed(2, 1, gpu=1)], nodes) == [1, 8, 0]


def test_where_only_the_mixture_is_wrong_all_that_the_job_needs_is_reserved() -> None:
    nodes = {"a": node(0, 1, of=(1, 1)), "b": node(1, 0, of=(1, 1))}
    assert copies([packed(0, 1, gpu=1), packed(1, 1)], nodes) == [1, 0]


def test_of_several_numbers_of_copies_the_largest_that_fits_is_taken_and_else_the_least_waited_for() -> None:
    nodes = {"a": node(3, of=(4, 0)), "b": node(0, of=(4, 0))}
    assert copies([packed(0, 8, 2, 1), packed(1, 8, 2), packed(2, 1)], nodes) == [2, 2, 0]
    assert copies([packed(0, 8, 2), packed(1, 1), packed(2, 1)], nodes) == [2, 1, 1]


def test_copies_that_add_up_to_a_node_fit_whatever_floats_say() -> None:
    assert copies([packed(0, 3, cpu=0.1)], {"a": node(0.1 * 3)}) == [3]
    assert copies([packed(0, 3, cpu=0.1)], {"a": node(0.3)}) == [3]


def test_nodes_that_an_earlier_job_waits_for_are_avoided_and_others_are_used() -> None:
    nodes = {"large": node(7, of=(8, 0)), "middle": node(3, of=(4, 0)), "small": node(2)}
    line = [packed(0, 1, cpu=8), packed(1, 1), packed(2, 1, cpu=4), packed(3, 3), packed(4, 2), packed(5, 1)]
    assert bundle_turns(line, nodes) == {
        "job-0": Turn(1),
        "job-1": Turn(1, frozenset({"large"})),
        "job-2": Turn(1, frozenset({"large"})),  # the first of those that wait for the middle node
        "job-3": Turn(0),  # the small node is all that is left, and can never hold it
        "job-4": Turn(2, frozenset({"large", "middle"})),
        "job-5": Turn(1, frozenset({"large", "middle"})),  # it waits for the small node
    }


def test_jobs_that_accept_other_nodes_do_not_wait_for_each_other() -> None:
    nodes = {"eu": node(1, of=(2, 0)), "us": node(2)}
    may = bundle_turns([packed(0, 2, nodes=["eu"]), packed(1, 2, nodes=["us"])], nodes)
    assert may == {"job-0": Turn(2), "job-1": Turn(2)}


def test_of_jobs_that_can_never_fit_the_first_of_those_with_one_bundle_asks() -> None:
    """An autoscaler may have no node for the first of all, and a node for the others."""
    nodes = {"a": node(2, 1)}
    line = [packed(0, 1, gpu=2), packed(1, 2, gpu=1), packed(2, 3, gpu=1), packed(3, 3), packed(4, 1)]
    assert copies(line, nodes) == [1, 2, 0, 3, 1]
    assert copies(line[2:], nodes) == [3, 3, 1]
    assert copies([packed(0, 1), packed(1, 1)], {}) == [1, 0]


def test_a_thousand_jobs_on_three_hundred_nodes_are_ordered_at_once() -> None:
    nodes = {f"node-{number}": node(number % 9, number % 2, of=(64, 8)) for number in range(300)}
    line = [packed(number, 1 + number % 64, cpu=1 + number % 7, gpu=number % 5) for number in range(1000)]
    begun = time.process_time()
    bundle_turns(line, nodes)
    assert time.process_time() - begun < 1.0  # 0.02 s; without what a shape remembers, several


@dataclass(frozen=True)
class Load:
    """A job of the model: when it comes, how long it runs, and its ticket."""

    comes: int
    runs: int
    ticket: BundleTicket


@dataclass
class PackedCluster:
    """A cluster that grants one request at a time, on the last nodes; the rule expects the first ones."""

    totals: dict[str, Amounts]
    running: dict[str, tuple[int, dict[str, int], Load]]

    def nodes(self) -> Nodes:
        nodes = {name: (total, dict(total)) for name, total in self.totals.items()}
        for _, places, load in self.running.values():
            for name, count in places.items():
                for resource, amount in load.ticket.bundle.items():
                    nodes[name][1][resource] -= amount * count
                    assert nodes[name][1][resource] >= 0, "more was taken than there is"
        return nodes

    def places(self, ticket: BundleTicket, without: frozenset[str] = frozenset()) -> dict[str, int]:
        """Return how many copies have room on each node now."""
        nodes = self.nodes().items()
        return {name: room(ticket, free) for name, (_, free) in nodes if allows(ticket, name, without)}

    def start(self, load: Load, turn: Turn, now: int) -> bool:
        """Start a job where all its copies have room."""
        left, chosen = turn.copies, dict[str, int]()
        for name, there in reversed(self.places(load.ticket, turn.without).items()):
            chosen[name] = min(left, there)
            left -= chosen[name]
        if left or not turn.copies:
            return False
        self.running[load.ticket.submission] = now + load.runs, chosen, load
        return True

    def could_fit(self, ticket: BundleTicket, without: frozenset[str] = frozenset()) -> bool:
        usable = self.usable(ticket, without)
        return sum(room(ticket, self.totals[name]) for name in usable) >= min(ticket.choices)

    def usable(self, ticket: BundleTicket, without: frozenset[str]) -> dict[str, Amounts]:
        """Return what is free on each node where a job could be."""
        nodes = self.nodes().items()
        return {
            name: free
            for name, (total, free) in nodes
            if allows(ticket, name, without) and room(ticket, total)
        }

    def lacks(self, ticket: BundleTicket, without: frozenset[str]) -> set[tuple[str, str]]:
        """Return what a job waits for: resources, each on each node where the job could be."""
        usable = self.usable(ticket, without)
        needs = {resource: amount for resource, amount in ticket.bundle.items() if amount}
        counts = {
            resource: sum(int(free[resource] // amount) for free in usable.values())
            for resource, amount in needs.items()
        }
        lacking = {resource for resource, count in counts.items() if count < min(ticket.choices)}
        return {(name, resource) for name in usable for resource in lacking or needs}


def room(ticket: BundleTicket, there: Amounts) -> int:
    return min(int(there[name] // amount) for name, amount in ticket.bundle.items() if amount)


def allows(ticket: BundleTicket, name: str, without: frozenset[str] = frozenset()) -> bool:
    return (ticket.nodes is None or name in ticket.nodes) and name not in without


def touches(ticket: BundleTicket, reserved: set[tuple[str, str]]) -> frozenset[str]:
    """Return the nodes on which something is reserved that a job needs."""
    return frozenset(name for name, resource in reserved if ticket.bundle[resource])


def check_who_waits(cluster: PackedCluster, waiting: list[Load], may: dict[str, Turn]) -> None:
    """Nothing can start; check that each that waits has to, and that requests do not take from each other."""
    reserved: set[tuple[str, str]] = set()
    for load in waiting:
        ticket, turn = load.ticket, may[load.ticket.submission]
        if not cluster.could_fit(ticket):
            continue
        avoided = touches(ticket, reserved)
        there = sum(cluster.places(ticket, avoided).values())
        assert there < min(ticket.choices), "resources are idle, and nobody earlier waits for them"
        if turn.copies:
            assert cluster.could_fit(ticket, turn.without), "it asks for what it cannot get"
            assert not avoided & cluster.usable(ticket, turn.without).keys(), "two ask for the same"
            reserved |= cluster.lacks(ticket, avoided)


def simulate(cluster: PackedCluster, loads: list[Load], until: int = 60) -> list[tuple[int, str]]:
    """Run jobs, a step of the clock at a time; return which started when, in their order."""
    started: list[tuple[int, str]] = []
    waiting: list[Load] = []
    for now in range(until):
        waiting = sorted([*waiting, *(each for each in loads if each.comes == now)], key=place_in_line)
        for job, (end, _, _) in list(cluster.running.items()):
            if end <= now:
                del cluster.running[job]
        while True:  # what starts changes what the others may
            may = bundle_turns([each.ticket for each in reversed(waiting)], cluster.nodes())
            first = next((one for one in waiting if starts_in_order(cluster, waiting, one, may, now)), None)
            if first is None:
                break
            started.append((now, first.ticket.submission))
            waiting.remove(first)
        check_who_waits(cluster, waiting, may)
    stuck = [each for each in waiting if cluster.could_fit(each.ticket)]
    assert not stuck, "a job waits for ever"
    return started


def starts_in_order(
    cluster: PackedCluster, waiting: list[Load], load: Load, may: dict[str, Turn], now: int
) -> bool:
    """Start a job if it can; check that it takes nothing that an earlier one waits for."""
    earlier = waiting[: waiting.index(load)]
    reserved: set[tuple[str, str]] = set()
    for one in earlier:
        if cluster.could_fit(one.ticket) and may[one.ticket.submission].copies:
            reserved |= cluster.lacks(one.ticket, may[one.ticket.submission].without)
    if not cluster.start(load, may[load.ticket.submission], now):
        return False
    _, places, _ = cluster.running[load.ticket.submission]
    taken = {(name, resource) for name in places if places[name] for resource in load.ticket.bundle}
    taken = {(name, resource) for name, resource in taken if load.ticket.bundle[resource]}
    assert not taken & reserved, "a job that waits was overtaken"
    return True


def place_in_line(load: Load) -> tuple[float, str]:
    return load.ticket.since, load.ticket.submission


NAMES = ("a", "b", "c")
TOTALS = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=3)
BUNDLES = st.sampled_from([(1, 0), (2, 0), (4, 0), (0, 1), (1, 1), (2, 1), (1, 2), (1, 3)])
LOADS = st.lists(
    st.tuples(
        st.integers(0, 6),  # comes
        st.integers(1, 4),  # runs
        BUNDLES,
        st.lists(st.integers(1, 4), min_size=1, max_size=2, unique=True),
        st.none() | st.sets(st.sampled_from(NAMES), min_size=1),
    ),
    max_size=10,
)
Drawn = tuple[int, int, tuple[int, int], list[int], set[str] | None]


def cluster_of(totals: list[tuple[int, int]]) -> PackedCluster:
    named = zip(NAMES, totals, strict=False)
    return PackedCluster({name: {"CPU": float(cpu), "GPU": float(gpu)} for name, (cpu, gpu) in named}, {})


def loads_of(drawn: list[Drawn]) -> list[Load]:
    return [
        Load(
            comes, runs, replace(packed(number, *choices, cpu=cpu, gpu=gpu, nodes=nodes), since=float(comes))
        )
        for number, (comes, runs, (cpu, gpu), choices, nodes) in enumerate(drawn)
    ]


@settings(max_examples=300)
@given(totals=TOTALS, drawn=LOADS)
def test_packed_jobs_start_in_order_and_nothing_is_idle_that_no_earlier_job_waits_for(
    totals: list[tuple[int, int]], drawn: list[Drawn]
) -> None:
    """Jobs of mixed resources, some on some nodes only; `simulate` checks each start and each that waits."""
    simulate(cluster_of(totals), loads_of(drawn))


@given(totals=TOTALS, drawn=LOADS, bundle=BUNDLES)
def test_jobs_for_the_same_start_in_the_order_of_their_submission(
    totals: list[tuple[int, int]], drawn: list[Drawn], bundle: tuple[int, int]
) -> None:
    loads = loads_of([(comes, runs, bundle, choices, None) for comes, runs, _, choices, _ in drawn])
    cluster = cluster_of(totals)
    line = [
        load.ticket.submission for load in sorted(loads, key=place_in_line) if cluster.could_fit(load.ticket)
    ]
    assert [job for _, job in simulate(cluster, loads)] == line


@given(totals=TOTALS, drawn=LOADS)
def test_jobs_that_can_never_fit_delay_no_other(totals: list[tuple[int, int]], drawn: list[Drawn]) -> None:
    loads = loads_of(drawn)
    fitting = [load for load in loads if cluster_of(totals).could_fit(load.ticket)]
    assert simulate(cluster_of(totals), loads) == simulate(cluster_of(totals), fitting)


def hosts_of(*slices: tuple[str, ...], cpu: float = 2, free: float | None = None) -> Nodes:
    """Return nodes with a chip each, and what is free of their CPUs."""
    left = cpu if free is None else free
    return {host: ({"CPU": cpu, "TPU": 1.0}, {"CPU": left, "TPU": 1.0}) for each in slices for host in each}


def gang(number: int, *choices: int, slices: Iterable[tuple[str, ...]], cpu: float = 1.0) -> SliceTicket:
    return SliceTicket(float(number), f"job-{number}", KIND, choices, tuple(slices), {"CPU": cpu, "TPU": 1.0})


def test_a_gang_is_not_overtaken_by_jobs_for_cpus_on_the_hosts_of_slices() -> None:
    slices = ("a0", "a1"), ("b0", "b1")
    nodes = hosts_of(*slices) | hosts_of(("else",))
    for busy in ("a1", "b0"):  # a host of each slice is full
        nodes[busy][1]["CPU"] = 0.0
    line = [packed(number, 1) for number in (0, 2, 3, 4)]
    may = turns([gang(1, 1, slices=slices)], line, nodes, {KIND: 0})
    hosts = frozenset({"a0", "a1", "b0", "b1"})
    assert may["job-0"] == Turn(1)  # it came before the gang
    assert may["job-1"] == Turn(1)
    assert [may[f"job-{number}"] for number in (2, 3)] == [Turn(1, hosts)] * 2
    assert may["job-4"] == Turn(1, hosts)  # it waits for the node that has no chip


def test_a_gang_that_lacks_chips_keeps_no_cpus_and_one_that_is_unfit_keeps_nothing() -> None:
    slices = (("a0",), ("b0",))
    nodes = hosts_of(*slices)
    nodes["a0"][1]["TPU"] = 0.0
    assert turns([gang(0, 2, slices=slices)], [packed(1, 2)], nodes, {KIND: 1})["job-1"] == Turn(2)
    nodes = hosts_of(*slices, free=1)
    assert turns([gang(0, 3, slices=slices)], [packed(1, 2)], nodes, {KIND: 2})["job-1"] == Turn(2)


def test_an_unfit_gang_gives_back_the_slices_whose_hosts_a_job_for_cpus_waits_for() -> None:
    slices = (("a0",), ("b0",))
    nodes = hosts_of(*slices, free=1) | {"else": node(8)}
    unfit = replace(gang(0, 3, slices=slices), held=2, hosts=frozenset({"a0", "b0"}))
    assert turns([unfit], [packed(1, 1, cpu=8)], nodes, {})["job-0"] == Turn(3)
    may = turns([unfit], [packed(1, 1, cpu=2, nodes=["a0"])], nodes, {})
    assert may == {"job-0": Turn(2, frozenset({"a0"})), "job-1": Turn(1)}


def test_an_unfit_gang_keeps_its_request_while_jobs_for_cpus_start_beside_other_gangs() -> None:
    slices = (("a0",), ("b0",))
    nodes = hosts_of(*slices)
    for host in ("a0", "b0"):  # which other gangs run on
        nodes[host][1]["TPU"] = 0.0
    unfit = gang(0, 3, slices=slices)
    assert turns([unfit], [packed(1, 1)], nodes, {}) == {"job-0": Turn(3), "job-1": Turn(1)}
    held = replace(gang(0, 3, slices=slices), held=2, hosts=frozenset({"a0", "b0"}))
    assert turns([held], [packed(1, 1)], nodes, {}) == {"job-0": Turn(3), "job-1": Turn(1)}


def test_of_unfit_gangs_the_first_with_each_bundle_asks() -> None:
    gangs = [
        gang(0, 1, slices=(), cpu=500),  # no machine has that
        gang(1, 3, slices=(("a0",), ("b0",))),
        gang(2, 4, slices=(("a0",), ("b0",))),
    ]
    may = turns(gangs, [], hosts_of(("a0",), ("b0",)), {KIND: 2})
    assert [may[f"job-{number}"] for number in range(3)] == [Turn(1), Turn(3), Turn(0)]


def test_a_gang_keeps_cpus_on_slices_that_it_does_not_avoid() -> None:
    slices = (("a0",), ("b0",))
    nodes = hosts_of(*slices)
    nodes["b0"][1]["CPU"] = 0.0
    waits = replace(gang(0, 1, slices=slices), free=0, avoided=frozenset({"a0"}))
    may = turns([waits], [packed(1, 1)], nodes, {KIND: 0})
    assert may["job-1"] == Turn(1, frozenset({"b0"}))


def test_an_elastic_gang_does_not_wait_for_slices_on_which_only_smaller_bundles_fit() -> None:
    slices = (("a0",), ("b0",))
    elastic = replace(gang(0, 2, 1, slices=slices, cpu=4), free=0, held=1, hosts=frozenset({"a0"}))
    small = replace(gang(1, 1, slices=slices), free=1)
    may = turns([elastic, small], [], hosts_of(*slices, free=2), {KIND: 1})
    assert may == {"job-0": Turn(1), "job-1": Turn(1)}


@dataclass
class MixedCluster:
    """Gangs and jobs for CPUs on the hosts of slices; each request is granted on hosts that nobody knows."""

    slices: tuple[tuple[str, ...], ...]
    totals: dict[str, Amounts]
    random: Random
    waiting: list["Mixed"] = field(default_factory=list)
    running: list["Mixed"] = field(default_factory=list)

    def nodes(self) -> Nodes:
        nodes = {name: (total, dict(total)) for name, total in self.totals.items()}
        for job in (*self.waiting, *self.running):
            for name in job.places:
                for resource, amount in job.ticket.bundle.items():
                    nodes[name][1][resource] -= amount
                    assert nodes[name][1][resource] >= 0, "more was taken than there is"
        return nodes

    def has(self, hosts: Iterable[str], needs: Mapping[str, float]) -> bool:
        nodes = self.nodes()
        return all(nodes[host][1].get(name, 0) >= amount for host in hosts for name, amount in needs.items())

    def usable(self, ticket: SliceTicket) -> tuple[tuple[str, ...], ...]:
        needs = ticket.bundle.items()
        return tuple(
            hosts
            for hosts in self.slices
            if all(self.totals[host].get(name, 0) >= amount for host in hosts for name, amount in needs)
        )

    def look(self) -> bool:
        """Have all ask for what they may; return whether a request has changed."""
        gangs = []
        for job in self.waiting:
            if isinstance(job.ticket, SliceTicket):
                hosts = frozenset(job.places)
                held = len(hosts) // len(self.slices[0])
                slices = self.usable(job.ticket)
                job.ticket = replace(job.ticket, slices=slices, held=held, hosts=hosts)
                gangs.append(job.ticket)
        others = [job.ticket for job in self.waiting if isinstance(job.ticket, BundleTicket)]
        free = max((self.free_slices(each) for each in gangs), default=0)
        may = turns(gangs, others, self.nodes(), {KIND: free})
        changed = [job for job in self.waiting if may[job.ticket.submission] != job.request]
        for job in changed:
            job.request, job.places = may[job.ticket.submission], []
        return bool(changed)

    def free_slices(self, ticket: SliceTicket) -> int:
        return sum(self.has(hosts, ticket.bundle) for hosts in self.slices)

    def lacks(self, job: "Mixed") -> set[tuple[str, str]]:
        """Return what a gang waits for: resources, each on each host that it could use and has not."""
        ticket = job.ticket
        assert isinstance(ticket, SliceTicket)
        slices = [hosts for hosts in self.usable(ticket) if not set(hosts) & set(job.places)]
        missing = ticket.least - ticket.held
        if sum(self.has(hosts, ticket.bundle) for hosts in slices) >= missing:
            return set()
        lacking = {
            name
            for name, amount in ticket.bundle.items()
            if sum(self.has(hosts, {name: amount}) for hosts in slices) < missing
        }
        return {(host, name) for hosts in slices for host in hosts for name in lacking or ticket.bundle}

    def grant(self, job: "Mixed") -> None:
        """Give a request what there is for it: a gang each slice that is free, another job all or nothing."""
        if isinstance(job.ticket, SliceTicket):
            slices = [hosts for hosts in self.slices if self.has(hosts, job.ticket.bundle)]
            wanted = job.request.copies - len(job.places) // len(self.slices[0])
            avoided = job.request.without
            chosen = [hosts for hosts in slices if avoided.isdisjoint(hosts)][: max(0, wanted)]
            job.places += [host for hosts in chosen for host in hosts]
            return
        nodes, found = list(self.nodes().items()), list[str]()
        self.random.shuffle(nodes)
        for name, (_, free) in nodes:
            if name not in job.request.without:
                found += [name] * room(job.ticket, free)
        if len(found) >= job.request.copies:
            job.places = found[: job.request.copies]

    def step(self, now: int) -> bool:
        """Have one job start that can, the first in the line; return whether one has."""
        for _ in range(20):
            if not self.look():
                break
        else:
            raise AssertionError("requests change for ever")
        for job in self.waiting:
            reserved = {
                each
                for earlier in self.waiting[: self.waiting.index(job)]
                if isinstance(earlier.ticket, SliceTicket) and not earlier.ticket.unfit
                for each in (self.lacks(earlier) if earlier.request.copies else ())
            }
            before = list(job.places)
            self.grant(job)
            if len(job.places) == len(before):
                continue
            if isinstance(job.ticket, BundleTicket):
                taken = {(name, resource) for name in job.places for resource in job.ticket.bundle}
                assert not taken & reserved, "a gang was overtaken"
            self.start(job, now)
            return True
        return False

    def start(self, job: "Mixed", now: int) -> None:
        hosts = 1 if isinstance(job.ticket, BundleTicket) else len(self.slices[0])
        units = job.request.copies
        if units in job.ticket.choices and len(job.places) == units * hosts:
            job.ends = now + job.runs
            self.waiting.remove(job)
            self.running.append(job)

    def check(self) -> None:
        """Nothing can start: check that what waits has to."""
        line = self.waiting
        for unfit in (True, False):
            kind = (job for job in line if isinstance(job.ticket, SliceTicket) and job.ticket.unfit is unfit)
            first = next(kind, None)
            assert first is None or first.request.copies, "an autoscaler does not see what the first wants"
        for number, job in enumerate(line):
            if isinstance(job.ticket, BundleTicket) and not any(
                isinstance(earlier.ticket, BundleTicket) or self.lacks(earlier) for earlier in line[:number]
            ):
                assert not self.could_run(job, self.idle()), "CPUs are idle, and nobody earlier waits"

    def idle(self) -> dict[str, Amounts]:
        """Return what nobody uses, or only a gang that cannot start."""
        left = {name: free for name, (_, free) in self.nodes().items()}
        for job in self.waiting:
            if isinstance(job.ticket, SliceTicket) and job.ticket.unfit:
                for name in job.places:
                    left[name]["CPU"] += job.ticket.bundle["CPU"]
        return left

    def could_run(self, job: "Mixed", there: dict[str, Amounts]) -> bool:
        if isinstance(job.ticket, SliceTicket):
            return job.ticket.least <= len(self.usable(job.ticket))
        return sum(room(job.ticket, amounts) for amounts in there.values()) >= min(job.ticket.choices)


@dataclass
class Mixed:
    """A gang or a job for CPUs of the model: its request to Ray, and the host of each of its places."""

    comes: int
    runs: int
    ticket: SliceTicket | BundleTicket
    request: Turn = NOTHING
    places: list[str] = field(default_factory=list)
    ends: int = 0


MIXED = st.lists(
    st.tuples(
        st.integers(0, 6),  # comes
        st.integers(1, 4),  # runs
        st.booleans(),  # whether it is a gang
        st.integers(1, 3),  # its CPUs on each host
        st.integers(1, 3),  # how many slices, or replicas
    ),
    max_size=10,
)


@settings(max_examples=300)
@given(
    count=st.integers(1, 3),
    hosts=st.integers(1, 2),
    cpus=st.integers(1, 3),
    jobs=MIXED,
    random=st.randoms(use_true_random=False),
)
def test_gangs_and_jobs_for_cpus_on_their_hosts_start_in_order(
    count: int, hosts: int, cpus: int, jobs: list[tuple[int, int, bool, int, int]], random: Random
) -> None:
    """A step of the clock at a time; `step` checks each start, and `check` each that waits."""
    slices = tuple(tuple(f"{name}{rank}" for rank in range(hosts)) for name in NAMES[:count])
    loads = []
    for number, (comes, runs, is_gang, cpu, units) in enumerate(jobs):
        since, name = comes + number / 100, f"job-{number}"
        made: SliceTicket | BundleTicket = BundleTicket(since, name, {"CPU": float(cpu)}, (units,))
        if is_gang:
            made = replace(gang(number, units, slices=(), cpu=cpu), since=since)
        loads.append(Mixed(comes, runs, made))
    totals = {host: {"CPU": float(cpus), "TPU": 1.0} for each in slices for host in each}
    cluster = MixedCluster(slices, totals, random)
    for now in range(60):
        cluster.running = [job for job in cluster.running if job.ends > now]
        cluster.waiting += [job for job in loads if job.comes == now]
        for _ in range(200):
            if not cluster.step(now):
                break
        else:
            raise AssertionError("requests change for ever")
        cluster.check()
    assert not [job for job in cluster.waiting if cluster.could_run(job, totals)], "a job waits for ever"
