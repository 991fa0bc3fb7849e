"""The order among gangs that wait for slices, by a model; nothing here needs a cluster."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fray_ray._head.line import Ticket, turns

KIND = "v4-16"


def ticket(number: int, *choices: int, most: int = 2, held: int = 0, kind: str = KIND) -> Ticket:
    return Ticket(float(number), f"job-{number}", kind, choices, most, held)


def test_a_gang_of_two_slices_is_not_overtaken_by_smaller_ones() -> None:
    line = [ticket(2, 1), ticket(0, 2), ticket(1, 1)]
    assert turns(line, {KIND: 1}) == {"job-0": 2, "job-1": 0, "job-2": 0}
    assert turns([ticket(0, 2, held=1), ticket(1, 1)], {KIND: 1}) == {"job-0": 2, "job-1": 0}


def test_what_is_left_over_goes_to_the_next_in_the_line() -> None:
    line = [ticket(0, 2), ticket(1, 1), ticket(2, 1), ticket(3, 1, kind="v4-8")]
    assert turns(line, {KIND: 3, "v4-8": 1}) == {
        "job-0": 2,
        "job-1": 1,
        "job-2": 0,
        "job-3": 1,
    }


def test_of_several_acceptable_numbers_the_largest_that_there_is_is_taken() -> None:
    assert turns([ticket(0, 4, 2, 1)], {KIND: 3}) == {"job-0": 2}


def test_who_asks_for_more_than_there_is_keeps_nobody_waiting_and_asks_when_alone() -> None:
    assert turns([ticket(0, 4), ticket(1, 1)], {KIND: 1}) == {"job-0": 0, "job-1": 1}
    assert turns([ticket(0, 4), ticket(1, 4)], {}) == {"job-0": 4, "job-1": 0}


JOBS = st.lists(
    st.tuples(st.integers(0, 6), st.lists(st.integers(1, 5), min_size=1, max_size=2), st.integers(1, 4)),
    max_size=8,
)


@given(total=st.integers(1, 4), jobs=JOBS)
def test_gangs_start_in_order_and_no_slice_is_idle_that_is_not_kept_for_the_first(
    total: int, jobs: list[tuple[int, list[int], int]]
) -> None:
    """A step of the clock at a time: jobs come, take what they may, run, and give back."""
    waiting: dict[str, Ticket] = {}
    running: dict[str, tuple[int, int]] = {}  # until when, with how many slices
    started: list[Ticket] = []
    for now in range(60):
        for number, (comes, choices, _) in enumerate(jobs):
            if comes == now:
                new = Ticket(float(comes), f"job-{number}", KIND, tuple(choices), total)
                waiting[new.submission] = new
        running = {job: (until, held) for job, (until, held) in running.items() if until > now}
        while True:  # what starts changes what the others may
            free = total - sum(held for _, held in running.values())
            free -= sum(each.held for each in waiting.values())
            may = turns(waiting.values(), {KIND: free})
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
        if free:
            assert not served, "a slice is idle and somebody waits for one like it"
    assert not [each for each in waiting.values() if min(each.choices) <= total], "somebody waits for ever"
    for earlier, later in pairwise(started):
        assert earlier.since <= later.since, "somebody was overtaken"
