"""A job whose supervisor was taken away with its host, and runs again elsewhere."""

from collections.abc import Sequence

import pytest

from fray.backend import (
    AttemptEnd,
    Begin,
    CannotRun,
    Ended,
    EndTree,
    JobPhase,
    Policy,
    StartReplica,
    Supervision,
    TreeEnded,
)
from fray.cluster import ExitReason

GOOD = AttemptEnd(ExitReason.EXITED, 0)
BAD = AttemptEnd(ExitReason.EXITED, 3, "exited with code 3")


def started(policy: Policy) -> Supervision:
    machine = Supervision(policy)
    machine.handle(Begin(), 0.0)
    return machine


def resumed(policy: Policy, before: Supervision) -> Supervision:
    machine = Supervision(policy)
    assert machine.resume(before.tasks, 10.0) == []
    return machine


def starts(actions: Sequence[object]) -> list[tuple[int, int]]:
    return [(each.replica, each.attempt) for each in actions if isinstance(each, StartReplica)]


@pytest.mark.parametrize("gang", [False, True])
def test_what_ran_was_preempted_and_starts_again(gang: bool) -> None:
    policy = Policy(replicas=2, gang=gang, max_retries_preemption=1)
    machine = Supervision(policy)
    assert machine.resume(started(policy).tasks, 10.0) == []
    assert starts(machine.handle(Begin(), 10.0)) == [(0, 2), (1, 2)]
    for task in machine.tasks:
        (earlier,) = task.previous
        assert (earlier.attempt, earlier.reason, earlier.status) == (1, ExitReason.PREEMPTED, "failed")


def test_a_replica_that_had_succeeded_does_not_run_again_unless_its_gang_does() -> None:
    policy = Policy(replicas=2, max_retries_preemption=1)
    before = started(policy)
    before.handle(Ended(0, 1, GOOD), 1.0)
    machine = resumed(policy, before)
    assert starts(machine.handle(Begin(), 10.0)) == [(1, 2)]
    gang = Supervision(Policy(replicas=2, gang=True, max_retries_preemption=1))
    gang.resume(before.tasks, 10.0)
    assert starts(gang.handle(Begin(), 10.0)) == [(0, 2), (1, 2)]


def test_failures_before_count_in_their_own_budget() -> None:
    policy = Policy(replicas=1, max_retries_failure=1, max_retries_preemption=1)
    before = started(policy)
    before.handle(Ended(0, 1, BAD), 1.0)
    before.handle(Begin(), 2.0)  # the time of the next attempt
    machine = resumed(policy, before)
    assert starts(machine.handle(Begin(), 10.0)) == [(0, 3)]
    machine.handle(Ended(0, 3, BAD), 11.0)
    machine.handle(TreeEnded(), 12.0)
    assert machine.phase is JobPhase.FINISHED
    assert machine.tasks[0].attempt == 3


def test_a_replica_that_had_failed_for_good_does_not_run_again() -> None:
    policy = Policy(replicas=2, max_retries_preemption=1)
    before = started(policy)
    before.handle(Ended(0, 1, BAD), 1.0)
    machine = resumed(policy, before)
    assert starts(machine.handle(Begin(), 10.0)) == [(1, 2)]
    machine.handle(Ended(1, 2, GOOD), 11.0)
    machine.handle(TreeEnded(), 12.0)
    assert [(task.status, task.attempt) for task in machine.tasks] == [("failed", 1), ("succeeded", 2)]


def test_one_preemption_too_many_fails_the_job() -> None:
    policy = Policy(replicas=2, max_retries_preemption=1)
    first = started(policy)
    second = Supervision(policy)
    second.resume(first.tasks, 10.0)
    second.handle(Begin(), 10.0)
    third = Supervision(policy)
    assert third.resume(second.tasks, 20.0) == [EndTree(0.0, forced=True)]
    third.handle(TreeEnded(), 21.0)
    assert {task.reason for task in third.tasks} == {ExitReason.PREEMPTED}
    assert {task.status for task in third.tasks} == {"failed"}


def test_a_host_that_goes_leaves_its_grace() -> None:
    machine = started(Policy(replicas=1))
    ending = CannotRun(ExitReason.TIMED_OUT, "the allocation is over", 5.0)
    assert machine.handle(ending, 1.0) == [EndTree(5.0, forced=False)]
    machine.handle(TreeEnded(), 2.0)
    assert machine.tasks[0].reason is ExitReason.TIMED_OUT
