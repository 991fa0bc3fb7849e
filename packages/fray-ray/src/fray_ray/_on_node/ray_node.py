"""The processes of one Ray node, as Ray starts them itself: `ray start`, which is public, takes 6 s.

Import it when the variables of the cluster are set: Ray reads them when it is imported.
"""

import contextlib
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from ray._private import services
from ray._private.node import Node
from ray._private.parameter import RayParams

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
        params = RayParams(
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
            dashboard_agent_listen_port=0,
            **place,
        )
        # No reaper, and nothing at exit: this process ends what it started.
        with _patience():
            self._node = Node(params, head=head is None, shutdown_at_exit=False, spawn_reaper=False)

    @property
    def head(self) -> str:
        """The head's `host:port`."""
        return str(self._node.gcs_address)

    def dead(self) -> list[str]:
        """Return the kinds of processes that have ended by themselves."""
        return [str(kind) for kind, _ in self._node.dead_processes()]  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """End its processes, and wait for them."""
        self._node.kill_all_processes(check_alive=False, allow_graceful=True, wait=True)


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    """Let a node take longer to register than Ray's thirty seconds, which a busy host may need."""
    look = services.get_node

    def wait_for_node(*given: Any) -> Any:
        deadline = time.monotonic() + _REGISTERS_WITHIN
        while True:
            try:
                return look(*given)  # type: ignore[no-untyped-call]
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    services.get_node = wait_for_node
    try:
        yield
    finally:
        services.get_node = look


def nodes_alive(address: str) -> int:
    """Return how many nodes have joined a cluster; this process is then connected to it."""
    if not ray.is_initialized():
        ray.init(address, log_to_driver=False, logging_level=logging.WARNING)
    return sum(bool(node["Alive"]) for node in ray.nodes())  # type: ignore[no-untyped-call]


def disconnect() -> None:
    """Leave the cluster."""
    ray.shutdown()
