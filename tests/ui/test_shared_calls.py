"""The page beside calls that hang, and where no thread can be started; no browser is needed."""

import gc
import threading
import weakref
from collections.abc import Iterator
from urllib.request import Request, urlopen

import pytest
from clusters import StubCluster, job

from fray.backend import UiServer
from fray.cluster import JobInfo


def shown(server: UiServer, path: str) -> str:
    asked = Request(f"{server.url}{path}", headers={"Authorization": f"Bearer {server.token}"})
    with urlopen(asked, timeout=30) as answer:
        text: str = answer.read().decode()
    return text


def test_the_page_goes_on_when_there_is_room_for_threads_again(
    server: UiServer, stub: StubCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.add(*(job(f"train-{number}") for number in range(6)))

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        for number in range(5):
            assert "new thread" in shown(server, f"part/job?id=train-{number}")
    assert "running" in shown(server, "part/job?id=train-5")


class KeptCluster(StubCluster):
    """Sees which of its answers are kept; one job answers never."""

    def __init__(self) -> None:
        super().__init__()
        self.answered: list[weakref.ref[JobInfo]] = []
        self.hangs = threading.Event()

    def poll(self, job_id: str, /) -> JobInfo:
        if job_id == "hangs":
            assert self.hangs.wait(60)
        info = job(job_id)
        self.answered.append(weakref.ref(info))
        return info


@pytest.fixture
def cluster() -> Iterator[KeptCluster]:
    cluster = KeptCluster()
    yield cluster
    cluster.hangs.set()


def test_a_call_that_hangs_keeps_no_other_answer(cluster: KeptCluster) -> None:
    with UiServer({"kept": cluster}) as server:
        assert "Loading" in shown(server, "part/job?id=hangs")
        for number in range(200):
            assert "running" in shown(server, f"part/job?id=train-{number}")
        gc.collect()
        assert sum(info() is not None for info in cluster.answered) < 100
