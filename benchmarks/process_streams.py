"""Streams of the process context beside those of threads: single items, and a shuffle of files."""

import csv
import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path

from measure import Timed, at_most, compare, fewer, judge, timed
from process_peers import WORKERS

from fray import create_context


def items(count: int) -> Iterator[int]:
    yield from range(count)


def stream(spec: str, count: int) -> float:
    """Return the seconds that each item of a stream takes."""
    with create_context(spec, max_workers=WORKERS) as context:
        context.get(context.run(len, ()))
        return timed(lambda: [context.get(ref) for ref in context.run(items, count)]) / count


def group(path: Path) -> Iterator[list[list[str]]]:
    """Yield the rows of a file in 16 groups, by their first column."""
    groups: list[list[list[str]]] = [[] for _ in range(16)]
    with path.open(newline="") as file:
        for row in csv.reader(file):
            groups[int(row[0]) % 16].append(row)
    yield from groups


def write(path: Path, *parts: list[list[str]]) -> int:
    """Write the parts of a group as one file, and return its rows."""
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(row for part in parts for row in part)
    return sum(map(len, parts))


def shuffle(spec: str, folder: Path) -> float:
    """Return the seconds of a shuffle: 20 files of 2,000 rows, each grouped into 16, a file for each."""
    with create_context(spec, max_workers=WORKERS) as context:

        def work() -> None:
            streams = [context.run(group, path) for path in sorted(folder.glob("in*.csv"))]
            parts = list(zip(*streams, strict=True))
            written = [
                context.run(write, folder / f"out{index}.csv", *one) for index, one in enumerate(parts)
            ]
            assert sum(context.get(written)) == 40_000

        return timed(work)


def flows() -> None:
    specs = ("threadpool", "process")
    subjects: dict[str, Timed] = {
        spec: functools.partial(stream, spec, fewer(20_000, 2_000)) for spec in specs
    }
    found = compare("An item of a stream", subjects, peer="threadpool", rounds=3)
    judge("An item of a stream on process", found["process"] * 1e6, at_most(50), " µs")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for index in range(20):
            with (folder / f"in{index:02}.csv").open("w", newline="") as file:
                csv.writer(file).writerows([row * 7 + index, "x" * 40, row] for row in range(2_000))
        subjects = {spec: functools.partial(shuffle, spec, folder) for spec in specs}
        compare(
            "A shuffle of 20 files of 2,000 rows",
            subjects,
            peer="threadpool",
            rounds=3,
            unit="ms",
            scale=1e3,
            goals={"process": at_most(1.5)},
        )
