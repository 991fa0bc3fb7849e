"""No module of a room imports, by whatever way round, what imports it: lazily or for types only neither."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "packages"


def modules() -> dict[str, Path]:
    """Return the files of all packages, by the names of their modules."""
    found = {}
    for root in SOURCES.glob("*/src"):
        for path in root.rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def imports() -> dict[str, set[str]]:
    """Return what each module imports of the others, anywhere in it."""
    known = modules()
    return {name: set(imported_by(path, known)) - {name} for name, path in known.items()}


def imported_by(path: Path, known: dict[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else str(node.module)


def reached_from(start: str, arrows: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    ahead = [start]
    while ahead:
        for name in arrows.get(ahead.pop(), ()):
            if name not in found:
                found.add(name)
                ahead.append(name)
    return found


@pytest.mark.parametrize("room", ["fray._engine", "fray._contexts"])
def test_a_room_has_no_circle_of_imports(room: str) -> None:
    arrows = imports()
    inside = [name for name in arrows if f"{name}.".startswith(f"{room}.")]
    assert len(inside) > 10
    assert [name for name in inside if name in reached_from(name, arrows)] == []
