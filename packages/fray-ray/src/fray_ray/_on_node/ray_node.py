"""One node of a Ray cluster, with the address, the files and the ports of its own.

Import it when the variables of the cluster are set: Ray reads them when it is imported.
"""

import logging
from pathlib import Path
from typing import Any

import ray

from fray.backend import HeldPorts
from fray_ray._ray_internals.agent_ports import agent_ports
from fray_ray._ray_internals.node_processes import dead_processes, end_node, start_node

_LEAST_STORE = 80 << 20  # bytes; Ray takes no smaller object store
_REGISTERS_WITHIN = 150.0  # seconds
_SHARE_OF_STORE = 0.3  # of a node's memory, as Ray has it


class RayNode:
    """One node, as children of this process.

    Args:
        own: The address of this host in the network of the cluster.
        head: The head's `host:port`; None for the head itself.
        files: Where it keeps its files and sockets: a short path.
    """

    def __init__(self, own: str, head: str | None, *, files: Path, cpus: int, memory: int, gpus: int) -> None:
        place: dict[str, Any] = {"gcs_address": head, "include_log_monitor": False}
        if head is None:
            place = {"gcs_server_port": 0, "include_dashboard": False}
        self._ports = HeldPorts()
        with agent_ports(self._ports) as ports:
            self._node = start_node(
                head=head is None,
                registers_within=_REGISTERS_WITHIN,
                node_ip_address=own,
                temp_dir=str(files),
                num_cpus=cpus,
                num_gpus=gpus,
                memory=memory,
                object_store_memory=max(_LEAST_STORE, int(memory * _SHARE_OF_STORE)),
                # Ports that are free: this host may run other Rays.
                node_manager_port=0,
                min_worker_port=0,
                max_worker_port=0,
                **ports,
                **place,
            )

    @property
    def head(self) -> str:
        """The head's `host:port`."""
        return str(self._node.gcs_address)

    def dead(self) -> list[str]:
        """Return the kinds of processes that have ended by themselves."""
        return dead_processes(self._node)

    def close(self) -> None:
        """End its processes, and wait for them."""
        end_node(self._node)
        self._ports.close()


def nodes_alive(address: str) -> int:
    """Return how many nodes have joined a cluster; this process is then connected to it."""
    if not ray.is_initialized():
        ray.init(address, log_to_driver=False, logging_level=logging.WARNING)
    return sum(bool(node["Alive"]) for node in ray.nodes())  # type: ignore[no-untyped-call]


def disconnect() -> None:
    """Leave the cluster."""
    ray.shutdown()
