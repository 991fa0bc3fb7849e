"""Who installs a job's packages, and how it is said that they cannot be had."""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RuntimeEnvSetupError
from wheels import wheel

from fray_ray._installing import environment_of, setup_failure, with_packages

# What Ray 2.60 says, with what pip and uv say somewhere in it.
BY_RAY = """Failed to set up runtime environment.
Could not create the actor because its associated runtime env failed to be created.
Traceback (most recent call last):
  File ".../uv.py", line 276, in _run
ray._private.runtime_env.utils.SubprocessCalledProcessError: Run cmd[4] failed with the following details.
Command '['python', '-m', 'uv', 'pip', 'install']' returned non-zero exit status 1.
Last 50 lines of stdout:
"""
OF_PIP = """Looking in indexes: https://index.invalid/simple
    ERROR: Could not find a version that satisfies the requirement no-such-thing
    ERROR: No matching distribution found for no-such-thing
"""
OF_UV = """    Using Python 3.11.7 environment at: .../virtualenv
      \N{MULTIPLICATION SIGN} No solution found when resolving dependencies:
      ╰─▶ Because no-such-thing was not found in the package registry, it
          cannot be used.
"""
OF_LATER_UV = """    Using Python 3.11.7 environment at: .../virtualenv
    error: No solution found when resolving dependencies
      cause: Because no-such-thing was not found in the package registry, it cannot be used.

    hint: no index was asked
"""

# Has a job of a cluster, all in the environment that runs this, print what a package holds, and where it is.
RUNS_A_JOB = """
import sys
from fray.cluster import Entrypoint, JobRequest, create_environment
from fray_ray import RayCluster
from fray_ray.testing import LocalRayCluster
with LocalRayCluster() as ray_cluster, RayCluster(ray_cluster.address) as cluster:
    entrypoint = Entrypoint.from_binary("python", ["-c", sys.argv[2]])
    request = JobRequest("packages", entrypoint, environment=create_environment(pip_packages=[sys.argv[1]]))
    job_id = cluster.launch(request)
    cluster.wait(job_id, timeout=300, raise_on_failure=True)
    print(*cluster.monitor(job_id), flush=True)
"""


@pytest.fixture
def without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment as uv makes them."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else found(name))


def test_pip_installs_where_the_environment_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert environment_of(["numpy==2"]) == {"pip": ["numpy==2"]}
    assert with_packages({"env_vars": {"A": "1"}}, ["x"]) == {"pip": ["x"], "env_vars": {"A": "1"}}
    assert with_packages({"working_dir": "."}, []) == {"working_dir": "."}


def test_uv_installs_where_there_is_no_pip(without_pip: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "of/the/cluster")
    made = environment_of(["numpy==2"])
    assert made["uv"] == {"packages": ["numpy==2"], "uv_pip_install_options": []}
    shim, own = made["env_vars"]["PYTHONPATH"].split(os.pathsep)
    assert Path(shim, "uv", "__main__.py").is_file()
    assert own == "of/the/cluster"
    merged = with_packages({"env_vars": {"A": "1"}}, ["x"])
    assert (merged["env_vars"]["A"], merged["uv"]["packages"]) == ("1", ["x"])


@pytest.fixture
def run_uv(without_pip: None, tmp_path: Path) -> Any:
    """Run `python -m uv` as Ray does, in an environment with nothing in it, on a node with some programs."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    variables = environment_of(["x"])["env_vars"]

    def run(path: Path, *words: str) -> "subprocess.CompletedProcess[str]":
        environ = {**variables, "PATH": str(path), "HOME": str(tmp_path)}
        command = [str(tmp_path / "env/bin/python"), "-m", "uv", *words]
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)

    return run


def test_the_nodes_uv_installs_into_the_environment_that_asks(run_uv: Any, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "uv").write_text("#!/bin/sh\necho $VIRTUAL_ENV $*\n")
    (programs / "uv").chmod(0o755)
    done = run_uv(programs, "pip", "install", "-r", "requirements.txt")
    assert done.stdout == f"{tmp_path}/env pip install -r requirements.txt\n"


def test_a_node_with_neither_says_what_to_install(run_uv: Any, tmp_path: Path) -> None:
    assert (
        run_uv(tmp_path, "--version").returncode == 0
    )  # or Ray would call for pip, and say that this is missing
    done = run_uv(tmp_path, "pip", "install", "x")
    assert "neither pip nor uv" in done.stderr
    said = setup_failure(f"{BY_RAY}{done.stderr}").splitlines()[0]
    assert said.endswith("on this node to install packages with: install uv there")


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        (OF_PIP, "ERROR: Could not find a version that satisfies the requirement no-such-thing"),
        (
            OF_UV,
            "\N{MULTIPLICATION SIGN} No solution found when resolving dependencies: Because no-such-thing "
            "was not found in the package registry, it",
        ),
        (
            OF_LATER_UV,
            "error: No solution found when resolving dependencies: Because no-such-thing was not found "
            "in the package registry, it cannot be used.",
        ),
        ("    Traceback\n    ValueError: odd\n", "ValueError: odd"),
    ],
    ids=["pip", "uv", "later uv", "else"],
)
def test_the_first_line_of_a_failure_is_its_cause(output: str, cause: str) -> None:
    first, *others = setup_failure(RuntimeEnvSetupError(BY_RAY + output)).splitlines()
    assert first == f"its environment could not be built: {cause}"
    assert "Traceback (most recent call last):" not in "\n".join(others)
    assert others[-1].strip() == output.splitlines()[-1].strip()


def test_the_real_uv_names_a_package_that_does_not_exist_in_the_first_line(
    run_uv: Any, tmp_path: Path
) -> None:
    uv = shutil.which("uv")
    assert uv, "the development group of this workspace has it"
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "uv").symlink_to(uv)
    done = run_uv(programs, "pip", "install", "--no-index", "fray-no-such-package==0+none")
    assert done.returncode != 0
    first = setup_failure(f"{BY_RAY}{done.stderr}").splitlines()[0]
    assert first.startswith("its environment could not be built: ")
    assert "fray-no-such-package" in first, done.stderr


def test_what_ray_says_without_an_output_is_said_in_a_line() -> None:
    assert setup_failure("no room\nfor it") == ("its environment could not be built: for it")


def test_pip_installs_a_jobs_packages_on_a_cluster_whose_environment_has_it(tmp_path: Path) -> None:
    """That of the tests may have none: an environment with pip is made that has all of theirs."""
    package, own = wheel(tmp_path, "by_pip_for_a_test"), tmp_path / "environment"
    subprocess.run(
        [sys.executable, "-m", "venv", own], check=True
    )  # Python brings a pip, so nothing is fetched
    (packages,) = own.glob("lib/python*/site-packages")
    theirs = sysconfig.get_path("purelib")
    (packages / "theirs.pth").write_text(f"import site; site.addsitedir({theirs!r})\n")
    program = "import by_pip_for_a_test, sys; print(by_pip_for_a_test.NAME, sys.prefix)"
    environ = {name: value for name, value in os.environ.items() if name != "RAY_TMPDIR"}
    command = [os.fspath(own / "bin" / "python"), "-c", RUNS_A_JOB, os.fspath(package), program]
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True, timeout=400)
    name, prefix = done.stdout.split()[-2:]
    assert name == "by_pip_for_a_test"
    assert "pip" in Path(prefix).parts
    assert "uv" not in Path(prefix).parts
