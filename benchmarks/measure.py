"""Interleaved timings and their tables: medians, ratios to a named peer, and goals.

A table is printed, and noted for docs/performance.md where `suite.py` runs the benchmark: BENCH_NOTES names
the file. BENCH_QUICK=1 sets small sizes and few rounds: whether it runs, not what it costs.
"""

import compileall
import importlib.util
import json
import os
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Timed = Callable[[], float]
"""Does its work once and returns the figure: seconds, or seconds per item."""

QUICK = os.environ.get("BENCH_QUICK") == "1"


@dataclass(frozen=True)
class Goal:
    """A bound that a figure shall keep.

    Args:
        bound: The bound, in the unit of the figure.
        at_least: Whether the figure shall be no less than it; no more, otherwise.
        limit: What limits the figure, where the bound is known to be missed.
    """

    bound: float
    at_least: bool = False
    limit: str = ""


def at_most(bound: float, limit: str = "") -> Goal:
    return Goal(bound, limit=limit)


def at_least(bound: float, limit: str = "") -> Goal:
    return Goal(bound, at_least=True, limit=limit)


def fewer(count: int, quick: int) -> int:
    """Return how many of something to measure, in this run."""
    return quick if QUICK else count


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


def interleave(subjects: Mapping[str, Timed], rounds: int) -> dict[str, float]:
    """Run all subjects in turn, `rounds` times, and return each one's median."""
    figures: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(fewer(rounds, min(rounds, 2))):
        for name, subject in subjects.items():
            figures[name].append(subject())
    return {name: statistics.median(values) for name, values in figures.items()}


def table(
    title: str,
    unit: str,
    scale: float,
    medians: Mapping[str, float],
    peer: str,
    goals: Mapping[str, Goal] | None = None,
) -> None:
    """Print medians in a unit and as ratios to the peer; goals are of ratios."""
    rows = [
        (name, f"{median * scale:,.2f}", f"{median / medians[peer]:.2f}") for name, median in medians.items()
    ]
    columns(title, [unit, f"ratio to {peer}"], rows)
    for name, goal in (goals or {}).items():
        if name in medians:
            judge(f"{title}: {name}, ratio to {peer}", medians[name] / medians[peer], goal)


def compare(
    title: str,
    subjects: Mapping[str, Timed],
    *,
    peer: str,
    rounds: int = 7,
    unit: str = "µs",
    scale: float = 1e6,
    goals: Mapping[str, Goal] | None = None,
) -> dict[str, float]:
    """Measure and print one table, and return its medians."""
    medians = interleave(subjects, rounds)
    table(title, unit, scale, medians, peer, goals)
    return medians


def lines(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Print plain rows."""
    columns(title, [""], rows)


def columns(title: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: of each row what it is about, then a cell for each column."""
    print(f"\n{title}  [{'; '.join(name for name in names if name)}]")
    for name, *cells in rows:
        print(f"  {name:<50}" + "".join(f"{cell:>20}" for cell in cells), flush=True)
    _note({"title": title, "columns": list(names), "rows": [list(row) for row in rows]})


def judge(what: str, figure: float, goal: Goal, unit: str = "") -> None:
    """Print whether a goal is met."""
    met = figure >= goal.bound if goal.at_least else figure <= goal.bound
    word = "at least" if goal.at_least else "at most"
    bound = f"{word} {brief(goal.bound)}{unit}"
    print(f"  {'met' if met else 'MISSED'}: {what} {brief(figure)}{unit}, goal {bound}")
    _note(
        {
            "goal": what,
            "bound": bound,
            "figure": f"{brief(figure)}{unit}",
            "met": met,
            "limit": goal.limit,
        }
    )


def brief(figure: float) -> str:
    """Return a figure with three digits, or all of those before the point."""
    return f"{figure:,.0f}" if abs(figure) >= 100 else f"{figure:.3g}"


def available(what: str, *, module: str = "", program: str = "") -> bool:
    """Return whether a peer can be measured here; if not, say so."""
    found = (not module or importlib.util.find_spec(module)) and (not program or shutil.which(program))
    if not found:
        missing(what, f"{program or module} is not installed")
    return bool(found)


def missing(what: str, why: str) -> None:
    """Report that something is not measured."""
    print(f"\n{what}: NOT MEASURED: {why}")
    _note({"missing": what, "why": why})


def slope_noted(name: str, what: str, more: float) -> None:
    """Note what one more of something costs, for docs/scaling.md."""
    _note({"slope": f"{name}.{what}", "value": more})


def _note(what: dict[str, Any]) -> None:
    if path := os.environ.get("BENCH_NOTES"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(what) + "\n")
