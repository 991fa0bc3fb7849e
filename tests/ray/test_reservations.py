"""Jobs that wait for room, on nodes and placement groups in memory; nothing here needs a cluster."""

import pytest
import ray
from head_in_memory import HeadInMemory, plan_of
from room_in_memory import HEAD, RoomInMemory, gang_on_slices, reservation_of

from fray_ray._head.job import new_machine
from fray_ray._head.job_board import JobBoard
from fray_ray._head.record import JobRecord, ReplicaActorRecord
from fray_ray._head.reservation import Reservation


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> RoomInMemory:
    room = RoomInMemory()
    room.replace_ray(monkeypatch)
    return room


def test_groups_that_could_not_be_removed_are_removed_the_next_time(room: RoomInMemory) -> None:
    reservation = reservation_of(gang_on_slices("train", 3))
    reservation.ask(3)
    room.kept = {1}
    with pytest.raises(RuntimeError, match="away"):
        reservation.close()
    assert room.pending()
    reservation.close()
    assert not room.pending()
    reservation.close()
    assert [group.state for group in room.groups] == ["REMOVED"] * 3


def test_an_actor_that_could_not_be_ended_is_ended_the_next_time(
    room: RoomInMemory, head: HeadInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    away = {"actor-1"}

    def kill(actor: str) -> None:
        if actor in away:
            away.discard(actor)
            raise RuntimeError("the head is away for a moment")
        ended.append(actor)

    monkeypatch.setattr(ray, "kill", kill)
    monkeypatch.setattr(f"{HEAD}.reservation.named_actor", lambda name: name)
    plan = plan_of("train", choices=(3,))
    record = JobRecord(machine=new_machine(plan))
    record.actors |= {number: ReplicaActorRecord(name=f"actor-{number}") for number in range(3)}
    reservation = Reservation(plan, JobBoard(plan, record), {})
    with pytest.raises(RuntimeError, match="away"):
        reservation.close()
    reservation.close()
    assert sorted(ended) == ["actor-0", "actor-1", "actor-2"]
    assert not record.actors
