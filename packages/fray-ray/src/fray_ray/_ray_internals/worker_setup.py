"""Sets up a worker, as Ray's `setup_worker.py` does, without an import of Ray.

A raylet starts every worker by a program that sets variables and then becomes the worker. Ray's own imports
all of Ray for that, which is half of the 1.1 s of CPU that a worker's start takes (measured on 2026-11-26). A
worker that needs more than variables is left to Ray's own. Where there is a fork server, the worker is forked
(`worker_fork_server.py`), and takes a third of that.
"""

import json
import os
import sys
from typing import Any

SETUP_WORKER = __file__
"""What `setup_worker_path` of a node is to be. Read in Ray 2.60.

A raylet leaves out a program of the name that Ray's has where it would have nothing to do.
"""
SOCKET = "fork_server"
"""The name of a fork server's socket, in the folder that `RAY_TMPDIR` names."""
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
        if _forked(command):
            return
    os.execv(sys.executable, [sys.executable, *command])  # noqa: S606


def _forked(command: list[str]) -> bool:
    """Have the fork server become the worker; False where there is none, or where it does not fit."""
    import signal
    import socket

    names = os.listdir("/proc/self/fd")  # noqa: PTH208 - pathlib is large
    descriptors = [int(name) for name in names if _is_inherited(int(name))]
    told = {
        "command": command,
        "environ": dict(os.environ),
        "directory": os.getcwd(),  # noqa: PTH109
        "descriptors": descriptors,
        "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            connection.connect(f"{os.environ['RAY_TMPDIR']}/{SOCKET}")
            socket.send_fds(connection, [json.dumps(told).encode()], descriptors)
            return bool(connection.recv(1))
        except (KeyError, OSError):  # OSError: also where there is more than one message holds
            return False


def _is_inherited(descriptor: int) -> bool:
    try:
        return os.get_inheritable(descriptor)
    except OSError:  # that by which the folder was listed
        return False


def _rays_own() -> str:
    from importlib.util import find_spec  # few workers need it

    spec = find_spec("ray")  # which does not import Ray
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("Ray is not installed for the Python of its workers")
    return f"{os.path.dirname(spec.origin)}/_private/workers/setup_worker.py"  # noqa: PTH120 - pathlib is large


if __name__ == "__main__":
    _main(sys.argv[1:])
