"""What RayContext costs, compared with the same program written with `ray.remote`.

Goals, as ratios to Ray of times per item: tasks 1.05, actor calls 1.0, `put` and `get` 1.05, 10 MB
arguments 1.05, `wait` for 100 of 1,000 1.2, `map` to `Pool.map` 1.0, 50,000 submits of a function of the
script 1.1, streams 1.05, a failure down a chain of 10,000 tasks 2.0 of one that succeeds. Runs on one node
of this machine.

On two cores the caller shares them with the worker that it feeds, and a round of a table differs from the
next by a fifth. The tables of the calling thread's CPU are what that thread itself spends.
"""

import os

os.environ["RAY_AUTH_MODE"] = "disabled"  # of a private cluster; read when Ray is imported

import time
from collections.abc import Iterator
from operator import neg
from typing import Any

import ray as typed_ray
from measure import Timed, at_most, compare, fewer, timed
from ray.util.multiprocessing import Pool

from fray import JobContext, create_context
from fray_ray.testing import LocalRayCluster

ray: Any = typed_ray
TASKS, CALLS, STREAM = (fewer(count, count // 5) for count in (1000, 2000, 2000))
LARGE, PUTS = 10, 1000
ITEMS, SUBMITS, CHAIN = fewer(20_000, 2_000), fewer(50_000, 2_000), fewer(10_000, 500)
SHARED = "on two cores caller and worker share the CPUs; see the CPU of the calling thread below"


def scripts_own(value: int) -> int:
    return -value


def broken(value: int) -> int:
    return value // 0


def count(items: int) -> Iterator[int]:
    for item in range(items):  # noqa: UP028 - Ray resumes generators with `send`, which a range has not
        yield item


def length(data: bytes) -> int:
    return len(data)


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def increment(self) -> int:
        self.count += 1
        return self.count


def tasks(context: JobContext, fn: Any) -> Timed:
    return lambda: timed(lambda: context.get([context.run(fn, item) for item in range(TASKS)])) / TASKS


def tasks_by_hand(fn: Any) -> Timed:
    remote = ray.remote(max_retries=0)(fn)
    return lambda: timed(lambda: ray.get([remote.remote(item) for item in range(TASKS)])) / TASKS


def tasks_anew(fn: Any) -> Timed:
    return lambda: timed(lambda: ray.get([ray.remote(fn).remote(item) for item in range(TASKS)])) / TASKS


def calls(make: Any, get: Any) -> Timed:
    increment = make().increment.remote
    return lambda: timed(lambda: get([increment() for _ in range(CALLS)])) / CALLS


def large(run: Any, get: Any) -> Timed:
    data = os.urandom(10_000_000)
    return lambda: timed(lambda: [get(run(data)) for _ in range(LARGE)]) / LARGE


def waits(wait: Any, refs: list[Any], number: int) -> Timed:
    return lambda: timed(lambda: [wait(refs, num_returns=number) for _ in range(50)]) / 50


def puts(put: Any, get: Any) -> Timed:
    return lambda: timed(lambda: [get(put(item)) for item in range(PUTS)]) / PUTS


def submits(submit: Any, get: Any, number: int, clock: Any = time.perf_counter) -> Timed:
    """Return what it costs to submit, by a clock; the results are read after it was looked at."""

    def measure() -> float:
        start = clock()
        refs = [submit() for _ in range(number)]
        seconds = clock() - start
        get(refs)
        return float(seconds / number)

    return measure


def chain(context: JobContext, first: Any) -> Timed:
    """Return what a chain of tasks costs, each of which takes the result of the one before."""

    def measure() -> float:
        start = time.perf_counter()
        ref = context.run(first, 1)
        for _ in range(CHAIN):
            ref = context.run(scripts_own, ref)
        try:
            context.get(ref)
        except ZeroDivisionError:
            assert first is broken
        return time.perf_counter() - start

    return measure


def drains(wait: Any, put: Any) -> Timed:
    def drain() -> None:
        refs = [put(item) for item in range(1000)]
        while refs:
            _, refs = wait(refs, num_returns=min(100, len(refs)))

    return lambda: timed(drain)


def stream(run: Any, get: Any) -> Timed:
    return lambda: timed(lambda: [get(item) for item in run(STREAM)]) / STREAM


def main() -> None:
    with LocalRayCluster(num_cpus=2, fast_workers=False) as cluster:
        ray.init(cluster.address, log_to_driver=False, logging_level="error")
        with create_context("ray") as context:
            compare_all(context)


def compare_all(context: JobContext) -> None:
    hand_count = ray.remote(count).options(
        num_returns="streaming", _generator_backpressure_num_objects=64, max_retries=0
    )
    refs = [ray.put(item) for item in range(1000)]
    pairs: list[tuple[str, float, Timed, Timed]] = [
        ("task, imported function", 1.05, tasks_by_hand(lambda value: neg(value)), tasks(context, neg)),
        ("task, function of the script", 1.05, tasks_by_hand(scripts_own), tasks(context, scripts_own)),
        (
            "actor call",
            1.0,
            calls(ray.remote(Counter).remote, ray.get),
            calls(lambda: context.create_actor(Counter), context.get),
        ),
        (
            "10 MB argument",
            1.05,
            large(ray.remote(length).remote, ray.get),
            large(lambda data: context.run(length, data), context.get),
        ),
        ("put and get", 1.05, puts(ray.put, ray.get), puts(context.put, context.get)),
        ("wait for 100 of 1,000", 1.2, waits(ray.wait, refs, 100), waits(context.wait, refs, 100)),
        ("wait for all of 1,000", 1.2, waits(ray.wait, refs, 1000), waits(context.wait, refs, 1000)),
        ("drain 1,000 by the hundred", 1.2, drains(ray.wait, ray.put), drains(context.wait, context.put)),
        (
            "item of a stream",
            1.05,
            stream(hand_count.remote, ray.get),
            stream(lambda items: context.run(count, items), context.get),
        ),
    ]
    for title, bound, by_hand, by_fray in pairs:
        goals = {"fray": at_most(bound, SHARED)}
        compare(title, {"ray": by_hand, "fray": by_fray}, peer="ray", goals=goals)
    compare_maps(context)
    own, increment = (
        ray.remote(max_retries=0)(scripts_own).remote,
        ray.remote(Counter).remote().increment.remote,
    )
    called = context.create_actor(Counter).increment
    goals = {"fray": at_most(1.1, SHARED)}
    for title, number, clock in (
        (f"submit of {SUBMITS:,} tasks", SUBMITS, time.perf_counter),
        ("submit of a task, CPU of the calling thread", TASKS, time.thread_time),
    ):
        by_both: dict[str, Timed] = {
            "ray": submits(lambda: own(1), ray.get, number, clock),
            "fray": submits(lambda: context.run(scripts_own, 1), context.get, number, clock),
        }
        compare(title, by_both, peer="ray", rounds=3, goals=goals)
    by_both = {
        "ray": submits(increment, ray.get, CALLS, time.thread_time),
        "fray": submits(called, context.get, CALLS, time.thread_time),
    }
    compare("actor call, CPU of the calling thread", by_both, peer="ray")
    chains = {"that succeeds": chain(context, scripts_own), "that fails": chain(context, broken)}
    goals = {"that fails": at_most(2.0)}
    compare(f"chain of {CHAIN:,}", chains, peer="that succeeds", rounds=1, unit="s", scale=1, goals=goals)
    anew = {"fray": tasks(context, scripts_own), "ray.remote per call": tasks_anew(scripts_own)}
    compare("task, against a new remote function for each", anew, peer="fray", rounds=3)


def compare_maps(context: JobContext) -> None:
    items = range(ITEMS)
    with Pool(2) as pool:
        compare(
            f"map of {ITEMS:,}",
            {
                "Pool.map": lambda: timed(lambda: pool.map(scripts_own, items)),
                "fray": lambda: timed(lambda: list(context.map(scripts_own, items))),
            },
            peer="Pool.map",
            unit="ms",
            scale=1e3,
            goals={"fray": at_most(1.0)},
        )


if __name__ == "__main__":
    main()
