"""How a job's replicas lie on the nodes: in one placement group, or in one for each TPU slice.

One placement group with a topology strategy is a whole slice or none of it: bundle i is on the host that
the TPU calls worker i, and no bundle is on a host of another slice. It holds the head resource of its
slice too, which is how other users of Ray's TPU support see that the slice is taken.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from ray.util.placement_group import PlacementGroup, placement_group

from fray.cluster import TpuConfig
from fray_ray._connection import cluster_resources
from fray_ray._head.nodes import Nodes
from fray_ray._plan import REGION, Plan, bundle_of, marked_by_hand
from fray_resources import tpu_topologies

_NODE = "ray.io/node-id"
_SLICE, _WORKER, _TYPE, _TOPOLOGY = (
    f"ray.io/tpu-{name}" for name in ("slice-name", "worker-id", "pod-type", "topology")
)
_MARKET, _SPOT = "ray.io/market-type", "spot"


Naming = Callable[[int], dict[str, str]]
"""Returns the name and the lifetime of a placement group by its number; nothing where it has none."""


class Layout(Protocol):
    """Where replicas go; a unit is a replica, or a slice of them."""

    bundle: Mapping[str, float]
    """What one replica reserves."""
    kind: str | None
    """What units it can use, where others wait for the like in one line; None where each asks alone."""

    def groups(self, units: int, without: frozenset[str], naming: Naming) -> Iterator[PlacementGroup]:
        """Ask for the places of so many units, on none of the nodes `without`; yield what was asked for."""

    def count(self, units: int) -> int:
        """Return how many placement groups so many units have."""

    def place(self, replica: int) -> tuple[int, int]:
        """Return which group, and which bundle of it, a replica is in."""

    def why_not(self, units: int, nodes: Nodes) -> str:
        """Say what was asked and what the cluster has."""


def layout_of(plan: Plan) -> Layout:
    """Return the layout that a plan's device asks for."""
    return SliceLayout(plan) if isinstance(plan.resources.device, TpuConfig) else BundleLayout(plan)


class BundleLayout:
    """Replicas on as few nodes as have room for them."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.bundle: Mapping[str, float] = bundle_of(plan.resources, cluster_resources())
        self.kind: str | None = None

    def groups(self, units: int, without: frozenset[str], naming: Naming) -> Iterator[PlacementGroup]:
        labels = {**self._plan.labels, **_not_on(without)}
        selector = [labels] * units if labels else None
        bundles = [dict(self.bundle)] * units
        yield placement_group(bundles, "PACK", bundle_label_selector=selector, **naming(0))

    def count(self, units: int) -> int:
        return 1

    def place(self, replica: int) -> tuple[int, int]:
        return 0, replica

    def acceptable(self, node: Mapping[str, Any]) -> bool:
        """Whether replicas may be on a node, by its labels."""
        return _in_region(self._plan, node)

    def why_not(self, units: int, nodes: Nodes) -> str:
        asked = ", ".join(f"{name}: {_amount(name, amount)}" for name, amount in self.bundle.items())
        where = "".join(f" with {name}={value}" for name, value in self._plan.labels.items())
        has = ", ".join(
            f"{name}: {_amount(name, nodes.free(name))} of {_amount(name, nodes.total(name))} free"
            for name in self.bundle
        )
        advice = ""
        if (mark := marked_by_hand(self.bundle)) is not None and not nodes.total(mark):
            advice = (
                f"; Ray gives {mark} to no node by itself: start nodes with --resources='{{\"{mark}\": 1}}'"
            )
        return f"waiting for room: {units} x ({asked}){where}; the cluster has {has}{advice}"


class SliceLayout:
    """Replicas that are the hosts of TPU slices."""

    def __init__(self, plan: Plan) -> None:
        assert isinstance(plan.resources.device, TpuConfig)
        self._plan, self._tpu = plan, plan.resources.device
        self.bundle: Mapping[str, float] = bundle_of(plan.resources, {})
        self.kind: str | None = json.dumps(self._labels(), sort_keys=True)

    def groups(self, units: int, without: frozenset[str], naming: Naming) -> Iterator[PlacementGroup]:
        hosts = range(self._tpu.hosts)
        head = {f"TPU-{self._tpu.type}-head": 1.0}
        bundles = [{**self.bundle, **(head if host == 0 else {})} for host in hosts]
        labels = {**self._labels(), **_not_on(without)}
        selectors = [{**labels, _WORKER: str(host)} for host in hosts]
        strategy = {_SLICE: "STRICT_PACK", _NODE: "STRICT_SPREAD"}
        for number in range(units):
            yield placement_group(
                bundles, bundle_label_selector=selectors, topology_strategy=strategy, **naming(number)
            )

    def count(self, units: int) -> int:
        return units

    def place(self, replica: int) -> tuple[int, int]:
        return divmod(replica, self._tpu.hosts)

    def free(self, without: frozenset[str], nodes: Nodes) -> int:
        """Return how many slices there are that nobody has, and that have no host on the nodes `without`."""
        return sum(self._is_free(slice_, without) for slice_ in self._found(nodes, of=_free))

    def slices(self, nodes: Nodes) -> tuple[tuple[str, ...], ...]:
        """Return the hosts of each slice that could be used, were nobody else there; by rank."""
        found = self._found(nodes, of=_total)
        usable = [slice_ for slice_ in found if self._is_free(slice_, frozenset())]
        return tuple(tuple(slice_[host][0] for host in range(self._tpu.hosts)) for slice_ in usable)

    def why_not(self, units: int, nodes: Nodes) -> str:
        ours = self._found(nodes, of=_free)
        whole = sum(len(slice_) >= self._tpu.hosts for slice_ in ours)
        free = sum(self._is_free(slice_, frozenset()) for slice_ in ours)
        broken = len(ours) - whole
        text = f"waiting for {units} x {self._tpu.type}{self._wishes()}; the cluster has {whole}, {free} free"
        text += f", and {broken} with hosts missing" if broken else ""
        return text if ours else f"{text}; its slices: {_slices_by_type(nodes)}"

    def _labels(self) -> dict[str, str]:
        labels = {_TYPE: self._tpu.type, **self._plan.labels}
        if self._tpu.topology != tpu_topologies(self._tpu.type)[0]:
            labels[_TOPOLOGY] = self._tpu.topology
        if not self._plan.resources.preemptible:
            labels[_MARKET] = f"!{_SPOT}"
        return labels

    def _wishes(self) -> str:
        labels = {name: value for name, value in self._labels().items() if name != _TYPE}
        needs = ", ".join(f"{name}: {_amount(name, amount)}" for name, amount in self.bundle.items())
        return "".join(f" with {name}={value}" for name, value in labels.items()) + f" (each host {needs})"

    def _found(
        self, nodes: Nodes, *, of: Callable[[dict[str, Any], dict[str, float]], dict[str, float]]
    ) -> list[dict[int, tuple[str, dict[str, float]]]]:
        """The slices that are what is asked for: of each its hosts by number, with what is `of` them."""
        slices: dict[str, dict[int, tuple[str, dict[str, float]]]] = {}
        for node, free in nodes.usable:
            labels = node["Labels"]
            if self._matches(node) and labels.get(_WORKER, "").isdigit():
                host = node["NodeID"], of(node, free)
                slices.setdefault(labels[_SLICE], {})[int(labels[_WORKER])] = host
        return list(slices.values())

    def _matches(self, node: dict[str, Any]) -> bool:
        labels, wanted = node["Labels"], self._labels()
        spot_is_fine = self._plan.resources.preemptible or labels.get(_MARKET) != _SPOT
        same = all(labels.get(name) == wanted[name] for name in (_TYPE, _TOPOLOGY) if name in wanted)
        return _SLICE in labels and same and spot_is_fine and _in_region(self._plan, node)

    def _is_free(self, slice_: dict[int, tuple[str, dict[str, float]]], without: frozenset[str]) -> bool:
        for host in range(self._tpu.hosts):
            node_id, free = slice_.get(host, ("", {}))
            if node_id in without or not _fits(self.bundle, free):
                return False
        return True


def _free(_: dict[str, Any], free: dict[str, float]) -> dict[str, float]:
    return free


def _total(node: dict[str, Any], _: dict[str, float]) -> dict[str, float]:
    return dict(node["Resources"])


def _not_on(nodes: frozenset[str]) -> dict[str, str]:
    return {_NODE: f"!in({','.join(sorted(nodes))})"} if nodes else {}


def _in_region(plan: Plan, node: Mapping[str, Any]) -> bool:
    regions = plan.resources.regions
    return regions is None or node["Labels"].get(REGION) in regions


def _fits(bundle: Mapping[str, float], free: Mapping[str, float]) -> int:
    return min(int(free.get(name, 0.0) / amount) for name, amount in bundle.items() if amount)


def _slices_by_type(nodes: Nodes) -> str:
    slices = {
        (node["Labels"].get(_TYPE, "unknown type"), node["Labels"][_SLICE])
        for node, _ in nodes.usable
        if _SLICE in node["Labels"]
    }
    types = sorted(kind for kind, _ in slices)
    return ", ".join(f"{types.count(kind)} x {kind}" for kind in dict.fromkeys(types)) or "none"


def _amount(name: str, amount: float) -> str:
    return f"{amount / 2**30:.1f} GiB" if name == "memory" else f"{amount:g}"
