"""What would be published: seven wheels and seven source archives, each whole, described and able to run."""

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from archives import PROJECTS, ROOT, Built, names_in, program_text, uv_run
from packaging.requirements import Requirement


@pytest.fixture(params=PROJECTS)
def package(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_wheel_of_the_source_archive_is_the_wheel_of_the_tree(
    built: dict[str, Built], package: str
) -> None:
    assert built[package].names() == names_in(built[package].wheel_of_sdist)
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
    program.write_text(program_text(package))
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
