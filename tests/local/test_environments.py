"""Environments that uv builds for a job; from local wheels and projects, so that nothing is downloaded."""

import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fray.backend import fits
from fray.cluster import Entrypoint, ExitReason, JobId, JobInfo, JobStatus, Pruned, create_environment
from fray.testing.cluster import launch, program, until
from fray_local import LocalCluster

MakeWheel = Callable[..., Path]
pytestmark = pytest.mark.usefixtures("wheels")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "workspace"
    path.mkdir()
    return path


@pytest.fixture
def cluster() -> LocalCluster:
    return LocalCluster(cpus=4)


def finish(cluster: LocalCluster, job_id: JobId) -> list[str]:
    info = cluster.wait(job_id, timeout=60)
    assert info.status is JobStatus.SUCCEEDED, info.error_message
    return list(cluster.monitor(job_id, replica=0))


def fail(cluster: LocalCluster, job_id: JobId) -> tuple[JobInfo, str]:
    info = cluster.wait(job_id, timeout=60)
    assert info.status is JobStatus.FAILED
    assert info.error_message is not None
    assert [task.reason for task in info.tasks] == [ExitReason.COULD_NOT_START]
    return info, info.error_message


def test_a_package_is_installed_for_the_job_alone_and_the_second_job_finds_it(
    cluster: LocalCluster, workspace: Path, state_dir: Path, make_wheel: MakeWheel
) -> None:
    wheel = make_wheel("first-package")
    environment = create_environment(workspace=workspace, pip_packages=[str(wheel)])

    def use() -> None:
        import importlib.util
        import sys

        import first_package  # type: ignore[import-not-found]

        print(
            first_package.VALUE,
            importlib.util.find_spec("pytest"),
            importlib.util.find_spec("fray"),
            sys.prefix,
        )

    for _ in range(2):
        job_id = launch(cluster, use, environment=environment)
        line = finish(cluster, job_id)[-1]
        assert line == f"first-package 1.0 None None {state_dir / 'jobs' / job_id / 'environment'}"
    log = "\n".join(cluster.monitor(job_id))
    assert "uv" not in log
    assert len(list((state_dir / "environments").glob("*.lock"))) == 1
    path = finish(
        cluster, launch(cluster, program("import os; print(os.environ['PATH'])"), environment=environment)
    )
    assert path[-1].split(":")[0].endswith("/environment/bin")


def test_a_change_of_a_local_package_is_another_environment(
    cluster: LocalCluster, workspace: Path, make_wheel: MakeWheel
) -> None:
    code = "import changing; print(changing.VALUE)"
    environment = create_environment(
        workspace=workspace, pip_packages=["../wheels/changing-1.0-py3-none-any.whl"]
    )
    for value in ("old", "newer"):
        make_wheel("changing", code=f"VALUE = {value!r}\n")
        assert finish(cluster, launch(cluster, program(code), environment=environment))[-1] == value


def test_a_folder_that_is_called_uv_is_not_taken_for_the_program(
    cluster: LocalCluster, workspace: Path, monkeypatch: pytest.MonkeyPatch, make_wheel: MakeWheel
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setitem(sys.modules, "uv", ModuleType("uv"))  # as a folder of the workspace is imported
    environment = create_environment(workspace=workspace, pip_packages=[str(make_wheel("by-path"))])
    job_id = launch(cluster, program("import by_path; print(by_path.VALUE)"), environment=environment)
    assert finish(cluster, job_id)[-1] == "by-path 1.0"


@pytest.mark.parametrize(
    "text",
    [
        "[project\nname = 'x'",
        "[project]\noptional-dependencies = 3",
        "[project]\nname = 'x'\nversion = '1'\n[tool]\nuv = 3",
    ],
)
def test_uv_says_what_is_wrong_with_a_project(workspace: Path, text: str) -> None:
    (workspace / "pyproject.toml").write_text(text)
    cluster = LocalCluster(cpus=4, use_isolated_env=True)
    environment = create_environment(workspace=workspace)
    _, message = fail(cluster, launch(cluster, program("pass"), environment=environment))
    assert "Failed to parse: pyproject.toml" in message
    assert "Traceback" not in message


def test_a_workspace_that_is_gone_when_the_environment_is_built_is_named(
    cluster: LocalCluster, workspace: Path, tmp_path: Path, make_wheel: MakeWheel
) -> None:
    go = tmp_path / "go"
    wait = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)"
    first = launch(cluster, program(wait, go))
    environment = create_environment(workspace=workspace, pip_packages=[str(make_wheel("never-there"))])
    job_id = launch(cluster, program("pass"), environment=environment, after=[first])
    workspace.rmdir()
    go.touch()
    _, message = fail(cluster, job_id)
    assert f"No such file or directory: '{workspace}'" in message


# A project that builds itself. As setuptools does, it leaves things behind, and a file says what it needs.
BACKEND = """
import os, pathlib, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    for left in "build", "own.egg-info":
        pathlib.Path(left).mkdir(exist_ok=True)
        pathlib.Path(left, "of-the-build").write_text(str(os.getpid()))
    needs = pathlib.Path("requirements.txt").read_text().split()
    info = ["Metadata-Version: 2.1", "Name: own", "Version: 1", *(f"Requires-Dist: {need}" for need in needs)]
    files = {
        "own.py": pathlib.Path("own.py").read_text(),
        "own-1.dist-info/METADATA": "\\n".join(info) + "\\n",
        "own-1.dist-info/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    with zipfile.ZipFile(os.path.join(folder, "own-1-py3-none-any.whl"), "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr("own-1.dist-info/RECORD", "".join(f"{name},,\\n" for name in files))
    return "own-1-py3-none-any.whl"

build_editable = build_wheel
"""
BUILT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "own"
version = "1"
dynamic = ["dependencies"]
"""


def write_project(folder: Path, code: str, needs: str = "") -> None:
    folder.mkdir(exist_ok=True)
    for name, text in {
        "pyproject.toml": BUILT,
        "backend.py": BACKEND,
        "own.py": code,
        "requirements.txt": needs,
    }.items():
        (folder / name).write_text(text)


def built(state_dir: Path) -> int:
    """How many environments there are."""
    return len(list((state_dir / "environments").glob("*.lock")))


def test_what_a_build_leaves_in_a_local_package_is_no_change_of_it(
    cluster: LocalCluster, workspace: Path, state_dir: Path
) -> None:
    environment = create_environment(workspace=workspace, pip_packages=["./own"])
    for value in ("one", "two"):
        write_project(workspace / "own", f"VALUE = {value!r}")
        for _ in range(2):
            job_id = launch(cluster, program("import own; print(own.VALUE)"), environment=environment)
            assert finish(cluster, job_id)[-1] == value
    assert built(state_dir) == 2


def test_what_a_project_needs_by_a_file_beside_its_own_is_another_environment(
    workspace: Path, make_wheel: MakeWheel
) -> None:
    make_wheel("dynamic-need")
    cluster = LocalCluster(cpus=4, use_isolated_env=True)
    environment = create_environment(workspace=workspace)
    code = "import importlib.util as u; print(u.find_spec('dynamic_need') is not None)"
    for needs in ("", "dynamic-need"):
        write_project(workspace, "", needs)
        job_id = launch(cluster, program(code), environment=environment)
        assert finish(cluster, job_id)[-1] == str(bool(needs))


def test_where_packages_come_from_is_another_environment_and_a_password_is_not(
    cluster: LocalCluster, workspace: Path, state_dir: Path, tmp_path: Path, make_wheel: MakeWheel
) -> None:
    make_wheel("from-index", "1.0")
    other = tmp_path / "other"
    other.mkdir()
    make_wheel("from-index", "2.0").rename(other / "from_index-2.0-py3-none-any.whl")

    def found(**variables: str) -> str:
        environment = create_environment(
            workspace=workspace, pip_packages=["from-index"], env_vars={"UV_NO_INDEX": "1", **variables}
        )
        code = "import from_index; print(from_index.VALUE)"
        return finish(cluster, launch(cluster, program(code), environment=environment))[-1]

    assert found() == "from-index 1.0"
    assert found(UV_FIND_LINKS=os.fspath(other)) == "from-index 2.0"
    for password in ("first", "second"):
        assert found(UV_INDEX_URL=f"https://user:{password}@packages.example.org/simple") == "from-index 1.0"
    assert built(state_dir) == 3


def test_a_folder_that_is_called_as_a_package_is_none(
    cluster: LocalCluster, workspace: Path, state_dir: Path, make_wheel: MakeWheel
) -> None:
    make_wheel("logs-things")
    environment = create_environment(workspace=workspace, pip_packages=["logs-things"])
    (workspace / "logs-things").mkdir()
    code = "import pathlib, os; pathlib.Path('logs-things', str(os.getpid())).touch()"
    for _ in range(2):
        finish(cluster, launch(cluster, program(code), environment=environment))
    assert built(state_dir) == 1


def test_the_project_is_that_of_the_workspace_whatever_the_launcher_works_on(
    workspace: Path, tmp_path: Path, make_wheel: MakeWheel
) -> None:
    for name in ("locked", "extra-one"):
        make_wheel(name)
    (workspace / "pyproject.toml").write_text(PROJECT % "")
    make_lock(workspace)
    cluster = LocalCluster(cpus=4, use_isolated_env=True)
    elsewhere = {"UV_PROJECT": os.fspath(tmp_path), "UV_WORKING_DIRECTORY": os.fspath(tmp_path)}
    environment = create_environment(workspace=workspace, env_vars=elsewhere)
    job_id = launch(cluster, program("import locked; print(locked.VALUE)"), environment=environment)
    assert finish(cluster, job_id)[-1] == "locked 1.0"


def test_a_package_that_cannot_be_had_is_named(
    cluster: LocalCluster, workspace: Path, state_dir: Path
) -> None:
    environment = create_environment(workspace=workspace, pip_packages=["no-such-package-of-fray"])
    started = time.monotonic()
    job_id = launch(cluster, program("pass"), environment=environment)
    assert time.monotonic() - started < 10  # the environment is built after launch
    info, message = fail(cluster, job_id)
    assert "no-such-package-of-fray" in message
    assert "environment could not be built" in message
    assert info.started_at is None
    assert [path.suffix for path in (state_dir / "environments").iterdir()] == [".lock"]
    assert any("no-such-package-of-fray" in line for line in cluster.monitor(job_id))


PROJECT = """
[project]
name = "workspace"
version = "0"
requires-python = ">=3.11"
dependencies = ["locked%s"]
[project.optional-dependencies]
one = ["extra-one"]
[tool.uv]
package = false
"""


def make_lock(workspace: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "uv", "lock", "--offline", "-q", "--python", sys.executable],
        cwd=workspace,
        check=True,
    )


def test_the_lock_of_the_workspace_decides(
    cluster: LocalCluster, workspace: Path, make_wheel: MakeWheel
) -> None:
    for name, version in (("locked", "1.0"), ("locked", "2.0"), ("extra-one", "1.0")):
        make_wheel(name, version)
    (workspace / "pyproject.toml").write_text(PROJECT % "<2")
    make_lock(workspace)
    code = "import importlib.util as u, locked; print(locked.VALUE, u.find_spec('extra_one') is not None)"
    isolated = LocalCluster(use_isolated_env=True)
    plain = create_environment(workspace=workspace)
    assert finish(isolated, launch(isolated, program(code), environment=plain))[-1] == "locked 1.0 False"
    with_extra = create_environment(workspace=workspace, extras=["one"])
    assert finish(cluster, launch(cluster, program(code), environment=with_extra))[-1] == "locked 1.0 True"
    (workspace / "uv.lock").unlink()
    (workspace / "pyproject.toml").write_text(PROJECT % "")
    assert finish(cluster, launch(cluster, program(code), environment=with_extra))[-1] == "locked 2.0 True"
    _, message = fail(
        cluster,
        launch(cluster, program("pass"), environment=create_environment(workspace=workspace, extras=["two"])),
    )
    assert "two" in message


def test_extras_of_no_project_are_an_error_that_says_so(cluster: LocalCluster, workspace: Path) -> None:
    environment = create_environment(workspace=workspace, extras=["tpu"])
    _, message = fail(cluster, launch(cluster, program("pass"), environment=environment))
    assert "no pyproject.toml" in message


@pytest.mark.parametrize("built", [True, False])
def test_an_extra_that_the_project_does_not_have_is_an_error_that_names_those_it_has(
    cluster: LocalCluster, workspace: Path, built: bool
) -> None:
    project = '[project]\nname = "workspace"\nversion = "0"\noptional-dependencies = { "For.Tpu" = [] }\n'
    build = '[build-system]\nrequires = ["no-such-build-tool"]\n' if built else ""
    (workspace / "pyproject.toml").write_text(project + build)
    environment = create_environment(workspace=workspace, extras=["for_tpu", "tpus"])
    _, message = fail(cluster, launch(cluster, program("pass"), environment=environment))
    assert "has no extra 'tpus'; it has for-tpu" in message


def test_a_job_is_pending_while_its_environment_is_built_and_can_be_stopped(
    cluster: LocalCluster, workspace: Path, tmp_path: Path
) -> None:
    # A build backend that takes its time, found without an index.
    (workspace / "slow").mkdir()
    (workspace / "slow" / "pyproject.toml").write_text(
        '[project]\nname = "slow"\nversion = "1"\n'
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (workspace / "slow" / "backend.py").write_text(
        f"import pathlib, time\npathlib.Path({str(tmp_path / 'building')!r}).touch()\ntime.sleep(600)\n"
    )
    environment = create_environment(workspace=workspace, pip_packages=["./slow"])
    job_id = launch(cluster, Entrypoint.from_binary("true"), environment=environment)
    until((tmp_path / "building").exists, "the build starts")
    until(lambda: "environment" in (cluster.poll(job_id).pending_reason or ""), "it says what it waits for")
    assert cluster.poll(job_id).status is JobStatus.PENDING
    said = lambda: any("uv pip install" in line for line in cluster.monitor(job_id, follow=False))  # noqa: E731
    until(said, "its log does, too")
    cluster.terminate(job_id, grace=0.5)
    assert cluster.poll(job_id).status is JobStatus.STOPPED


def test_two_jobs_that_need_the_same_build_it_once(
    cluster: LocalCluster, workspace: Path, state_dir: Path, make_wheel: MakeWheel
) -> None:
    wheel = make_wheel("shared-package")
    environment = create_environment(workspace=workspace, pip_packages=[str(wheel)])
    ids = [launch(cluster, program("import shared_package"), environment=environment) for _ in range(3)]
    infos = cluster.wait(ids, timeout=60)
    assert [info.status for info in infos] == [JobStatus.SUCCEEDED] * 3
    logs = [(state_dir / "jobs" / job_id / "logs" / "environment.log").read_text() for job_id in ids]
    assert sum("environment built" in log for log in logs) == 1


def test_a_job_with_an_environment_of_its_own_is_run_again(
    cluster: LocalCluster, workspace: Path, tmp_path: Path, make_wheel: MakeWheel
) -> None:
    there = tmp_path / "there"
    code = "import sys, pathlib, again_package; sys.exit(0 if pathlib.Path(sys.argv[1]).exists() else 3)"
    environment = create_environment(workspace=workspace, pip_packages=[str(make_wheel("again-package"))])
    job_id = launch(cluster, program(code, there), environment=environment)
    assert cluster.wait(job_id, timeout=60).exit_code == 3
    there.touch()
    cluster.retry(job_id)
    info = cluster.wait(job_id, timeout=60)
    assert (info.status, info.tasks[0].attempt) == (JobStatus.SUCCEEDED, 2), info.error_message


def test_a_build_that_died_half_way_is_made_anew(
    cluster: LocalCluster, workspace: Path, state_dir: Path, make_wheel: MakeWheel
) -> None:
    wheel = make_wheel("half-built")
    environment = create_environment(workspace=workspace, pip_packages=[str(wheel)])
    finish(cluster, launch(cluster, program("import half_built"), environment=environment))
    (built,) = (path for path in (state_dir / "environments").iterdir() if path.is_dir())
    (built / ".fray-ready").unlink()
    (built / "bin" / "python").unlink()
    finish(cluster, launch(cluster, program("import half_built"), environment=environment))


def test_an_environment_whose_python_was_uninstalled_is_made_anew(
    cluster: LocalCluster, workspace: Path, state_dir: Path, make_wheel: MakeWheel
) -> None:
    environment = create_environment(workspace=workspace, pip_packages=[str(make_wheel("stays"))])
    for _ in range(2):
        job_id = launch(cluster, program("import stays; print(stays.VALUE)"), environment=environment)
        assert finish(cluster, job_id)[-1] == "stays 1.0"
        for python in (state_dir / "environments").glob("*/bin/python"):
            python.unlink()
            python.symlink_to("gone")


@pytest.mark.parametrize("own", [[], ["fray"]], ids=["no Fray", "another Fray"])
def test_where_the_environment_has_no_fray_the_job_runs_unheard(
    own: list[str],
    cluster: LocalCluster,
    workspace: Path,
    make_wheel: MakeWheel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wheels = [str(make_wheel(name)) for name in ["some-package", *own]]
    environment = create_environment(workspace=workspace, pip_packages=wheels)
    monkeypatch.setenv("FRAY_LISTENERS", "logging")

    def use() -> None:
        print("ran")

    assert finish(cluster, launch(cluster, use, environment=environment))[-1] == "ran"


GROUPS = """
[project]
name = "workspace"
version = "0"
dependencies = []
[dependency-groups]
bench = ["group-one"]
dev = ["never-wanted"]
[tool.uv]
package = false
"""


@pytest.mark.parametrize("locked", [True, False])
def test_dependency_groups_are_installed_when_they_are_asked_for(
    cluster: LocalCluster, workspace: Path, make_wheel: MakeWheel, locked: bool
) -> None:
    for name in ("group-one", "never-wanted"):
        make_wheel(name)
    (workspace / "pyproject.toml").write_text(GROUPS)
    if locked:
        command = [sys.executable, "-m", "uv", "lock", "--offline", "-q", "--python", sys.executable]
        subprocess.run(command, cwd=workspace, check=True)
    code = """
        import importlib.util
        print(*(importlib.util.find_spec(name) is not None for name in ("group_one", "never_wanted")))
    """
    environment = create_environment(workspace=workspace, dependency_groups=["bench"])
    assert finish(cluster, launch(cluster, program(code), environment=environment))[-1] == "True False"
    _, message = fail(
        cluster,
        launch(
            cluster,
            program("pass"),
            environment=create_environment(workspace=workspace, dependency_groups=["none-such"]),
        ),
    )
    assert "none-such" in message


REQUIRES = """
[project]
name = "workspace"
version = "0"
requires-python = "%s"
"""


def here() -> str:
    return ".".join(map(str, sys.version_info[:2]))


def test_a_job_runs_the_python_that_is_asked_for(cluster: LocalCluster, workspace: Path) -> None:
    def version() -> None:
        print("runs", *sys.version_info[:2], "isolated", sys.prefix != sys.base_prefix)

    environment = create_environment(workspace=workspace, python=here())
    expected = f"runs {here().replace('.', ' ')} isolated True"
    assert finish(cluster, launch(cluster, version, environment=environment))[-1] == expected
    missing = create_environment(workspace=workspace, python="3.99")
    _, message = fail(cluster, launch(cluster, program("pass"), environment=missing))
    assert "3.99" in message


OTHERS = [version for version in ("3.11", "3.12", "3.13") if version != here()]


def interpreter(version: str) -> Path | None:
    """Find another Python of this machine: on the PATH, or among those of pyenv, whose shims may not run."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = shutil.which(f"python{version}")
    for path in (*pyenv.glob(f"{version}.*/bin/python{version}"), *([Path(found)] if found else [])):
        asked = subprocess.run(
            [path, "-c", "import sys; print(*sys.version_info[:2], sep='.')"], capture_output=True
        )
        if asked.stdout.decode().strip() == version:
            return path
    return None


@pytest.mark.parametrize("version", OTHERS)
@pytest.mark.parametrize("asked_by", ["python", "requires-python"])
def test_a_command_runs_another_python_of_the_machine(
    cluster: LocalCluster, workspace: Path, monkeypatch: pytest.MonkeyPatch, version: str, asked_by: str
) -> None:
    found = interpreter(version)
    if found is not None:
        monkeypatch.setenv("PATH", f"{found.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS", "never")
    if asked_by == "python":
        environment = create_environment(workspace=workspace, python=version)
    else:
        (workspace / "pyproject.toml").write_text(
            REQUIRES % f"=={version}.*" + "[dependency-groups]\nnone = []\n"
        )
        environment = create_environment(workspace=workspace, dependency_groups=["none"])
    job_id = launch(
        cluster, program("import sys; print('runs', *sys.version_info[:2])"), environment=environment
    )
    if found is not None:
        assert finish(cluster, job_id)[-1] == f"runs {version.replace('.', ' ')}"
    else:  # what a user of such a machine reads
        assert version in fail(cluster, job_id)[1]


LAUNCHER = """
import sys
from fray.cluster import Entrypoint, JobRequest, create_cluster, create_environment

def version():
    print("runs", *sys.version_info[:2])

cluster = create_cluster("local")
job_id = cluster.launch(JobRequest("version", Entrypoint.from_callable(version)))
cluster.wait(job_id, timeout=60, raise_on_failure=True)
print(*cluster.monitor(job_id))
try:
    other = create_environment(python={other!r})
    cluster.launch(JobRequest("other", Entrypoint.from_callable(version), environment=other))
except ValueError as error:
    print(error)
"""


@pytest.mark.parametrize("version", OTHERS)
def test_a_callable_that_another_python_launches_runs_there_and_does_not_come_here(
    cluster: LocalCluster, workspace: Path, version: str
) -> None:
    environment = create_environment(workspace=workspace, python=version)
    with pytest.raises(ValueError, match=f"pickled by Python {here()}, and would run on Python {version}"):
        launch(cluster, lambda: None, environment=environment)
    found = interpreter(version)
    if found is None:  # the other half takes a machine that has such a Python
        return
    library = sysconfig.get_path("stdlib")
    paths = [path for path in sys.path if "site-packages" in path or not path.startswith(library)]
    done = subprocess.run(
        [found, "-c", LAUNCHER.format(other=here())],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if not path.endswith(".zip"))},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    runs, refused = done.stdout.splitlines()
    assert runs == f"runs {version.replace('.', ' ')}"
    assert f"pickled by Python {version}, and would run on Python {here()}" in refused


def test_a_callable_does_not_travel_to_another_python(cluster: LocalCluster, workspace: Path) -> None:
    for environment in (
        create_environment(workspace=workspace, python="3.99"),
        create_environment(workspace=workspace, python="3.99.1"),
    ):
        with pytest.raises(ValueError, match=rf"pickled by Python {here()}, and would run on Python 3\.99"):
            launch(cluster, lambda: None, environment=environment)
    (workspace / "pyproject.toml").write_text(REQUIRES % ">=3.99")
    asked = create_environment(workspace=workspace, extras=["x"])
    with pytest.raises(ValueError, match=rf"pickled by Python {here()}.*project requires Python >=3\.99"):
        launch(cluster, lambda: None, environment=asked)
    assert cluster.list_jobs() == []
    _, message = fail(cluster, launch(cluster, program("pass"), environment=asked))
    assert "3.99" in message


def test_a_job_that_runs_its_launchers_python_warns_of_a_project_that_requires_another(
    cluster: LocalCluster, workspace: Path
) -> None:
    (workspace / "pyproject.toml").write_text(REQUIRES % "<3")
    job_id = launch(cluster, program("pass"), environment=create_environment(workspace=workspace))
    (warning,) = cluster.wait(job_id, timeout=60).warnings
    assert "requires Python <3" in warning


@pytest.mark.parametrize(
    ("version", "required", "fits_it"),
    [
        ("3.11.7", ">=3.11", True),
        ("3.11.7", ">=3.12", False),
        ("3.11.7", ">=3.11,<3.12", True),
        ("3.12.0", ">=3.11, <3.12", False),
        ("3.11.7", "==3.11.*", True),
        ("3.11.7", "==3.11", False),
        ("3.11.7", "!=3.11.7", False),
        ("3.11.7", "~=3.11", True),
        ("3.11.7", "~=3.11.8", False),
        ("3.12.1", "~=3.11.0", False),
        ("3.11.7", ">3.11.6,<=3.11.7", True),
        ("3.11.7", "whatever", True),
    ],
)
def test_what_requires_python_allows(version: str, required: str, fits_it: bool) -> None:
    assert fits(version, required) is fits_it


def test_an_environment_goes_when_no_record_leads_to_it(
    cluster: LocalCluster, workspace: Path, state_dir: Path, make_wheel: MakeWheel
) -> None:
    environment = create_environment(workspace=workspace, pip_packages=[str(make_wheel("short-lived"))])
    job_id = launch(cluster, program("import short_lived"), environment=environment)
    finish(cluster, job_id)
    assert cluster.prune(older_than=3600.0).environments == 0

    def pruned() -> Pruned | None:
        found = cluster.prune()
        return found if found.jobs else None

    found = until(pruned, "its supervisor has ended")
    assert found is not None
    assert (found.jobs, found.environments) == ((job_id,), 1)
    assert found.size > 1000
    assert list((state_dir / "environments").iterdir()) == []
    finish(cluster, launch(cluster, program("import short_lived"), environment=environment))


def test_a_prune_leaves_the_environment_that_a_job_takes_meanwhile(
    cluster: LocalCluster,
    workspace: Path,
    state_dir: Path,
    make_wheel: MakeWheel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment = create_environment(workspace=workspace, pip_packages=[str(make_wheel("taken-again"))])
    job_id = launch(cluster, program("import taken_again"), environment=environment)
    finish(cluster, job_id)
    cluster.remove(job_id)
    # Deleted first, by its name; a job takes the other environment during that.
    (state_dir / "environments" / "!").mkdir()
    taken: list[JobId] = []
    delete = shutil.rmtree

    def slow(path: Any, *args: Any, **options: Any) -> None:
        if Path(path).name == ".old-!" and not taken:
            taken.append(launch(cluster, program("import taken_again"), environment=environment))
            finish(cluster, taken[0])
        delete(path, *args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", slow)
        cluster.prune()
    assert (state_dir / "jobs" / taken[0] / "environment" / "bin" / "python").exists()


def test_a_prune_finishes_the_deletion_that_was_killed(cluster: LocalCluster, state_dir: Path) -> None:
    for name in ("key", ".old-key"):
        path = state_dir / "environments" / name / "lib"
        path.mkdir(parents=True)
        (path / "module.py").write_text("one")
    found = cluster.prune()
    assert (found.environments, found.size) == (1, 6)
    assert list((state_dir / "environments").iterdir()) == []
