"""What would be published is built once, for all tests of it."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "helpers"))
from archives import PROJECTS, ROOT, Built, uv_run


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Built]:
    """Every package, built from the tree and, through its source archive, once more."""
    found = {}
    for name in PROJECTS:
        tree, archive = tmp_path_factory.mktemp(f"{name}-tree"), tmp_path_factory.mktemp(f"{name}-archive")
        source = str(ROOT / "packages" / name)
        uv_run("build", "--quiet", "--wheel", "--out-dir", str(tree), source)
        uv_run("build", "--quiet", "--out-dir", str(archive), source)
        (wheel,), (sdist,), (again,) = (
            tree.glob("*.whl"),
            archive.glob("*.tar.gz"),
            archive.glob("*.whl"),
        )
        found[name] = Built(wheel, sdist, again)
    return found
