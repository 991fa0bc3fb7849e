"""Items that are pushed together to an object store: few requests for many items, and the same promises."""

import json
import logging
import pickle
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped]
import gcs_emulator
import pytest
from gcs_emulator import GcsEmulator
from moto.server import ThreadedMotoServer
from queue_proxy import SwallowingProxy
from store_leftovers import process_wide  # noqa: F401

from fray.queue import FileQueue, LeaseExpiredError, UnreadableItem
from fray.testing.queue import ManualClock
from fray_queue.testing import seal_batch

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def path() -> str:
    return f"memory://queues/{uuid.uuid4().hex}"


def check_requests(emulator: GcsEmulator, queue: FileQueue[Any], **expected: int) -> None:
    """Look at a queue by these methods, each of which takes at most twenty requests."""
    asked: dict[str, int] = {}
    for name, answer in expected.items():
        before = emulator.requests
        assert getattr(queue, name)() == answer
        asked[name] = emulator.requests - before
    print(f"\nGCS: {asked} requests")
    assert max(asked.values()) <= 20


def opened(path: str, clock: ManualClock, **options: Any) -> FileQueue[Any]:
    return FileQueue(path, clock=clock, max_clock_skew=0, **options)


def files(queue: FileQueue[Any]) -> dict[str, str]:
    """Return the files of the items, by their names."""
    store = queue._store
    return {name: f"{folder}/{name}" for folder in store.names("") for name in store.names(folder)}


def test_items_of_a_batch_are_leased_settled_and_extended_one_by_one(path: str, clock: ManualClock) -> None:
    with opened(path, clock) as queue, opened(path, clock) as other:
        ids = queue.push_many(range(10))
        assert len(set(ids)) == 10
        assert list(files(queue)) == ["0000x0a"]
        first, second, third = queue.pop_many(3, 60)
        assert [lease.item_id for lease in (first, second, third)] == ids[:3]
        (fourth,) = other.pop_many(1, 60)
        assert (fourth.item, other.size(), other.pending(), other.peek()) == (3, 10, 6, 4)
        queue.done(second)
        queue.release(third)
        extended = other.extend(first, 600)  # by another client of the queue
        assert extended.lease_id == first.lease_id
        clock.advance(61)
        assert [lease.item for lease in other.pop_many(20, 60)] == [2, 3, 4, 5, 6, 7, 8, 9]
        with pytest.raises(LeaseExpiredError):
            other.release(fourth)
        with pytest.raises(LeaseExpiredError):
            queue.done_many([second])
        queue.done(extended)
        assert queue.size() == 8


def test_a_finished_batch_leaves_no_file(path: str, clock: ManualClock) -> None:
    with opened(path, clock) as queue:
        queue.push_many(range(250))
        assert sorted(files(queue)) == ["0000x64", "0001x64", "0002x32"]
        while leases := queue.pop_many(7):
            for lease in leases:
                queue.extend(lease, 90)
            queue.done_many(leases)
    assert queue.size() == 0
    assert files(queue) == {}


def test_leases_of_one_batch_that_are_not_good_refuse_no_other(path: str, clock: ManualClock) -> None:
    with opened(path, clock) as queue:
        queue.push_many("abcd")
        leases = queue.pop_many(4)
        queue.release(leases[1])
        with pytest.raises(LeaseExpiredError):
            queue.done_many([*leases, leases[0]])
        assert (queue.size(), queue.peek()) == (1, "b")


def test_dead_letters_of_a_batch_are_requeued_and_purged(path: str, clock: ManualClock) -> None:
    with opened(path, clock, max_attempts=1) as queue:
        queue.push_many("abcd")
        for lease in queue.pop_many(3):
            queue.release(lease)
        letters = queue.dead_letters()
        assert [(letter.item, letter.attempts) for letter in letters] == [("a", 1), ("b", 1), ("c", 1)]
        assert queue.requeue_dead([letters[0].item_id]) == 1
        assert queue.purge_dead([letters[1].item_id]) == 1
        assert [lease.item for lease in queue.pop_many(9, 10)] == ["a", "d"]
        clock.advance(11)
        assert [letter.item for letter in queue.dead_letters()] == ["a", "c", "d"]
        assert (queue.size(), queue.purge_dead()) == (0, 3)
    assert files(queue) == {}


def broken() -> Any:
    raise ImportError("no such module")


class Unreadable:
    def __reduce__(self) -> Any:
        return broken, ()


def test_one_item_that_cannot_be_unpickled_keeps_none_of_its_batch(path: str, clock: ManualClock) -> None:
    with opened(path, clock, max_attempts=1) as queue:
        queue.push_many(["a", Unreadable(), "b"])
        assert [lease.item for lease in queue.pop_many(3)] == ["a", "b"]
        (letter,) = queue.dead_letters()
        assert isinstance(letter.item, UnreadableItem)
        assert letter.item.payload == pickle.dumps(Unreadable(), pickle.HIGHEST_PROTOCOL)


def test_a_damaged_record_of_a_batch_is_repaired_and_stops_nobody(path: str, clock: ManualClock) -> None:
    with opened(path, clock) as queue, opened(path, clock) as other:
        queue.push_many("abc")
        queue.push_many("xyz")
        (lease,) = queue.pop_many(1)
        queue.done(lease)
        record = files(queue)["0000x03~2"]
        queue._store.write(record, b"nonsense")
        assert (other.size(), other.peek()) == (3, "x")
        assert [lease.item for lease in other.pop_many(9)] == ["x", "y", "z"]
        assert {damage.problem for damage in other.repair()} == {"damaged record"}
        assert all(damage.restored for damage in other.repair(restore=True))
        assert [lease.item for lease in other.pop_many(9)] == ["a", "b", "c"]  # a's `done` was what was lost
        assert other.repair() == []


def test_a_damaged_batch_is_among_the_dead_letters(path: str, clock: ManualClock) -> None:
    with opened(path, clock) as queue:
        queue.push_many("abc")
        queue.push("x")
        queue._store.write(files(queue)["0000x03"], b"nonsense")
        assert [lease.item for lease in queue.pop_many(9)] == ["x"]
        assert [letter.item.payload for letter in queue.dead_letters()] == [b"nonsense"] * 3


def test_clients_of_0_1_0_see_what_is_pushed_to_their_queue(tmp_path: Path, clock: ManualClock) -> None:
    old = {"format": "fray-queue", "version": 1}
    with opened(f"memory://queues/{uuid.uuid4().hex}", clock) as queue:
        queue._store.write("fray-queue.json", json.dumps(old).encode() + b"\n")
        queue.push_many(range(3))
        assert sorted(files(queue)) == ["0000", "0001", "0002"]
        assert [lease.item for lease in queue.pop_many(3)] == [0, 1, 2]
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / "fray-queue.json").write_text(json.dumps(old | {"version": 3}) + "\n")
    with pytest.raises(ValueError, match="another version"):
        FileQueue[int](tmp_path / "q").push(1)


# --- what it costs ---


@pytest.fixture
def moto() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    key = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=url, **key)
    client.create_bucket(Bucket="bucket")
    client.close()
    yield url
    server.stop()


@pytest.mark.parametrize("at_once", [100, 10])
def test_items_together_take_less_than_a_request_each(moto: str, at_once: int) -> None:
    with SwallowingProxy(moto) as proxy:
        start = time.time()
        queue: FileQueue[int] = FileQueue(
            f"s3://bucket/{uuid.uuid4().hex}",
            clock=lambda: start + proxy.answered * 0.03,  # what a store's answer takes
            cleanup_delay=600.0,
            endpoint_url=proxy.url,
            key="a",
            secret="b",
        )
        queue.push(0)
        queue.done_many(queue.pop_many(1))
        queue.close()
        before = proxy.answered
        for _ in range(3):
            queue.push_many(range(at_once))
        for _ in range(3):
            queue.done_many(queue.pop_many(at_once))
        queue.close()
        assert queue.size() == 0
        requests = (proxy.answered - before) / (3 * at_once)
    print(f"\nS3, {at_once} at once: {requests:.2f} HTTP requests per item, listings and deletions included")
    assert requests <= 1.0


def test_items_that_were_pushed_one_by_one_are_counted_by_twenty_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A third of a million items, and of what a store lists by one request: as many requests.
    monkeypatch.setattr(gcs_emulator, "_PAGE", 333)
    with GcsEmulator() as emulator:
        options = {"endpoint_url": emulator.url, "token": "anon", "project": "p"}
        clock = ManualClock()
        queue: FileQueue[int] = FileQueue("gs://bucket/q", clock=clock, max_clock_skew=0, **options)
        ids = [queue.push(number) for number in range(270)]  # a full bucket, and the next
        pushed = {name: found for name, found in emulator.objects.items() if ids[0].partition(".")[0] in name}
        mine = next(iter(pushed)).split("/")[1]
        for number in range(1301):
            bucket = f"{int(clock() * 1000) + 10_000 + number:012x}-aaaaaaaaaaaa"
            emulator.objects |= {name.replace(mine, bucket): found for name, found in pushed.items()}
        leases = queue.pop_many(5)
        queue.done(leases[0])
        queue.close()  # and the files of the first are gone
        fresh: FileQueue[int] = FileQueue("gs://bucket/q", clock=clock, max_clock_skew=0, **options)
        fresh._enter()
        check_requests(emulator, fresh, size=1301 * 256 + 269, pending=1301 * 256 + 265, peek=5)
        fresh.close()


def test_what_tells_of_full_buckets_goes_with_them(path: str, clock: ManualClock) -> None:
    with opened(path, clock) as queue:
        for number in range(256):
            queue.push(number)
        assert len(files(queue)) == 258
        assert (queue.size(), queue.pending()) == (256, 256)
        queue.done_many(queue.pop_many(256))
        assert queue.size() == 0
    with opened(path, clock) as queue:
        assert queue.pop() is None
        clock.advance(1000)
        assert queue.pop() is None
        assert files(queue) == {}


def test_a_million_items_are_counted_by_twenty_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gcs_emulator, "_PAGE", 1000)  # as stores have it
    with GcsEmulator() as emulator:
        options = {"endpoint_url": emulator.url, "token": "anon", "project": "p"}
        clock = ManualClock()
        queue: FileQueue[int] = FileQueue("gs://bucket/q", clock=clock, max_clock_skew=0, **options)
        assert queue.size() == 0
        batch = seal_batch([pickle.dumps(number) for number in range(100)])
        for number in range(10_000):
            bucket = f"{1_000_000 + number // 256:012x}-aaaaaaaaaaaa"
            emulator.objects[f"q/{bucket}/{number % 256:04x}x64"] = (1, batch, "2026-01-01T00:00:00.000Z")
        taken = queue.pop_many(150)
        assert len(taken) == 150
        fresh: FileQueue[int] = FileQueue("gs://bucket/q", clock=clock, max_clock_skew=0, **options)
        fresh._enter()
        check_requests(emulator, fresh, size=1_000_000, pending=999_850, peek=50)
        queue.close()
        fresh.close()
