"""The pool answers every request once and in order, also when workers die."""

import re
from collections.abc import Callable
from types import ModuleType

import pytest
from killing import killer

REQUESTS = 600


@pytest.fixture
def pool(load: Callable[[str], ModuleType]) -> ModuleType:
    return load("inference_pool")


@pytest.fixture
def expected(pool: ModuleType) -> list[str]:
    """What one model in one process says."""
    model = pool.Model()
    return [model.predict(line) for _, line in pool.questions(REQUESTS)]


def test_every_request_is_answered_in_order(pool: ModuleType, expected: list[str]) -> None:
    assert pool.run(REQUESTS, workers=2, crash=0.0) == expected


def test_workers_that_die_between_taking_and_settling_lose_nothing(
    pool: ModuleType, expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for moment in ("taken", "answered"):  # somebody's first attempt is fatal, whatever batch it is in
        assert any(pool.is_fatal(number, 1, moment, 0.06) for number in range(REQUESTS))
    assert pool.run(REQUESTS, workers=2, crash=0.06) == expected
    died = re.search(r"^(\d+) workers died", capsys.readouterr().out, re.MULTILINE)
    assert died is not None
    assert int(died[1]) > 0


def test_workers_that_are_killed_at_any_moment_lose_nothing(pool: ModuleType, expected: list[str]) -> None:
    with killer("inference-pool-", times=5) as killed:
        for _ in range(20):  # until all five are dead
            assert pool.run(REQUESTS, workers=2, crash=0.0) == expected
            if len(killed) == 5:
                break
    assert len(killed) == 5
