"""What a cluster of several nodes on one machine needs, beside `ray.cluster_utils`."""

import time
from collections.abc import Iterable
from typing import Any
from unittest import mock

import ray
from ray._private import ray_constants
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.core.generated import autoscaler_pb2

KEEPS_LOOPBACK: str = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
"""The variable that is `0` where a cluster stays on one machine, for the processes of Ray. Read in Ray 2.60.

Ray turns a loopback address into the machine's own, unless it is configured for only one.
"""
STORE = "RAY_REDIS_ADDRESS"
"""The variable with the host and port of the Redis that keeps the state of a head. Read in Ray 2.60."""


def keeping_loopback() -> Any:
    """Return what has this process keep loopback addresses while it is started. Read in Ray 2.60."""
    return mock.patch.object(ray_constants, "ENABLE_RAY_CLUSTER", False)


def is_rays(command: list[str], directory: str) -> bool:
    """Return whether a command is of Ray's, for a cluster with its files in a directory. Read in Ray 2.60.

    A worker has the directory in its command until it has registered, and then a title. The modules of the
    dashboard are forked from a server whose command has their names, and so has the title of each.
    """
    return any(
        directory in word or word.startswith("ray::") or "ray.dashboard.subprocesses" in word
        for word in command
    )


def nodes_known_alive(head: str, node_ids: Iterable[str], timeout: float) -> list[bool]:
    """Return of each node whether the head takes it for alive. Read in Ray 2.60."""
    asked = [ray.NodeID.from_hex(node_id) for node_id in node_ids]
    return list(GcsClient(address=head).check_alive(asked, timeout=timeout))


def announce_preemption(head: str, node_id: str, seconds: float) -> None:
    """Have the head drain a node, as clouds and autoscalers do before they take it away. Read in Ray 2.60.

    Args:
        seconds: How long the node has left.

    Raises:
        RuntimeError: Ray does not do it.
    """
    reason = autoscaler_pb2.DrainNodeReason.Value(  # type: ignore[attr-defined]
        "DRAIN_NODE_REASON_PREEMPTION"
    )
    deadline = int((time.time() + seconds) * 1000)
    accepted, why = GcsClient(address=head).drain_node(node_id, reason, "preempted", deadline)
    if not accepted:
        raise RuntimeError(f"Ray does not drain node {node_id}: {why}")


def restart_gcs(node: Any) -> None:
    """Kill the GCS of a head with SIGKILL, and start another at its port. Read in Ray 2.60.

    Args:
        node: The head of a `ray.cluster_utils.Cluster`, with a port for its GCS and a Redis for the state.
    """
    node.kill_gcs_server()
    node.start_gcs_server()
