"""Sets up a worker, as Ray's program of this name does, without an import of Ray.

A raylet starts every worker by a program that sets variables and then becomes the worker. Ray's own imports
all of Ray for that, which is half of the 1.1 s of CPU that a worker's start takes (measured on 2026-11-26). A
worker that needs more than variables is left to Ray's own.
"""

import json
import os
import sys
from typing import Any

SETUP_WORKER = __file__
"""What `setup_worker_path` of a node is to be. Read in Ray 2.60."""
_CONTEXT, _LANGUAGE = "--serialized-runtime-env-context=", "--language="
# What Ray says where there is nothing to do but to set variables.
_NOTHING_MORE: dict[str, Any] = {
    "command_prefix": [],
    "java_jars": [],
    "override_worker_entrypoint": None,
    "py_executable": sys.executable,
}


def _main(arguments: list[str]) -> None:
    """Become the worker whose command and environment the arguments say."""
    told = {_CONTEXT: "{}", _LANGUAGE: "PYTHON"}
    command = []
    for argument in arguments:
        name = next((name for name in told if argument.startswith(name)), None)
        if name is None:
            command.append(argument)
        else:
            told[name] = argument.removeprefix(name)
    context = json.loads(told[_CONTEXT])
    variables = context.pop("env_vars", None) or {}
    expands = any("$" in value for value in variables.values())
    if expands or told[_LANGUAGE] != "PYTHON" or {**_NOTHING_MORE, **context} != _NOTHING_MORE:
        command = [_rays_own(), *arguments]
    else:
        os.environ.update(variables)
    os.execv(sys.executable, [sys.executable, *command])  # noqa: S606


def _rays_own() -> str:
    from importlib.util import find_spec  # few workers need it

    spec = find_spec("ray")  # which does not import Ray
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("Ray is not installed for the Python of its workers")
    return f"{os.path.dirname(spec.origin)}/_private/workers/setup_worker.py"  # noqa: PTH120 - pathlib is large


if __name__ == "__main__":
    _main(sys.argv[1:])
