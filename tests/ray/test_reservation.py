"""How gangs share slices, each by its own driver; the cluster is a number of slices, the time too."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from plans import plan

from fray_ray import _job_kv
from fray_ray._head import reservation
from fray_ray._head.reservation import Reservation


class Group:
    """A placement group: pending until there is a slice for it."""

    created = False


class Slices:
    """So many slices, given to the first that asks; and the layout of every gang that wants some."""

    bundle: Mapping[str, float] = {}
    kind = "v4-16"

    def __init__(self, count: int) -> None:
        self.count = count
        self.asked: list[Group] = []

    def groups(self, units: int, without: frozenset[str]) -> list[Any]:
        made = [Group() for _ in range(units)]
        self.asked += made
        return made

    def give(self) -> None:
        for group in self.asked:
            group.created = group.created or self.free(frozenset()) > 0

    def take_back(self, group: Any) -> None:
        self.asked.remove(group)

    def free(self, without: frozenset[str]) -> int:
        return self.count - sum(group.created for group in self.asked)

    def most(self) -> int:
        return self.count

    def place(self, replica: int) -> tuple[int, int]:
        return replica, 0


class Machine:
    """The drivers of several gangs, which look one after the other, a second apart."""

    def __init__(self, slices: Slices) -> None:
        self.slices, self.now = slices, 1000.0
        self.waiting: dict[str, Reservation] = {}
        self.placed: dict[str, Reservation] = {}

    def submit(self, name: str, *choices: int) -> None:
        wanted = replace(plan(), submission=name, choices=choices, submitted_at=self.now, gang=True)
        self.waiting[name] = Reservation(wanted)

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1
            for name, room in list(self.waiting.items()):
                self.slices.give()
                if room.placed(0.0):
                    self.placed[name] = self.waiting.pop(name)

    def end(self, name: str) -> None:
        self.placed.pop(name).close()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine, stored = Machine(Slices(2)), dict[str, bytes]()
    monkeypatch.setattr(time, "monotonic", lambda: machine.now)
    monkeypatch.setattr(time, "time", lambda: machine.now)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(reservation, "layout_of", lambda plan: machine.slices)
    monkeypatch.setattr(
        reservation, "_table", lambda group: {"state": "CREATED" if group.created else "PENDING"}
    )
    monkeypatch.setattr(reservation, "remove_placement_group", machine.slices.take_back)
    monkeypatch.setattr(_job_kv, "keep", stored.__setitem__)
    monkeypatch.setattr(_job_kv, "fetch", stored.get)
    monkeypatch.setattr(_job_kv, "delete", lambda name: stored.pop(name, None))
    monkeypatch.setattr(
        _job_kv, "names_below", lambda prefix: [name for name in stored if name.startswith(prefix)]
    )
    return machine


def test_a_gang_of_two_slices_is_not_overtaken_by_those_that_came_later(machine: Machine) -> None:
    for name in ("first", "second"):
        machine.submit(name, 1)
        machine.run(3)
    assert set(machine.placed) == {"first", "second"}
    machine.submit("large", 2)
    machine.run(3)
    for name in ("small-1", "small-2"):
        machine.submit(name, 1)
        machine.run(3)
    machine.end("first")
    machine.run(300)  # longer than any hold
    assert set(machine.placed) == {"second"}, "the free slice is kept for the large one"
    machine.end("second")
    machine.run(10)
    assert set(machine.placed) == {"large"}
    machine.end("large")
    machine.run(10)
    assert set(machine.placed) == {"small-1", "small-2"}


def test_the_first_in_the_line_is_before_ray_and_others_ask_for_nothing(machine: Machine) -> None:
    machine.submit("running", 2)
    machine.run(3)
    for name in ("first", "next"):
        machine.submit(name, 1)
        machine.run(3)
    assert sum(not group.created for group in machine.slices.asked) == 1
    assert [room.replicas for room in machine.waiting.values()] == [1, 1]


def test_a_gang_that_no_cluster_of_this_size_can_serve_keeps_nobody_waiting(machine: Machine) -> None:
    machine.submit("huge", 3)
    machine.run(3)
    assert len(machine.slices.asked) == 3, "alone, it asks: an autoscaler may add slices"
    machine.submit("small", 1)
    machine.run(10)
    assert set(machine.placed) == {"small"}


def test_a_driver_that_was_killed_leaves_no_place_in_the_line(machine: Machine) -> None:
    machine.submit("running", 2)
    machine.run(3)
    machine.submit("killed", 2)
    machine.run(3)
    machine.waiting.clear()
    machine.slices.asked = [
        group for group in machine.slices.asked if group.created
    ]  # Ray removed the others
    machine.submit("later", 1)
    machine.run(3)
    machine.end("running")
    machine.run(90)
    assert set(machine.placed) == {"later"}
