"""Functions and classes that the contracts run as tasks and actors; importable by any worker."""

import threading
from collections.abc import Iterator
from typing import Any

from fray._contracts.refs import ObjectRef
from fray._discovery.current import get_job_context
from fray.testing.gates import Gate
from fray.testing.notes import Note

AnyGate = Gate | Note


def add(a: int, b: int = 1) -> int:
    return a + b


def named(a: int, name: str = "nobody's") -> tuple[int, str]:
    return a, name


def named_by_any(a: int, **others: Any) -> tuple[int, dict[str, Any]]:
    return a, others


def takes_args(args: str) -> str:
    return args


def total(numbers: list[int]) -> int:
    return sum(numbers)


def is_reference(inside: list[Any]) -> bool:
    """Whether what is inside a container arrived as a reference."""
    return isinstance(inside[0], ObjectRef)


def fail(message: str) -> int:
    raise ValueError(message)


def fail_from(message: str) -> int:
    try:
        raise KeyError(message)
    except KeyError as cause:
        raise ValueError("outer") from cause


def fail_below(depth: int) -> None:
    """Fail in a task of a task …, each of which waits for the next."""
    if depth == 0:
        raise ValueError("deepest")
    context = get_job_context()
    context.get(context.run(fail_below, depth - 1))


class CodedError(ValueError):
    """Has a constructor of its own, which plain pickling calls with the wrong arguments."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code


def fail_with_code(code: int) -> int:
    raise CodedError(code, "no luck")


class StuckError(Exception):
    """Cannot travel: it holds a lock."""

    def __init__(self) -> None:
        super().__init__("stuck")
        self.lock = threading.Lock()


def fail_stuck() -> int:
    raise StuckError


def touch(mark: Note, value: Any = None) -> Any:
    """Leave a mark that the task ran."""
    mark.add()
    return value


def hold(gate: AnyGate, started: AnyGate | None = None, value: Any = "held") -> Any:
    """Run until the gate opens."""
    if started is not None:
        started.open()
    gate.wait()
    return value


def nest(depth: int) -> int:
    """Run a task that runs a task …, each waiting for the next."""
    if depth == 0:
        return 0
    context = get_job_context()
    return 1 + context.get(context.run(nest, depth - 1))


def sum_by_threads(count: int) -> int:
    """Run tasks from threads of a task's own, and wait for those."""
    context = get_job_context()
    values: list[int] = []

    def run_one(index: int) -> None:
        values.append(context.get(context.run(add, index, 0)))

    threads = [threading.Thread(target=run_one, args=[index]) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(values)


def sum_of_tasks(count: int) -> int:
    """Run many tasks from inside a task."""
    context = get_job_context()
    return sum(context.get([context.run(add, index, 0) for index in range(count)]))


def numbers(count: int, fail_at: int | None = None) -> Iterator[int]:
    for index in range(count):
        if index == fail_at:
            raise ValueError(f"item {index}")
        yield index


def endless(diary: Note) -> Iterator[int]:
    """Yield for ever and write down each item, one letter each."""
    index = 0
    while True:
        diary.add()
        yield index
        index += 1


def until_closed(closed: AnyGate) -> Iterator[int]:
    """Yield for ever; open the gate when closed."""
    try:
        while True:
            yield 1
    finally:
        closed.open()


def squares_by_tasks(count: int) -> Iterator[int]:
    context = get_job_context()
    for index in range(count):
        yield context.get(context.run(pow, index, 2))


def waits_between(gate: AnyGate) -> Iterator[str]:
    yield "first"
    gate.wait()
    yield "second"


class Counter:
    """An actor that counts."""

    def __init__(self, start: int = 0, name: str = "", options: str = "") -> None:
        if start < 0:
            raise ValueError(f"cannot start at {start}")
        self.count, self.name, self.options = start, name, options
        self._inside = 0

    def increment(self, by: int = 1) -> int:
        if by < 0:
            raise ValueError(f"cannot count by {by}")
        self.count += by
        return self.count

    def value(self) -> int:
        return self.count

    def names(self) -> tuple[str, str]:
        return self.name, self.options

    def countdown(self) -> Iterator[int]:
        yield from range(self.count, 0, -1)

    def until_closed(self, closed: AnyGate) -> Iterator[int]:
        yield from until_closed(closed)

    def overlap(self, seconds: float) -> int:
        """Return how many calls are inside at the same time, having stayed for a while."""
        import time

        self._inside += 1
        time.sleep(seconds)
        seen, self._inside = self._inside, self._inside - 1
        return seen

    def hold(self, gate: AnyGate, started: AnyGate | None = None) -> str:
        return str(hold(gate, started))

    def open(self, gate: AnyGate) -> None:
        gate.open()

    def run_task(self, number: int) -> int:
        context = get_job_context()
        return context.get(context.run(add, number))


def increment_by_name(name: str) -> int:
    """Find an actor through the current context, from inside a task."""
    context = get_job_context()
    return int(context.get(context.get_actor(name).increment()))


def increment_many(counter: Any, times: int) -> int:
    context = get_job_context()
    return int(context.get([counter.increment() for _ in range(times)])[-1])


def get_with(context: Any, holder: list[Any]) -> Any:
    """Use a context and a reference that were passed in."""
    return context.get(holder[0])
