"""Build the environment of a job with uv, once for all jobs that need the same.

A child of the job's supervisor runs this, with the standard library only. What an environment is made of
is its key: a second job with the same needs finds it ready. The output of uv goes to the
job's `environment.log`.
"""

import contextlib
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
from fray._jobs.processes.removal import remove_tree

_FORMAT = 2  # part of every key: raise it when environments are made in another way
# What says which packages a project needs: its own files, and those that they may name.
_DECLARED = ("pyproject.toml", "uv.lock", "setup.py", "setup.cfg", "*requirements*.txt", "requirements/*.txt")
# The variables by which uv chooses what it installs. Others say how it does that, or where it keeps things.
_CHOOSING = (
    "UV_BUILD_CONSTRAINT", "UV_CONFIG_FILE", "UV_CONSTRAINT", "UV_DEFAULT_INDEX", "UV_EXCLUDE_NEWER",
    "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_FORK_STRATEGY", "UV_INDEX", "UV_INDEX_STRATEGY",
    "UV_INDEX_URL", "UV_NO_BINARY", "UV_NO_BINARY_PACKAGE", "UV_NO_BUILD", "UV_NO_BUILD_PACKAGE",
    "UV_NO_CONFIG", "UV_NO_INDEX", "UV_NO_SOURCES", "UV_OVERRIDE", "UV_PRERELEASE", "UV_RESOLUTION",
    "UV_TORCH_BACKEND",
)  # fmt: skip
# By these uv works elsewhere than in the workspace; and it warns of an environment that is not given to it.
_ELSEWHERE = ("VIRTUAL_ENV", "UV_PROJECT", "UV_WORKING_DIRECTORY")
_BUILT = ("build", "dist")  # folders at the top of a package that a build of it writes
_NO_SOURCE = {"CACHEDIR.TAG", "pyvenv.cfg"}  # a folder with one of these can be made again
_LARGE = 1 << 20  # bytes of a file from which on its time stands for what is in it


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
            if not _is_ready(path):
                remove_tree(path)
                try:
                    _make(path, self)
                    with open(os.path.join(path, ENVIRONMENT_READY), "w") as file:
                        json.dump(self._shown(), file, indent=2)
                except BaseException:  # what there is of it fits no job, and may be what fills the disk
                    remove_tree(path)
                    raise
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


def _is_ready(path: str) -> bool:
    """Whether an environment is there: its builder may have died, and its Python was perhaps uninstalled."""
    parts = (ENVIRONMENT_READY, os.path.join("bin", "python"))
    return all(os.path.exists(os.path.join(path, part)) for part in parts)


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
        self._program, self._workspace = program, workspace
        self._environ = {name: value for name, value in environ.items() if name not in _ELSEWHERE}

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

    packaged = False
    # A file that is not TOML, or not that of a project, is left to uv, which says what is wrong and where.
    with contextlib.suppress(ValueError, TypeError, AttributeError):
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
        [_fingerprint(os.path.join(workspace, path)) for path in _local_paths(needs.pip_packages)],
        [_chosen_by(needs.environ), _content(os.path.join(workspace, "uv.toml"))],
    ]
    if needs.project:
        # A project is installed in place, so that two copies of it are two environments.
        parts.append([workspace, _declared(workspace), *map(_fingerprint, _sources(workspace))])
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def _chosen_by(environ: dict[str, str]) -> list[list[str]]:
    """The variables that uv chooses packages by; without passwords, which change and choose nothing."""
    return [[name, re.sub(r"//[^/\s]*@", "//", environ[name])] for name in _CHOOSING if name in environ]


def _declared(project: str) -> list[list[str | None]]:
    """What the files of a project have that say which packages it needs."""
    names = [name for each in _DECLARED for name in sorted(glob.glob(each, root_dir=project))]
    return [[name, _content(os.path.join(project, name))] for name in names]


def _sources(workspace: str) -> list[str]:
    """The folders and files of packages that the project takes from there, and does not install in place."""
    import tomllib

    try:
        with open(os.path.join(workspace, "pyproject.toml"), "rb") as file:
            sources = tomllib.load(file)["tool"]["uv"]["sources"].values()
        entries = [entry for each in sources for entry in (each if isinstance(each, list) else [each])]
        paths = [entry["path"] for entry in entries if "path" in entry and not entry.get("editable")]
        return [os.path.join(workspace, path) for path in paths]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []  # it has none; uv will report what is wrong with a file


def _real(python: str) -> str:
    return os.path.realpath(python) if os.sep in python else python


def _local_paths(requirements: tuple[str, ...]) -> list[str]:
    """The paths among requirements: of `./pkg[extra]`, `pkg.whl` and `pkg @ file:///...`.

    A folder that is called as a package is none: many programs have one of that name for what they write.
    """
    from urllib.parse import unquote, urlsplit

    found = []
    for requirement in requirements:
        named = re.match(r"[\w.-]+\s*(?:\[[^]]*\])?\s*@\s*(.*)", requirement)
        place = named[1] if named else requirement
        path = unquote(urlsplit(place).path) if place.startswith("file:") else place.partition("[")[0].strip()
        if os.sep in path or path in (".", "..") or path.endswith((".whl", ".zip", ".gz")):
            found.append(path)
    return found


def _fingerprint(path: str) -> list[Any]:
    """What changes when a local package is edited: its files, but for those that a build of it writes."""
    if os.path.isfile(path):
        return [path, _content(path)]
    found: list[Any] = []
    for folder, folders, files in os.walk(path):
        top = folder == path
        if not top and _NO_SOURCE.intersection(files):
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not _is_built(name, top))
        places = [os.path.join(folder, name) for name in sorted(files)]
        found += [[place, _content(place)] for place in places if os.path.isfile(place)]
    return found


def _is_built(name: str, top: bool) -> bool:
    return (
        name.startswith(".")
        or name == "__pycache__"
        or name.endswith(".egg-info")
        or (top and name in _BUILT)
    )


def _content(path: str) -> str | None:
    """What changes when a file is edited; the same where it is written again, unless it is large."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_size > _LARGE:
                return f"{status.st_size} {status.st_mtime_ns}"
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:  # there is none, or uv will say that it cannot be read
        return None
