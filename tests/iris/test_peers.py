"""How long a replica that has failed for good keeps its task, on a clock of the test."""

from collections.abc import Callable
from typing import Any

import pytest

from fray_iris._in_task import peers
from fray_iris._in_task.controller import Controller, CouldNotStart, Refused

MINUTE = 60.0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(peers, "time", clock)
    return clock


class Answers(Controller):
    """A controller that knows of one other replica."""

    def __init__(self, clock: Clock, state: Callable[[float], str]) -> None:
        super().__init__("http://127.0.0.1:1", "/ada/job-1/0", 0, print)
        self._clock, self._state = clock, state

    def call(self, method: str, **request: Any) -> dict[str, Any]:
        state = self._state(self._clock.now)
        if state == "refused":
            raise Refused("401")
        if state == "away":
            self._clock.sleep(4.2)
            raise CouldNotStart("no route to host")
        return {"tasks": [{"taskId": "/ada/job-1/1", "state": f"TASK_STATE_{state}"}]}


def kept_for(clock: Clock, state: Callable[[float], str]) -> float:
    """Return for how many seconds a replica that has failed keeps its task."""
    plan = {"replicas": 2, "gang": None, "max_retries_failure": 0}
    controller = Answers(clock, state)
    peers.Peers(plan, controller, 0, lambda: False).wait_for_ends({"reason": "exited"}, 1)
    return clock.now


def test_it_is_kept_for_as_long_as_another_runs(clock: Clock) -> None:
    day = 24 * 60 * MINUTE
    assert kept_for(clock, lambda now: "RUNNING" if now < day else "SUCCEEDED") == pytest.approx(day, abs=1)


def test_it_is_let_go_where_the_others_wait_for_its_worker(clock: Clock) -> None:
    """They never started: the job would hang for ever, and hold its workers."""
    assert kept_for(clock, lambda now: "PENDING") == pytest.approx(10 * MINUTE, abs=1)


def test_a_worker_that_comes_for_another_is_waited_for_again(clock: Clock) -> None:
    def state(now: float) -> str:
        return "PENDING" if now < 9 * MINUTE else "RUNNING" if now < 30 * MINUTE else "FAILED"

    assert kept_for(clock, state) == pytest.approx(30 * MINUTE, abs=1)


def test_a_controller_that_is_away_for_a_while_ends_nothing(clock: Clock) -> None:
    def state(now: float) -> str:
        return "away" if MINUTE < now < 9 * MINUTE else "RUNNING" if now < 30 * MINUTE else "SUCCEEDED"

    assert kept_for(clock, state) == pytest.approx(30 * MINUTE, abs=1)


def test_a_controller_that_stays_away_is_not_waited_for_for_ever(clock: Clock) -> None:
    assert kept_for(clock, lambda now: "away") == pytest.approx(10 * MINUTE, abs=5)


def test_a_controller_that_refuses_is_not_asked_again(clock: Clock) -> None:
    assert kept_for(clock, lambda now: "refused") == 0.0
