"""docs/scaling.md, from the slopes that `scaling.py` measures and a model of what a machine has.

python benchmarks/scaling_page.py        writes the page from .nox/figures/scaling.json
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / ".nox" / "figures" / "scaling.json"
PAGE = ROOT / "docs" / "scaling.md"
TEMPLATE = Path(__file__).with_name("scaling.md.in")
GIB = 2**30


@dataclass(frozen=True)
class Machine:
    """What there is of each thing that runs out.

    Args:
        memory: Bytes that a program may take: half of what the machine has.
        processes: Processes of one user: `ulimit -u`, or the control group's `pids.max`.
        disk: Bytes of the file system that state lies on.
        inodes: Files that the file system takes.
    """

    name: str
    memory: float
    processes: float
    disk: float
    inodes: float


MACHINES = (
    Machine("laptop (16 GiB, 250 GB)", 8 * GIB, 4_000, 250e9, 16e6),
    Machine("server (256 GiB, 2 TB)", 128 * GIB, 32_000, 2e12, 128e6),
)
RUNS_OUT = {
    "memory": "memory",
    "processes": "processes",
    "disk": "disk",
    "files": "inodes",
    "threads": "processes",
}
WORDS = {
    "memory": "bytes of memory",
    "disk": "bytes on disk",
    "status": "bytes of its record",
    "files": "files",
    "processes": "processes",
    "threads": "threads",
}
ONE = {"files": "file", "processes": "process", "threads": "thread"}


def most(slopes: Mapping[str, float], name: str, machine: Machine) -> tuple[float, str]:
    """Return how many of something a machine holds, and what ends first."""
    ends = []
    for key, more in slopes.items():
        of, _, what = key.partition(".")
        if of == name and what in RUNS_OUT and more >= 0.5:
            ends.append((getattr(machine, RUNS_OUT[what]) / more, RUNS_OUT[what]))
    return min(ends)


def record_traffic(status: float, replicas: int) -> float:
    """Return the most bytes that the record of a job writes while its replicas start and end once.

    Each change of a replica writes the whole status, which grows with the replicas.
    """
    return 2 * replicas * status * replicas


def requests_at(rate: float, each: float) -> float:
    """Return the items a second of an object store that takes so many requests a second."""
    return rate / each


ROWS = {
    "tasks_threadpool": "`threadpool`: a task that waits",
    "tasks_process": "`process`: a task that waits",
    "tasks_ray": "`ray`: a task that waits, in all of Ray",
    "values_threadpool": "`threadpool`: a small value of `put`",
    "values_process": "`process`: a small value of `put`",
    "actors_threadpool": "`threadpool`: an actor",
    "actors_process": "`process`: an actor",
    "actors_ray": "`ray`: an actor",
    "items_memory": "`memory:` an item of 100 B",
    "items_sqlite": "`sqlite:` an item",
    "items_file": "`file:` an item pushed one by one",
    "items_server": "`http:` an item, server in memory",
    "items_server_store": "`http:` an item, server with a store",
    "items_redis": "`redis:` an item",
    "items_postgresql": "`postgresql:` an item",
    "jobs_records": "`local`: a finished job",
    "jobs_running": "`local`: a running job, beside its program",
    "replicas_running": "`local`: a replica more of a job, beside its program",
    "jobs_ray": "`ray`: a running job, in all of Ray",
    "logs": "a megabyte of a log",
}


def slopes_table(slopes: Mapping[str, float]) -> str:
    lines = ["| one more | costs | a laptop holds | a server holds |", "| --- | --- | --- | --- |"]
    for name, words in ROWS.items():
        own = {key.partition(".")[2]: more for key, more in slopes.items() if key.partition(".")[0] == name}
        if not own:
            lines.append(f"| {words} | not measured | | |")
            continue
        costs = ", ".join(_cost(what, more) for what, more in own.items() if more >= 0.5)
        held = [f"{rounded(count)} ({end})" for count, end in (most(slopes, name, each) for each in MACHINES)]
        lines.append(f"| {words} | {costs} | {held[0]} | {held[1]} |")
    return "\n".join(lines)


def _cost(what: str, more: float) -> str:
    return f"{more:,.0f} {WORDS[what] if more >= 1.5 else ONE.get(what, WORDS[what])}"


def rounded(count: float) -> str:
    """Return a count with two digits, as people say it."""
    for size, word in ((1e9, "billion"), (1e6, "million")):
        if count >= size:
            return f"{count / size:.2g} {word}" if count < 100 * size else f"{count / size:.0f} {word}"
    digits = max(len(str(int(count))) - 2, 0)
    return f"{round(count, -digits):,.0f}"


NEEDED = {"jobs_records.files", "actors_process.memory", "jobs_running.memory", "replicas_running.status"}


def can_be_written(result: dict[str, Any]) -> bool:
    """Return whether what the text speaks of was measured; rows of the table may be missing."""
    return {note.get("slope") for note in result["noted"]} >= NEEDED


def written(result: dict[str, Any]) -> str:
    """Return the page."""
    slopes = {note["slope"]: note["value"] for note in result["noted"] if "slope" in note}
    laptop = MACHINES[0]

    def held(name: str, machine: Machine = laptop) -> str:
        if not any(key.startswith(f"{name}.") for key in slopes):
            return "an unmeasured number of"
        return rounded(most(slopes, name, machine)[0])

    status = slopes["replicas_running.status"]
    shown = (
        f"{count:,} replicas: up to {_bytes(record_traffic(status, count))}" for count in (10, 100, 1000)
    )
    return TEMPLATE.read_text(encoding="utf-8").format(
        date=result["date"][:10],
        machine=result["machine"],
        machines=" and ".join(
            f"a {machine.name} with {machine.processes:,.0f} processes of one user" for machine in MACHINES
        ),
        slopes=slopes_table(slopes),
        record_files=f"{slopes['jobs_records.files']:.0f}",
        actor_process=_bytes(slopes["actors_process.memory"]),
        local_job=_bytes(slopes["jobs_running.memory"]),
        local_processes=f"{slopes['jobs_running.processes'] - 1:.0f}",
        local_jobs=held("jobs_running"),
        ray_jobs=held("jobs_ray"),
        record_1000=_bytes(record_traffic(status, 1000)),
        items_memory=held("items_memory"),
        items_file=held("items_file"),
        items_redis=held("items_redis"),
        s3_one=f"{requests_at(3500, 6):,.0f}",
        s3_many=f"{requests_at(3500, 0.08):,.0f}",
        status=f"{status:.0f}",
        replicas="; ".join(shown) + ".",
    )


def _bytes(count: float) -> str:
    for size, word in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.2g} {word}" if count < 100 * size else f"{count / size:.0f} {word}"
    return f"{count:.0f} bytes"


def main() -> None:
    """Write the page."""
    PAGE.write_text(written(json.loads(RESULT.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
