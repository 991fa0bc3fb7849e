"""Forks the workers of a cluster of one machine, with what Ray imports of other libraries imported once.

`worker_setup.py`, by which a raylet starts a worker, hands its command, variables and descriptors to this
program. The fork does what the command says in the place of the process that the raylet started: Ray knows a
worker by what it registers with. Nothing of Ray is loaded before the fork, because Ray reads the variables of
a worker while it is loaded. What is shared is most of a worker's start: 0.33 of 0.6 s of CPU, and 0.58 of
0.91 s where it becomes the supervisor of a job (measured on 2026-11-27). As with every fork server, hashes
of strings are the same in all that it forks.
"""

import contextlib
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

_MOST_DESCRIPTORS = 253  # of one message: SCM_MAX_FD of Linux
_MOST_BYTES = 2**20  # more than a socket takes as one message: longer ones are refused where they are sent
# The program of a worker, and what it imports when it becomes the supervisor of a job.
_LOADED_BY_WORKERS = ("ray._private.workers.default_worker", "ray.dashboard.modules.job.job_supervisor")
# Read by Python itself, before the first line: a worker for which they differ is not to be forked.
_OF_PYTHON = ("PYTHON", "LD_")
_READ_LATER = "PYTHONBREAKPOINT"  # Ray sets it in a program that connects, and its later nodes have it


def start_fork_server(path: str) -> "subprocess.Popen[bytes]":
    """Start a fork server, which lives until it is killed or this process is gone. Read in Ray 2.60.

    Args:
        path: Of its socket; `worker_setup.py` looks for `SOCKET` in the folder that `RAY_TMPDIR` names.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(128)
        descriptor = listener.fileno()
        command = [sys.executable, __file__, path, str(descriptor)]
        # Its standard input ends with this process.
        return subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[descriptor])


def _main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # as Ray's own processes
    del sys.path[0]  # this folder, whose modules would be found by their bare names
    for name in _imported_by_ray():
        with contextlib.suppress(Exception):  # what fails here fails there, where it is seen
            importlib.import_module(name)
    gc.freeze()  # what is there now is never garbage: collections need not touch, and copy, its pages
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # a worker that has ended is gone at once
    _serve(socket.socket(fileno=int(sys.argv[-1])))
    runpy.run_path(sys.argv[0], run_name="__main__")


def _imported_by_ray() -> list[str]:
    """Return the modules beside Ray's own that workers load, as a process that loads them has them."""
    loads = f"import sys, {', '.join(_LOADED_BY_WORKERS)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", loads], capture_output=True, text=True, check=False)
    return [name for name in done.stdout.split() if name.partition(".")[0] not in ("__main__", "ray")]


def _serve(listener: socket.socket) -> None:
    """Return in each worker, as that worker. The server itself exits with the process that started it."""
    sources = select.poll()
    sources.register(listener, select.POLLIN)
    sources.register(sys.stdin, select.POLLIN)
    while True:
        if sys.stdin.fileno() in dict(sources.poll()):
            sys.exit(0)
        connection, _ = listener.accept()
        with connection:
            told, descriptors = _received(connection)
            child = os.fork() if told and _fits(told["environ"]) else None
            if child:
                with contextlib.suppress(OSError):  # the process that asked has been killed
                    connection.send(b"!")
        if child == 0:
            listener.close()
            _become(told, descriptors)
            return
        for descriptor in descriptors:
            os.close(descriptor)


def _received(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return what a process asks for; nothing where it was killed before it had asked."""
    try:
        message, descriptors, _, _ = socket.recv_fds(connection, _MOST_BYTES, _MOST_DESCRIPTORS)
    except OSError:
        return {}, []
    return json.loads(message or b"{}"), descriptors


def _fits(environ: dict[str, str]) -> bool:
    """Return whether Python has started here as it would with these variables."""
    names = {name for name in environ.keys() | os.environ.keys() if name.startswith(_OF_PYTHON)}
    names.discard(_READ_LATER)
    return all(environ.get(name) == os.environ.get(name) for name in names)


def _become(told: dict[str, Any], descriptors: list[int]) -> None:
    """Take over what the process that asked had: its descriptors, variables, group, folder and signals."""
    wanted = told["descriptors"]
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, max(wanted) + 1) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for descriptor, number in zip(moved, wanted, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.setpgid(0, 0)
    os.chdir(told["directory"])
    os.environ.clear()
    os.environ.update(told["environ"])
    sys.argv[:] = told["command"]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, told["blocked"])


if __name__ == "__main__":
    _main()
