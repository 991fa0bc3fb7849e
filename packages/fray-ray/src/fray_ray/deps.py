"""The packages of a uv project, as Ray installs them."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fray.cluster import EnvironmentConfig

_PLAIN = ("--quiet", "--no-dev", "--no-emit-project", "--no-hashes", "--no-annotate", "--no-header")
_ON_THE_CLUSTER = ("ray",)  # installed there, in the version that the cluster runs


def build_runtime_env_for_packages(
    extra: Iterable[str] = (),
    env_vars: Mapping[str, str] | None = None,
    *,
    pip_packages: Iterable[str] = (),
    workspace: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Return the `runtime_env` that gives Ray's workers the packages of a uv project's lock.

    Args:
        extra: Extras of the project to install with what it always needs.
        env_vars: Variables to set.
        pip_packages: Requirements beside those of the project.
        workspace: The project's directory; the current one by default. One without a `pyproject.toml`
            has no requirements of its own.

    Raises:
        ValueError: Extras are requested of a directory that is not a project, or the project cannot be
            resolved.
    """
    folder = None if workspace is None else Path(workspace)
    environment = EnvironmentConfig(folder, None, tuple(pip_packages), dict(env_vars or {}), tuple(extra))
    packages = list(pip_list(folder or Path.cwd(), environment, always=True))
    parts = {"pip": packages, "env_vars": dict(environment.env_vars)}
    return {name: part for name, part in parts.items() if part}


def pip_list(workspace: Path, environment: EnvironmentConfig, *, always: bool = False) -> tuple[str, ...]:
    """Return what pip installs for an environment, each requirement once; see `requirements`."""
    groups = tuple(environment.dependency_groups)
    own = requirements(workspace, tuple(environment.extras), groups, always=always)
    return tuple(dict.fromkeys((*own, *environment.pip_packages)))


def requirements(
    workspace: Path, extras: tuple[str, ...], groups: tuple[str, ...] = (), *, always: bool = False
) -> tuple[str, ...]:
    """Return the locked requirements of a project with these extras and dependency groups; none by default.

    Paths of this machine, as members of a uv workspace have, say nothing to a node: they are left out, as the
    project itself is, whose code comes as files.

    Args:
        always: Also where neither is requested.
    """
    project = workspace / "pyproject.toml"
    if not project.is_file():
        for kind, names in (("extras", extras), ("dependency groups", groups)):
            if names:
                raise ValueError(
                    f"{workspace} has no pyproject.toml, so there are no {kind} {list(names)} to install"
                )
        return ()
    if not extras and not groups and not always:
        return ()
    lines = _export(workspace, extras, groups).splitlines()
    named = (line.strip() for line in lines if line.strip() and not line.startswith("#"))
    return tuple(line for line in named if _name(line) not in _ON_THE_CLUSTER and not _is_local(line))


def _export(workspace: Path, extras: tuple[str, ...], groups: tuple[str, ...]) -> str:
    """Return the requirements of a project's lock, which uv makes where there is none, as pip reads them."""
    frozen = ["--frozen"] if (workspace / "uv.lock").is_file() else []
    asked = [*(("--extra", name) for name in extras), *(("--group", name) for name in groups)]
    chosen = [word for words in asked for word in words]
    done = subprocess.run(
        [_uv(), "export", *_PLAIN, *frozen, *chosen],
        cwd=workspace,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        which = f"extras {list(extras)}" + (f" and groups {list(groups)}" if groups else "")
        raise ValueError(f"the requirements of {workspace} with {which}: {done.stderr.strip()}")
    return done.stdout


def _is_local(requirement: str) -> bool:
    return requirement.startswith(("-e ", ".", "/", "file:")) or " @ file:" in requirement


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower()


def _uv() -> str:
    found = shutil.which("uv")
    if found is not None:
        return found
    try:
        from uv import find_uv_bin
    except ImportError:
        raise ValueError("uv is needed to read a project's lock: pip install uv") from None
    return str(find_uv_bin())
