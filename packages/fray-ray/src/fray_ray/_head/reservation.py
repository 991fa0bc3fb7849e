"""The reservation of a job: a place for every replica or for none, and the actors that run them there.

Those of a job outlive its scheduler, by names: another scheduler takes them up.
"""

import functools
import secrets
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from fray_ray._head.job_board import JobBoard
from fray_ray._head.nodes import Nodes, living_nodes
from fray_ray._head.outliving import LEASE, NAMESPACE, group_name, group_named, named_actor
from fray_ray._head.placement import layout_of
from fray_ray._head.record import ReplicaActorRecord
from fray_ray._installing import with_packages
from fray_ray._on_node.replica_actor import ReplicaActor
from fray_ray._options import ray_resources
from fray_ray._plan import Plan

_AVOIDED = 60.0  # seconds for which a node is not used that seems to be lost: Ray knows it before that
_PENDING, _PLACED = "PENDING", "CREATED"  # what Ray says of a placement group that has its places
_CALLS = 8  # that an actor has at a time: two schedulers may wait for its events, and others ask it to stop


class Reservation:
    """Placement groups, and the actors in them.

    Args:
        board: Where the reservation and the actors are noted for another scheduler. Those of a job that
            is not in Ray's table end with this process.
        runtime_env: The environment of the actors, beside the job's packages.
    """

    def __init__(self, plan: Plan, board: JobBoard, runtime_env: Mapping[str, Any]) -> None:
        self._plan, self._board, self.layout = plan, board, layout_of(plan)
        self._runtime_env = with_packages(runtime_env, plan.pip)
        self._units = plan.choices[0]
        self._groups: list[PlacementGroup] = []
        # The nodes on which Ray was asked for no place, as far as they live; None where another scheduler
        # has asked.
        self._left_out: frozenset[str] | None = None
        self._actors: dict[int, Any] = {}
        self._avoided: dict[str, float] = {}  # until when
        self.avoid(set(board.record.avoid))
        if board.listed:
            self._take_up()

    def _take_up(self) -> None:
        """Take up what another scheduler had asked for; what is not whole is given back."""
        record = self._board.record
        if not record.units:
            return
        self._units = record.units
        names = [self._name(number) for number in range(self.layout.count(record.units))]
        found = [group_named(name) for name in names]
        self._groups = [group for group in found if group is not None]
        if record.leaving:
            self.close()
        elif len(self._groups) < len(found):  # the actors are asked what has become of their attempts
            self._remove_groups()

    @property
    def units(self) -> int:
        """How many units are asked for now: slices, or replicas."""
        return self._units

    @property
    def replicas(self) -> int:
        """How many replicas that makes."""
        return self._units * self._plan.hosts

    @property
    def avoided(self) -> frozenset[str]:
        """The nodes on which no place is wanted, by the last look at them."""
        return frozenset(self._avoided)

    def look_at_avoided(self, living: Collection[str] | None = None) -> frozenset[str]:
        """Return the nodes on which no place is wanted: until Ray knows that they are gone, or for a minute.

        Args:
            living: The nodes that Ray takes for living, where they were just read; else one look reads them.
        """
        if self._avoided or (self._left_out and living is not None):
            now, known = time.monotonic(), living_nodes() if living is None else living
            self._avoided = {
                node: until for node, until in self._avoided.items() if now < until and node in known
            }
            if self._left_out:  # what is gone makes no difference to a request
                self._left_out = frozenset(node for node in self._left_out if node in known)
        return self.avoided

    @property
    def asked(self) -> bool:
        """Whether Ray was asked for places."""
        return bool(self._groups)

    def asked_for(self, units: int, without: frozenset[str]) -> bool:
        """Whether the open request is just this: it would be made again as it is."""
        return self.asked and units == self._units and self._left_out == self.avoided | without

    def is_granted(self) -> bool:
        """Whether Ray has given it places, some of which may be gone since; asks Ray."""
        return self.asked and all(table["state"] != _PENDING for table in self.tables().values())

    def avoid(self, nodes: set[str]) -> None:
        """Take no place on nodes that are lost, or about to be, which Ray may not know yet."""
        self._avoided |= dict.fromkeys(nodes, time.monotonic() + _AVOIDED)
        self._board.record.avoid = sorted(self._avoided)

    def ask(self, units: int, without: frozenset[str] = frozenset()) -> None:
        """Ask Ray for the places of so many units, on other nodes than these; those that there were go.

        A place on a node that is avoided is not asked for either.

        Args:
            units: Fewer than are acceptable, where only these are missing: the job is never whole with them.
        """
        self._give_back()
        self._units, self._left_out = units, self.avoided | without
        record = self._board.record
        record.generation, record.units, record.leaving = record.generation + 1, units, False
        self._board.store()
        try:
            for group in self.layout.groups(units, self._left_out, self._naming):
                self._groups.append(group)
        except BaseException:  # those that Ray has made would hold their places, and nobody would know
            self._remove_groups()
            raise

    def tables(self) -> dict[str, Mapping[str, Any]]:
        """Ask Ray for its placement groups, by their ids: a list of all has those that were removed."""
        return {group.id.hex(): _table(group) for group in self._groups}

    def placed(self, tables: Mapping[str, Mapping[str, Any]]) -> int:
        """Return how many of its placement groups have their places.

        Args:
            tables: What `tables` returned.
        """
        return sum(tables.get(group.id.hex(), {}).get("state") == _PLACED for group in self._groups)

    def hosts(self, tables: Mapping[str, Mapping[str, Any]]) -> frozenset[str]:
        """Return the nodes on which its placement groups have their places."""
        mine = [tables.get(group.id.hex(), {}) for group in self._groups]
        return frozenset(
            node
            for table in mine
            if table.get("state") == _PLACED
            for node in table["bundles_to_node_id"].values()
        )

    def whole(self, tables: Mapping[str, Mapping[str, Any]]) -> bool:
        """Whether every replica has its place."""
        if self._units not in self._plan.choices:
            return False
        # Where a removal failed, only some of the groups are left.
        return self.placed(tables) == len(self._groups) == self.layout.count(self._units)

    def intact(self) -> bool:
        """Whether every replica still has its place; asks Ray."""
        return self.whole(self.tables())

    def why_not_placed(self, nodes: Nodes) -> str:
        """Say what was asked and what the cluster has."""
        units = self._units if self._units in self._plan.choices else min(self._plan.choices)
        return self.layout.why_not(units, nodes)

    def nodes(self) -> dict[int, str]:
        """Return the node of each replica that is placed."""
        tables = [_table(group)["bundles_to_node_id"] for group in self._groups]
        places = {replica: self.layout.place(replica) for replica in range(self.replicas)}
        return {replica: tables[group].get(bundle, "") for replica, (group, bundle) in places.items()}

    def make_actors(self, replicas: Iterable[int]) -> dict[int, Any]:
        """Make the actors that run replicas, each in its place; those that were there before are ended."""
        wanted = list(replicas)
        for replica in wanted:
            self.release(replica)
        named = self._named(wanted)
        made = {replica: self._make(replica, named.get(replica)) for replica in wanted}
        self._actors |= made
        return made

    def _named(self, replicas: list[int]) -> dict[int, str]:
        """Note the names of actors before there are any: none is left that nobody knows."""
        nodes = self.nodes()
        names = {replica: f"{self._plan.submission}.{replica}.{secrets.token_hex(4)}" for replica in replicas}
        for replica, name in names.items():
            self._board.record.actors[replica] = ReplicaActorRecord(name=name, node=nodes.get(replica, ""))
        if not self._board.listed:
            return {}
        self._board.store()
        return names

    def _make(self, replica: int, name: str | None) -> Any:
        group, bundle = self.layout.place(replica)
        # CPUs and memory are the replica's by the reservation; the actor leaves them to tasks of the replica.
        held = {name: amount for name, amount in self.layout.bundle.items() if name not in ("CPU", "memory")}
        options: dict[str, Any] = {"num_cpus": 0, **ray_resources(held)}
        if self._runtime_env:
            options["runtime_env"] = self._runtime_env
        if name is not None:
            options |= {"name": name, "namespace": NAMESPACE, "lifetime": "detached"}
        actor = _replica_actor().options(
            **options,
            max_concurrency=_CALLS,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._groups[group], bundle),
        )
        return actor.remote(None if name is None else LEASE)

    def actor(self, replica: int) -> Any:
        """Return the actor of a replica, one that another scheduler made too.

        Raises:
            LookupError: It has ended.
        """
        if replica not in self._actors:
            known = self._board.record.actors.get(replica)
            actor = None if known is None or not self._board.listed else named_actor(known.name)
            if actor is None:
                raise LookupError("its actor ended while the job had no scheduler")
            self._actors[replica] = actor
        return self._actors[replica]

    def release(self, replica: int) -> None:
        """End the actor of a replica, and what it runs; may be called again if it fails."""
        actor = self._actors.get(replica)
        known = self._board.record.actors.get(replica)
        if actor is None and known is not None and self._board.listed:
            actor = named_actor(known.name)
        if actor is not None:
            ray.kill(actor)
        self._actors.pop(replica, None)
        self._board.record.actors.pop(replica, None)

    def close(self) -> None:
        """End all actors and give back the room; it may be asked for again.

        Where this fails, it may be called again.
        """
        self._board.record.leaving = True
        self._give_back()

    def _give_back(self) -> None:
        for replica in {*self._actors, *self._board.record.actors}:
            self.release(replica)
        self._remove_groups()

    def _remove_groups(self) -> None:
        while (
            self._groups
        ):  # what Ray has not taken remains in the list: it is detached, and outlives this process
            remove_placement_group(self._groups[0])
            del self._groups[0]

    def _naming(self, number: int) -> dict[str, str]:
        return {"name": self._name(number), "lifetime": "detached"} if self._board.listed else {}

    def _name(self, number: int) -> str:
        return group_name(self._plan.submission, self._board.record.generation, number)


@functools.cache
def _replica_actor() -> Any:
    """Return the class of the actors of replicas; the head keeps each that this process makes."""
    return ray.remote(ReplicaActor)


def _table(group: PlacementGroup) -> dict[str, Any]:
    return dict(placement_group_table(group))
