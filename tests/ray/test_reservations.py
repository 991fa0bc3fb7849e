"""Jobs that wait for room, on nodes and placement groups in memory; nothing here needs a cluster."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import ray
from head_in_memory import HeadInMemory, plan_of
from room_in_memory import HEAD, Group, RoomInMemory, gang_on_slices, reservation_of

from fray_ray._head.job import new_machine
from fray_ray._head.job_board import JobBoard
from fray_ray._head.outliving import group_name
from fray_ray._head.record import JobRecord, ReplicaActorRecord
from fray_ray._head.reservation import Reservation
from fray_ray._head.reservation_queue import ReservationQueue
from fray_ray._plan import Plan

MANY = 200


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> RoomInMemory:
    room = RoomInMemory()
    room.replace_ray(monkeypatch)
    return room


class Waiting:
    """A job in the line of a queue."""

    def __init__(self, queue: ReservationQueue, plan: Plan, reservation: Reservation | None = None) -> None:
        self.reservation = reservation or reservation_of(plan)
        self.said: list[str] = []
        self.found = asyncio.create_task(queue.find(plan, self.reservation, self.said.append))


@asynccontextmanager
async def a_queue() -> Any:
    queue = ReservationQueue()
    serving = asyncio.create_task(queue.run())
    try:
        yield queue
    finally:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, serving, return_exceptions=True)


async def until(condition: Callable[[], Any], what: str) -> None:
    try:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"waited in vain until {what}") from None


def run(test: Callable[[ReservationQueue], Awaitable[None]]) -> None:
    async def main() -> None:
        async with a_queue() as queue:
            await test(queue)

    asyncio.run(main())


def test_a_gang_asks_for_missing_slices_and_does_not_start_with_these_alone(room: RoomInMemory) -> None:
    for name in ("a", "b"):
        room.add_slice(name)

    async def test(queue: ReservationQueue) -> None:
        large = Waiting(queue, gang_on_slices("large", 4))
        small = Waiting(queue, gang_on_slices("small", 1, at=2.0))
        await until(lambda: len(room.pending()) == 3, "both have asked")
        one, two, third = sorted(room.pending(), key=lambda group: not group.avoids)
        assert one.avoids == two.avoids == {"a-0", "b-0"}, "slices that exist are left to the later gang"
        assert not third.avoids
        room.grant([one, two])  # on slices that the scheduler has not seen yet
        looks = room.looks
        await until(lambda: room.looks > looks + 1, "it was looked again")
        assert not large.found.done(), "it would start with two slices of four"
        assert "waiting for 4 x v4-16" in large.said[-1]
        for name in ("c", "d"):
            room.add_slice(name)
        await until(lambda: large.reservation.units == 4, "it asks for all")
        assert len(room.living()) == 5, "the slices of the first request are free"
        room.grant(group for group in room.pending() if group is not third)
        await large.found
        assert not small.found.done()

    run(test)


def test_a_slice_that_comes_alone_is_given_back_and_the_others_are_asked_for(room: RoomInMemory) -> None:
    room.add_slice("a")

    async def test(queue: ReservationQueue) -> None:
        Waiting(queue, gang_on_slices("large", 3))
        Waiting(queue, gang_on_slices("small", 1, at=2.0))
        await until(lambda: len(room.pending()) == 3, "both have asked")
        first = next(group for group in room.pending() if group.avoids)
        room.add_slice("b")
        room.grant([first], ["b-0", "b-1"])
        await until(lambda: first.state == "REMOVED", "it gives back what it cannot start with")
        await until(lambda: len(room.pending()) == 2, "it asks for what is missing still")
        assert sorted(map(sorted, (group.avoids for group in room.pending()))) == [[], ["a-0", "b-0"]]

    run(test)


def test_later_jobs_leave_a_gang_the_hosts_on_which_it_lacks_cpus(room: RoomInMemory) -> None:
    room.add_slice("a")
    room.add_node("else", {"CPU": 8.0, "memory": 2.0**33})
    room.free["a-1"]["CPU"] = 0.0

    async def test(queue: ReservationQueue) -> None:
        jobs = [
            Waiting(queue, plan)
            for plan in (
                plan_of("earlier", submitted_at=1.0),
                gang_on_slices("gang", 1, at=2.0),
                plan_of("later", submitted_at=3.0),
            )
        ]
        await until(lambda: all(job.reservation.asked for job in jobs), "all have asked")
        assert [group.avoids for group in room.groups] == [set(), set(), {"a-0", "a-1"}]

    run(test)


def test_a_place_that_was_found_just_now_is_not_given_back_for_a_smaller_one(room: RoomInMemory) -> None:
    """Ray grants it after the groups were looked at and before the nodes are: these lack it."""
    room.add_node("node", {"CPU": 2.0, "memory": 2.0**33})
    plan = plan_of("elastic", choices=(2, 1), gang=True)

    def grant() -> None:
        room.grant(room.pending(), ["node"])
        room.free["node"]["CPU"] = 0.0

    async def test(queue: ReservationQueue) -> None:
        job = Waiting(queue, plan)
        await until(room.pending, "it has asked")
        room.on_look = grant
        async with asyncio.timeout(20):
            await job.found
        assert job.reservation.units == 2
        assert [group.state for group in room.groups] == ["CREATED"]

    run(test)


@pytest.mark.parametrize("avoid", [(), ("gone-1", "gone-2", "node")], ids=["plain", "avoids"])
def test_one_look_at_the_cluster_serves_all_jobs_that_wait(
    room: RoomInMemory, avoid: tuple[str, ...]
) -> None:
    """Also jobs that avoid nodes which they have lost: Ray knows of some of them."""
    room.add_node("node", {"CPU": 0.0, "memory": 2.0**33})

    async def test(queue: ReservationQueue) -> None:
        plans = [plan_of(f"job-{number}") for number in range(MANY)]
        plans += [gang_on_slices(f"gang-{number}", 1) for number in range(MANY)]
        jobs = [Waiting(queue, plan, reservation_of(plan, avoid=avoid)) for plan in plans]
        await until(lambda: all(job.said for job in jobs), "all have said what they wait for")
        assert 1 <= room.looks <= 5, f"{room.looks} looks for {len(jobs)} jobs"
        jobs[0].reservation.ask(1)
        assert room.living()[-1].avoids == {"node"}.intersection(avoid), "Ray knows of the others"

    run(test)


def test_a_node_that_was_avoided_for_a_while_is_asked_for_again(
    room: RoomInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It did not answer for a moment, and is well."""
    monkeypatch.setattr(f"{HEAD}.reservation._AVOIDED", 1.0)
    room.add_slice("a")

    async def test(queue: ReservationQueue) -> None:
        plan = gang_on_slices("train", 1)
        Waiting(queue, plan, reservation_of(plan, avoid=["a-0"]))
        await until(room.pending, "it has asked")
        assert room.groups[0].avoids == {"a-0"}
        await until(lambda: [group.avoids for group in room.pending()] == [set()], "it asks for any slice")

    run(test)


def test_a_request_of_another_scheduler_is_made_again_unless_it_was_granted(
    room: RoomInMemory, head: HeadInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows which nodes it leaves to jobs that may have ended since."""
    room.add_node("node", {"CPU": 2.0, "memory": 2.0**33})
    plans = [plan_of(name) for name in ("waits", "granted")]
    old = [Group(number, [], frozenset({"node"})) for number in range(2)]
    room.groups += old
    room.grant(old[1:], ["node"])
    made = {group_name(plan.submission, 1, 0): each for plan, each in zip(plans, old, strict=True)}
    monkeypatch.setattr(f"{HEAD}.reservation.group_named", made.__getitem__)
    reservations = []
    for plan in plans:
        record = JobRecord(machine=new_machine(plan), units=1, generation=1)
        reservations.append(Reservation(plan, JobBoard(plan, record), {}))
    assert [each.is_granted() for each in reservations] == [False, True]

    async def test(queue: ReservationQueue) -> None:
        jobs = [Waiting(queue, *each) for each in zip(plans, reservations, strict=True)]
        await jobs[1].found
        await until(lambda: old[0].state == "REMOVED", "the old request is gone")
        await until(lambda: [group.avoids for group in room.pending()] == [set()], "there is another")

    run(test)


def test_a_gang_is_not_whole_with_the_groups_that_a_failed_removal_has_left(room: RoomInMemory) -> None:
    reservation = reservation_of(gang_on_slices("train", 3))
    reservation.ask(3)
    room.grant(room.pending())
    assert reservation.intact()
    room.kept = {1}
    with pytest.raises(RuntimeError, match="away"):
        reservation.close()
    assert not reservation.intact()


def test_a_gang_that_cannot_give_back_what_it_holds_fails_alone(
    room: RoomInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{HEAD}.reservation_queue._HOLDS_FOR", (0.0, 0.0))
    for name in ("a", "b"):
        room.add_slice(name)

    async def test(queue: ReservationQueue) -> None:
        gang = Waiting(queue, gang_on_slices("gang", 2))
        await until(lambda: len(room.pending()) == 2, "it has asked")
        room.kept = {0}
        room.grant(room.pending()[:1], ["a-0", "a-1"])
        with pytest.raises(RuntimeError, match="away"):
            await gang.found
        other = Waiting(queue, plan_of("other"))
        await until(lambda: other.reservation.asked, "the others go on")

    run(test)


def test_an_unfit_gang_asks_for_more_only_after_a_while(
    room: RoomInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that start within seconds would have it make all its requests again, twice each."""
    monkeypatch.setattr(f"{HEAD}.reservation_queue._GROWS_AFTER", 3.0)
    room.add_slice("a")

    async def test(queue: ReservationQueue) -> None:
        large = Waiting(queue, gang_on_slices("large", 2))
        await until(lambda: len(room.pending()) == 2, "it is alone, and asks for both")
        small = Waiting(queue, gang_on_slices("small", 1, at=2.0))
        await until(lambda: large.reservation.units == 1, "the slice that exists is left to the other")
        room.grant(group for group in room.pending() if not group.avoids)
        begun = asyncio.get_running_loop().time()
        await small.found
        await until(lambda: large.reservation.units == 2, "it asks for both again")
        assert asyncio.get_running_loop().time() - begun > 2.5

    run(test)


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
