"""The order among jobs that wait for room, by models; nothing here needs a cluster."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from fray_ray._head import reservation_queue
from fray_ray._head.line import BundleTicket, SliceTicket, Turn, bundle_turns, slice_turns

KIND = "v4-16"


def ticket(number: int, *choices: int, most: int = 2, held: int = 0, kind: str = KIND) -> SliceTicket:
    return SliceTicket(float(number), f"job-{number}", kind, choices, most, held)


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


def test_who_asks_for_more_than_there_is_keeps_nobody_waiting_and_asks_when_alone() -> None:
    assert slice_turns([ticket(0, 4), ticket(1, 1)], {KIND: 1}) == {"job-0": 0, "job-1": 1}
    assert slice_turns([ticket(0, 4), ticket(1, 4)], {}) == {"job-0": 4, "job-1": 0}


JOBS = st.lists(
    st.tuples(st.integers(0, 6), st.lists(st.integers(1, 5), min_size=1, max_size=2), st.integers(1, 4)),
    max_size=8,
)


@given(total=st.integers(1, 4), jobs=JOBS, pauses=st.sets(st.integers(0, 20), max_size=5))
def test_gangs_start_in_order_and_no_slice_is_idle_that_is_not_kept_for_the_first(
    total: int, jobs: list[tuple[int, list[int], int]], pauses: set[int]
) -> None:
    """A step of the clock at a time: jobs come, take what they may, run, and give back.

    At times those that hold a part let go of it for a step.
    """
    waiting: dict[str, SliceTicket] = {}
    running: dict[str, tuple[int, int]] = {}  # until when, with how many slices
    started: list[SliceTicket] = []
    for now in range(60):
        for number, (comes, choices, _) in enumerate(jobs):
            if comes == now:
                new = SliceTicket(float(comes), f"job-{number}", KIND, tuple(choices), total)
                waiting[new.submission] = new
        running = {job: (until, held) for job, (until, held) in running.items() if until > now}
        lets_go = now in pauses
        waiting = {
            job: replace(each, held=0, paused=True) if lets_go and each.held else replace(each, paused=False)
            for job, each in waiting.items()
        }
        while True:  # what starts changes what the others may
            free = total - sum(held for _, held in running.values())
            free -= sum(each.held for each in waiting.values())
            may = slice_turns(waiting.values(), {KIND: free})
            before = dict(waiting)
            for each in sorted(waiting.values()):
                asked = may[each.submission]
                held = min(asked, each.held + free)
                free -= held - each.held
                assert free >= 0, "more was taken than there is"
                waiting[each.submission] = replace(each, held=held)
                if asked and held == asked:
                    number = int(each.submission.removeprefix("job-"))
                    running[each.submission] = now + jobs[number][2], held
                    started.append(each)
                    del waiting[each.submission]
            if waiting == before:
                break
        served = [each for each in sorted(waiting.values()) if min(each.choices) <= total]
        if free and not any(each.paused for each in served):
            assert not served, "a slice is idle and somebody waits for one like it"
    assert not [each for each in waiting.values() if min(each.choices) <= total], "somebody waits for ever"
    for earlier, later in pairwise(started):
        assert earlier.since <= later.since, "somebody was overtaken"


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


Amounts = dict[str, float]
Nodes = dict[str, tuple[Amounts, Amounts]]


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
    held: bool = False,
) -> BundleTicket:
    accepted = None if nodes is None else frozenset(nodes)
    return BundleTicket(float(number), f"job-{number}", {"CPU": cpu, "GPU": gpu}, choices, accepted, held)


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


def test_of_jobs_that_can_never_fit_one_asks_for_each_lack_and_keeps_asking() -> None:
    nodes = {"a": node(2, 1)}
    line = [packed(0, 1, gpu=2), packed(1, 2, gpu=1), packed(2, 3), packed(3, 1)]
    assert copies(line, nodes) == [1, 0, 3, 1]
    assert copies([line[0], replace(line[1], held=True), *line[2:]], nodes) == [0, 2, 3, 1]
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
        waiting = [
            replace(one, ticket=replace(one.ticket, held=may[one.ticket.submission].copies > 0))
            for one in waiting
        ]
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
