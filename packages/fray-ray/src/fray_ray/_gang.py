"""The room of a job: one placement group, which gives every replica its place or none.

A gang of TPU hosts is the same with other bundles and labels (`topology_strategy`), restarted as a whole.
"""

import socket
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from fray_ray._connection import cluster_resources
from fray_ray._host import ReplicaHost
from fray_ray._requests import Plan, bundle_of, remote_options

_ANSWERS_WITHIN = 1.0  # seconds


class Gang:
    """The placement group and the actors in it."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._bundle = bundle_of(plan.resources, cluster_resources())
        self._group: PlacementGroup | None = placement_group(
            [dict(self._bundle)] * plan.replicas,
            strategy="PACK",
            bundle_label_selector=[dict(plan.labels)] * plan.replicas if plan.labels else None,
        )
        self._hosts: dict[int, Any] = {}

    def placed(self, timeout: float) -> bool:
        """Wait, at most so long, until every replica has its place."""
        return self._group is not None and bool(self._group.wait(timeout))

    def why_not_placed(self) -> str:
        """Say what was asked and what the cluster has."""
        asked = ", ".join(f"{name}: {_amount(name, amount)}" for name, amount in self._bundle.items())
        where = "".join(f" with {name}={value}" for name, value in self._plan.labels.items())
        total, free = cluster_resources(), dict(ray.available_resources())  # type: ignore[no-untyped-call]
        names = list(self._bundle)
        has = ", ".join(
            f"{name}: {_amount(name, free.get(name, 0))} of {_amount(name, total.get(name, 0))} free"
            for name in names
        )
        return f"waiting for room: {self._plan.replicas} x ({asked}){where}; the cluster has {has}"

    def host(self, replica: int) -> Any:
        """Make the actor that runs a replica, in its place; one that was there before is ended."""
        assert self._group is not None
        self.release(replica)
        options = remote_options(self._bundle)
        if self._plan.pip:
            options["runtime_env"] = {"pip": list(self._plan.pip)}
        host = ray.remote(ReplicaHost).options(
            **options,
            max_concurrency=2,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, replica),
        )
        self._hosts[replica] = host.remote()
        return self._hosts[replica]

    def release(self, replica: int) -> None:
        """End the actor of a replica, and what it runs."""
        host = self._hosts.pop(replica, None)
        if host is not None:
            ray.kill(host)

    def close(self) -> None:
        """End all actors and give back the room."""
        for replica in list(self._hosts):
            self.release(replica)
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None


def node_is_gone(node_id: str | None) -> bool:
    """Whether a node has left the cluster; asks the node itself too, because the head notices late."""
    node = _nodes().get(node_id or "")
    if node is None:
        return False
    return not node["Alive"] or not _answers(node["NodeManagerAddress"], node["NodeManagerPort"])


def loss_is_known(node_id: str | None) -> bool:
    """Whether the head knows that a node is gone; until then it places work there."""
    node = _nodes().get(node_id or "")
    return node is None or not node["Alive"]


def _nodes() -> dict[str, Any]:
    return {node["NodeID"]: node for node in ray.nodes()}  # type: ignore[no-untyped-call]


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=_ANSWERS_WITHIN).close()
    except OSError:
        return False
    return True


def _amount(name: str, amount: float) -> str:
    return f"{amount / 2**30:.1f} GiB" if name == "memory" else f"{amount:g}"
