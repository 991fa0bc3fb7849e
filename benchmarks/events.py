"""What events cost without a listener, and what they cost with one.

Goal: with no listener a task costs what it did before there were events, and so does a lease. The peer
of a task is the same context with the `run` of before. A queue's methods are those of before until
there is a listener, which is checked here; its table is about what listening costs.
"""

import os
from typing import Any

from measure import Timed, at_most, compare, fewer, interleave, table, timed

from fray import JobContext, create_context
from fray.backend import DEFAULT_TASK
from fray.events import Event, use_listener
from fray.queue import open_queue

COUNT = fewer(2000, 500)
ROUNDS = 101
NOBODY = "nobody listens"


class Deaf:
    def on_event(self, event: Event) -> None:
        pass


def listened_to(subject: Timed) -> Timed:
    def run() -> float:
        with use_listener(Deaf()):
            return subject()

    return run


def noop(value: Any) -> Any:
    return value


def without_events(context: Any) -> Any:
    """Give a context the `run` that it had before there were events."""
    kind = type(context)

    class Before(kind):  # type: ignore[misc,valid-type]
        def run(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def]
            return self._submit(fn, args, kwargs, DEFAULT_TASK)

    context.__class__ = Before
    return context


def tasks_of(context: JobContext) -> Timed:
    def work() -> None:
        context.get([context.run(noop, number) for number in range(COUNT)])

    return lambda: timed(work) / COUNT


def lease() -> float:
    """Seconds to push, lease and finish an item in memory."""
    queue = open_queue("memory:")

    def work() -> None:
        for number in range(COUNT):
            queue.push(number)
            taken = queue.pop()
            assert taken is not None
            queue.done(taken)

    return timed(work) / COUNT


def leases() -> None:
    queue = type(open_queue("memory:"))
    assert not any(hasattr(getattr(queue, name), "__wrapped__") for name in ("pop", "done", "release"))
    silent = interleave({NOBODY: lease}, ROUNDS)
    listened = interleave({"a listener that does nothing": listened_to(lease)}, 9)
    table("push, pop, done in memory", "µs", 1e6, silent | listened, NOBODY)


def tasks(spec: str) -> None:
    with create_context(spec) as now, create_context(spec) as other:
        peer = {"before events": tasks_of(without_events(other))}
        compare(
            f"a task on {spec}",
            peer | {NOBODY: tasks_of(now)},
            peer="before events",
            rounds=ROUNDS,
            goals={NOBODY: at_most(1.05)},
        )
        loud = peer | {"a listener that does nothing": listened_to(tasks_of(now))}
        compare(f"a task on {spec}, listened to", loud, peer="before events", rounds=9)


def main() -> None:
    os.environ.pop("FRAY_LISTENERS", None)
    leases()  # first: once there was a listener, the methods look for one
    for spec in ("sync", "threadpool"):
        tasks(spec)


if __name__ == "__main__":
    main()
