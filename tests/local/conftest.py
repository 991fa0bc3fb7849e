"""Every test has state of its own and leaves no process; what jobs install is made here, offline."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fray.backend import environment_of
from fray.testing.cluster import until
from fray.testing.leaks import leaks_nothing, own_temporary_folder  # noqa: F401

sys.path.insert(0, str(Path(__file__).parent / "helpers"))


@pytest.fixture
def process_wide() -> tuple[str, ...]:
    """What may stay: uv's own locks."""
    return (r"^path .*/uv-\w+\.lock$",)


@pytest.fixture(autouse=True)
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    state = tmp_path / "state"
    monkeypatch.setenv("FRAY_STATE_DIR", os.fspath(state))
    monkeypatch.setenv("XDG_CONFIG_HOME", os.fspath(tmp_path / "config"))  # not the developer's settings
    yield state
    try:
        until(lambda: not job_processes(state), "the processes of jobs end")
    finally:
        for pid in job_processes(state):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def job_processes(state: Path) -> list[int]:
    """The living processes of any job, and the supervisors, of a state directory."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if environment_of(pid).get("FRAY_JOB_DIR", "").startswith(f"{state}/")]


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that uv looks into; it has a cache of its own and no network."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for variable, value in {
        "UV_FIND_LINKS": folder,
        "UV_OFFLINE": 1,
        "UV_CACHE_DIR": tmp_path / "uv",
    }.items():
        monkeypatch.setenv(variable, str(value))
    return folder


@pytest.fixture
def make_wheel(wheels: Path) -> Callable[..., Path]:
    """Write a wheel: a module of the package's name, and its metadata."""

    def make(name: str, version: str = "1.0", code: str | None = None) -> Path:
        module = name.replace("-", "_")
        wheel, info = wheels / f"{module}-{version}-py3-none-any.whl", f"{module}-{version}.dist-info"
        files = {
            f"{module}.py": f"VALUE = {f'{name} {version}'!r}\n" if code is None else code,
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        with zipfile.ZipFile(wheel, "w") as archive:
            for path, text in files.items():
                archive.writestr(path, text)
            archive.writestr(f"{info}/RECORD", "".join(f"{path},,\n" for path in files))
        return wheel

    return make


@pytest.fixture
def run_script(tmp_path: Path) -> Callable[..., str]:
    """Run pieces of code as one script in the folder `work`, and return what it printed."""
    folder = tmp_path / "work"
    folder.mkdir()

    def run(*code: str) -> str:
        (folder / "example.py").write_text("\n".join(map(textwrap.dedent, code)))
        done = subprocess.run(
            [sys.executable, "example.py"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
