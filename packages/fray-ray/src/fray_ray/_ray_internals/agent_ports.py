"""Ports for the agents of a node, so that its raylet need not wait for them to choose."""

import contextlib
import random
import socket
import time
from collections.abc import Iterator
from typing import Any

from ray._private import services

# Below those that the kernel gives to connections: a port that is free stays free until its agent takes it.
_PORTS = range(20_000, 32_000)
_LISTENS = "dashboard_agent_listen_port"
_AGENTS = ("metrics_agent_port", "metrics_export_port", "runtime_env_agent_port", _LISTENS)


@contextlib.contextmanager
def agent_ports() -> Iterator[dict[str, Any]]:
    """Give the parameters of a node that say where its agents listen, while it is started. Read in Ray 2.60.

    A raylet whose agents choose by themselves waits 15 s for each of them to write its port down, and aborts:
    a busy machine takes longer to start a Python program. Ray passes all ports on to its raylet but one.
    """
    chosen: list[int] = []
    while len(chosen) < len(_AGENTS):
        port = random.choice(_PORTS)  # noqa: S311 - nodes that start at the same time choose different ones
        if port not in chosen and _is_free(port):
            chosen.append(port)
    ports = dict(zip(_AGENTS, chosen, strict=True))
    start: Any = services.start_ray_process

    def start_process(command: list[str], process_type: str, *args: Any, **more: Any) -> Any:
        if process_type == "raylet":
            command = [*command, f"--{_LISTENS}={ports[_LISTENS]}"]
        return start(command, process_type, *args, **more)

    services.start_ray_process = start_process
    try:
        yield ports
    finally:
        services.start_ray_process = start


def await_agent(ports: dict[str, Any], patience: float = 300.0) -> None:
    """Wait until a node's agent answers at its port: until then the head takes no job. Read in Ray 2.60.

    Raises:
        TimeoutError: It did not within `patience` seconds. One whose port was taken meanwhile never does.
    """
    address = ("127.0.0.1", ports[_LISTENS])
    deadline = time.monotonic() + patience
    while True:
        try:
            with socket.create_connection(address, 5.0):
                return
        except OSError as error:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"Ray's agent did not answer at {address} within {patience:.0f} s"
                ) from error
        time.sleep(0.05)


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        try:
            sock.bind(("", port))
        except OSError:
            return False
    return True
