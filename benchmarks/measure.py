"""Interleaved timings and their table: medians, and ratios to a named peer."""

import compileall
import importlib.util
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Timed = Callable[[], float]
"""Does its work once and returns the figure: seconds, or seconds per item."""


def timed(work: Callable[[], Any]) -> float:
    """Return how many seconds the work took."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compile_packages(*names: str) -> None:
    """Compile what the measured processes import, and the benchmarks themselves.

    Users import compiled files; a shell that forbids writing them would measure the compiler.
    """
    for name in names:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        compileall.compile_dir(Path(spec.origin).parent, quiet=1)
    compileall.compile_dir(Path(__file__).parent, maxlevels=0, quiet=1)


def interleave(subjects: dict[str, Timed], rounds: int) -> dict[str, float]:
    """Run all subjects in turn, `rounds` times, and return each one's median."""
    figures: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(rounds):
        for name, subject in subjects.items():
            figures[name].append(subject())
    return {name: statistics.median(values) for name, values in figures.items()}


def table(title: str, unit: str, scale: float, medians: dict[str, float], peer: str) -> None:
    """Print medians in a unit and as ratios to the peer."""
    print(f"\n{title} ({unit}; ratio to {peer})")
    for name, median in medians.items():
        print(f"  {name:<34}{median * scale:>12.2f}{median / medians[peer]:>10.2f}")


def compare(
    title: str,
    subjects: dict[str, Timed],
    *,
    peer: str,
    rounds: int = 7,
    unit: str = "µs",
    scale: float = 1e6,
) -> None:
    """Measure and print one table."""
    table(title, unit, scale, interleave(subjects, rounds), peer)


def lines(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Print plain rows."""
    print(f"\n{title}")
    for name, figure in rows:
        print(f"  {name:<50}{figure:>20}")
