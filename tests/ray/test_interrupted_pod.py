"""`run_on_pod` ends: where its program is interrupted, and where the head is away. Without a cluster."""

import asyncio
import signal
import sys
import threading
from typing import Any

import pytest
import ray
from head_in_memory import EmptyCluster, HeadInMemory
from replicas_in_memory import GOOD, ReplicasInMemory
from replicas_in_memory import EmptyCluster as RoomForAll

from fray import WorkerDiedError
from fray.backend import StopRequested
from fray.testing.gates import until
from fray_ray import run_on_pod

POD = "fray_ray._run_on_pod"


class Joined:
    """A connection to a cluster that is not there."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def open(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize("begun", [False, True], ids=["before it has begun", "while it waits for room"])
def test_a_pod_whose_call_is_interrupted_ends(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    asked_to_end, waits = threading.Event(), list[str]()
    threads: list[int] = []

    class Line(EmptyCluster):
        """The first thing that a gang makes; it never has room."""

        def __init__(self) -> None:
            threads.append(threading.get_ident())
            if not begun:
                signal.raise_signal(signal.SIGINT)  # Python has the main thread act on it
                asked_to_end.wait(20)

        async def find(self, *_: Any) -> None:
            waits.append("for room")
            if begun:
                signal.raise_signal(signal.SIGINT)
            await asyncio.Event().wait()

    def request(grace: float) -> StopRequested:
        asked_to_end.set()
        return StopRequested(grace)

    monkeypatch.setattr(f"{POD}.Connection", Joined)
    monkeypatch.setattr(f"{POD}.ReservationQueue", Line)
    monkeypatch.setattr(f"{POD}.StopRequested", request)
    monkeypatch.setattr("ray._private.auto_init_hook.enable_auto_connect", False)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 1.0})
    with pytest.raises(KeyboardInterrupt):
        run_on_pod(lambda: None, "v4-16")
    asked_to_end.set()
    until(lambda: threads[0] not in sys._current_frames(), "its thread has ended", 20)
    assert waits == ["for room"] * begun


def test_a_pod_whose_room_could_not_be_given_back_ends(
    head: HeadInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call() -> None:
        try:
            run_on_pod(lambda: None, "v4-8", max_retries_failure=1)
        except WorkerDiedError as error:
            raised.append(str(error))

    raised: list[str] = []
    replicas = ReplicasInMemory(monkeypatch)
    monkeypatch.setattr(f"{POD}.Connection", Joined)
    monkeypatch.setattr(f"{POD}.ReservationQueue", RoomForAll)
    monkeypatch.setattr("ray._private.auto_init_hook.enable_auto_connect", False)
    replicas.fails["remove"] = 1
    threading.Thread(target=call, daemon=True).start()
    until(lambda: any(each.starts for each in replicas.made), "its host runs", 20)
    replicas.made[0].events.append({**GOOD, "exit_code": 3})
    until(lambda: bool(raised), "the call has ended", 20)
    assert "the head is away: remove" in raised[0]
    assert not replicas.groups
