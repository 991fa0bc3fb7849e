"""A census of Python's own standard library: a map of generator tasks, a shuffle and a reduce.

Reports the most used identifiers, the longest functions and the modules that most others import.

    python examples/census.py                        # in the current context: threads, unless it is set
    python examples/census.py --context sync         # one thing after the other, for a debugger
    python examples/census.py --context process      # on every CPU of this machine
    fray run --replicas 2 -- python examples/census.py --save parts && python examples/census.py --merge parts

Inside a job of several replicas each takes its share of the files. The result is the same everywhere.
"""

import argparse
import ast
import heapq
import json
import os
import sys
import sysconfig
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

from fray import JobContext, ObjectRef, create_context, get_job_context

Table = dict[str, int]
"""A name (of an identifier, a function, a module) and how often, or how long, it is."""
Part = dict[str, Table]
"""One table for each of KINDS."""

KINDS = ("identifiers", "functions", "imports")
PARTITIONS = 4
FILES_PER_TASK = 50


class Totals:
    """An actor: what the map has seen so far."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def add(self, **numbers: int) -> None:
        self.seen.update(numbers)

    def report(self) -> dict[str, int]:
        return dict(self.seen)


def library_files() -> list[Path]:
    """Return the standard library's source files, without what was installed beside it."""
    root = Path(sysconfig.get_path("stdlib"))
    installed = {"site-packages", "dist-packages", "__pycache__"}
    return sorted(path for path in root.rglob("*.py") if installed.isdisjoint(path.parts))


def my_share(files: Sequence[Path]) -> Sequence[Path]:
    """Return every n-th file inside a job of n replicas, all of them elsewhere."""
    return files[
        int(os.environ.get("FRAY_REPLICA_ID", "0")) :: int(os.environ.get("FRAY_REPLICA_COUNT", "1"))
    ]


def scan(root: Path, files: Sequence[Path], totals: Any) -> Iterator[Part]:
    """Map: count what is in some files and yield one part for each reducer."""
    parts: list[Part] = [{kind: Counter() for kind in KINDS} for _ in range(PARTITIONS)]
    seen: Counter[str] = Counter(files=len(files))
    for path in files:
        try:
            source = path.read_text(encoding="utf-8")
            tree = parse(source)
        except (
            SyntaxError,
            UnicodeDecodeError,
            ValueError,
        ):  # the library's tests keep broken files on purpose
            seen["unreadable"] += 1
            continue
        seen["lines"] += source.count("\n")
        module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        for kind, name, amount in facts(module, tree):
            parts[zlib.crc32(name.encode()) % PARTITIONS][kind][name] += amount
    context = get_job_context()
    context.get(totals.add(**seen))
    yield from parts


class Turns:
    """A lock of this process; a copy in another process is a lock of that process."""

    def __init__(self) -> None:
        self.lock = Lock()

    def __reduce__(self) -> tuple[type["Turns"], tuple[()]]:
        return Turns, ()


turns = Turns()


def parse(source: str) -> ast.Module:
    """Parse a file while no other thread does.

    CPython 3.11 keeps the depth of all threads' parsers in one place, notices when two have met, and raises
    SystemError (python/cpython issue 106905).
    """
    with turns.lock:
        return ast.parse(source)


def facts(module: str, tree: ast.Module) -> Iterator[tuple[str, str, int]]:
    """Yield what one module uses, defines and imports."""
    imported: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield "identifiers", name, 1
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                yield "functions", f"{module}.{name}:{node.lineno}", length
            case ast.Import(names=names):
                imported.update(alias.name for alias in names)
            case ast.ImportFrom(module=str(name), level=0):
                imported.add(name)
    yield from (("imports", name, 1) for name in imported - {module})


def merge(*parts: Part) -> Part:
    """Reduce: add up the parts of one partition."""
    merged: Part = {kind: Counter() for kind in KINDS}
    for part in parts:
        for kind in KINDS:
            merged[kind].update(part[kind])
    return merged


def leaders(part: Part, count: int) -> Part:
    """Return the largest entries of each table, ties by name."""
    return {
        kind: dict(heapq.nsmallest(count, part[kind].items(), key=lambda entry: (-entry[1], entry[0])))
        for kind in KINDS
    }


def census(context: JobContext, files: Sequence[Path]) -> tuple[list[ObjectRef[Part]], dict[str, int]]:
    """Run the whole on a context; return references to the reduced partitions, and the totals."""
    root = Path(sysconfig.get_path("stdlib"))
    totals = context.create_actor(Totals)
    chunks = [files[start : start + FILES_PER_TASK] for start in range(0, len(files), FILES_PER_TASK)]
    streams = [context.run(scan, root, chunk, totals) for chunk in chunks]
    shuffled: list[list[ObjectRef[Part]]] = [[] for _ in range(PARTITIONS)]
    with progress(len(streams)) as advance:
        for stream in streams:
            for column, part in zip(shuffled, stream, strict=False):  # a failure is an item, then the end
                column.append(part)  # a reference: the part itself does not come here
            advance()
    reduced: list[ObjectRef[Part]] = [context.create_task(merge, *column) for column in shuffled]
    return reduced, context.get(totals.report())


@contextmanager
def progress(total: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar on a terminal, and nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("scanning", total=total)
        yield lambda: bar.advance(task)


def show(tables: Part, totals: dict[str, int], count: int) -> None:
    """Print the tables."""
    print(", ".join(f"{number:,} {what}" for what, number in sorted(totals.items())))
    titles = {
        "identifiers": "uses  identifier",
        "functions": "lines  function",
        "imports": "importers  module",
    }
    for kind in KINDS:
        amount, name = titles[kind].split("  ")
        print(f"\n{amount:>9}  {name}")
        for entry, number in leaders(tables, count)[kind].items():
            print(f"{number:>9,}  {entry}")


def save(folder: Path, tables: Part, totals: dict[str, int]) -> None:
    """Write this replica's share for `--merge`."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"part-{os.environ.get('FRAY_REPLICA_ID', '0')}.json"
    of = os.environ.get("FRAY_REPLICA_COUNT", "1")
    part.write_text(json.dumps({"tables": tables, "totals": totals, "of": of}))
    print(f"{totals['files']:,} files counted into {part}")


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--context", metavar="SPEC", help="where to run, e.g. sync, threadpool?max_workers=8, ray"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="look at N files only")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="rows of each table (default 10)")
    parser.add_argument(
        "--save", type=Path, metavar="DIR", help="write what was counted into DIR, and show nothing"
    )
    parser.add_argument(
        "--merge", type=Path, metavar="DIR", help="count nothing; show what --save wrote into DIR"
    )
    args = parser.parse_args(argv)
    if args.merge:
        saved = [json.loads(path.read_text()) for path in sorted(args.merge.glob("part-*.json"))]
        if not saved:
            parser.error(f"--merge: no part-*.json in {args.merge}")
        if {part["of"] for part in saved} != {str(len(saved))}:
            parser.error(f"--merge: {args.merge} does not hold all parts of one run: empty it and save again")
        totals = sum((Counter(part["totals"]) for part in saved), Counter())
        show(merge(*(part["tables"] for part in saved)), dict(totals), args.top)
        return 0
    context = create_context(args.context) if args.context else get_job_context()
    with context:
        reduced, seen = census(context, my_share(library_files()[: args.limit]))
        if args.save:
            save(args.save, merge(*context.get(reduced)), seen)
            return 0
        top = [context.run(leaders, part, args.top) for part in reduced]
        show(merge(*context.get(top)), seen, args.top)
    return 0


if __name__ == "__main__":
    sys.exit(main())
