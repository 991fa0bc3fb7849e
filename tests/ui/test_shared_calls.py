"""The page where no thread can be started; no browser is needed."""

import threading
from urllib.request import Request, urlopen

import pytest
from clusters import StubCluster, job

from fray.backend import UiServer


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
