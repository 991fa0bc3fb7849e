"""Build the environment of a job with uv, once for all jobs that need the same.

A child of the job's supervisor runs this, with the standard library only. What an environment is made of
is its key: a second job with the same needs finds it ready. The output of uv goes to the
job's `environment.log`.
"""

import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass, field
from typing import Any

from fray._jobs.plans.environment_folder import ENVIRONMENT_LINK, ENVIRONMENT_READY, locked_environment

_FORMAT = 2  # part of every key: raise it when environments are made in another way


@dataclass(frozen=True, kw_only=True)
class BuildEnvironment:
    """What an environment is made of, and with what; a `Preparation`.

    Args:
        python: An interpreter, or what uv finds one by: a version, or a project's `requires-python`.
        folder: Where environments are kept, for all jobs of a cluster; its hosts share it.
    """

    uv: str
    python: str
    cloudpickle: str
    workspace: str
    folder: str
    environ: dict[str, str] = field(repr=False)
    pip_packages: tuple[str, ...]
    extras: tuple[str, ...]
    groups: tuple[str, ...]
    project: bool
    lock: bool

    @property
    def waits_for(self) -> str:
        """What a pending job reports that it waits for meanwhile."""
        return "building its environment; see environment.log"

    def prepare(self, record: str) -> None:
        """Make sure that the environment exists, and link it into the job's record.

        Raises:
            SystemExit: uv failed; its output is in the log.
        """
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        path = os.path.join(self.folder, _key(self))
        with locked_environment(path):
            if not os.path.exists(os.path.join(path, ENVIRONMENT_READY)):
                shutil.rmtree(path, ignore_errors=True)  # its builder died
                _make(path, self)
                with open(os.path.join(path, ENVIRONMENT_READY), "w") as file:
                    json.dump(self._shown(), file, indent=2)
            os.utime(os.path.join(path, ENVIRONMENT_READY))
            # Under the lock: an environment that a record leads to is not pruned.
            _link(path, os.path.join(record, ENVIRONMENT_LINK))

    def _shown(self) -> dict[str, Any]:
        return {
            "python": self.python,
            "pip_packages": self.pip_packages,
            "extras": self.extras,
            "dependency_groups": self.groups,
        }


def _link(path: str, link: str) -> None:
    """Make a link, or lead one elsewhere: a job that runs again has one, and so has another replica's."""
    draft = f"{link}.{os.getpid()}.new"
    os.symlink(path, draft)
    os.replace(draft, link)


def _make(path: str, needs: BuildEnvironment) -> None:
    started, workspace = time.monotonic(), needs.workspace
    tool = _Uv(needs.uv, workspace, {**needs.environ, "UV_PROJECT_ENVIRONMENT": path, "UV_NO_PROGRESS": "1"})
    tool.run("venv", "--quiet", "--no-project", "--python", needs.python, path)
    python = ["--python", os.path.join(path, "bin", "python")]
    extras = [word for extra in needs.extras for word in ("--extra", extra)]
    groups = [word for group in needs.groups for word in ("--group", group)]
    if needs.project and needs.lock:
        tool.run("sync", "--frozen", "--no-default-groups", *python, *extras, *groups)
    elif needs.project:
        tool.run("pip", "install", *python, *_unlocked(workspace, list(needs.extras)), *groups)
    elif extras or groups:
        raise SystemExit(
            f"{workspace} has no pyproject.toml, so it has none of {[*needs.extras, *needs.groups]}"
        )
    if needs.pip_packages:
        tool.run("pip", "install", *python, "--", *needs.pip_packages)
    _add_cloudpickle(path, needs.cloudpickle)
    print(f"environment built in {time.monotonic() - started:.1f} s: {path}", flush=True)


class _Uv:
    """uv, run in the workspace under the job's variables."""

    def __init__(self, program: str, workspace: str, environ: dict[str, str]) -> None:
        self._program, self._workspace, self._environ = program, workspace, environ
        self._environ.pop("VIRTUAL_ENV", None)  # uv warns of one that is not the one given to it

    def run(self, *args: str) -> None:
        print("$ uv", *args, flush=True)
        code = subprocess.run(
            [self._program, *args], cwd=self._workspace, env=self._environ, check=False
        ).returncode
        if code:
            raise SystemExit(f"uv {args[0]} failed with exit code {code}")


def _unlocked(workspace: str, extras: list[str]) -> list[str]:
    """What installs a project without a lock: itself where it can be built, else what it depends on."""
    import tomllib

    with open(os.path.join(workspace, "pyproject.toml"), "rb") as file:
        project = tomllib.load(file)
    _check_extras(project.get("project", {}), extras, workspace)
    packaged = project.get("tool", {}).get("uv", {}).get("package", "build-system" in project)
    if packaged:
        return ["--editable", f".[{','.join(extras)}]" if extras else "."]
    return ["-r", "pyproject.toml", *(word for extra in extras for word in ("--extra", extra))]


def _check_extras(project: dict[str, Any], extras: list[str], workspace: str) -> None:
    """End the build for an extra that the project does not have: of one that it builds, uv only warns."""
    if not project or "optional-dependencies" in project.get("dynamic", ()):
        return  # only its build says which there are
    known = {_normalized(name) for name in project.get("optional-dependencies", {})}
    unknown = [extra for extra in extras if _normalized(extra) not in known]
    if unknown:
        has = ", ".join(sorted(known)) or "none"
        raise SystemExit(f"the project in {workspace} has no extra {unknown[0]!r}; it has {has}")


def _normalized(name: str) -> str:
    """The name of an extra as packaging tools compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _add_cloudpickle(path: str, source: str) -> None:
    """Give the environment the launcher's cloudpickle, whose version the job's callable was pickled with."""
    for packages in glob.glob(os.path.join(glob.escape(path), "lib", "python*", "site-packages")):
        target = os.path.join(packages, "cloudpickle")
        if not os.path.exists(target):
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))


def _key(needs: BuildEnvironment) -> str:
    workspace = needs.workspace
    parts = [
        [_FORMAT, sys.version, sysconfig.get_platform(), _real(needs.python)],
        list(needs.extras),
        list(needs.groups),
        list(needs.pip_packages),
        [_fingerprint(os.path.join(workspace, _local_path(package))) for package in needs.pip_packages],
    ]
    if needs.project:
        files = [_content(os.path.join(workspace, name)) for name in ("pyproject.toml", "uv.lock")]
        # A project is installed in place, so that two copies of it are two environments.
        parts.append([workspace, *files])
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def _real(python: str) -> str:
    return os.path.realpath(python) if os.sep in python else python


def _local_path(requirement: str) -> str:
    """The path in `./pkg[extra]` and `pkg @ file:///...`; any other requirement names no path that exists."""
    from urllib.parse import unquote, urlsplit

    url = requirement.rpartition("@")[2].strip()
    path = unquote(urlsplit(url).path) if url.startswith("file:") else requirement
    return path.partition("[")[0]


def _fingerprint(path: str) -> list[Any]:
    """What changes when a local package is edited: names, sizes and times of its files."""
    if os.path.isfile(path):
        status = os.stat(path)
        return [path, status.st_size, status.st_mtime_ns]
    found: list[Any] = []
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        found.extend(_fingerprint(os.path.join(folder, name)) for name in sorted(files))
    return found


def _content(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except FileNotFoundError:
        return None
