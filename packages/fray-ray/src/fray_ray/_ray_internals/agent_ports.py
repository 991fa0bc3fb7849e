"""Ports for the agents of a node, so that its raylet need not wait for them to choose."""

import contextlib
from collections.abc import Iterator
from typing import Any

from ray._private import services

from fray.backend import HeldPorts
from fray_ray._local_ports import await_listener

_LISTENS = "dashboard_agent_listen_port"
_AGENTS = ("metrics_agent_port", "metrics_export_port", "runtime_env_agent_port", _LISTENS)


@contextlib.contextmanager
def agent_ports(held: HeldPorts) -> Iterator[dict[str, Any]]:
    """Give the parameters of a node that say where its agents listen, while it is started. Read in Ray 2.60.

    A raylet whose agents choose by themselves waits 15 s for each of them to write its port down, and aborts:
    a busy machine takes longer to start a Python program. Ray passes all ports on to its raylet but one.

    Args:
        held: Keeps them for these agents, which listen a while after their node was started.
    """
    ports = dict(zip(_AGENTS, held.take(len(_AGENTS)), strict=True))
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
    await_listener("Ray's agent", ports[_LISTENS], patience)
