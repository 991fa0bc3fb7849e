"""What the steps of a random program do; apart from the test, so that no worker loads Hypothesis."""

from collections.abc import Iterator

from fray._discovery.current import get_job_context


def combine(number: int, *values: int) -> int:
    return number + sum(values)


def refuse(number: int, *values: int) -> int:
    if (number + sum(values)) % 3 == 0:
        raise LookupError(f"refused {number}")
    return number


def nested(number: int, *values: int) -> int:
    if number <= 0:
        return sum(values)
    context = get_job_context()
    parts = [context.run(nested, number - 2, value) for value in values]
    return 1 + sum(context.get(parts))


def nested_plain(number: int, *values: int) -> int:
    if number <= 0:
        return sum(values)
    return 1 + sum(nested_plain(number - 2, value) for value in values)


def spread(number: int, *values: int) -> Iterator[int]:
    yield from values
    if number % 4 == 3:
        raise LookupError(f"stream {number}")
    yield number


class StepLog:
    """An actor whose answers depend on the order of its calls."""

    def __init__(self) -> None:
        self.entries: list[int] = []

    def enter(self, number: int, *values: int) -> int:
        if number % 5 == 4:
            raise LookupError(f"log {number}")
        self.entries.append(number + sum(values))
        return sum((place + 1) * entry for place, entry in enumerate(self.entries)) % 1009

    def replay(self, number: int, *values: int) -> Iterator[int]:
        yield from self.entries[-3:]
        yield combine(number, *values)
