"""HttpQueue keeps the contract, without a store and with one."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from last_words import give_time
from pools import Pools

from fray.testing.queue import (
    MakeQueue,
    ManualClock,
    QueueContract,
    SharedQueueContract,
    check_queue_machine,
)
from fray_queue import HttpQueue, HttpQueueServer


class _Http:
    BACKEND = "http"

    @pytest.fixture(autouse=True)
    def last_words(self, monkeypatch: pytest.MonkeyPatch) -> None:
        give_time(monkeypatch)

    @pytest.fixture
    def server(self, clock: ManualClock) -> Iterator[HttpQueueServer]:
        with HttpQueueServer(clock=clock) as server:
            yield server

    @pytest.fixture
    def make_queue(self, server: HttpQueueServer) -> MakeQueue:
        numbers = itertools.count()
        return lambda **options: server.new_queue(f"q{next(numbers)}", **options)


class _Stored(_Http):
    BACKEND = "http+store"

    @pytest.fixture
    def server(self, clock: ManualClock, tmp_path: Path) -> Iterator[HttpQueueServer]:
        with HttpQueueServer(clock=clock, store=tmp_path / "store") as server:
            yield server


class TestHttpQueue(_Http, QueueContract):
    pass


class TestPoolsOnHttp(_Http, Pools):
    pass


class TestSharedHttpQueue(_Http, SharedQueueContract):
    pass


class TestStoredHttpQueue(_Stored, QueueContract):
    pass


class TestPoolsOnStoredHttp(_Stored, Pools):
    pass


class TestSharedStoredHttpQueue(_Stored, SharedQueueContract):
    pass


@pytest.mark.parametrize("stored", [False, True])
def test_every_history_agrees_with_the_model(stored: bool, tmp_path: Path) -> None:
    clock = ManualClock()
    numbers = itertools.count()
    with HttpQueueServer(clock=clock, store=tmp_path / "store" if stored else None) as server:

        def make_queue(**options: Any) -> Any:
            return server.new_queue(f"q{next(numbers)}", **options)

        def reopen(queue: Any) -> Any:
            queue.close()
            return HttpQueue(server.url, queue._name)

        check_queue_machine(make_queue, clock, reopen=reopen, pickles=True, examples=20, steps=30)


@pytest.mark.parametrize("stored", [False, True])
def test_it_declares_what_its_server_can(stored: bool, tmp_path: Path) -> None:
    with HttpQueueServer(store=tmp_path / "store" if stored else None) as server:
        assert server.new_queue("q").capabilities.durable is stored
    assert HttpQueue.capabilities.durable
