"""The distributions of docs/adding-a-backend.md: short, installed as wheels, found, and green.

The contracts on Dask are the session `dask`, which has a real scheduler.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import uv

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "adding-a-backend.md"
# A block whose first line is a comment with a path is that file.
FILE = re.compile(r"^```(?:py|toml)\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LIMIT = 350
PARTS = ("__init__", "context", "cluster", "spooler", "replica", "queue")
DASK = ROOT / "examples" / "fray-dask"
# Without an address the context starts workers of its own, which end with the program.
ON_DASK = """
from fray import create_context
if __name__ == "__main__":
    with create_context("dask") as context:
        print(context.get([context.run(pow, number, 2) for number in range(4)]))
"""


def files() -> dict[str, str]:
    return dict(FILE.findall(PAGE.read_text()))


def run(*command: str, cwd: Path) -> str:
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_uv(*command: str, cwd: Path) -> str:
    """Run uv on what its cache has, or else with what it may download."""
    try:
        return run(uv.find_uv_bin(), "--offline", *command, cwd=cwd)
    except AssertionError:
        return run(uv.find_uv_bin(), *command, cwd=cwd)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the page, and an environment with them, `fray-core` and what that needs."""
    folder, wheels = tmp_path_factory.mktemp("fray-swarm"), tmp_path_factory.mktemp("wheels")
    for name, text in files().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for source in (ROOT / "packages" / "fray-resources", ROOT / "packages" / "fray-core", folder):
        run_uv("build", "--quiet", "--wheel", "--out-dir", str(wheels), str(source), cwd=wheels)
    run_uv("venv", "--quiet", "--python", sys.executable, "venv", cwd=folder)
    found = {path.name.partition("-")[0]: path for path in wheels.glob("*.whl")}
    needs = [str(found["fray_resources"]), f"fray-core[testing] @ {found['fray_core'].as_uri()}"]
    needs += [str(found["fray_swarm"]), "pytest-timeout"]
    run_uv("pip", "install", "--quiet", "--python", "venv", *needs, cwd=folder)
    return folder


def test_the_whole_distribution_is_short() -> None:
    lines = {name: len(text.splitlines()) for name, text in files().items()}
    code = {name: count for name, count in lines.items() if not name.startswith("tests/")}
    assert set(code) == {
        "pyproject.toml",
        *(f"src/fray_swarm/{part}.py" for part in PARTS),
    }
    assert sum(code.values()) < LIMIT, code


def test_it_uses_public_doors_only() -> None:
    for name, text in files().items():
        for module in re.findall(r"^(?:from|import) (fray\b\S*)", text, re.MULTILINE):
            doors = ("fray", "fray.backend", "fray.job", "fray.cluster", "fray.queue", "fray.types")
            assert module in doors or module.startswith(("fray.testing.", "fray_swarm")), f"{name}: {module}"
            assert "._" not in module


def test_no_other_wheel_of_fray_is_there_and_its_names_are_found(project: Path) -> None:
    shown = run("venv/bin/fray", "plugins", cwd=project)
    rows = [line.split() for line in shown.splitlines()[1:] if line.startswith("fray.")]
    assert {row[2] for row in rows} <= {"fray-swarm", "fray-core"}
    assert [row[:2] + row[4:] for row in rows if row[2] == "fray-swarm"] == [
        ["fray.contexts", "swarm", "ok"],
        ["fray.clusters", "spooler", "ok"],
        ["fray.clusters", "swarm", "ok"],
        ["fray.queues", "swarm", "ok"],
    ]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("contract", "heading", "backend"),
    [
        ("TestContext", "Contexts", "swarm"),
        ("TestCluster", "Clusters", "swarm"),
        ("TestSpooler", "Clusters", "spooler"),
        ("TestQueue", "Queues", "swarm"),
    ],
)
def test_it_keeps_a_contract_and_gets_its_page(
    project: Path, contract: str, heading: str, backend: str
) -> None:
    report = f"--junitxml={contract}.xml"
    options = ["-q", "-W", "error", "--timeout", "120", "-p", "no:cacheprovider", report]
    shown = run("venv/bin/python", "-m", "pytest", *options, f"tests/test_swarm.py::{contract}", cwd=project)
    assert re.search(r"\d+ passed", shown)
    assert not re.search(r"skipped|xfailed", shown)
    matrix = ["-m", "fray.testing.matrix", "--write", f"{contract}.md", f"{contract}.xml"]
    run("venv/bin/python", *matrix, cwd=project)
    page = (project / f"{contract}.md").read_text()
    assert f"## {heading}\n" in page
    assert f"| promise | {backend} |" in page
    assert "**not kept** |" not in page.partition("## ")[2]


@pytest.fixture(scope="module")
def with_dask(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel of examples/fray-dask, and what that needs."""
    folder = tmp_path_factory.mktemp("fray-dask")
    sources = [*(ROOT / "packages" / name for name in ("fray-resources", "fray-core", "fray-local")), DASK]
    for source in sources:
        run_uv("build", "--quiet", "--wheel", "--out-dir", "wheels", str(source), cwd=folder)
    run_uv("venv", "--quiet", "--python", sys.executable, "venv", cwd=folder)
    wheels = [str(path) for path in (folder / "wheels").glob("*.whl")]
    assert len(wheels) == len(sources)
    run_uv("pip", "install", "--quiet", "--python", "venv", *wheels, cwd=folder)
    (folder / "program.py").write_text(ON_DASK)
    return folder


@pytest.mark.timeout(300)
def test_the_wheel_of_the_example_on_dask_is_found_and_runs(with_dask: Path) -> None:
    shown = run("venv/bin/fray", "plugins", cwd=with_dask)
    rows = [line.split() for line in shown.splitlines() if "fray-dask" in line]
    assert [row[:2] + row[4:] for row in rows] == [
        ["fray.contexts", "dask", "ok"],
        ["fray.clusters", "dask", "ok"],
    ]
    assert run("venv/bin/python", "program.py", cwd=with_dask) == "[0, 1, 4, 9]\n"
