"""The actor that runs a replica on its node: a fresh process per attempt, its output as a stream."""

import contextlib
import json
import os
import random
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from ray._private.ray_constants import RAY_ADDRESS_ENVIRONMENT_VARIABLE, RAY_INTERNAL_FLAGS

from fray.backend import runner
from fray_ray._on_node.notices import NoticeWatch
from fray_ray._placement import VARIABLE, current_placement_group

_RUNNER = runner.__file__
_SUPERVISOR = (
    "import sys; sys.path[:] = sys.argv[1:]; from fray_ray._on_node.process_supervisor import main; main()"
)
_CHUNK = 1 << 16
_LOOK = 1.0  # seconds between looks for a notice
_PORTS = range(20000, 32000)
_TIME_TO_SAVE = 5.0  # seconds from SIGTERM to SIGKILL for a host of a gang whose node is being ended
_JAX, _OMP = "JAX_PLATFORMS", "OMP_NUM_THREADS"


class ReplicaActor:
    """Two calls run at a time: `run`, and the `stop` that ends it."""

    def __init__(self) -> None:
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._stopped: float | None = None

    def node_id(self) -> str:
        """Return the id of the node; that it answers shows that the environment is built."""
        return str(ray.get_runtime_context().get_node_id())

    def run(self, plan: dict[str, Any], payload: bytes | None) -> Iterator[bytes | str | dict[str, Any]]:
        """Run one attempt; yield its output as bytes, notices as text, at last the verdict."""
        told = self._complete(plan, payload)
        with subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _SUPERVISOR, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
        ) as self._supervisor:
            assert self._supervisor.stdout is not None
            assert self._supervisor.stderr is not None
            self._tell(json.dumps(told))
            if self._stopped is not None:
                self._tell(f"stop {self._stopped}")
            watch = NoticeWatch() if plan["gang"] else None
            while True:
                ready, _, _ = select.select(
                    [self._supervisor.stdout], [], [], None if watch is None else _LOOK
                )
                if ready:
                    if not (chunk := os.read(self._supervisor.stdout.fileno(), _CHUNK)):
                        break
                    yield chunk
                if watch is not None and (notice := watch.news()):
                    yield notice
            verdict = self._supervisor.stderr.read()
        yield json.loads(verdict) if verdict.startswith(b"{") else {"lost": verdict.decode(errors="replace")}

    def free_ports(self, count: int) -> list[int]:
        """Return different ports on which nobody listens on this node now."""
        # Below the range that Linux takes the ports of outgoing connections from: a program that connects
        # before its peer listens could else be given that very port, and talk to itself.
        found: list[int] = []
        for port in random.sample(_PORTS, len(_PORTS)):
            if len(found) == count:
                break
            with socket.socket() as probe, contextlib.suppress(OSError):
                probe.bind(("", port))
                found.append(port)
        return found

    def stop(self, grace: float) -> None:
        """End the attempt that runs, or will."""
        self._stopped = grace
        if self._supervisor is not None:
            self._tell(f"stop {grace}")

    def _tell(self, line: str) -> None:
        assert self._supervisor is not None
        assert self._supervisor.stdin is not None
        try:
            self._supervisor.stdin.write(line.encode() + b"\n")
            self._supervisor.stdin.flush()
        except (BrokenPipeError, ValueError):  # it has ended meanwhile
            return

    def _complete(self, plan: dict[str, Any], payload: bytes | None) -> dict[str, Any]:
        """Fill in what only this node knows: the interpreter, the variables, the place of the payload."""
        python, private, result = sys.executable, None, None
        if payload is not None:
            private = tempfile.mkdtemp(prefix="fray-")
            place = Path(private) / "payload.pkl"
            place.write_bytes(payload)
            command = [python, _RUNNER, os.fspath(place)]
            if plan["returns"]:
                result = os.fspath(Path(private) / "result.pkl")
                command.append(result)
        else:
            program, *words = plan["command"]
            command = [python if program in ("python", "python3") else program, *words]
        environ = _environ(plan, python)
        return {
            "command": command,
            "cwd": plan["cwd"] or os.fspath(Path.cwd()),
            "environ": environ,
            "private": private,
            "result": result,
            "orphan_grace": _TIME_TO_SAVE if plan["gang"] else 0.0,
        }


def _environ(plan: dict[str, Any], python: str) -> dict[str, str]:
    environ = {
        name: value
        for name, value in os.environ.items()
        # The platform's word on several slices is not the gang's, which says its own where there are some.
        if name not in RAY_INTERNAL_FLAGS and not name.startswith("MEGASCALE_")
    }
    folder = os.fspath(Path(python).parent)
    environ["PATH"] = os.pathsep.join([folder, environ.get("PATH") or os.defpath])
    if sys.prefix != sys.base_prefix:
        environ["VIRTUAL_ENV"] = sys.prefix
    environ["PYTHONUNBUFFERED"] = "1"
    environ[RAY_ADDRESS_ENVIRONMENT_VARIABLE] = ray.get_runtime_context().gcs_address
    if not plan["accelerated"]:
        environ[_JAX] = "cpu"  # so that importing JAX does not claim what was not asked for
    elif environ.get(_JAX) == "cpu":
        del environ[_JAX]
    if (
        environ.get(_OMP) == "1"
    ):  # what Ray says to an actor that holds no CPU; the replica has those of its place
        environ[_OMP] = str(max(1, int(plan["cpus"])))
    group = current_placement_group()
    if group is not None:
        environ[VARIABLE] = group.id.hex()
    environ.update(plan["environ"])
    return environ
