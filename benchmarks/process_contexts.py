"""What ProcessContext costs, against the pools of processes that people use.

Goals, on the same machine: no-op tasks at least twice as fast as ProcessPoolExecutor and ahead of
multiprocessing.Pool; a round trip no slower than ProcessPoolExecutor's; a first result within 60 ms; 95 % of
ideal for tasks of 10 ms; large arrays at least as fast as Ray's object store, several times
ProcessPoolExecutor; a 1 GB array that every worker reads takes about 1 GB in all.

Peers that are missing are left out: `pip install numpy loky joblib distributed "ray[default]"`. With names of
pools as arguments, of those only: `process_contexts.py fray ProcessPoolExecutor ray`.
"""

import functools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psutil
from measure import (
    Goal,
    Timed,
    at_most,
    compare,
    compile_packages,
    fewer,
    interleave,
    judge,
    lines,
    table,
    timed,
)
from process_limits import first_answer, four_wake_ups, processor_time, two_wake_ups
from process_peers import WORKERS, Opener, Pool, available, fray, standard_forkserver
from process_streams import flows

from fray import create_context

SLOW = {"dask": 10, "ray": 5, "loky": 2}  # by how much fewer tasks are enough
PEER = "ProcessPoolExecutor"
CORES = "the program that submits and the kernel share the cores; no pool of the table does it"
ROUND_TRIP = (
    "CPU of caller and worker, which add up one at a time; the wake-ups alone are the rows named bare"
)
FIRST_RESULT = (
    "an interpreter that starts, imports the standard library and cloudpickle, and forks: the rows named bare"
)


def noop(value: Any) -> Any:
    return value


def busy(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def read(array: Any) -> float:
    return float(array[:: 1 << 9].sum())  # a value of every page


def twice(array: Any) -> Any:
    return array * 2


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def increment(self) -> int:
        self.count += 1
        return self.count


@contextmanager
def opened(openers: dict[str, Opener]) -> Iterator[dict[str, Pool]]:
    """Open all pools, with all their workers started."""
    with ExitStack() as stack:
        pools = {}
        for name, opener in openers.items():
            pools[name] = stack.enter_context(opener())
            pools[name].run_all(busy, [0.05] * 2 * WORKERS)
        yield pools


def gather(name: str, pool: Pool, count: int) -> Timed:
    count //= SLOW.get(name, 1)
    return lambda: timed(lambda: pool.run_all(noop, range(count))) / count


def round_trips(name: str, pool: Pool, count: int) -> Timed:
    count //= SLOW.get(name, 1)
    run_one = pool.run_one or (lambda fn, item: pool.run_all(fn, [item]))
    return lambda: timed(lambda: [run_one(noop, index) for index in range(count)]) / count


def share_of_ideal(pool: Pool) -> float:
    return timed(lambda: pool.run_all(busy, [0.01] * 400)) / (400 * 0.01 / WORKERS)


def read_shared(pool: Pool, array: Any, count: int) -> float:
    def work() -> None:
        pool.run_all(read, [pool.share(array)] * count)

    return timed(work)


def in_and_out(pool: Pool, array: Any, count: int) -> float:
    run_one = pool.run_one or (lambda fn, item: pool.run_all(fn, [item])[0])
    return timed(lambda: [run_one(twice, array) for _ in range(count)]) / count


def first_result(opener: Opener) -> float:
    start = time.perf_counter()
    with opener() as pool:
        pool.run_all(noop, [1])
        return time.perf_counter() - start


def small(pools: dict[str, Pool]) -> None:
    subjects: dict[str, Timed] = {
        name: gather(name, pool, fewer(10_000, 1_000)) for name, pool in pools.items()
    }
    found = compare(
        "No-op task, submit all and gather", subjects, peer=_peer(subjects), rounds=5, goals=_goal(0.25)
    )
    if "multiprocessing.Pool" in found:
        share = found["fray"] / found["multiprocessing.Pool"]
        judge("No-op task, ratio to multiprocessing.Pool", share, at_most(1.0))
    singles = {name: pool for name, pool in pools.items() if pool.run_one}
    subjects = {name: round_trips(name, pool, fewer(1_000, 200)) for name, pool in singles.items()}
    limits = {"bare: two wake-ups": two_wake_ups, "bare: four wake-ups": four_wake_ups}
    subjects |= {name: functools.partial(limit, 1_000) for name, limit in limits.items()}
    compare(
        "Round trip of a no-op task, one at a time",
        subjects,
        peer=_peer(subjects),
        goals=_goal(0.7, ROUND_TRIP),
    )
    limit_of_round_trips(singles)
    subjects = {name: functools.partial(share_of_ideal, pool) for name, pool in pools.items()}
    found = interleave(subjects, 3)
    table("400 tasks of 10 ms of CPU, time / ideal", "x", 1.0, found, _peer(subjects))
    judge("Tasks of 10 ms of CPU: time, ratio to ideal", found["fray"], at_most(1 / 0.95, CORES))


def limit_of_round_trips(pools: dict[str, Pool]) -> None:
    """Print what a round trip takes of CPU: one at a time, one waits for the sum of both sides."""
    rows = []
    for name in (PEER, "fray"):
        run_one = pools[name].run_one if name in pools else None
        if run_one is not None:
            spent = processor_time(
                lambda run_one=run_one: [run_one(noop, index) for index in range(1_000)], 1_000
            )  # type: ignore[misc]
            rows.append((f"{name}: caller, all children", f"{spent[0] * 1e6:.0f}, {spent[1] * 1e6:.0f} µs"))
    lines("CPU of a round trip (children: of every pool that is open)", rows)


def large(pools: dict[str, Pool]) -> None:
    try:
        import numpy
    except ImportError:
        print("\nArrays: left out; pip install numpy")
        return
    subjects: dict[str, Timed] = {}
    array = numpy.random.default_rng(0).random(100_000_000 // 8)
    for name, pool in pools.items():
        # One that pickles it for each task: a tenth of them, and ten times that.
        few = name in (PEER, "multiprocessing.Pool", "loky")
        count, scale = (10, 10) if few else (100, 1)
        subjects[name] = lambda pool=pool, count=count, scale=scale: scale * read_shared(pool, array, count)  # type: ignore[misc]
    beside_ray("100 MB stored once and read by 100 tasks", subjects, rounds=3)
    tenth = array[: len(array) // 10].copy()
    subjects = {name: functools.partial(in_and_out, pool, tenth, 20) for name, pool in pools.items()}
    beside_ray("10 MB in and out, each time", subjects, rounds=5)


def beside_ray(title: str, subjects: dict[str, Timed], *, rounds: int) -> None:
    """Compare what is done with arrays."""
    peer = _peer(subjects, "ray")
    compare(title, subjects, peer=peer, rounds=rounds, unit="ms", scale=1e3, goals=_goal(1.0))


def starts(openers: dict[str, Opener]) -> None:
    subjects: dict[str, Timed] = {
        name: functools.partial(first_result, opener)
        for name, opener in {**openers, "the same, forkserver": standard_forkserver}.items()
    }
    subjects["bare: interpreter, imports, fork"] = first_answer
    subjects["bare: that and cloudpickle"] = functools.partial(first_answer, "cloudpickle")
    found = compare(
        "First result from nothing", subjects, peer=_peer(subjects), rounds=5, unit="ms", scale=1e3
    )
    judge("First result from nothing", found["fray"] * 1e3, at_most(60, FIRST_RESULT), " ms")


def tiny(count: int) -> dict[str, Callable[[], Any]]:
    def in_fray() -> float:
        with create_context("process", max_workers=WORKERS) as context:
            context.get([context.run(busy, 0.05) for _ in range(WORKERS)])  # all are there, as a Pool's are
            return timed(lambda: [None for _ in context.map(noop, range(count))]) / count

    def in_standard() -> float:
        import concurrent.futures

        with concurrent.futures.ProcessPoolExecutor(WORKERS) as executor:
            list(executor.map(busy, [0.05] * WORKERS))
            return timed(lambda: [None for _ in executor.map(noop, range(count), chunksize=1000)]) / count

    def in_pool() -> float:
        import multiprocessing

        with multiprocessing.Pool(WORKERS) as pool:
            return timed(lambda: [None for _ in pool.imap(noop, range(count), chunksize=1000)]) / count

    return {
        f"{PEER}, chunksize=1000": in_standard,
        "multiprocessing.Pool.imap, 1000": in_pool,
        "fray": in_fray,
    }


def shapes() -> None:
    def actor_calls(count: int) -> float:
        with create_context("process") as context:
            counter = context.create_actor(Counter)
            context.get(counter.increment())
            return timed(lambda: context.get([counter.increment() for _ in range(count)])) / count

    def chain(count: int) -> float:
        with create_context("process", max_workers=1) as context:
            ref = context.put(0)

            def work() -> None:
                last: Any = ref
                for _ in range(count):
                    last = context.run(noop, last)
                context.get(last)

            return timed(work) / count

    lines(
        "Shapes",
        [
            ("100,000 actor calls", f"{actor_calls(fewer(100_000, 10_000)) * 1e6:.1f} µs a call"),
            ("chain of 10,000 on one worker", f"{chain(fewer(10_000, 1_000)) * 1e6:.1f} µs a link"),
        ],
    )


def memory_of(size: int) -> float:
    """Return the bytes that caller and workers take at the most, beyond the caller's own array of `size`."""
    import numpy

    figures: list[float] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.02):
            figures.append(_proportional_memory())

    array = numpy.ones(size // 8)
    with fray() as pool:
        pool.run_all(busy, [0.1] * 4)
        before = _proportional_memory()
        watcher = threading.Thread(target=watch)
        watcher.start()
        pool.run_all(read, [pool.share(array)] * 20)
        stop.set()
        watcher.join()
    return max(figures) - before


def _proportional_memory() -> float:
    me = psutil.Process()
    total = 0.0
    for process in [me, *me.children(recursive=True)]:
        try:
            total += process.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return total


def _goal(ratio: float, limit: str = "") -> dict[str, Goal]:
    return {"fray": at_most(ratio, limit)}


def _peer(subjects: dict[str, Timed], wanted: str = PEER) -> str:
    return wanted if wanted in subjects else next(iter(subjects))


def main() -> None:
    """Print all tables."""
    if sys.argv[1:] == ["--memory"]:
        beyond = memory_of(1_000_000_000) / 1e9
        row = ("beyond the caller's own", f"{beyond:.2f} GB")
        lines("A 1 GB array, stored and read by every worker", [row])
        judge("A 1 GB array that every worker reads takes", beyond, at_most(1.1), " GB")
        return
    compile_packages("fray", "fray_local", "fray_resources")
    openers = available(sys.argv[1:])
    with opened(openers) as pools:
        small(pools)
        large(pools)
    starts(openers)
    count = fewer(1_000_000, 100_000)
    compare(
        f"Of {count:,} tiny items through map, each",
        tiny(count),
        peer="multiprocessing.Pool.imap, 1000",
        rounds=3,
        goals=_goal(1.0),
    )
    flows()
    shapes()
    subprocess.run([sys.executable, __file__, "--memory"], check=True)


if __name__ == "__main__":
    main()
