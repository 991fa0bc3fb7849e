"""What a FileQueue on an object store asks for, and what it keeps, with many items and in long runs."""

import asyncio
import threading
import tracemalloc
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fsspec  # type: ignore[import-untyped]
import pytest

from fray.queue import Lease
from fray.testing.queue import ManualClock
from fray_queue import FileQueue
from fray_queue.testing import FsspecStore

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def url() -> str:
    return f"memory://queues/{uuid.uuid4().hex}"


@pytest.fixture
def queue(url: str) -> Iterator[FileQueue[Any]]:
    with FileQueue[Any](url, cleanup_delay=0.05) as queue:
        yield queue


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each request was made of any store."""
    made: Counter[str] = Counter()
    for name in ("names", "read", "create"):
        monkeypatch.setattr(FsspecStore, name, counted(made, name, getattr(FsspecStore, name)))
    return made


def counted(made: Counter[str], name: str, request: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        made[name] += 1
        return request(*arguments)

    return call


def test_a_pop_of_more_than_there_is_looks_a_few_times(queue: FileQueue[Any], requests: Counter[str]) -> None:
    for number in range(3):
        queue.push(number)
    requests.clear()
    assert sorted(lease.item for lease in queue.pop_many(500)) == [0, 1, 2]
    assert requests["names"] < 100  # one look for each that was not there: 891


def test_a_pop_that_waits_in_an_event_loop_looks_ever_less_often(
    queue: FileQueue[Any], requests: Counter[str]
) -> None:
    queue.push("held by somebody else")
    assert queue.pop(600.0) is not None
    requests.clear()
    assert asyncio.run(queue.aio.pop(wait=4.0)) is None
    assert requests["names"] < 25  # from 0.1 s on again and again: 60


def test_a_pop_in_an_event_loop_finds_what_comes_while_it_waits(queue: FileQueue[Any]) -> None:
    async def pop() -> Any:
        waiting = asyncio.create_task(queue.aio.pop(wait=30.0))
        await asyncio.sleep(0)
        await queue.aio.push("late")
        return await waiting

    lease = asyncio.run(pop())
    assert lease is not None
    assert lease.item == "late"


def test_what_an_item_holds_is_not_kept_with_its_lease(queue: FileQueue[Any]) -> None:
    queue.push(b"x" * (20 << 20))
    tracemalloc.start()
    try:
        lease = queue.pop(600.0)
        assert lease is not None
        lease_id = lease.lease_id
        del lease
        assert tracemalloc.get_traced_memory()[0] < 5 << 20, f"{lease_id} is settled elsewhere, or never"
    finally:
        tracemalloc.stop()


def test_what_a_dead_client_finished_is_removed_by_one_that_saw_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    with FileQueue[Any](url, clock=clock, cleanup_delay=0.01) as queue:
        with monkeypatch.context() as dying:
            dying.setattr(FsspecStore, "delete", lambda store, paths: None)
            with FileQueue[Any](url, clock=clock, cleanup_delay=0.01) as dead:
                dead.push("alone")
                dead.push_many(["one of two", "the other"])
                for _ in range(3):
                    lease = dead.pop()
                    assert lease is not None
                    dead.done(lease)
        for _ in range(40):  # a worker that looked within the minute, and goes on to look
            assert queue.pop() is None
            clock.advance(5.0)
    assert items_of(url) == []


def items_of(url: str) -> list[str]:
    """The files of items that a queue in memory has."""
    paths: list[str] = fsspec.filesystem("memory").find(url.removeprefix("memory:/"))
    return [path for path in paths if not path.endswith("fray-queue.json")]


def hold_in_buckets_of_their_own(
    queue: FileQueue[Any], holder: FileQueue[Any], clock: ManualClock, count: int, seconds: float
) -> list[Lease[Any]]:
    """Have one client push and another hold items, and the first know of it, as a worker in a long run."""
    leases = []
    for number in range(count):
        queue.push(number)
        lease = holder.pop(seconds)
        assert lease is not None
        leases.append(lease)
        clock.advance(11.0)  # the next goes into a bucket of its own
    for _ in range(3):
        clock.advance(100.0)
        assert queue.pop() is None
    return leases


@pytest.mark.parametrize("fate", ["held by itself", "held by another", "dead"])
def test_a_pop_lists_as_much_beside_many_buckets_of_held_items_as_beside_some(
    url: str, requests: Counter[str], fate: str
) -> None:
    most: dict[int, int] = {}
    for buckets in (10, 80):
        clock = ManualClock()
        with (
            FileQueue[Any](f"{url}-{buckets}", clock=clock, max_attempts=1) as queue,
            FileQueue[Any](f"{url}-{buckets}", clock=clock, max_attempts=1) as other,
        ):
            holder = other if fate == "held by another" else queue
            for held in hold_in_buckets_of_their_own(queue, holder, clock, buckets, 1e6):
                if fate == "dead":
                    queue.release(held)
            counts = []
            for _ in range(10):
                queue.push("free")
                clock.advance(11.0)
                requests.clear()
                lease = queue.pop()
                counts.append(requests["names"])
                assert lease is not None
                assert lease.item == "free"
                queue.done(lease)
                queue.close()  # its file is gone
            most[buckets] = sorted(counts)[-2]  # one may look for what is left of buckets that are gone
    assert most[80] == most[10] < 10, most


def test_a_pop_finds_what_another_client_gave_back_in_an_old_bucket_in_turn(url: str) -> None:
    clock = ManualClock()
    with FileQueue[Any](url, clock=clock) as queue, FileQueue[Any](url, clock=clock) as other:
        leases = hold_in_buckets_of_their_own(queue, other, clock, 20, 1e6)
        for lease in leases:
            other.release(lease)
            found = None
            for _ in range(8):  # newer items wait all the time
                queue.push("newer")
                clock.advance(6.0)
                taken = queue.pop(1e6)
                assert taken is not None
                if taken.item == lease.item:
                    found = taken
                    break
                queue.done(taken)
            assert found is not None, lease.item
        while (newer := queue.pop()) is not None:
            queue.done(newer)
        clock.advance(1e6 + 100)
        other.push("newest")
        clock.advance(6.0)
        assert [lease.item for lease in queue.pop_many(30)] == [*range(20), "newest"]


def test_a_pop_finds_what_another_client_gave_back_in_an_old_bucket_at_once_if_no_item_waits(
    url: str,
) -> None:
    clock = ManualClock()
    with FileQueue[Any](url, clock=clock) as queue, FileQueue[Any](url, clock=clock) as other:
        for lease in hold_in_buckets_of_their_own(queue, other, clock, 20, 1e6):
            other.release(lease)
            again = queue.pop(1e6)
            assert again is not None
            assert again.item == lease.item


def test_a_lease_that_ends_in_an_old_bucket_is_found_before_newer_items(url: str) -> None:
    clock = ManualClock()
    with FileQueue[Any](url, clock=clock) as queue, FileQueue[Any](url, clock=clock) as other:
        leases = hold_in_buckets_of_their_own(queue, other, clock, 20, 3600.0)
        for lease in leases:
            clock.advance(max(0.0, lease.expires_at + 2.5 - clock()))  # and the clocks' skew
            queue.push("newer")
            clock.advance(6.0)
            again = queue.pop(1e6)
            assert again is not None
            assert (again.item, again.attempt) == (lease.item, 2)


def test_an_item_that_is_stored_late_in_its_bucket_comes_before_those_of_the_next(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    with FileQueue[Any](url, clock=clock) as queue, FileQueue[Any](url, clock=clock) as producer:
        hold_in_buckets_of_their_own(queue, queue, clock, 20, 1e6)
        producer.push("held")
        assert queue.pop(1e6) is not None
        clock.advance(9.0)
        put = FsspecStore.put

        def slowly(store: FsspecStore, files: Any) -> None:
            for _ in range(5):
                clock.advance(10.0)
                assert queue.pop() is None  # others look meanwhile
            put(store, files)

        with monkeypatch.context() as patch:
            patch.setattr(FsspecStore, "put", slowly)
            producer.push("late")
        producer.push("next")
        clock.advance(6.0)
        leases = [queue.pop(), queue.pop()]
        assert [lease.item for lease in leases if lease] == ["late", "next"]


def test_leases_are_extended_beside_each_other(
    queue: FileQueue[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        queue.push(number)
    queue.push_many(range(4, 8))
    leases = queue.pop_many(8, 60.0)
    together, write = threading.Barrier(4, timeout=30), FsspecStore.write

    def meet(store: FsspecStore, path: str, data: bytes) -> None:
        together.wait()
        write(store, path, data)

    monkeypatch.setattr(FsspecStore, "write", meet)
    longer = queue.extend_many(leases, 600.0)
    assert [each.item for each in longer if not isinstance(each, Exception)] == [each.item for each in leases]


@pytest.mark.parametrize(("call", "answer"), [("dead_letters", []), ("size", 1)])
def test_a_listing_that_takes_long_holds_no_extension_up(
    queue: FileQueue[Any], monkeypatch: pytest.MonkeyPatch, call: str, answer: Any
) -> None:
    queue.push("x")
    lease = queue.pop(60.0)
    assert lease is not None
    listing, go, tree = threading.Event(), threading.Event(), FsspecStore.tree

    def slowly(store: FsspecStore) -> dict[str, list[str]]:
        listing.set()
        assert go.wait(30)
        return tree(store)

    monkeypatch.setattr(FsspecStore, "tree", slowly)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(getattr(queue, call))
        assert listing.wait(30)
        assert queue.extend(lease, 600.0).item == "x"
        go.set()
        assert found.result(30) == answer


@pytest.mark.parametrize("call", ["pop", "peek"])
def test_listings_of_many_buckets_hold_no_extension_up(
    url: str, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    clock = ManualClock()
    with FileQueue[Any](url, clock=clock) as other, FileQueue[Any](url, clock=clock) as queue:
        for number in range(20):
            other.push(number)
            clock.advance(11.0)  # the next goes into a bucket of its own
        (lease,) = queue.pop_many(1, 10_000.0)
        assert len(other.pop_many(19, 10_000.0)) == 19
        listing, extended, names = threading.Event(), threading.Event(), FsspecStore.names

        def slowly(store: FsspecStore, folder: str) -> list[str]:
            if folder:
                listing.set()
                assert extended.wait(30), "it was held up until a listing ended"
            return names(store, folder)

        monkeypatch.setattr(FsspecStore, "names", slowly)
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(getattr(queue, call))
            assert listing.wait(30)
            assert queue.extend(lease, 600.0).item == 0
            extended.set()
            assert found.result(30) is None


def test_of_threads_that_pop_at_once_one_lists_a_bucket(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with FileQueue[int](url) as other, FileQueue[int](url) as queue:
        other.push_many(range(4))
        listings, all_list, names = [], threading.Event(), FsspecStore.names

        def slowly(store: FsspecStore, folder: str) -> list[str]:
            if folder:
                listings.append(folder)
                if len(listings) == 4:
                    all_list.set()
                all_list.wait(1)  # time for the others to come as well
            return names(store, folder)

        monkeypatch.setattr(FsspecStore, "names", slowly)
        with ThreadPoolExecutor(4) as pool:
            leases = list(pool.map(lambda _: queue.pop(), range(4)))
        assert sorted(lease.item for lease in leases if lease) == [0, 1, 2, 3]
        assert len(listings) == 1


def test_a_lease_that_another_client_extended_is_good_after_this_one_forgot_it(url: str) -> None:
    clock = ManualClock()
    with FileQueue[Any](url, clock=clock, max_clock_skew=0) as queue:
        queue.push_many(range(2500))
        handed_on = queue.pop_many(1000, 60.0)
        with FileQueue[Any](url, clock=clock, max_clock_skew=0) as other:
            other.extend_many(handed_on, 10_000.0)
        clock.advance(500.0)
        leases = queue.pop_many(1500, 600.0)
        assert len(leases) == 1500
        queue.done_many([*handed_on, *leases])
        assert queue.size() == 0
