"""What RayContext costs over the same thing written by hand with `ray.remote`.

Goals: at least 0.95 of Ray's own rate for tasks, actor calls, 10 MB arguments, `wait` and streams, and
at least 3 times the rate of making the remote function anew for each call. Times per item here, so a
ratio to Ray of at most 1.05. Runs on one node of this machine.
"""

import os

os.environ["RAY_AUTH_MODE"] = "disabled"  # of a private cluster; read when Ray is imported

from collections.abc import Iterator
from operator import neg
from typing import Any

import ray as typed_ray
from measure import Timed, compare, timed

from fray import JobContext, create_context
from fray_ray.testing import LocalRayCluster

ray: Any = typed_ray
TASKS, CALLS, STREAM, LARGE = 1000, 2000, 2000, 10


def scripts_own(value: int) -> int:
    return -value


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


def waits(wait: Any, refs: list[Any]) -> Timed:
    return lambda: timed(lambda: [wait(refs, num_returns=len(refs)) for _ in range(50)]) / 50


def drains(wait: Any, put: Any) -> Timed:
    def drain() -> None:
        refs = [put(item) for item in range(1000)]
        while refs:
            _, refs = wait(refs, num_returns=min(100, len(refs)))

    return lambda: timed(drain)


def stream(run: Any, get: Any) -> Timed:
    return lambda: timed(lambda: [get(item) for item in run(STREAM)]) / STREAM


def main() -> None:
    with LocalRayCluster(num_cpus=2) as cluster:
        ray.init(cluster.address, log_to_driver=False, logging_level="error")
        with create_context("ray") as context:
            compare_all(context)


def compare_all(context: JobContext) -> None:
    hand_count = ray.remote(count).options(
        num_returns="streaming", _generator_backpressure_num_objects=64, max_retries=0
    )
    refs = [ray.put(item) for item in range(1000)]
    pairs: list[tuple[str, Timed, Timed]] = [
        ("task, imported function", tasks_by_hand(lambda value: neg(value)), tasks(context, neg)),
        ("task, function of the script", tasks_by_hand(scripts_own), tasks(context, scripts_own)),
        (
            "actor call",
            calls(ray.remote(Counter).remote, ray.get),
            calls(lambda: context.create_actor(Counter), context.get),
        ),
        (
            "10 MB argument",
            large(ray.remote(length).remote, ray.get),
            large(lambda data: context.run(length, data), context.get),
        ),
        ("wait for all of 1,000", waits(ray.wait, refs), waits(context.wait, refs)),
        ("drain 1,000 by the hundred", drains(ray.wait, ray.put), drains(context.wait, context.put)),
        (
            "item of a stream",
            stream(hand_count.remote, ray.get),
            stream(lambda items: context.run(count, items), context.get),
        ),
    ]
    for title, by_hand, by_fray in pairs:
        compare(title, {"ray": by_hand, "fray": by_fray}, peer="ray")
    anew = {"fray": tasks(context, scripts_own), "ray.remote per call": tasks_anew(scripts_own)}
    compare("task, against a new remote function for each", anew, peer="fray", rounds=3)


if __name__ == "__main__":
    main()
