"""The tree tells the architecture: arrows of import point one way."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from fray import PluginNotFoundError
from fray.testing.installation import find, uninstall_all

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(ROOT.glob("packages/*/src/*"))
SOURCES = sorted(ROOT.glob("packages/*/src/**/*.py"))
ALLOWED = {
    "fray_resources": set[str](),
    "fray": {"fray_resources"},
    "fray_local": {"fray", "fray_resources"},
    "fray_ray": {"fray", "fray_resources"},
    "fray_queue": {"fray", "fray_resources"},
    "fray_slurm": {"fray", "fray_resources"},
    "fray_iris": {"fray", "fray_resources"},
}
# The rooms of fray-core, each below the next: a room imports those below it, so there is no circle.
ROOMS = [
    {"_values"},
    {"_serialization"},
    {"_contracts"},
    {"_discovery"},
    {"_telemetry"},
    {"_engine", "_jobs", "_queues"},
    {"_contexts"},
    {"_cli"},
    {"_ui"},
]
FLOORS = {room: floor for floor, rooms in enumerate(ROOMS) for room in rooms}
UPWARDS = {
    # A value that pickles a function.
    ("_values/entrypoint.py", "_serialization"),
    # It runs in a job's own environment, whose Fray may be another version: only its doors are promised.
    ("_jobs/clusters/context.py", ""),
}
# The packages of the room `_jobs`, in the same way. A module beside them belongs to one, or stands alone.
JOB_ROOMS = [
    {"rules", "processes", "runner"},
    {"plans"},
    {"records"},
    {"logs", "replica"},
    {"supervisor"},
    {"clusters"},
]
JOB_FLOORS = {room: floor for floor, rooms in enumerate(JOB_ROOMS) for room in rooms}
JOB_MODULES = {"supervision": "rules", "ranks": "rules", "process_tree": "processes", "runner": "runner"}
JOBS = ROOT / "packages/fray-core/src/fray/_jobs"
HEAVY = {"ray", "fsspec", "aiohttp", "rich", "cloudpickle", "psutil"}


def owner_of(path: Path) -> str:
    return path.relative_to(ROOT / "packages").parts[2]


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module).partition(".")[0]


def modules_of(path: Path) -> Iterator[str]:
    """Yield what a file imports, anywhere in it: also lazily, or for the type checker only."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            own = node.module == "fray"
            yield from (f"fray.{alias.name}" for alias in node.names) if own else [str(node.module)]


def room_of(module: str) -> str:
    """Return the part of a module's name below `fray`; empty for others."""
    return module.split(".")[1] if module.startswith("fray.") else ""


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if owner_of(path) != "fray"], ids=lambda path: str(path.name)
)
def test_wheels_beside_fray_core_import_its_doors_alone(path: Path) -> None:
    private = {module for module in modules_of(path) if room_of(module).startswith("_")}
    assert private == set()


@pytest.mark.parametrize(
    "path",
    [path for path in SOURCES if owner_of(path) == "fray"],
    ids=lambda path: str(path.relative_to(ROOT / "packages")),
)
def test_rooms_import_rooms_below_them_and_no_door(path: Path) -> None:
    inside = path.relative_to(ROOT / "packages/fray-core/src/fray")
    room = inside.parts[0]
    if room not in FLOORS:
        return  # a door, or what is beside the rooms: the kit of contracts
    for module in modules_of(path):
        target = room_of(module)
        if (not module.startswith("fray.") and module != "fray") or target == room:
            continue
        if (str(inside), target) in UPWARDS:
            continue
        assert target in FLOORS, f"{inside} imports the door {module}"
        assert FLOORS[target] < FLOORS[room], f"{inside} imports {module}, which is not below it"


def job_rooms_of(path: Path) -> Iterator[str]:
    """Yield the packages of `_jobs`, and the modules beside them, that a file imports from."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            package, room, *inside = *str(node.module).split("."), ""
            if (package, room) == ("fray", JOBS.name):
                yield from inside[:1] if inside[0] else (alias.name for alias in node.names)


@pytest.mark.parametrize("path", sorted(JOBS.rglob("*.py")), ids=lambda path: str(path.relative_to(JOBS)))
def test_packages_of_the_job_runtime_import_packages_below_them(path: Path) -> None:
    if path.name == "__init__.py":
        # Each module of a package waits for what this imports, and a supervisor is to start fast.
        assert set(modules_of(path)) == set()
        return
    part = path.relative_to(JOBS).parts[0].removesuffix(".py")
    room = JOB_MODULES.get(part, part)
    for target in job_rooms_of(path):
        other = JOB_MODULES.get(target, target)
        assert other == room or JOB_FLOORS[other] < JOB_FLOORS[room], f"{part} imports {target}"


def test_the_packages_are_found() -> None:
    assert {"fray_resources", "fray", "fray_local"} <= {path.name for path in PACKAGES} <= set(ALLOWED)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "packages")))
def test_imports_point_downwards(path: Path) -> None:
    owner = owner_of(path)
    assert set(imports_of(path)) & set(ALLOWED) <= ALLOWED[owner] | {owner}


@pytest.mark.parametrize("path", [path for path in SOURCES if owner_of(path) == "fray_resources"], ids=str)
def test_resources_use_the_standard_library_alone(path: Path) -> None:
    assert set(imports_of(path)) <= set(sys.stdlib_module_names) | {"fray_resources"}


def loaded_by(statement: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has loaded after a statement."""
    code = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_fray_loads_no_backend_and_nothing_heavy() -> None:
    assert not loaded_by("import fray, fray.job, fray.types") & (
        HEAVY | {"fray_local", "fray_ray", "fray_queue"}
    )


def test_importing_a_backend_loads_no_other() -> None:
    assert not loaded_by("from fray.job import ThreadContext") & {"fray_ray", "fray_queue", "ray", "psutil"}


def test_the_wheels_agree_on_their_version_and_on_each_other() -> None:
    projects = [tomllib.loads(path.read_text())["project"] for path in ROOT.glob("packages/*/pyproject.toml")]
    (version,) = {project["version"] for project in projects}
    for project in projects:
        own = [need for need in project.get("dependencies", []) if need.startswith("fray-")]
        assert all(need.endswith(f"=={version}") for need in own), (project["name"], own)
        assert project["requires-python"] == ">=3.11"
        assert (
            (ROOT / "packages" / project["name"] / "README.md").read_text().startswith(f"# {project['name']}")
        )


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_a_package_is_typed(package: Path) -> None:
    assert (package / "py.typed").exists()


@pytest.mark.parametrize("package", sorted(ROOT.glob("packages/*/pyproject.toml")), ids=str)
def test_whatever_a_wheel_offers_fray_knows_which_wheel_to_install_for_it(package: Path) -> None:
    project = tomllib.loads(package.read_text())["project"]
    for group, names in project.get("entry-points", {}).items():
        for name in names if project["name"] != "fray-core" else ():
            with pytest.MonkeyPatch.context() as patch:
                uninstall_all(patch)
                with pytest.raises(PluginNotFoundError, match=rf"pip install {project['name']}"):
                    find(group, name)


def test_the_page_of_the_architecture_names_what_is_there() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    paths = set(re.findall(r"`((?:fray|fray_[a-z]+)/[\w./]+|tests/[\w./]+)`", page))
    assert len(paths) > 10
    homes = [ROOT, *ROOT.glob("packages/*/src")]
    assert {path for path in paths if not any((home / path).exists() for home in homes)} == set()


def test_the_page_of_the_architecture_has_a_picture_of_every_wheel() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    assert sorted(re.findall(r"^:::\{rooms\} (\w+)$", page, re.MULTILINE)) == [path.name for path in PACKAGES]
