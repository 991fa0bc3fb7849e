"""Distributions made up for a test, installed by being on sys.path."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fray.testing.installation import forget_plugins

sys.path.insert(0, str(Path(__file__).parent / "helpers"))

Install = Callable[..., None]


@pytest.fixture(autouse=True)
def no_spec_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests say themselves what is current."""
    monkeypatch.delenv("FRAY_CONTEXT_SPEC", raising=False)
    monkeypatch.delenv("FRAY_CLUSTER_SPEC", raising=False)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a distribution: `install("fray-x", {"fray.contexts": {"x": "x_mod:X"}}, x_mod="code")`."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def add(distribution: str, entry_points: dict[str, dict[str, str]], **modules: str) -> None:
        info = tmp_path / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        sections = [
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in names.items())
            for group, names in entry_points.items()
        ]
        (info / "entry_points.txt").write_text("\n".join(sections))
        for name, code in modules.items():
            (tmp_path / f"{name}.py").write_text(code)
            monkeypatch.delitem(sys.modules, name, raising=False)
        forget_plugins()

    yield add
    monkeypatch.undo()
    forget_plugins()
