"""What becomes of nodes: which live, which are drained, and which are gone before Ray knows it."""

import asyncio
import contextlib
import socket
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import ray

from fray_ray._ray_internals.nodes import draining_nodes, free_resources_of_nodes

_ANSWERS_WITHIN = 1.0  # seconds
_TRIES = 3  # of a node that does not answer: it may be busy, or its network
_ASKED_AT_ONCE = 32
_NO_DEADLINE = 30.0  # seconds, what clouds give a machine from the notice to its end


def gone_of(node_ids: Iterable[str]) -> set[str]:
    """Return those nodes that have left the cluster; asks each itself, because the head notices late."""
    nodes = living_and_dead()
    asked = [nodes[node_id] for node_id in dict.fromkeys(node_ids) if node_id in nodes]
    if not asked:
        return set()
    with ThreadPoolExecutor(min(len(asked), _ASKED_AT_ONCE)) as pool:
        found = list(pool.map(_is_gone, asked))
    return {node["NodeID"] for node, gone in zip(asked, found, strict=True) if gone}


def living_nodes() -> frozenset[str]:
    """Return the nodes that the head takes for living, and places work on."""
    return frozenset(name for name, node in living_and_dead().items() if node["Alive"])


def is_drained(node_id: str | None) -> bool:
    """Whether a node is drained; programs on it get notice, and may end because of it."""
    return node_id in draining_nodes()


def draining() -> dict[str, float]:
    """Return the nodes that are drained, each with the seconds that it has left."""
    told = draining_nodes().items()
    return {
        node_id: max(0.0, deadline / 1000 - time.time()) if deadline else _NO_DEADLINE
        for node_id, deadline in told
    }


async def watch_draining(jobs: Callable[[], Iterable[Any]], every: float) -> None:
    """Give jobs notice of the nodes that are drained, for ever.

    Args:
        every: Seconds between looks.
    """
    while True:
        noticed = list(jobs())
        leaving: dict[str, float] = {}
        with contextlib.suppress(Exception):  # the head is away for a moment
            leaving = draining() if noticed else {}
        for job in noticed if leaving else ():
            try:
                job.notice(leaving)
            except Exception:  # noqa: BLE001 - what one job cannot take is not kept from the others
                traceback.print_exc()
        await asyncio.sleep(every)


def living_and_dead() -> dict[str, dict[str, Any]]:
    """Return all nodes that the cluster has had, as Ray describes them."""
    return {node["NodeID"]: node for node in ray.nodes()}  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Nodes:
    """The nodes at one moment.

    Args:
        usable: Those that live and were not asked to go, each with what is free on it.
        living: The ids of all that the head takes for living.
    """

    usable: tuple[tuple[dict[str, Any], dict[str, float]], ...]
    living: frozenset[str]

    def total(self, resource: str) -> float:
        """Return how much of a resource they have."""
        return float(sum(node["Resources"].get(resource, 0.0) for node, _ in self.usable))

    def free(self, resource: str) -> float:
        """Return how much of a resource is free on them."""
        return float(sum(free.get(resource, 0.0) for _, free in self.usable))


def nodes_now() -> Nodes:
    """Ask Ray which nodes there are."""
    free = free_resources_of_nodes()
    leaving = draining_nodes()
    living = [node for node in living_and_dead().values() if node["Alive"]]
    return Nodes(
        usable=tuple(
            (node, dict(free.get(node["NodeID"], {}))) for node in living if node["NodeID"] not in leaving
        ),
        living=frozenset(node["NodeID"] for node in living),
    )


def _is_gone(node: dict[str, Any]) -> bool:
    if not node["Alive"]:
        return True
    address = node["NodeManagerAddress"], node["NodeManagerPort"]
    for _ in range(_TRIES):
        try:
            socket.create_connection(address, timeout=_ANSWERS_WITHIN).close()
        except ConnectionRefusedError:  # the machine answers, and its raylet has ended
            return True
        except OSError:
            continue
        return False
    return True
