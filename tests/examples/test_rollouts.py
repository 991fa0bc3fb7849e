"""The policy is learnt from the newest rollouts, the stale ones expire, and dead workers cost only time."""

from collections.abc import Callable
from types import ModuleType

import pytest
from killing import killer


@pytest.fixture
def rollouts(load: Callable[[str], ModuleType]) -> ModuleType:
    return load("rollouts")


def test_it_learns_and_what_is_stale_expires(rollouts: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "TTL", 0.1)  # a fast machine has mastered it within that of the example
    updates, stale = rollouts.run(workers=1, crash=0.0)
    assert updates > 1
    assert stale > 0


def test_it_learns_with_workers_that_die(rollouts: ModuleType) -> None:
    updates, _ = rollouts.run(workers=2, crash=0.02)
    assert updates > 1


def test_it_learns_while_workers_are_killed(rollouts: ModuleType) -> None:
    with killer("rollouts-", times=3) as killed:
        for _ in range(10):  # until all three are dead
            rollouts.run(workers=2, crash=0.0)
            if len(killed) == 3:
                break
    assert len(killed) == 3
