"""The nodes and placement groups of a Ray that does not run, for jobs that wait for room."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import ray
from head_in_memory import plan_of

from fray.cluster import ResourceConfig, TpuConfig
from fray_ray._head.job import new_machine
from fray_ray._head.job_board import JobBoard
from fray_ray._head.record import JobRecord
from fray_ray._head.reservation import Reservation
from fray_ray._plan import Plan, hosts_of

HEAD = "fray_ray._head"


@dataclass(eq=False)
class Group:
    """A placement group; the test grants it. `avoids` are the nodes that none of its places may be on."""

    number: int
    bundles: list[dict[str, float]]
    avoids: frozenset[str]
    state: str = "PENDING"
    nodes: tuple[str, ...] = ()

    @property
    def id(self) -> Any:
        return self

    def hex(self) -> str:
        return str(self.number)


@dataclass
class RoomInMemory:
    """What jobs find instead of Ray: it has nodes, counts the looks at them, and grants nothing by itself.

    `on_look` is called once, at the next look at the nodes; to remove what is in `kept` raises, once each.
    """

    nodes: list[dict[str, Any]] = field(default_factory=list)
    free: dict[str, dict[str, float]] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)
    looks: int = 0
    on_look: Callable[[], object] = str
    kept: set[int] = field(default_factory=set)

    def replace_ray(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Answer in the place of Ray."""
        monkeypatch.setattr(ray, "nodes", self._nodes)
        monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 1.0})
        monkeypatch.setattr(f"{HEAD}.nodes.free_resources_of_nodes", lambda: self.free)
        monkeypatch.setattr(f"{HEAD}.nodes.draining_nodes", dict)
        monkeypatch.setattr(f"{HEAD}.placement.placement_group", self._group)
        monkeypatch.setattr(f"{HEAD}.reservation.placement_group_table", self._table)
        monkeypatch.setattr(f"{HEAD}.reservation.remove_placement_group", self._remove)

    def add_node(
        self, name: str, amounts: Mapping[str, float], labels: Mapping[str, str] | None = None
    ) -> None:
        """Add a node on which all is free."""
        node = {"NodeID": name, "Alive": True, "Resources": dict(amounts), "Labels": dict(labels or {})}
        self.nodes.append(node)
        self.free[name] = dict(amounts)

    def add_slice(self, name: str, kind: str = "v4-16") -> None:
        """Add the hosts of a slice."""
        for rank in range(TpuConfig(kind).hosts):
            labels = {"slice-name": name, "worker-id": str(rank), "pod-type": kind}
            amounts = {"CPU": 2.0, "memory": 2.0**33, "TPU": 4.0}
            self.add_node(
                f"{name}-{rank}", amounts, {f"ray.io/tpu-{key}": label for key, label in labels.items()}
            )

    def grant(self, groups: Iterable[Group], nodes: Iterable[str] = ()) -> None:
        """Have placement groups get their places."""
        for group in groups:
            group.state, group.nodes = "CREATED", tuple(nodes)

    def pending(self) -> list[Group]:
        return [group for group in self.groups if group.state == "PENDING"]

    def living(self) -> list[Group]:
        return [group for group in self.groups if group.state != "REMOVED"]

    def _nodes(self) -> list[dict[str, Any]]:
        self.looks += 1
        act, self.on_look = self.on_look, str
        act()
        return list(self.nodes)

    def _group(
        self,
        bundles: list[dict[str, float]],
        *_: Any,
        bundle_label_selector: list[dict[str, str]] | None = None,
        **__: Any,
    ) -> Group:
        told = (bundle_label_selector or [{}])[0].get("ray.io/node-id", "")
        avoids = frozenset(told.removeprefix("!in(").removesuffix(")").split(",")) - {""}
        self.groups.append(Group(len(self.groups), bundles, avoids))
        return self.groups[-1]

    @staticmethod
    def _table(group: Group) -> dict[str, Any]:
        return {"state": group.state, "bundles_to_node_id": dict(enumerate(group.nodes))}

    def _remove(self, group: Group) -> None:
        if group.number in self.kept:
            self.kept.discard(group.number)
            raise RuntimeError("the head is away for a moment")
        group.state = "REMOVED"


def gang_on_slices(job_id: str, *choices: int, at: float = 1.0, kind: str = "v4-16") -> Plan:
    """Return the plan of a gang for slices."""
    resources = ResourceConfig(device=TpuConfig(kind), replicas=choices)
    return plan_of(
        job_id, submitted_at=at, resources=resources, choices=choices, hosts=hosts_of(resources), gang=True
    )


def reservation_of(plan: Plan, *, avoid: Iterable[str] = ()) -> Reservation:
    """Return the reservation of a job that is in no table."""
    record = JobRecord(machine=new_machine(plan), avoid=list(avoid))
    return Reservation(plan, JobBoard(plan, record, listed=False), {})
