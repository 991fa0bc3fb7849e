"""What order among gangs on Ray costs at sizes that no test machine has: 1,000 jobs for slices of 256 hosts.

It drives the rule that says whose turn it is, `turns`, over a cluster that is made up: jobs come, wait,
get their slices, run and end. Nothing of Ray runs here. So the figures are those of the rule and of what is
written of a job, on one core.
"""

import heapq
import itertools
import json
import random
import time
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from measure import brief, columns, fewer, timed

from fray.cluster import ExitReason, JobId, JobInfo, JobStatus, TaskStatus
from fray_ray._head.line import SliceTicket, turns
from fray_ray._job_table import info_in, state_metadata

KIND = "v5p-2048"  # 256 hosts
HOSTS = 256
JOBS = fewer(1_000, 50)
SLICES = 40


@dataclass
class Run:
    """What a run of all jobs took.

    Args:
        decisions: Calls of `turns`, each over all jobs that wait.
        seconds: Spent in them.
        longest: The longest.
        order: The jobs as they started.
        idle: Slices that were free while a gang waited for no more than that; the rule allows none.
    """

    decisions: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    order: tuple[SliceTicket, ...] = ()
    idle: int = 0


def tickets(count: int) -> list[SliceTicket]:
    """Return gangs that came one after the other: nine of ten want one slice, the others two to four."""
    chance = random.Random(1)
    wants = [1 if chance.random() < 0.9 else chance.randint(2, 4) for _ in range(count)]
    slices = tuple(tuple(f"{each:03}-{host:03}" for host in range(HOSTS)) for each in range(SLICES))
    return [SliceTicket(float(at), f"train-{at:06x}", KIND, (want,), slices) for at, want in enumerate(wants)]


def slice_turns(line: Iterable[SliceTicket], free: int) -> dict[str, int]:
    """Return for how many slices each gang may ask."""
    return {job: turn.copies for job, turn in turns(line, (), {}, {KIND: free}).items()}


def simulate(line: list[SliceTicket]) -> Run:
    """Let all jobs wait from the start, and run each for a while, until the last has ended.

    A decision is made whenever something changed: a gang has started, or has ended.
    """
    chance, run = random.Random(2), Run()
    waiting = {ticket.submission: ticket for ticket in line}
    free, now = SLICES, 0.0
    ends: list[tuple[float, int]] = []
    while waiting:
        begin = time.perf_counter()
        may = slice_turns(waiting.values(), free)
        took = time.perf_counter() - begin
        run.decisions, run.seconds, run.longest = (
            run.decisions + 1,
            run.seconds + took,
            max(run.longest, took),
        )
        for submission in [name for name, count in may.items() if count]:
            ticket = waiting[submission]
            held = min(may[submission], ticket.held + free)
            free -= held - ticket.held
            if held < may[submission]:
                waiting[submission] = replace(ticket, held=held)
                continue
            del waiting[submission]
            run.order = (*run.order, ticket)
            heapq.heappush(ends, (now + chance.expovariate(1.0), held))
        run.idle += sum(min(ticket.choices) <= free for ticket in itertools.islice(waiting.values(), 1))
        if ends:
            now, given = heapq.heappop(ends)
            free += given
    return run


def job_of(replicas: int) -> JobInfo:
    """Return a job whose replicas run, one in ten of them for the second time."""
    chance, start = random.Random(3), 1.79e9

    def replica(number: int) -> TaskStatus:
        first = TaskStatus(
            replica=number,
            attempt=1,
            status=JobStatus.FAILED,
            reason=ExitReason.PREEMPTED,
            started_at=start + chance.random(),
            finished_at=start + 100 + chance.random(),
            peak_memory=chance.randrange(1 << 34),
            cpu_time=chance.random() * 100,
        )
        again = number % 10 == 0
        return TaskStatus(
            replica=number,
            attempt=2 if again else 1,
            status=JobStatus.RUNNING,
            started_at=start + 200 + chance.random(),
            previous=(first,) if again else (),
        )

    tasks = tuple(map(replica, range(replicas)))
    info = JobInfo(job_id=JobId("train-3f9a2c"), name="train", status=JobStatus.RUNNING, tasks=tasks)
    return replace(info, submitted_at=start, started_at=start + 1)


def held_by(make: Callable[[], Any]) -> int:
    """Return the bytes that what a function makes takes in Python."""
    tracemalloc.start()
    kept = make()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del kept
    return size


def best(work: Callable[[], Any]) -> float:
    """Return the seconds of the fastest of some runs: others use this machine, too."""
    return min(timed(work) for _ in range(fewer(20, 3)))


def main() -> None:
    line = tickets(JOBS)
    one = best(lambda: slice_turns(line, 1))
    run = simulate(line)
    assert [ticket.since for ticket in run.order] == sorted(ticket.since for ticket in run.order)
    assert not run.idle
    own = {"since": line[0].since, "submission": line[0].submission, "kind": KIND, "choices": line[0].choices}
    kept = json.dumps({**own, "seen": time.time()})
    columns(
        f"{JOBS:,} gangs that wait for {SLICES} slices of {HOSTS} hosts, all started in order, no slice idle",
        ["figure"],
        [
            ("a decision over all of them, ms", brief(one * 1e3)),
            ("decisions a second, over all of them", brief(1 / one)),
            ("decisions until the last has ended", f"{run.decisions:,}"),
            ("seconds of one core for these", brief(run.seconds)),
            ("decisions a second, mean", brief(run.decisions / run.seconds)),
            ("memory of all tickets, kB", brief(held_by(lambda: tickets(JOBS)) / 1e3)),
            ("a ticket as it is kept on the head, bytes", f"{len(kept):,}"),
        ],
    )
    info = job_of(HOSTS)
    written = state_metadata(info)
    size = sum(map(len, (*written.keys(), *written.values())))
    memory = held_by(lambda: job_of(HOSTS))
    columns(
        f"The state of a job of {HOSTS} replicas",
        ["figure"],
        [
            ("its entry in Ray's table, bytes", f"{size:,}"),
            ("to write it, ms, without Ray", brief(best(lambda: state_metadata(info)) * 1e3)),
            ("to read it, ms, without Ray", brief(best(lambda: list(info_in(written).tasks)) * 1e3)),
            ("in the memory of the scheduler, kB", brief(memory / 1e3)),
            (f"{JOBS:,} such jobs in one process, MB", brief(memory * JOBS / 1e6)),
            (f"{JOBS:,} such entries in a list of Ray's, MB", brief(size * JOBS / 1e6)),
        ],
    )


if __name__ == "__main__":
    main()
