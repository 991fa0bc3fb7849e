"""What installs a job's packages on its nodes, and the error when that fails.

Ray copies the environment that it runs in, and installs into the copy: with pip, where that environment has
it, or with uv. Environments that uv made have no pip, and often no uv of their own: then the node's does.
"""

import importlib.util
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fray_ray._ray_internals.errors import installers_output

_UV = Path(__file__).parent / "_on_node" / "uv_of_node"
_PATH = "PYTHONPATH"
_CAUSES = ("error:", "ERROR:", "fray:", "\N{MULTIPLICATION SIGN}")
# uv draws a tree of causes; uv 0.13 writes `cause:` before the next line instead.
_GOES_ON = ("\N{BOX DRAWINGS LIGHT ARC UP AND RIGHT}\N{BOX DRAWINGS LIGHT HORIZONTAL}", "cause:")
_BRANCH = f"{_GOES_ON[0]}\N{BLACK RIGHT-POINTING TRIANGLE}"
_MOST_LINES = 20


def environment_of(packages: Iterable[str]) -> dict[str, Any]:
    """Return the fields of a `runtime_env` that have packages installed, by whom this environment has.

    Called on the cluster: all nodes of one have the same environment.
    """
    wanted = list(packages)
    if not wanted:
        return {}
    if importlib.util.find_spec("pip") is not None:
        return {"pip": wanted}
    path = os.pathsep.join([os.fspath(_UV), *filter(None, [os.environ.get(_PATH)])])
    # Ray's default is to keep no cache, which has everything fetched again for each job.
    return {"uv": {"packages": wanted, "uv_pip_install_options": []}, "env_vars": {_PATH: path}}


def with_packages(runtime_env: Mapping[str, Any], packages: Iterable[str]) -> dict[str, Any]:
    """Return an environment that has packages too."""
    more = environment_of(packages)
    merged = {**runtime_env, **more}
    variables = {**more.get("env_vars", {}), **runtime_env.get("env_vars", {})}
    return merged | ({"env_vars": variables} if variables else {})


def setup_failure(error: object) -> str:
    """Explain why an environment could not be built: the cause first, then the installer's output.

    Args:
        error: Ray's error: a trace of its own, with the output of the program that failed somewhere in it.
    """
    text = str(error)
    output = installers_output(text)
    lines = [line.strip() for line in (text if output is None else output).splitlines() if line.strip()]
    said = "" if output is None else "".join(f"\n  {line}" for line in lines[-_MOST_LINES:])
    return f"its environment could not be built: {_cause(lines)}{said}"


def _cause(lines: list[str]) -> str:
    for number, line in enumerate(lines):
        if line.startswith(_CAUSES):
            following = lines[number + 1] if number + 1 < len(lines) else ""
            if not following.startswith(_GOES_ON):
                return line
            more = following.removeprefix(_GOES_ON[1]).lstrip(f"{_BRANCH} ")
            return f"{line.removesuffix(':')}: {more}"
    return lines[-1] if lines else "Ray does not say why"
