"""FileQueue on S3 (s3fs, moto's server), on GCS (gcsfs, an emulator) and on fsspec's memory."""

import asyncio
import itertools
import logging
import multiprocessing
import socket
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import boto3  # type: ignore[import-untyped]
import pytest
import s3fs  # type: ignore[import-untyped]
from gcs_emulator import GcsEmulator
from moto.server import ThreadedMotoServer
from on_object_store import OnObjectStore
from pools import Pools
from queue_processes import take_all
from queue_proxy import SwallowingProxy
from store_leftovers import process_wide  # noqa: F401

from fray import QueueUnavailableError, UnsupportedError
from fray.testing.queue import (
    ManualClock,
    QueueContract,
    SharedQueueContract,
    check_queue_machine,
)
from fray_queue import FileQueue
from fray_queue.testing import FsspecStore, file_queue

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    client = boto3.client(
        "s3", endpoint_url=url, aws_access_key_id="a", aws_secret_access_key="b", region_name="us-east-1"
    )
    client.create_bucket(Bucket="bucket")
    client.close()
    yield url
    server.stop()


@pytest.fixture(scope="module")
def gcs() -> Iterator[GcsEmulator]:
    with GcsEmulator() as emulator:
        yield emulator


def s3_options(url: str) -> dict[str, Any]:
    return {"endpoint_url": url, "key": "a", "secret": "b"}


def gcs_options(url: str) -> dict[str, Any]:
    return {"endpoint_url": url, "token": "anon", "project": "p"}


class _S3(OnObjectStore):
    BACKEND = "s3"

    @pytest.fixture
    def location(self, moto: str) -> tuple[str, dict[str, Any]]:
        return "s3://bucket", s3_options(moto)


class _Gcs(OnObjectStore):
    BACKEND = "gs"

    @pytest.fixture
    def location(self, gcs: GcsEmulator) -> tuple[str, dict[str, Any]]:
        return "gs://bucket", gcs_options(gcs.url)


class _Memory(OnObjectStore):
    BACKEND = "file"

    @pytest.fixture
    def location(self) -> tuple[str, dict[str, Any]]:
        return "memory://queues", {}


class TestOnS3(_S3, QueueContract):
    pass


class TestPoolsOnS3(_S3, Pools):
    pass


class TestSharedOnS3(_S3, SharedQueueContract):
    pass


class TestOnGcs(_Gcs, QueueContract):
    pass


class TestPoolsOnGcs(_Gcs, Pools):
    pass


class TestSharedOnGcs(_Gcs, SharedQueueContract):
    pass


class TestOnMemory(_Memory, QueueContract):
    pass


@pytest.mark.parametrize("scheme", ["s3", "gs", "memory"])
def test_every_history_agrees_with_the_model(scheme: str, moto: str, gcs: GcsEmulator) -> None:
    options = {"s3": s3_options(moto), "gs": gcs_options(gcs.url), "memory": {}}[scheme]
    clock, numbers, run = ManualClock(), itertools.count(), uuid.uuid4().hex

    def make_queue(**more: Any) -> FileQueue[int]:
        path = f"{scheme}://bucket/{run}-{next(numbers)}"
        return FileQueue(path, clock=clock, max_clock_skew=0, **options, **more)

    check_queue_machine(make_queue, clock, examples=30 if scheme == "memory" else 3, steps=15)


# --- real clients ---


class KeptByS3:
    """An S3 that answers a removal of several objects, and keeps one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kept: list[str] = []
        call_s3 = vars(s3fs.S3FileSystem)["_call_s3"]

        async def answer(file_system: Any, method: str, *arguments: Any, **options: Any) -> Any:
            objects = options["Delete"]["Objects"] if method == "delete_objects" else []
            payloads = [each for each in objects if "~" not in each["Key"] and "/0" in each["Key"]]
            if self.kept or not payloads:
                return await call_s3(file_system, method, *arguments, **options)
            self.kept.append(payloads[0]["Key"])
            others = [each for each in objects if each is not payloads[0]]
            if others:
                await call_s3(file_system, method, **{**options, "Delete": {"Objects": others}})
            return {"Errors": [{"Key": self.kept[0], "Code": "InternalError", "Message": "try again"}]}

        monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", answer)


def test_what_s3_does_not_remove_is_not_delivered_again(moto: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store, url = KeptByS3(monkeypatch), f"s3://bucket/{uuid.uuid4().hex}"
    with FileQueue[str](url, cleanup_delay=0.05, **s3_options(moto)) as queue:
        queue.push("a")
        queue.push("b")
        queue.done_many(queue.pop_many(2))
    assert store.kept
    with FileQueue[str](url, **s3_options(moto)) as queue:
        assert queue.size() == 0
        assert queue.pop() is None


def test_more_names_than_one_call_can_list_are_listed_folder_by_folder(
    moto: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*arguments: Any, **options: Any) -> Any:
        await asyncio.sleep(600)

    with FileQueue[int](f"s3://bucket/{uuid.uuid4().hex}", timeout=5.0, **s3_options(moto)) as queue:
        queue.push_many(range(3))
        monkeypatch.setattr(s3fs.S3FileSystem, "_find", never)
        assert queue.dead_letters() == []
        assert queue.purge() == 3


# --- several processes ---


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_processes_share_a_store_and_every_item_is_done_once(
    scheme: str, moto: str, gcs: GcsEmulator
) -> None:
    options = s3_options(moto) if scheme == "s3" else gcs_options(gcs.url)
    path = uuid.uuid4().hex
    with FileQueue[int](f"{scheme}://bucket/{path}", **options) as queue:
        queue.push_many(range(24))
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
            results = [pool.submit(take_all, f"{scheme}://bucket/{path}", options) for _ in range(2)]
            taken = [item for result in results for item in result.result()]
        assert sorted(taken) == [(number, 1) for number in range(24)]
        assert queue.size() == 0
    if scheme == "gs":
        left = [name for name in gcs.objects if name.startswith(path)]
        assert left == [f"{path}/fray-queue.json"]


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_an_answer_that_is_lost_changes_nothing(scheme: str, moto: str, gcs: GcsEmulator) -> None:
    with SwallowingProxy(moto if scheme == "s3" else gcs.url) as proxy:
        proxy.swallow_only = ("PUT",) if scheme == "s3" else ("POST",)  # what creates
        proxy.swallow_every = 3
        options = s3_options(proxy.url) if scheme == "s3" else gcs_options(proxy.url)
        with FileQueue[int](f"{scheme}://bucket/{uuid.uuid4().hex}", **options) as queue:
            for number in range(4):
                queue.push(number)
            for number in range(4):
                lease = queue.pop()
                assert lease is not None
                assert (lease.item, lease.attempt) == (number, 1)
                queue.done(queue.extend(lease, 30))
            assert queue.pop() is None
        assert proxy.swallowed >= 3


# --- stores that cannot be trusted, or are away ---


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_store_that_ignores_the_precondition_is_refused(scheme: str, moto: str) -> None:
    with GcsEmulator() as careless, SwallowingProxy(moto) as proxy:
        careless.honours_preconditions = False
        proxy.strip = {"if-none-match"}
        options = s3_options(proxy.url) if scheme == "s3" else gcs_options(careless.url)
        queue: FileQueue[int] = FileQueue(f"{scheme}://bucket/{uuid.uuid4().hex}", **options)
        with pytest.raises(UnsupportedError, match=f"{scheme}://bucket.* twice"):
            queue.push(1)


@pytest.mark.parametrize("path", ["sftp://host/q", "ftp://host/q", "http://host/q", "zip://x"])
def test_a_file_system_without_exclusive_creation_is_refused_by_name(path: str) -> None:
    with pytest.raises(UnsupportedError, match=path.partition(":")[0]):
        FileQueue(path)


@pytest.mark.parametrize("offset", [60.0, -60.0])
def test_a_clock_far_from_the_stores_is_refused(offset: float) -> None:
    with GcsEmulator() as emulator:
        emulator.clock_offset = offset
        queue: FileQueue[int] = FileQueue("gs://bucket/q", **gcs_options(emulator.url))
        with pytest.raises(ValueError, match=r"clock is (59|60)\.\d s (behind|ahead)"):
            queue.push(1)
        FileQueue[int]("gs://bucket/q", max_clock_skew=150, **gcs_options(emulator.url)).push(1)


def test_a_store_that_stays_away_is_an_error_in_time() -> None:
    queue: FileQueue[int] = FileQueue("s3://bucket/q", timeout=0.5, **s3_options("http://127.0.0.1:9"))
    with pytest.raises(QueueUnavailableError, match="did not answer"):
        queue.push(1)


@pytest.mark.parametrize("scheme", ["s3", "gs", "abfs"])
def test_a_store_that_accepts_and_never_answers_is_given_up(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        options: dict[str, Any] = {
            "s3": {"endpoint_url": url, "key": "a", "secret": "b"},
            "gs": {"endpoint_url": url, "token": "anon", "project": "p"},
            "abfs": {"connection_string": f"AccountName=a;AccountKey=YQ==;BlobEndpoint={url}/a;"},
        }[scheme]
        queue: FileQueue[int] = FileQueue(f"{scheme}://bucket/q", timeout=1.0, **options)
        start = time.monotonic()
        with pytest.raises(QueueUnavailableError, match="did not answer for 1 s"):
            queue.push(1)
        assert time.monotonic() - start < 30  # it hung for minutes


def test_an_s3_that_does_not_name_the_condition_creates_exclusively(moto: str) -> None:
    conflicts: list[bytes] = []

    def without_condition(answer: bytes) -> bytes:
        if b"PreconditionFailed" in answer:
            conflicts.append(answer)
        return answer.replace(b"<Condition>If-None-Match</Condition>", b"")

    with SwallowingProxy(moto) as proxy:
        proxy.rewrite = without_condition
        url, options = f"s3://bucket/{uuid.uuid4().hex}", {"timeout": 5.0, **s3_options(proxy.url)}
        with FileQueue[int](url, **options) as queue, FileQueue[int](url, **options) as other:
            queue.push(1)
            lease = queue.pop()
            assert lease is not None
            assert other.pop() is None
            queue.done(lease)
            assert other.size() == 0
        assert all(b"<Condition>If-None-Match</Condition>" in answer for answer in conflicts)
        assert conflicts


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("scheme", ["s3", "gs", "memory"])
def test_a_push_many_of_which_a_file_fails_stores_nothing(
    scheme: str, stored: bool, moto: str, gcs: GcsEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"s3": s3_options(moto), "gs": gcs_options(gcs.url), "memory": {}}[scheme]
    with FileQueue[int](f"{scheme}://bucket/{uuid.uuid4().hex}", **options) as queue:
        assert queue.size() == 0
        real = FsspecStore.create

        def create(store: FsspecStore, path: str, data: bytes) -> bool:
            fails = "0003x" in path
            made = real(store, path, data) if stored or not fails else False
            if fails:
                raise QueueUnavailableError("no answer")
            return made

        with monkeypatch.context() as patch:
            patch.setattr(FsspecStore, "create", create)
            with pytest.raises(QueueUnavailableError, match="no answer"):
                queue.push_many(range(1000))
        assert queue.size() == 0
        queue.push_many(range(1000))
        assert queue.size() == 1000


# --- what it costs ---


def test_an_item_takes_at_most_six_requests_on_the_wire(moto: str, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 60
    # Bulks by their size: how fast this machine is must not count. And one client sweeps every five minutes,
    # first at a moment drawn by lot: that is not what an item costs.
    monkeypatch.setattr(file_queue, "SWEEP_EVERY", 1e12)
    with SwallowingProxy(moto) as proxy:
        start = time.time()

        def clock() -> float:
            return start + proxy.answered * 0.03  # what a store's answer takes

        queue: FileQueue[int] = FileQueue(
            f"s3://bucket/{uuid.uuid4().hex}", clock=clock, cleanup_delay=600.0, **s3_options(proxy.url)
        )
        queue.push(0)
        queue.done(queue.pop())  # type: ignore[arg-type]
        queue.close()
        before = proxy.answered
        for number in range(count):
            queue.push(number)
        for _ in range(count):
            queue.done(queue.pop())  # type: ignore[arg-type]
        queue.close()
        requests = (proxy.answered - before) / count
    print(f"\nS3: {requests:.2f} HTTP requests per item, listings and deletions included")
    assert requests <= 6.25  # six, and what is listed every five seconds


@pytest.mark.parametrize("bucket", ["bucket", "arn:aws:s3:us-west-2:123456789012:accesspoint/point"])
def test_objects_of_an_access_point_are_deleted_as_those_of_a_bucket(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, str, Any]] = []

    async def call(fs: object, method: str, *, Bucket: str, Delete: Any) -> dict[str, Any]:
        made.append((method, Bucket, [each["Key"] for each in Delete["Objects"]]))
        return {}

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", call)
    FsspecStore(f"s3://{bucket}/queues/tasks", {"anon": True}, timeout=5.0).delete(["one", "two"])
    assert made == [("delete_objects", bucket, ["queues/tasks/one", "queues/tasks/two"])]
