"""No logic is written twice: a run of statements stands in one place, which the others call.

Signatures, lists of imports, tables of capabilities and docstrings do not count: they are declarations, which
each backend makes for itself. Nor do examples: each is read alone.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = sorted(path for room in ("packages", "tests", "benchmarks") for path in ROOT.glob(f"{room}/**/*.py"))
RUN = 5
"""Statements in a row, of one function, that make a copy."""

_CORE, _QUEUE, _RAY = (f"packages/fray-{name}/src/fray" for name in ("core", "queue", "ray"))
# Files that may share a run, or have one twice, and why.
ALLOWED: dict[frozenset[str], str] = {
    frozenset(
        {f"{_CORE}/_engine/calls.py"}
    ): "every task ends there, and a call more would cost as much again",
    frozenset({f"{_CORE}/_ui/server.py", f"{_QUEUE}_queue/_http/server/server.py"}): (
        "each wheel has a server, which owns its thread; what they share is how a thread is started"
    ),
    frozenset({f"{_QUEUE}_queue/_sqlite/queue_table.py"}): "two kinds of transaction, each of which yields",
    frozenset(
        {f"{_RAY}_ray/_context/actor_host.py", f"{_RAY}_ray/_context/remote.py"}
    ): "how Ray is handed a failure: two frames",
    frozenset({"tests/ray/test_tpu_preemptions.py"}): "two deaths of a host, each told whole",
}


def label(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def statements(body: list[ast.stmt], lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each statement in order; of one with a block, its head and the block."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef | ast.Pass):
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a docstring
        blocks = [block for name in ("body", "orelse", "finalbody") if (block := getattr(node, name, None))]
        last = blocks[0][0].lineno - 1 if blocks else node.end_lineno or node.lineno
        text = " ".join(line.strip() for line in lines[node.lineno - 1 : max(last, node.lineno)])
        yield node.lineno, text
        for block in blocks:
            yield from statements(block, lines)
        for handler in getattr(node, "handlers", ()):
            yield handler.lineno, lines[handler.lineno - 1].strip()
            yield from statements(handler.body, lines)


def runs(path: Path) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield each run of statements of a file, and the line where it begins."""
    text = path.read_text()
    lines = text.splitlines()
    for function in functions(ast.parse(text)):
        found = list(statements(function.body, lines))
        for start in range(len(found) - RUN + 1):
            yield tuple(text for _, text in found[start : start + RUN]), found[start][0]


def test_no_run_of_statements_is_written_twice() -> None:
    places: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for path in FILES:
        for run, line in runs(path):
            places[run].append((label(path), line))
    copies = {
        frozenset(name for name, _ in where): [f"{name}:{line}" for name, line in where]
        for where in places.values()
        if len(where) > 1
    }
    assert [where for names, where in copies.items() if names not in ALLOWED] == []
