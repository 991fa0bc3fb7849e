"""The supervision machine against a model that keeps its own books."""

import pickle
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from fray.backend import (
    AttemptEnd,
    Begin,
    CannotRun,
    ClearTree,
    Ended,
    EndTree,
    JobPhase,
    Noticed,
    Placed,
    Policy,
    RestartRequested,
    SettleJob,
    StartFailed,
    StartReplica,
    StopReplica,
    StopRequested,
    Supervision,
    Tick,
    TreeEnded,
)
from fray.cluster import ExitReason, JobStatus

GOOD = AttemptEnd(ExitReason.EXITED, 0)
BAD = AttemptEnd(ExitReason.EXITED, 3, "exited with code 3")


class SupervisionMachine(RuleBasedStateMachine):
    """Runs a job by what the machine says, as a cluster would, and counts for itself."""

    @initialize(
        replicas=st.integers(1, 3),
        gang=st.booleans(),
        failures=st.integers(0, 2),
        preemptions=st.integers(0, 2),
        timeout=st.sampled_from([None, 50.0]),
        places=st.booleans(),
    )
    def begin_job(
        self, replicas: int, gang: bool, failures: int, preemptions: int, timeout: float | None, places: bool
    ) -> None:
        self.policy = Policy(
            replicas=replicas,
            gang=gang,
            max_retries_failure=failures,
            max_retries_preemption=preemptions,
            timeout=timeout,
            places=places,
        )
        self.machine = Supervision(self.policy)
        self.placed: set[int] = set()
        self.now = 100.0
        self.running: dict[int, tuple[int, float]] = {}  # replica -> attempt, when it started
        self.attempts = [0] * replicas
        self.last: list[AttemptEnd | None] = [None] * replicas
        self.failed = [0] * replicas  # attempts that failed by themselves
        self.preempted = 0
        self.noticed: set[int] = set()
        self.told: set[int] = set()
        self.starting: list[int] = []
        self.clearing = self.ending = False
        self.wanted: JobStatus | None = None  # by who ended the job
        self.settled: SettleJob | None = None

    def handle(self, event: Any) -> None:
        self.act(self.machine.handle(event, self.now))

    def act(self, actions: list[Any]) -> None:
        started = [action for action in actions if isinstance(action, StartReplica)]
        if started and self.policy.gang:
            assert [action.replica for action in started] == list(range(self.policy.replicas))
            assert len({action.attempt for action in started}) == 1
            assert not self.running
            assert not self.clearing
        for action in actions:
            assert self.settled is None, "nothing happens after the end"
            match action:
                case StartReplica(replica, attempt):
                    assert replica not in self.running
                    assert not self.ending
                    if self.policy.places:
                        self.placed.remove(replica)  # each place is for one attempt
                    self.attempts[replica] += 1
                    assert attempt == self.attempts[replica]
                    self.running[replica] = attempt, self.now
                    self.noticed.discard(replica)
                    self.told.discard(replica)
                case StopReplica(replica, attempt, _, _):
                    assert self.running[replica][0] == attempt
                    if replica not in self.noticed:
                        assert self.policy.gang, (
                            "a replica that knows of no other is stopped with its job alone"
                        )
                        self.told.add(replica)
                case ClearTree():
                    self.clearing = True
                case EndTree():
                    self.clearing = self.ending = True
                case SettleJob():
                    self.settled = action
        self.check()

    def check(self) -> None:
        policy = self.policy
        for replica in range(policy.replicas):
            task = self.machine.tasks[replica]
            if self.settled is None or task.started_at is not None:
                assert task.attempt == self.attempts[replica]
            else:  # it was to have another attempt
                assert task.attempt == self.attempts[replica] + bool(self.attempts[replica])
            assert len(task.previous) == max(0, task.attempt - 1)
            assert all(each.reason is not None for each in task.previous), "how it ended stays known"
            budget = 1 + policy.max_retries_failure + policy.max_retries_preemption
            assert self.attempts[replica] <= budget
        if not policy.gang:
            for replica, failures in enumerate(self.failed):
                assert failures <= policy.max_retries_failure + 1
                assert self.attempts[replica] >= min(failures, 1)

    @precondition(lambda self: self.machine.phase is JobPhase.PENDING)
    @rule()
    def room_is_there(self) -> None:
        self.handle(Begin())
        assert set(self.running) == set(range(self.policy.replicas)) or self.ending or self.policy.places

    @precondition(lambda self: self.machine.unplaced)
    @rule(data=st.data())
    def places_are_found(self, data: Any) -> None:
        wanted = self.machine.unplaced
        assert not set(wanted) & (self.placed | set(self.running))
        found = data.draw(st.sets(st.sampled_from(wanted), min_size=1))
        self.placed |= found
        self.handle(Placed(tuple(found)))

    @rule()
    def another_supervisor_takes_it_up(self) -> None:
        tasks, running = self.machine.tasks, self.machine.running
        self.machine = pickle.loads(pickle.dumps(self.machine))
        assert (self.machine.tasks, self.machine.running) == (tasks, running)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), end=st.sampled_from([GOOD, BAD, BAD]))
    def a_replica_ends(self, data: Any, end: AttemptEnd) -> None:
        replica = data.draw(st.sampled_from(sorted(self.running)))
        attempt, _ = self.running.pop(replica)
        self.last[replica] = end
        if replica in self.noticed and not self.ending:
            self.preempted += 1
        elif not end.good and replica not in self.told and not self.ending:
            self.failed[replica] += 1
        self.handle(Ended(replica, attempt, end))
        self.handle(Ended(replica, attempt, BAD))  # received twice, it counts once

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def a_replica_cannot_be_started(self, data: Any) -> None:
        replica = data.draw(st.sampled_from(sorted(self.running)))
        attempt, started = self.running[replica]
        if started == self.now and not self.ending and replica not in self.noticed:
            del self.running[replica]
            self.last[replica] = AttemptEnd(ExitReason.COULD_NOT_START, None, "could not start")
            self.handle(StartFailed(replica, attempt, self.last[replica]))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), grace=st.floats(1, 30), late=st.booleans())
    def a_host_is_to_go(self, data: Any, grace: float, late: bool) -> None:
        replica = data.draw(st.sampled_from(sorted(self.running)))
        attempt = self.running[replica][0]
        if late:
            self.handle(Noticed(replica, attempt - 1, grace))  # of an attempt that is over
        elif replica not in self.told and not self.ending:
            self.noticed.add(replica)
            self.handle(Noticed(replica, attempt, grace))

    @rule(seconds=st.floats(0.01, 20))
    def time_passes(self, seconds: float) -> None:
        self.advance_to(self.now + seconds)

    def advance_to(self, moment: float) -> None:
        self.now = max(self.now, moment)
        if self.settled is None and not self.ending and self.policy.timeout is not None:
            late = [1 for _, started in self.running.values() if self.now >= started + self.policy.timeout]
            if late and self.wanted is None:
                self.wanted = JobStatus.FAILED
        self.handle(Tick())

    @precondition(lambda self: self.settled is None)
    @rule(grace=st.sampled_from([0.0, 5.0]), seldom=st.integers(0, 9))
    def somebody_stops_it(self, grace: float, seldom: int) -> None:
        if seldom:
            return
        concluded = self.machine.phase is JobPhase.ENDING
        self.handle(StopRequested(grace))
        if not concluded and self.wanted is None:
            self.wanted = JobStatus.STOPPED

    @precondition(lambda self: self.machine.phase is JobPhase.PENDING)
    @rule(seldom=st.integers(0, 9))
    def it_cannot_be_prepared(self, seldom: int) -> None:
        if not seldom:
            self.wanted = JobStatus.FAILED
            self.handle(CannotRun(ExitReason.COULD_NOT_START, "no environment"))

    @precondition(lambda self: self.clearing and not self.running)
    @rule()
    def the_tree_is_gone(self) -> None:
        self.clearing = False
        self.handle(TreeEnded())

    def teardown(self) -> None:
        if not hasattr(self, "machine"):
            return
        self.handle(Begin())
        for _ in range(200):
            if self.settled is not None:
                break
            for replica in sorted(self.running):
                attempt, _ = self.running.pop(replica)
                self.last[replica] = GOOD
                if replica in self.noticed and not self.ending:
                    self.preempted += 1
                self.handle(Ended(replica, attempt, GOOD))
            if self.clearing:
                self.clearing = False
                self.handle(TreeEnded())
            if self.machine.unplaced:
                self.placed |= set(self.machine.unplaced)
                self.handle(Placed(self.machine.unplaced))
            self.advance_to(self.machine.due or self.now)
        assert self.settled is not None, "every job comes to an end"
        self.check_verdict()

    def check_verdict(self) -> None:
        assert self.settled is not None
        status = self.settled.status
        assert all(task.status.finished for task in self.machine.tasks)
        if self.wanted is not None:
            assert status is self.wanted
        elif status is JobStatus.SUCCEEDED:
            assert all(end is not None and end.good for end in self.last)
            assert self.settled.error_message is None
        else:
            assert self.settled.error_message
            if not self.policy.gang:
                gave_up = [
                    replica
                    for replica, end in enumerate(self.last)
                    if end is not None and (not end.good or replica in self.noticed)
                ]
                assert gave_up
        if not self.policy.gang and status is JobStatus.FAILED and self.wanted is None and not self.preempted:
            beyond = [count > self.policy.max_retries_failure for count in self.failed]
            could_not = [end and end.reason is ExitReason.COULD_NOT_START for end in self.last]
            assert any(beyond) or any(could_not)


SupervisionMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestSupervision = SupervisionMachine.TestCase


def run_gang(*ends: AttemptEnd, failures: int = 0, preemptions: int = 0) -> tuple[Supervision, list[Any]]:
    """One attempt of a gang whose replicas end so, in this order."""
    policy = Policy(
        replicas=len(ends), gang=True, max_retries_failure=failures, max_retries_preemption=preemptions
    )
    machine = Supervision(policy)
    machine.handle(Begin(), 1.0)
    actions = [
        action
        for number, end in enumerate(ends)
        for action in machine.handle(Ended(number, 1, end), 2.0 + number)
    ]
    return machine, actions


def test_a_peer_that_fails_before_the_loss_of_a_host_is_seen_is_not_to_blame() -> None:
    gone = AttemptEnd(ExitReason.PREEMPTED, None, details="\nits node is gone")
    machine, _ = run_gang(BAD, gone, preemptions=1)
    (start, *_) = machine.handle(TreeEnded(), 9.0)
    assert start == StartReplica(0, 2), "preemptions and failures are counted apart"


def test_the_fields_that_a_supervisor_keeps_are_those_that_others_read() -> None:
    from dataclasses import fields

    from fray.backend import JobState, ReplicaState
    from fray.cluster import JobInfo, TaskStatus

    assert set(ReplicaState._fields) == {field.name for field in fields(TaskStatus)}
    assert set(JobState._fields) <= {field.name for field in fields(JobInfo)}


def starts(actions: list[Any]) -> list[tuple[int, int]]:
    """Which attempts of which replicas actions start."""
    return [(action.replica, action.attempt) for action in actions if isinstance(action, StartReplica)]


GONE = AttemptEnd(ExitReason.PREEMPTED, None)


def test_a_replica_has_as_many_attempts_as_its_failures_allow_each_after_a_longer_pause() -> None:
    machine = Supervision(Policy(replicas=2, max_retries_failure=2))
    assert starts(machine.handle(Begin(), 1.0)) == [(0, 1), (1, 1)]
    for attempt, (now, pause) in enumerate([(10.0, 0.1), (20.0, 0.2)], 1):
        assert starts(machine.handle(Ended(0, attempt, BAD), now)) == []
        assert machine.due == pytest.approx(now + pause)
        assert starts(machine.handle(Tick(), now + pause - 0.01)) == []
        assert starts(machine.handle(Tick(), now + pause)) == [(0, attempt + 1)]
    assert starts(machine.handle(Ended(0, 3, BAD), 30.0)) == []
    assert machine.due is None, "its budget is used up, and its peer goes on"
    assert machine.phase is JobPhase.RUNNING
    assert ClearTree() in machine.handle(Ended(1, 1, GOOD), 40.0)
    (settle,) = machine.handle(TreeEnded(), 41.0)
    assert settle == SettleJob(JobStatus.FAILED, "replica 0 exited with code 3 (attempt 3 of 3)")


@pytest.mark.parametrize("gang", [False, True])
@pytest.mark.parametrize("allowed", [0, 1, 2])
def test_a_job_starts_again_after_as_many_preemptions_as_are_allowed(gang: bool, allowed: int) -> None:
    machine = Supervision(Policy(replicas=1, gang=gang, max_retries_preemption=allowed))
    machine.handle(Begin(), 1.0)
    for preemption in range(1, allowed + 2):
        actions = machine.handle(Ended(0, preemption, GONE), 10.0 * preemption)
        if ClearTree() in actions:
            actions += machine.handle(TreeEnded(), 10.0 * preemption)
        again = [(0, preemption + 1)] if preemption <= allowed else []
        assert starts(actions) == again, "at once: it is not to blame"
    for _ in range(2):
        if machine.phase is not JobPhase.FINISHED:
            machine.handle(TreeEnded(), 99.0)
    assert machine.tasks[0].reason is ExitReason.PREEMPTED
    assert machine.phase is JobPhase.FINISHED


def test_the_peers_of_a_member_that_fails_are_asked_to_end_and_then_made_to() -> None:
    machine = Supervision(Policy(replicas=3, gang=True))
    machine.handle(Begin(), 1.0)
    asked = machine.handle(Ended(1, 1, BAD), 5.0)
    stops = [action for action in asked if isinstance(action, StopReplica)]
    assert stops == [StopReplica(0, 1, 10.0), StopReplica(2, 1, 10.0)]
    assert machine.due == 15.0
    machine.handle(Ended(2, 1, AttemptEnd(ExitReason.SIGNALLED, -15)), 6.0)
    assert machine.handle(Tick(), 14.9) == []
    assert machine.handle(Tick(), 15.0) == [StopReplica(0, 1, 0.0, forced=True)]
    machine.handle(Ended(0, 1, AttemptEnd(ExitReason.SIGNALLED, -9)), 15.1)
    machine.handle(TreeEnded(), 15.2)
    assert [task.reason for task in machine.tasks] == [
        ExitReason.STOPPED,
        ExitReason.EXITED,
        ExitReason.STOPPED,
    ]


@pytest.mark.parametrize("gang", [False, True])
def test_a_program_that_is_not_there_is_not_tried_again_where_another_host_says_so(gang: bool) -> None:
    machine = started(Policy(replicas=1, gang=gang, max_retries_failure=3))
    machine.handle(Ended(0, 1, AttemptEnd(ExitReason.COULD_NOT_START, None, "could not start 'x'")), 2.0)
    for _ in range(2):  # a gang's tree is cleared before the end too
        machine.handle(TreeEnded(), 3.0)
    assert machine.phase is JobPhase.FINISHED
    assert machine.verdict == (JobStatus.FAILED, ExitReason.EXITED, "replica 0 could not start 'x'")


def test_a_time_limit_is_of_each_attempt() -> None:
    machine = Supervision(Policy(replicas=1, max_retries_failure=1, timeout=5.0))
    machine.handle(Begin(), 1.0)
    machine.handle(Ended(0, 1, BAD), 5.9)
    assert starts(machine.handle(Tick(), 7.0)) == [(0, 2)]
    assert machine.handle(Tick(), 11.9) == []
    assert EndTree(10.0) in machine.handle(Tick(), 12.0)


def started(policy: Policy) -> Supervision:
    machine = Supervision(policy)
    machine.handle(Begin(), 0.0)
    machine.handle(Placed(machine.unplaced), 0.0)
    return machine


def test_a_gang_starts_when_all_of_it_is_placed_and_one_attempt_takes_the_places() -> None:
    machine = Supervision(Policy(replicas=2, gang=True, max_retries_failure=1, places=True))
    assert list(machine.unplaced) == [0, 1], "a job that has not begun looks for places, too"
    assert machine.handle(Begin(), 0.0) == machine.handle(Placed((1,)), 1.0) == []
    assert list(machine.unplaced) == [0]
    assert machine.handle(Placed((0,)), 2.0) == [StartReplica(0, 1), StartReplica(1, 1)]
    for replica in (0, 1):
        machine.handle(Ended(replica, 1, BAD), 3.0)
    machine.handle(TreeEnded(), 4.0)
    assert list(machine.unplaced) == []
    assert machine.due is not None
    assert machine.handle(Tick(), machine.due) == []
    assert list(machine.unplaced) == [0, 1]
    assert machine.handle(Tick(), 1_000.0) == [], "places are waited for"


def test_a_gang_that_has_fewer_replicas_for_an_attempt_keeps_the_past_of_the_others() -> None:
    policy = Policy(replicas=2, gang=True, max_retries_preemption=3, places=True)
    machine = started(policy)
    lost = AttemptEnd(ExitReason.PREEMPTED, None, "was preempted")

    def preempt(attempt: int, replicas: int) -> None:
        for replica in range(replicas):
            machine.handle(Ended(replica, attempt, lost), 1.0)
        machine.handle(TreeEnded(), 2.0)

    preempt(1, 2)
    machine.resize(1)
    assert machine.handle(Placed((0,)), 3.0) == [StartReplica(0, 2)]
    preempt(2, 1)
    machine.resize(3)
    assert machine.unplaced == (0, 1, 2)
    assert machine.handle(Placed((0, 1, 2)), 4.0) == [StartReplica(n, 3) for n in range(3)]
    assert [[each.attempt for each in task.previous] for task in machine.tasks] == [[1, 2], [1], []]


def test_a_supervision_goes_on_by_another_clock() -> None:
    machine = started(Policy(replicas=1, timeout=10.0, max_retries_failure=1, places=True))
    machine.handle(Noticed(0, 1, 5.0), 2.0)
    machine.shift(1_000.0)
    assert machine.running[0].kill_at == 1_007.0
    assert machine.due == 1_007.0
    assert machine.handle(Tick(), 1_007.0) == [StopReplica(0, 1, 0.0, forced=True)]
    machine.handle(Ended(0, 1, BAD), 1_008.0)
    assert machine.tasks[0].finished_at == 8.0, "the time of day is the same"


@pytest.mark.parametrize("first", [0, 4])
def test_what_is_said_of_a_replica_that_the_job_has_not_or_no_longer_changes_nothing(first: int) -> None:
    machine = Supervision(Policy(replicas=3, gang=True, first_replica=first))
    machine.resize(2)
    machine.handle(Begin(), 0.0)
    before = machine.tasks
    for number in (first - 1, first + 2, first + 100):
        for event in (
            RestartRequested(number, 1, 1.0),
            Noticed(number, 1, 1.0),
            Ended(number, 1, BAD),
            StartFailed(number, 1, BAD),
        ):
            assert machine.handle(event, 1.0) == []
    assert machine.tasks == before
    machine.handle(StopRequested(0.0), 2.0)
    assert machine.handle(Ended(first + 2, 1, BAD), 3.0) == []
    assert machine.phase is JobPhase.ENDING
