"""Run benchmarks one after another, keep the result of each, and write docs/performance.md from them.

python benchmarks/suite.py                     all of them, in at most 35 minutes
python benchmarks/suite.py contexts queues     these; the others keep their last results
python benchmarks/suite.py --quick             all, small: whether they run; no record, says the page
python benchmarks/suite.py --page              the page alone, from the results that are there

A result is a file in .nox/figures. A benchmark that fails, or takes longer than its time, keeps the tables
that it finished, and the page says so.
"""

import argparse
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import scaling_page
from page import written

from fray.backend import kill_until_gone, with_variable

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / ".nox" / "figures"
PAGE = ROOT / "docs" / "performance.md"
# What is measured, in the order of the page: arguments of a run for the record, and how many seconds it gets.
BENCHMARKS: dict[str, tuple[list[str], int]] = {
    "imports": ([], 60),
    "contexts": ([], 180),
    "process_contexts": ([], 420),
    "events": ([], 120),
    "jobs": ([], 240),
    "logs": ([], 90),
    "queues": ([], 420),
    "queue_pools": ([], 180),
    "queue_engines": (
        ["--items", "1000", "--rounds", "3", "--turnover", "400000", "--turnover-rate", "8000"],
        540,
    ),
    "ray_contexts": ([], 420),
    "ray_jobs": ([], 150),
    "ray_head": ([], 600),
    "slurm": ([], 420),
    "scaling": ([], 300),
}
_NOTES = "BENCH_NOTES"  # the variable with the file that a benchmark writes its tables to
WHOLE = 2100.0  # seconds for all of them
PEERS = (
    *(
        "apsw",
        "aiohttp",
        "beanstalkd",
        "dask",
        "distributed",
        "greenstalk",
        "joblib",
        "litequeue",
        "loky",
        "numpy",
    ),
    *("persist-queue", "procrastinate", "psycopg", "ray", "redis", "rq", "submitit"),
)
SERVERS = {
    "beanstalkd": ["beanstalkd", "-v"],
    "Redis": ["redis-server", "--version"],
    "PostgreSQL": ["psql", "--version"],
    "Slurm": ["slurmctld", "-V"],
}


def main() -> int:
    """Run the requested benchmarks; return how many of them failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], metavar="NAME")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--out", type=Path, default=PAGE)
    options = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    failed = 0
    names = [] if options.page else options.names or list(BENCHMARKS)
    end = time.monotonic() + WHOLE
    for name in names:
        result = run(name, quick=options.quick, within=end - time.monotonic(), alone=bool(options.names))
        failed += result["failure"] is not None
        (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
        write_pages(options.out)  # after each: who stops it keeps the rest
    if options.page:
        write_pages(options.out)
    return failed


def write_pages(out: Path) -> None:
    """Write the page of results and, where all slopes were measured, that of scaling beside it."""
    results = found()
    out.write_text(written([result for result in results if result["name"] != "scaling"]), encoding="utf-8")
    for result in results:
        if result["name"] == "scaling" and scaling_page.can_be_written(result):
            out.with_name("scaling.md").write_text(scaling_page.written(result), encoding="utf-8")


def found() -> list[dict[str, Any]]:
    """Return the results that are there, in the order of the page."""
    paths = [RESULTS / f"{name}.json" for name in BENCHMARKS]
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]


def run(name: str, *, quick: bool, within: float, alone: bool) -> dict[str, Any]:
    """Run a benchmark in a process group of its own, and return its tables and where they are from."""
    arguments, limit = ([], 120) if quick else BENCHMARKS[name]
    print(f"\n=== {name}, at most {min(limit, within):.0f} s", flush=True)
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *arguments]
    asked = ["python noxfile.py -s bench", *(["--"] if alone or quick else [])]
    asked += [*(["--quick"] if quick else []), *([name] if alone else [])]
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "notes"
        notes.touch()
        environ = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        environ |= {_NOTES: str(notes), "BENCH_QUICK": str(int(quick))}
        failure = ended(command, environ, Path(folder), min(limit, max(within, 1.0)))
        noted = [json.loads(line) for line in notes.read_text(encoding="utf-8").splitlines()]
    if failure:
        print(f"{name}: {failure}", flush=True)
    return {
        "name": name,
        "about": first_line(name),
        "command": " ".join(asked),
        "quick": quick,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "seconds": round(time.monotonic() - started),
        "failure": failure,
        "noted": noted,
        "machine": machine(),
        "versions": versions(),
    }


def ended(command: list[str], environ: dict[str, str], folder: Path, within: float) -> str | None:
    """Run a command; return None, or what went wrong. Nothing of it is left, by the variable that it has."""
    errors = folder / "errors"
    with errors.open("wb") as file:
        process = subprocess.Popen(command, env=environ, stderr=file, start_new_session=True)
    try:
        code = process.wait(within)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # so that it ends its servers itself
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        return f"stopped after {within:.0f} s, which is all that it may take"
    finally:
        # Servers of a benchmark that did not come to its end, too: they have sessions of their own.
        kill_until_gone(lambda: with_variable(_NOTES, environ[_NOTES]))
        process.wait()
        text = errors.read_text(errors="replace")
        sys.stderr.write(text[-4000:])
    last = (text.strip().splitlines() or [""])[-1]
    return None if code == 0 else f"ended with code {code}: {last[:200]}"


def first_line(name: str) -> str:
    """Return what a benchmark says of itself."""
    source = (ROOT / "benchmarks" / f"{name}.py").read_text(encoding="utf-8")
    return source.removeprefix('"""').partition("\n")[0]


def machine() -> str:
    """Return what this machine is."""
    information = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    models = [line.partition(":")[2].strip() for line in information.splitlines() if "model name" in line]
    model = models[0] if models else platform.processor() or platform.machine()
    memory = psutil.virtual_memory().total / 2**30
    system = f"{platform.system()} {platform.release()}"
    return f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB of memory, {system}"


def versions() -> dict[str, str]:
    """Return the versions of Python, Fray, the peers and the servers that are here."""
    found = {
        "Python": platform.python_version(),
        "fray": metadata.version("fray-core"),
        "fray's commit": commit(),
    }
    for name in PEERS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    for name, command in SERVERS.items():
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
        except (FileNotFoundError, subprocess.TimeoutExpired):
            continue
        found[name] = (done.stdout or done.stderr).strip().splitlines()[0]
    return found


def commit() -> str:
    """Return the commit of the tree that is measured; a plus says that it has changes."""
    git = ["git", "-C", str(ROOT)]
    try:
        done = subprocess.run(
            [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        )
        paths = ["packages", "benchmarks"]
        changed = subprocess.run(
            [*git, "status", "--porcelain", *paths], capture_output=True, text=True, check=True
        )
    except (FileNotFoundError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip() + ("+" if changed.stdout.strip() else "")


if __name__ == "__main__":
    sys.exit(main())
