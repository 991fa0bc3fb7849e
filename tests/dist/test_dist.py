"""What would be published: seven wheels and seven source archives, each whole, described and able to run."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import uv
from packaging.metadata import Metadata
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECTS = {
    path.parent.name: tomllib.loads(path.read_text())["project"]
    for path in sorted(ROOT.glob("packages/*/pyproject.toml"))
}

# What each does first of all, with nothing else of Fray around.
SMOKE = {
    "fray-resources": """
        from fray_resources import ResourceConfig
        config = ResourceConfig.with_tpu("v5e-16", slices=2)
        assert ResourceConfig.from_dict(config.to_dict()) == config
        print(config.device.chips)
    """,
    "fray-core": """
        import fray, fray.cluster, fray.job, fray.queue, fray.types
        try:
            fray.create_context("threadpool")
        except fray.PluginNotFoundError as error:
            print(error)
    """,
    "fray-local": """
        from fray import create_context
        from fray.cluster import Entrypoint, JobRequest, create_cluster
        with create_context("threadpool?max_workers=2") as context:
            assert list(context.map(abs, [-1, -2])) == [1, 2]
        cluster = create_cluster("local?overcommit=true")
        job_id = cluster.launch(JobRequest("smoke", Entrypoint.from_callable(print, ["from a job"])))
        print(cluster.wait(job_id, timeout=60, raise_on_failure=True).status, *cluster.monitor(job_id))
    """,
    "fray-queue": """
        import tempfile
        from fray.queue import open_queue
        for url in ("memory:", f"file:{tempfile.mkdtemp()}"):
            queue = open_queue(url)
            queue.push({"a": 1})
            with queue.lease() as lease:
                print(url, lease.item)
            assert queue.size() == 0
    """,
    "fray-ray": """
        from fray.cluster import Entrypoint, JobRequest, RayCluster
        from fray_ray import RayContext
        print(RayContext.__name__, RayCluster.__name__)
    """,
    "fray-slurm": """
        from fray.cluster import Entrypoint, JobRequest, SlurmCluster
        request = JobRequest("smoke", Entrypoint.from_binary("true"))
        script = SlurmCluster(partition="gpu").batch_script(request)
        assert "#SBATCH --partition=gpu" in script
        print(script)
    """,
    "fray-iris": """
        from fray.cluster import Entrypoint, IrisCluster, JobRequest
        cluster = IrisCluster(controller="http://127.0.0.1:10000", user="ada")
        launch = cluster.launch_request(JobRequest("smoke", Entrypoint.from_binary("true")))
        assert launch.request["name"].startswith("/ada/smoke-")
        print(launch.request)
    """,
}


def uv_run(*command: str) -> str:
    """Run uv on what its cache has, or else with what it may download."""
    program = uv.find_uv_bin()
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    for flags in (["--offline"], []):
        done = subprocess.run(
            [program, *flags, *command], env=environ, capture_output=True, text=True, check=False
        )
        if not done.returncode:
            return done.stdout
    raise AssertionError(f"uv {' '.join(command)}\n{done.stderr}")


@dataclass(frozen=True)
class Built:
    """The archives of one package, and what is in them."""

    wheel: Path
    sdist: Path
    wheel_of_sdist: Path

    def names(self) -> set[str]:
        return _names(self.wheel)

    def read(self, suffix: str) -> str:
        """Return the one file of the wheel's `dist-info` of that name."""
        with zipfile.ZipFile(self.wheel) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith(f".dist-info/{suffix}")]
            return archive.read(name).decode()

    def metadata(self) -> Metadata:
        return Metadata.from_email(self.read("METADATA"), validate=True)


def _names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


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


@pytest.fixture(params=PROJECTS)
def package(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_wheel_of_the_source_archive_is_the_wheel_of_the_tree(
    built: dict[str, Built], package: str
) -> None:
    assert built[package].names() == _names(built[package].wheel_of_sdist)
    with tarfile.open(built[package].sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "PKG-INFO", "pyproject.toml"} <= names
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]


def test_the_wheel_holds_its_one_package_whole(built: dict[str, Built], package: str) -> None:
    source = ROOT / "packages" / package / "src"
    files = {
        str(path.relative_to(source))
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    inside = {name for name in built[package].names() if ".dist-info/" not in name}
    assert inside == files
    assert len({name.partition("/")[0] for name in inside}) == 1
    assert any(name.endswith("/py.typed") for name in inside)


def test_the_metadata_say_what_it_is(built: dict[str, Built], package: str) -> None:
    metadata, project = built[package].metadata(), PROJECTS[package]
    assert (metadata.name, str(metadata.version)) == (package, project["version"])
    assert metadata.summary == project["description"]
    assert (metadata.description or "").startswith(f"# {package}\n")
    assert metadata.description_content_type == "text/markdown"
    assert str(metadata.requires_python) == ">=3.11"
    assert metadata.license_expression == "Apache-2.0"
    assert metadata.license_files == ["LICENSE"]
    assert built[package].read("licenses/LICENSE") == (ROOT / "LICENSE").read_text()
    assert "Typing :: Typed" in (metadata.classifiers or [])
    assert not metadata.project_urls  # the project has no home yet, and a registry's page would be none


def test_what_it_needs_of_the_others_is_of_its_own_version(built: dict[str, Built], package: str) -> None:
    metadata = built[package].metadata()
    needs = {need.name: need for need in metadata.requires_dist or [] if need.name in PROJECTS}
    wanted = [Requirement(need) for need in PROJECTS[package].get("dependencies", [])]
    assert set(needs) == {need.name for need in wanted} & set(PROJECTS)
    for need in needs.values():
        assert str(need.specifier) == f"=={metadata.version}"


def test_the_changelog_knows_the_version() -> None:
    (version,) = {project["version"] for project in PROJECTS.values()}
    headings = re.findall(r"^## \[(\S+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased" or headings[0] == version
    assert {"Unreleased", version} & set(headings)


@pytest.mark.timeout(300)
def test_it_runs_in_an_environment_of_its_own(built: dict[str, Built], package: str, tmp_path: Path) -> None:
    wheels = [str(built[name].wheel) for name in [*_needed(package), package]]
    environment = tmp_path / "environment"
    uv_run("venv", "--quiet", "--python", sys.executable, str(environment))
    uv_run("pip", "install", "--quiet", "--python", str(environment), *wheels)
    environ = {
        "HOME": str(tmp_path),
        "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "FRAY_STATE_DIR": str(tmp_path / "state"),
    }
    program = tmp_path / "smoke.py"
    program.write_text("\n".join(line.removeprefix(" " * 8) for line in SMOKE[package].splitlines()))
    commands = [["python", "smoke.py"]]
    if package != "fray-resources":
        commands += [["fray", "--version"], ["fray", "plugins"]]
    for command in commands:
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        assert done.stdout.strip()
    shown = uv_run("pip", "list", "--quiet", "--python", str(environment))
    assert set(re.findall(r"^fray-\w+", shown, re.MULTILINE)) == {*_needed(package), package}


def _needed(package: str) -> list[str]:
    direct = [Requirement(need).name for need in PROJECTS[package].get("dependencies", [])]
    ours = [name for name in direct if name in PROJECTS]
    return list(dict.fromkeys(need for name in ours for need in [*_needed(name), name]))
