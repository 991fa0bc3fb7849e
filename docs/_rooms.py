"""A picture of each wheel, drawn from the imports of its code while the site is made: it cannot drift.

    :::{rooms} fray_local
    :::

A box is a module or a package of the wheel; it imports those that its lines lead down to. Where one is
reached through another, only the longer way is drawn.
"""

import ast
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive

ROOT = Path(__file__).parents[1]
WIDTH, HEIGHT, GAP, FLOOR = 900, 26, 10, 74
Graph = dict[str, set[str]]


def imports_of(package: Path) -> Graph:
    """Return which parts of a package import which: its modules, and its packages as one each."""
    found: Graph = {}
    for path in sorted(package.rglob("*.py")):
        part = path.relative_to(package).parts[0].removesuffix(".py")
        if part == "__init__":
            continue
        found.setdefault(part, set())
        for module in _modules(ast.parse(path.read_text())):
            names = module.split(".")
            inside = package / names[1] if names[0] == package.name and len(names) > 1 else None
            if inside and inside.name != part and (inside.is_dir() or inside.with_suffix(".py").exists()):
                found[part].add(inside.name)
    return {part: others & found.keys() for part, others in found.items()}


def _modules(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def floors_of(graph: Graph) -> list[list[str]]:
    """Sort the parts into floors: each stands above all that it imports."""
    heights: dict[str, int] = {}

    def height(part: str, above: tuple[str, ...] = ()) -> int:
        if part not in heights:
            below = [other for other in graph[part] if other not in (*above, part)]
            found = 1 + max((height(other, (*above, part)) for other in below), default=-1)
            heights[part] = found
        return heights[part]

    for part in graph:
        height(part)
    top = max(heights.values(), default=0)
    return [sorted(part for part in graph if heights[part] == floor) for floor in range(top, -1, -1)]


def reduced(graph: Graph) -> Graph:
    """Leave out what is reached through another part anyway."""

    def reach(part: str, seen: set[str]) -> set[str]:
        for other in graph[part] - seen:
            seen.add(other)
            reach(other, seen)
        return seen

    ways = {part: reach(part, set()) for part in graph}
    return {
        part: {one for one in others if not any(one in ways[other] for other in others - {one})}
        for part, others in graph.items()
    }


def picture(package: Path) -> str:
    """Draw a package as SVG."""
    graph = imports_of(package)
    boxes: dict[str, tuple[float, float, float]] = {}
    y = 10.0
    for floor in floors_of(graph):
        for row in _rows(floor):
            wide = sum(_width(part) + GAP for part in row) - GAP
            x = (WIDTH - wide) / 2
            for part in row:
                boxes[part] = (x, y, _width(part))
                x += _width(part) + GAP
            y += HEIGHT + GAP
        y += FLOOR - HEIGHT - GAP
    lines = [
        f'<path d="M{x + w / 2:.0f} {top + HEIGHT:.0f} C {x + w / 2:.0f} {top + HEIGHT + 30:.0f}, '
        f"{boxes[other][0] + boxes[other][2] / 2:.0f} {boxes[other][1] - 30:.0f}, "
        f'{boxes[other][0] + boxes[other][2] / 2:.0f} {boxes[other][1]:.0f}" fill="none" stroke="#9ab"/>'
        for part, others in reduced(graph).items()
        for x, top, w in [boxes[part]]
        for other in sorted(others)
    ]
    shapes = [
        f'<rect x="{x:.0f}" y="{top:.0f}" width="{w:.0f}" height="{HEIGHT}" rx="4" fill="#eef4fb" '
        f'stroke="#345"/><text x="{x + w / 2:.0f}" y="{top + 17:.0f}" text-anchor="middle" font-size="12" '
        f'font-family="monospace" fill="#123">{escape(part)}</text>'
        for part, (x, top, w) in boxes.items()
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y:.0f}" role="img" '
        f'aria-label="The parts of {package.name}, each above those that it imports">'
        f"{''.join(lines)}{''.join(shapes)}</svg>"
    )


def _width(part: str) -> float:
    return 7.4 * len(part) + 14


def _rows(parts: list[str]) -> Iterator[list[str]]:
    """Break a floor into rows that fit the picture."""
    row: list[str] = []
    for part in parts:
        if row and sum(_width(each) + GAP for each in [*row, part]) > WIDTH:
            yield row
            row = []
        row.append(part)
    if row:
        yield row


class Rooms(Directive):
    """Put the picture of a wheel into a page."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Find the package, and draw it."""
        (package,) = ROOT.glob(f"packages/*/src/{self.arguments[0]}")
        return [nodes.raw("", picture(package), format="html")]


def setup(app: Any) -> dict[str, bool]:
    """Make the directive known to Sphinx."""
    app.add_directive("rooms", Rooms)
    return {"parallel_read_safe": True}
