"""What the torture test runs; a worker that is started again every other moment should not load pytest."""

from collections.abc import Iterator

from fray import TaskOptions, get_job_context

AGAIN = TaskOptions(max_retries=10_000)
LARGE = 200_000  # bytes: beyond what travels inside a message


def square(number: int) -> int:
    return number * number


def add(first: int, second: int) -> int:
    return first + second


def by_tasks(number: int) -> int:
    context = get_job_context()
    parts = [context.create_task(square, number + step, options=AGAIN) for step in range(3)]
    return sum(context.get(parts))


def enlarge(number: int) -> bytes:
    return bytes([number % 256]) * LARGE


def measure(data: bytes) -> int:
    return data[0] + len(data)


def count_up(number: int) -> Iterator[int]:
    yield from range(number, number + 20)


class Adder:
    def add(self, first: int, second: int) -> int:
        return first + second
