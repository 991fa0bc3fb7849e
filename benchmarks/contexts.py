"""What a task costs in the contexts of one process, against the standard library's pool of threads.

Goals: thousands of no-op tasks at once at most 0.3 of ThreadPoolExecutor's time, one at a time at most
1.0 of it; nothing grows with the number of outstanding tasks.

What limits it is in the same tables. "Bare threads" put a function into a queue that as many threads
read, and keep its result: no context can be faster. "Bare, promises" are that with what the contract
asks of every task and no way around: a reference that can be waited for and passed on, the call that
will settle it and can be cancelled, the caller's context variables.
"""

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any

from measure import Timed, at_most, compare, fewer, lines, timed

from fray import create_context, get_job_context

MANY = fewer(100_000, 20_000)
AT_ONCE = (
    "a queue, its threads and promises, without a context, are the rows named bare: no context is faster"
)


def noop(value: Any) -> Any:
    return value


def nest(depth: int) -> int:
    context = get_job_context()
    return 0 if depth == 0 else 1 + context.get(context.run(nest, depth - 1))


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def increment(self) -> int:
        self.count += 1
        return self.count


def gather_direct(count: int) -> float:
    return timed(lambda: [noop(index) for index in range(count)]) / count


def gather_executor(count: int) -> float:
    with ThreadPoolExecutor() as executor:

        def work() -> None:
            for future in [executor.submit(noop, index) for index in range(count)]:
                future.result()

        return timed(work) / count


class Promise:
    """The least that a reference and the call behind it are."""

    __slots__ = ("__weakref__", "args", "context", "fn", "kwargs", "ready", "unclaimed", "value")

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.fn, self.args, self.kwargs, self.context = fn, args, kwargs, copy_context()
        self.ready, self.unclaimed = False, True

    def settle(self) -> None:
        if self.unclaimed:
            self.unclaimed = False
            self.value = self.context.run(self.fn, *self.args, **self.kwargs)
            self.ready = True


class BareThreads:
    """A queue and the threads that read it: they start with the first task, as those of the others."""

    def __init__(self, *, promises: bool) -> None:
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._promises = promises

    def run_all(self, fn: Callable[..., Any], count: int) -> list[Any]:
        done, results = threading.Event(), []
        queue, promises = self._queue, []
        for index in range(count):
            if self._promises:
                promise = Promise(fn, (index,), {})
                promises.append(promise)
                queue.put(promise.settle)
            else:
                queue.put(lambda index=index: results.append(fn(index)))  # type: ignore[misc]
            if len(self._threads) < min(32, (os.cpu_count() or 1) + 4):
                self._start()
        queue.put(done.set)
        done.wait()
        while not all(promise.ready for promise in promises) or len(results) < count - len(promises):
            time.sleep(0)
        return [promise.value for promise in promises] or results

    def close(self) -> None:
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _start(self) -> None:
        thread = threading.Thread(target=self._work)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while (act := self._queue.get()) is not None:
            act()


def gather_bare(count: int, *, promises: bool) -> float:
    bare = BareThreads(promises=promises)
    try:
        return timed(lambda: bare.run_all(noop, count)) / count
    finally:
        bare.close()


def gather(spec: str, count: int) -> float:
    with create_context(spec) as context:
        return timed(lambda: context.get([context.run(noop, index) for index in range(count)])) / count


def one_by_one(spec: str | None, count: int) -> float:
    if spec is None:
        with ThreadPoolExecutor() as executor:
            return timed(lambda: [executor.submit(noop, index).result() for index in range(count)]) / count
    with create_context(spec) as context:
        return timed(lambda: [context.get(context.run(noop, index)) for index in range(count)]) / count


def wait_loop(count: int) -> float:
    """Seconds per `wait(refs, 1)` in a loop that drains `count` references."""
    with create_context("threadpool") as context:
        refs = [context.run(noop, index) for index in range(count)]
        start = time.perf_counter()
        while refs:
            _, refs = context.wait(refs, num_returns=1)
        return (time.perf_counter() - start) / count


def chain(spec: str, count: int) -> float:
    with create_context(spec) as context:

        def work() -> None:
            ref = context.put(0)
            for _ in range(count):
                ref = context.run(noop, ref)
            context.get(ref)

        return timed(work)


def actor_calls(spec: str, count: int) -> float:
    with create_context(spec) as context:
        counter = context.create_actor(Counter)
        return timed(lambda: context.get([counter.increment() for _ in range(count)])) / count


def median_of(work: Callable[[], float], scale: float, unit: str, rounds: int = 5) -> str:
    figures = sorted(work() for _ in range(rounds))
    return f"{figures[rounds // 2] * scale:.2f} {unit}"


def compare_gathering(count: int) -> None:
    """Print what one of so many tasks costs that are submitted together."""
    subjects: dict[str, Timed] = {
        "ThreadPoolExecutor": lambda: gather_executor(count),
        "direct call": lambda: gather_direct(count),
        "bare threads": lambda: gather_bare(count, promises=False),
        "bare, promises": lambda: gather_bare(count, promises=True),
        "SyncContext": lambda: gather("sync", count),
        "ThreadContext": lambda: gather("threadpool", count),
    }
    compare(
        f"{count:,} no-op tasks, submit all and gather, per task",
        subjects,
        peer="ThreadPoolExecutor",
        goals={"ThreadContext": at_most(0.3, AT_ONCE)},
    )


def main() -> None:
    """Print all tables."""
    for count in (1_000, fewer(20_000, 5_000)):
        compare_gathering(count)
    compare(
        "1,000 no-op tasks one at a time, per task",
        {
            "ThreadPoolExecutor": lambda: one_by_one(None, 1_000),
            "SyncContext": lambda: one_by_one("sync", 1_000),
            "ThreadContext": lambda: one_by_one("threadpool", 1_000),
        },
        peer="ThreadPoolExecutor",
        goals={
            "ThreadContext": at_most(
                1.0, "each wakes a thread and is woken by it; the rest is the reference's books"
            )
        },
    )
    compare(
        "Per task, by tasks outstanding (ThreadContext)",
        {f"{count:,}": (lambda count=count: gather("threadpool", count)) for count in (1_000, MANY)},
        peer="1,000",
        rounds=3,
        goals={f"{MANY:,}": at_most(1.5)},
    )
    compare(
        "Per wait(refs, 1), draining in a loop (ThreadContext)",
        {f"{count:,}": (lambda count=count: wait_loop(count)) for count in (1_000, 10_000)},
        peer="1,000",
        goals={"10,000": at_most(1.5, "each call is given what is left, and returns it again")},
    )
    lines(
        "Shapes (median of 5)",
        [
            (
                "chain of 10,000 on one worker",
                median_of(lambda: chain("threadpool?max_workers=1", 10_000), 1e2, "µs a link"),
            ),
            (
                "nesting 100 deep on one worker",
                median_of(lambda: timed_nest("threadpool?max_workers=1", 100), 1e3, "ms"),
            ),
            ("100,000 actor calls", median_of(lambda: actor_calls("threadpool", 100_000), 1e6, "µs a call")),
        ],
    )


def timed_nest(spec: str, depth: int) -> float:
    with create_context(spec) as context:
        return timed(lambda: context.get(context.run(nest, depth)))


if __name__ == "__main__":
    main()
