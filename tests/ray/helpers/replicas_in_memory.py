"""Replicas in this process, for a scheduler on a store: calls of Ray fail when a test wants them to."""

import asyncio
import functools
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from head_in_memory import FullCluster
from ray.exceptions import ActorDiedError

RESERVATION = "fray_ray._head.reservation"
GOOD: dict[str, Any] = {"exit_code": 0, "peak_memory": 0, "cpu_time": 0.0, "oom": False}


class EmptyCluster(FullCluster):
    """The line for a cluster that has room for all."""

    async def find(self, _: Any, reservation: Any, __: Any) -> None:
        """Ask for the room, which is there."""
        reservation.ask(1)


class _Method:
    def __init__(self, act: Callable[..., Any]) -> None:
        self.remote = act


class Replica:
    """In the place of its actor: it says `events`, the last of which is the verdict."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.starts, self.stops, self.killed = 0, list[float](), False
        self._confirmed: tuple[int, Any] = (0, None)
        self.node_id, self.take_up = _Method(self._node_id), _Method(self._take_up)
        self.free_ports = _Method(self._free_ports)
        self.start, self.next, self.stop = _Method(self._start), _Method(self._next), _Method(self._stop)

    async def _node_id(self) -> str:
        return "node-1"

    async def _free_ports(self, count: int) -> list[int]:
        return list(range(1, count + 1))

    async def _start(self, *_: Any) -> None:
        self.starts += 1

    def _stop(self, grace: float, *_: Any) -> None:
        self.stops.append(grace)

    async def _take_up(self, _: int) -> tuple[bool, int, Any]:
        return self.starts > 0, *self._confirmed

    async def _next(self, _: int, position: int, note: Any, __: float) -> list[Any]:
        self._confirmed = position, note
        while len(self.events) <= position:
            if self.killed:
                raise ActorDiedError
            await asyncio.sleep(0.01)
        return self.events[position:]


class ReplicasInMemory:
    """All actors and placement groups of a cluster of one node.

    Attributes:
        made: The actors, in the order in which they were made.
        groups: The names of the placement groups that there are.
        fails: By call of Ray: how many times it fails before it succeeds; its name as `calls` has it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[Replica] = []
        self.groups: set[str] = set()
        self.fails: Counter[str] = Counter()
        self._named: dict[str, Replica] = {}
        nodes = "fray_ray._head.nodes"
        for place, call in (
            (f"{RESERVATION}._replica_actor", lambda: SimpleNamespace(options=self._options)),
            (f"{RESERVATION}.placement_group_table", self._failing("table", self._table)),
            (f"{RESERVATION}.remove_placement_group", self._failing("remove", self._remove)),
            (f"{RESERVATION}.group_named", lambda name: self._group(name) if name in self.groups else None),
            ("fray_ray._head.placement.placement_group", self._make_group),
            (f"{nodes}.draining_nodes", self._failing("draining", dict)),
            (f"{nodes}.gone_of", self._failing("gone", lambda _: set())),
        ):
            monkeypatch.setattr(place, call)
        node = {"NodeID": "node-1", "Alive": True, "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": 1}
        monkeypatch.setattr(ray, "nodes", self._failing("nodes", lambda: [node]))
        monkeypatch.setattr(ray, "get_actor", self._failing("actor", self._actor))
        monkeypatch.setattr(ray, "kill", self._failing("kill", self._kill))

    def _failing(self, name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(act)
        def call(*args: Any) -> Any:
            if self.fails[name] > 0:
                self.fails[name] -= 1
                raise RuntimeError(f"the head is away: {name}")
            return act(*args)

        return call

    @staticmethod
    def _group(name: str) -> Any:
        return SimpleNamespace(name=name, id=SimpleNamespace(hex=lambda: name))

    def _make_group(self, *_: Any, name: str = "unnamed", **__: Any) -> Any:
        self.groups.add(name)
        return self._group(name)

    def _table(self, _: Any) -> dict[str, Any]:
        return {"state": "CREATED", "bundles_to_node_id": dict.fromkeys(range(8), "node-1")}

    def _remove(self, group: Any) -> None:
        self.groups.discard(group.name)

    def _options(self, *, name: str = "unnamed", **_: Any) -> Any:
        def make(__: float | None) -> Replica:
            self.made.append(Replica())
            self._named[name] = self.made[-1]
            return self.made[-1]

        return _Method(make)

    def _actor(self, name: str, _: str) -> Replica:
        if name not in self._named or self._named[name].killed:
            raise ValueError(f"there is no actor {name}")
        return self._named[name]

    def _kill(self, actor: Replica) -> None:
        actor.killed = True
