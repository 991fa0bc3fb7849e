"""Every request has its reply, in order and once, also when workers die."""

import re
from collections.abc import Callable
from types import ModuleType

import pytest
from killing import killer

REQUESTS = 800


@pytest.fixture
def server(load: Callable[[str], ModuleType]) -> ModuleType:
    return load("batching_server")


@pytest.fixture
def expected(server: ModuleType) -> list[int]:
    """What one model in one process says."""
    points, _ = server.spirals(REQUESTS, seed=2)
    return [int(which) for which in server.Model().predict(points).argmax(axis=1)]


def test_every_request_has_its_reply(
    server: ModuleType, expected: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert [answer.spiral for answer in server.run(REQUESTS, workers=2, crash=0)] == expected
    out = capsys.readouterr().out
    assert "a request that is wrong fails alone: 'nonsense' is not a point" in out
    right = re.search(r"(\d+)% of them right", out)
    assert right is not None
    assert int(right[1]) > 90


def test_workers_that_die_in_a_batch_lose_nothing(
    server: ModuleType, expected: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    # There are at least 25 batches, and a life answers at most 11 of them: a third one begins after a death.
    assert [answer.spiral for answer in server.run(REQUESTS, workers=2, crash=12)] == expected
    died = re.search(r"^(\d+) workers died", capsys.readouterr().out, re.MULTILINE)
    assert died is not None
    assert int(died[1]) >= 1


def test_workers_that_are_killed_at_any_moment_lose_nothing(server: ModuleType, expected: list[int]) -> None:
    with killer("batching-server-", times=3) as killed:
        for _ in range(10):  # until all three are dead
            answers = server.run(REQUESTS, workers=2, crash=0)
            assert [answer.spiral for answer in answers] == expected
            if len(killed) == 3:
                break
    assert len(killed) == 3
