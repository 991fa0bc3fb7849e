"""The room of a job: a place for every replica or for none, and the actors that run them there.

Those of a job outlive its driver, by names: another driver takes them up.
"""

import random
import secrets
import time
from collections.abc import Iterable
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from fray_ray._head.job_state import Progress
from fray_ray._head.line_tickets import Line
from fray_ray._head.nodes import loss_is_known
from fray_ray._head.outliving import LEASE, NAMESPACE, group_name, group_named, named_host
from fray_ray._head.placement import layout_of
from fray_ray._head.record import HostRecord
from fray_ray._installing import environment_of
from fray_ray._on_node.replica_actor import ReplicaActor
from fray_ray._options import ray_resources
from fray_ray._plan import Plan

_POLL, _COUNTS_EVERY = 0.05, 1.0  # seconds
# Two gangs that are not in one line (another region, say) and each hold one of the slices that the other
# waits for would wait for ever: each lets go after a time, and asks again after another, which differ.
_HOLDS_FOR, _LETS_GO_FOR = (60.0, 120.0), (0.5, 5.0)
_CALLS = 8  # that an actor has at a time: two drivers may wait for its events, and others ask it to stop
_LETS_GO_AFTER = 3  # looks in a row that say that its turn has not come: what Ray says of slices lags behind


class Reservation:
    """Placement groups, and the actors in them.

    Args:
        progress: Where the room and the actors are noted for another driver; without it they end with this
            process.
    """

    def __init__(self, plan: Plan, progress: Progress | None = None) -> None:
        self._progress = progress if progress is not None and progress.kept else None
        self._plan, self._layout = plan, layout_of(plan)
        self._units = plan.choices[0]
        self._groups: list[PlacementGroup] = []
        self._hosts: dict[int, Any] = {}
        self._lost: set[str] = set()
        self._holds_until: float | None = None
        self._asks_again_at = self._counts_again_at = 0.0
        kind = self._layout.kind
        self._line = None if kind is None else Line(plan.submitted_at, plan.submission, kind, plan.choices)
        self._not_its_turn = 0
        if self._progress is not None:
            self._take_up(self._progress)

    def _take_up(self, progress: Progress) -> None:
        """Take up the room that a driver which was killed had asked for; what is not whole is given back."""
        record = progress.record
        self._lost = set(record.avoid)
        if not record.units:
            return
        self._units = record.units
        names = [self._name(number) for number in range(self._layout.count(record.units))]
        found = [group_named(name) for name in names]
        self._groups = [group for group in found if group is not None]
        if record.leaving:
            self._give_back()
        elif len(self._groups) < len(found):  # the actors are asked what has become of their attempts
            self._remove_groups()

    @property
    def units(self) -> int:
        """How many units, of those acceptable, are asked for now: slices, or replicas."""
        return self._units

    @property
    def replicas(self) -> int:
        """How many replicas that makes."""
        return self._units * self._plan.hosts

    def avoid(self, nodes: set[str]) -> None:
        """Take no place on nodes that are lost, or about to be, which Ray may not know yet."""
        self._lost |= nodes
        if self._progress is not None:
            with self._progress.recording() as record:
                record.avoid = sorted(self._lost)

    def placed(self, timeout: float) -> bool:
        """Wait, at most so long, until every replica has its place."""
        deadline = time.monotonic() + timeout
        while True:
            if self._ask():
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(min(_POLL, timeout))

    def why_not_placed(self) -> str:
        """Say what was asked and what the cluster has."""
        return self._layout.why_not(self._units)

    def intact(self) -> bool:
        """Whether every replica still has its place."""
        return bool(self._groups) and self._placed() == len(self._groups)

    def nodes(self) -> dict[int, str]:
        """Return the node of each replica that is placed."""
        tables = [_table(group)["bundles_to_node_id"] for group in self._groups]
        places = {replica: self._layout.place(replica) for replica in range(self.replicas)}
        return {replica: tables[group].get(bundle, "") for replica, (group, bundle) in places.items()}

    def host(self, replica: int) -> Any:
        """Make the actor that runs a replica, in its place; one that was there before is ended."""
        return self.hosts([replica])[replica]

    def hosts(self, replicas: Iterable[int]) -> dict[int, Any]:
        """Make the actors that run replicas, each in its place; those that were there before are ended."""
        wanted = list(replicas)
        for replica in wanted:
            self.release(replica)
        named = self._named(wanted)
        made = {replica: self._make(replica, named.get(replica)) for replica in wanted}
        self._hosts |= made
        return made

    def _named(self, replicas: list[int]) -> dict[int, str]:
        """Note the names of actors before there are any: none is left that nobody knows."""
        if self._progress is None:
            return {}
        nodes = self.nodes()
        names = {replica: f"{self._plan.submission}.{replica}.{secrets.token_hex(4)}" for replica in replicas}
        with self._progress.recording() as record:
            for replica, name in names.items():
                record.hosts[replica] = HostRecord(name=name, node=nodes.get(replica, ""))
        return names

    def _make(self, replica: int, name: str | None) -> Any:
        group, bundle = self._layout.place(replica)
        # CPUs and memory are the replica's by the reservation; the actor leaves them to tasks of the replica.
        held = {name: amount for name, amount in self._layout.bundle.items() if name not in ("CPU", "memory")}
        options = {"num_cpus": 0, **ray_resources(held)}
        if self._plan.pip:
            options["runtime_env"] = environment_of(self._plan.pip)
        if name is not None:
            options |= {"name": name, "namespace": NAMESPACE, "lifetime": "detached"}
        actor = ray.remote(ReplicaActor).options(
            **options,
            max_concurrency=_CALLS,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._groups[group], bundle),
        )
        return actor.remote(None if name is None else LEASE)

    def recorded(self, replica: int) -> HostRecord | None:
        """Return what is known of the actor of a replica, one that another driver made too."""
        return None if self._progress is None else self._progress.record.hosts.get(replica)

    def take_up(self, replica: int) -> Any:
        """Return the actor that another driver made for a replica.

        Raises:
            LookupError: It has ended.
        """
        if replica not in self._hosts:
            record = self.recorded(replica)
            host = None if record is None else named_host(record.name)
            if host is None:
                raise LookupError("its actor ended while the job had no driver")
            self._hosts[replica] = host
        return self._hosts[replica]

    def release(self, replica: int) -> None:
        """End the actor of a replica, and what it runs."""
        host = self._hosts.pop(replica, None)
        known = None if self._progress is None else self._progress.forget_host(replica)
        if host is None and known is not None:
            host = named_host(known.name)
        if host is not None:
            ray.kill(host)

    def close(self) -> None:
        """End all actors and give back the room; it may be asked for again."""
        if self._line is not None:
            self._line.leave()
        self._give_back()

    def _give_back(self) -> None:
        recorded = () if self._progress is None else self._progress.record.hosts
        for replica in {*self._hosts, *recorded}:
            self.release(replica)
        self._remove_groups()

    def _remove_groups(self) -> None:
        groups, self._groups = self._groups, []
        for group in groups:
            remove_placement_group(group)

    def _ask(self) -> bool:
        """Take a step towards a place for all: ask, or let go of a part; return whether all have theirs."""
        placed = self._placed()
        if placed and placed == len(self._groups):
            self._holds_until = None
            if self._line is not None:
                self._line.leave()
            return True
        now = time.monotonic()
        if placed:
            self._holds_until = self._holds_until or now + random.uniform(*_HOLDS_FOR)  # noqa: S311 - not secret
            if now >= self._holds_until:
                self._give_back()
                self._holds_until = None
                self._asks_again_at = now + random.uniform(*_LETS_GO_FOR)  # noqa: S311
                placed = 0
        if now >= self._asks_again_at and now >= self._counts_again_at:
            self._counts_again_at = now + _COUNTS_EVERY
            self._ask_anew(placed)
        return False

    def _ask_anew(self, placed: int) -> None:
        """Ask for as many units as may be had now; where that is none, for the fewest, and wait for them."""
        self._lost = {node for node in self._lost if not loss_is_known(node)}
        lost = frozenset(self._lost)
        units = self._units_to_ask_for(placed, lost)
        if units == 0:
            self._not_its_turn += 1
            if self._groups and self._not_its_turn >= _LETS_GO_AFTER:
                self._give_back()
            return
        self._not_its_turn = 0
        if self._groups and units == self._units:
            return
        self._give_back()
        self._units = units
        if self._progress is not None:
            with self._progress.recording() as record:
                record.generation, record.units, record.leaving = record.generation + 1, units, False
        self._groups = self._layout.groups(units, lost, self._naming)

    def _naming(self, number: int) -> dict[str, str]:
        return {} if self._progress is None else {"name": self._name(number), "lifetime": "detached"}

    def _name(self, number: int) -> str:
        assert self._progress is not None
        return group_name(self._plan.submission, self._progress.record.generation, number)

    def _units_to_ask_for(self, placed: int, lost: frozenset[str]) -> int:
        if self._line is not None:
            return self._line.turn(held=placed, free=self._layout.free(lost), most=self._layout.most())
        choices = self._plan.choices
        if placed:
            return self._units
        free = self._layout.free(lost) if len(choices) > 1 else 0
        return max((units for units in choices if units <= free), default=min(choices))

    def _placed(self) -> int:
        return sum(_table(group).get("state") == "CREATED" for group in self._groups)


def _table(group: PlacementGroup) -> dict[str, Any]:
    return dict(placement_group_table(group))
