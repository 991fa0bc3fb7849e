"""The distribution in examples/fray-dask: short, on public doors alone, and found."""

import re
from importlib.metadata import distribution
from pathlib import Path

from fray import create_cluster, create_context

EXAMPLE = Path(__file__).parents[2] / "examples" / "fray-dask"
LIMIT = 200


def test_it_is_short() -> None:
    sources = [EXAMPLE / "pyproject.toml", *(EXAMPLE / "src").rglob("*.py")]
    lines = [line for path in sources for line in path.read_text().splitlines() if line.strip()]
    assert len(lines) <= LIMIT


def test_it_uses_public_doors_only() -> None:
    for path in (EXAMPLE / "src").rglob("*.py"):
        for module in re.findall(r"^(?:from|import) (fray\b[\w.]*)", path.read_text(), re.MULTILINE):
            assert module in ("fray.backend", "fray.cluster"), f"{path.name}: {module}"


def test_its_names_are_found_and_making_either_connects_nowhere(tmp_path: Path) -> None:
    names = {(entry.group, entry.name) for entry in distribution("fray-dask").entry_points}
    assert names == {("fray.contexts", "dask"), ("fray.clusters", "dask")}
    nowhere = "dask?address=tcp://127.0.0.1:9"
    assert create_context(nowhere).capabilities.at_most_once
    assert create_cluster(f"{nowhere}&root={tmp_path}").list_jobs() == []
