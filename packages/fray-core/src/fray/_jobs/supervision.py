"""The rules by which a job is supervised: events and the time go in, actions come out.

No process, no thread, no clock, no file is known here. The same machine runs replicas that know nothing of
each other and gangs; the supervisor of a cluster performs its actions.

A job:       pending -> running -> ending (a user stopped it, or its time is up) -> clearing -> finished
A replica:   see `ReplicaRules`.
"""

from __future__ import annotations

import enum

from fray._jobs.rules.events import (
    Action,
    Begin,
    CannotRun,
    ClearTree,
    Ended,
    EndTree,
    Event,
    Noticed,
    Placed,
    Policy,
    RestartRequested,
    SettleJob,
    StartFailed,
    StopReplica,
    StopRequested,
    TreeEnded,
)
from fray._jobs.rules.replica_rules import ALIVE, PEER_GRACE, Phase, Replica, ReplicaRules, pause_after
from fray._jobs.rules.states import ReplicaState
from fray._values.job_words import ExitReason, JobStatus
from fray._values.light_tuples import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

TIMEOUT_GRACE = 10.0  # seconds that replicas have after SIGTERM when their time is up


class JobPhase(enum.Enum):
    """Where a job is."""

    PENDING = "pending"
    RUNNING = "running"
    BETWEEN = "between"
    """No replica of the gang runs; its tree is cleared before the next attempt."""
    ENDING = "ending"
    FINISHED = "finished"


class Running(NamedTuple):
    """An attempt that runs; `kill_at` is when it is killed, where it was asked to end."""

    replica: int
    attempt: int
    kill_at: float | None


class Supervision(ReplicaRules):
    """The life of one job.

    Args:
        policy: The budgets and limits of its request.
        epoch: What turns the time that is given into seconds since the epoch, for the status.
    """

    def __init__(self, policy: Policy, epoch: float = 0.0) -> None:
        super().__init__(policy, epoch)
        self._phase = JobPhase.PENDING
        self._verdict: tuple[JobStatus, ExitReason, str | None] | None = None  # by which the job is ended
        self._kill_at: float | None = None
        self.started_at: float | None = None
        self._left_out: list[Replica] = []  # of a gang that has fewer replicas now

    @property
    def phase(self) -> JobPhase:
        """Where the job is."""
        return self._phase

    @property
    def tasks(self) -> tuple[ReplicaState, ...]:
        """The state of each replica."""
        return tuple(replica.task for replica in self._replicas)

    @property
    def verdict(self) -> tuple[JobStatus, ExitReason, str | None] | None:
        """How the job ends: its status, the reason and the message; None until that is decided."""
        return self._verdict

    @property
    def running(self) -> tuple[Running, ...]:
        """The attempts that have started and not ended."""
        return tuple(
            Running(each.number, each.task.attempt, each.kill_at)
            for each in self._replicas
            if each.phase in ALIVE
        )

    @property
    def unplaced(self) -> tuple[int, ...]:
        """The replicas whose next attempt is due, and waits for `Placed` alone."""
        if self._phase not in (JobPhase.PENDING, JobPhase.RUNNING) or not self._policy.places:
            return ()
        return tuple(each.number for each in self._replicas if self._is_due(each) and not each.placed)

    @property
    def due(self) -> float | None:
        """The next moment at which `Tick` does something."""
        if self._phase in (JobPhase.PENDING, JobPhase.FINISHED, JobPhase.BETWEEN):
            return None
        if self._phase is JobPhase.ENDING:
            return self._kill_at
        moments = [
            moment
            for replica in self._replicas
            for moment in (self._due_of(replica), replica.kill_at, replica.deadline)
            if moment is not None
        ]
        return min(moments, default=None)

    def _due_of(self, replica: Replica) -> float | None:
        """Return when the next attempt of a replica is due; None where it is, and waits for a place."""
        return None if self._is_due(replica) and not self._may_start(replica) else replica.due

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take in what happened, and the time; return what is to be done, in this order."""
        self._actions, self._now = [], now
        if self._phase is JobPhase.FINISHED or self._is_of_no_replica(event):
            return []
        match event:
            case Begin() if self._phase is JobPhase.PENDING:
                self._phase, self.started_at = JobPhase.RUNNING, self._wall
            case Placed(replicas):
                for number in replicas:
                    self._replica(number).placed = True
            case StopRequested(grace):
                self._end(JobStatus.STOPPED, ExitReason.STOPPED, None, grace)
            case CannotRun(reason, message, grace):
                self._end(JobStatus.FAILED, reason, message, grace)
            case TreeEnded():
                self._tree_ended()
            case Ended() if self._phase is JobPhase.ENDING:
                self._note_exit(self._replica(event.replica), event)
            case StartFailed() | Ended() | Noticed() | RestartRequested():
                self._move(self._replica(event.replica), event)
        self._advance()
        return self._actions

    def _is_of_no_replica(self, event: Event) -> bool:
        """Whether an event is of a replica that the job has not: requests come late, or from anybody."""
        first = self._policy.first_replica
        return getattr(event, "replica", first) not in range(first, first + len(self._replicas))

    def resume(self, tasks: Iterable[ReplicaState], now: float, before: Sequence[int] = ()) -> list[Action]:
        """Go on where a supervisor was taken away with its host: what ran then was preempted with it.

        One such end counts as one preemption, however many replicas ran.

        Args:
            before: The last attempt of each replica that counts against no budget.
        """
        self._actions, self._now = [], now
        uncounted = dict(enumerate(before, self._policy.first_replica))
        for replica, task in zip(self._replicas, tasks, strict=True):
            counted = _attempts_after(uncounted.get(replica.number, 0), task)
            replica.failures = sum(_failed_by_itself(each) for each in counted)
            if task.status.finished and not self._policy.gang:  # of one that is to run again it is pending
                replica.task, replica.phase = task, Phase.OVER
            elif task.attempt:
                interrupted = task.reason is None
                replica.task = (
                    self._interrupted(task) if interrupted else task._replace(status=JobStatus.PENDING)
                )
        runs = [_attempts_after(uncounted.get(each.number, 0), each.task) for each in self._replicas]
        self._preemptions = max(sum(each.reason is ExitReason.PREEMPTED for each in run) for run in runs)
        self._failures = max(replica.failures for replica in self._replicas)
        allowed = self._policy.max_retries_preemption
        if self._preemptions > allowed:
            message = (
                f"the job was preempted (preemption {self._preemptions}; max_retries_preemption={allowed})"
            )
            self._end(JobStatus.FAILED, ExitReason.PREEMPTED, message, 0.0)
        return self._actions

    def resize(self, replicas: int) -> None:
        """Have so many replicas from the next attempt on; those left out keep their past, should they return.

        No replica may run.
        """
        every = [*self._replicas, *self._left_out]
        first = self._policy.first_replica
        every += [Replica(first + number) for number in range(len(every), replicas)]
        self._replicas, self._left_out = every[:replicas], every[replicas:]
        self._policy = self._policy._replace(replicas=replicas)
        dues = [replica.due for replica in self._replicas if replica.due is not None]
        for replica in self._replicas:  # one that returns waits as the others do
            replica.phase, replica.due = Phase.WAITING, max(dues, default=self._now)

    def trimmed(self, most: int) -> Supervision:
        """Return a copy of this that knows no more than so many of the earlier attempts: the latest ones."""
        earlier = [each for replica in self._replicas for each in replica.task.previous]
        if len(earlier) <= most:
            return self
        from copy import copy  # no supervisor of a local job needs it

        earlier.sort(key=lambda each: each.finished_at or 0.0)
        latest = {(each.replica, each.attempt) for each in earlier[-most:]}
        copied = copy(self)
        copied._replicas = [copy(replica) for replica in self._replicas]
        for replica in copied._replicas:
            kept = tuple(each for each in replica.task.previous if (each.replica, each.attempt) in latest)
            replica.task = replica.task._replace(previous=kept)
        if self._culprit is not None:
            copied._culprit = copied._replica(self._culprit.number)
        return copied

    def complete(self, previous: Mapping[int, tuple[ReplicaState, ...]]) -> None:
        """Know the earlier attempts again, by replica, that a trimmed one does not."""
        for replica in self._replicas:
            replica.task = replica.task._replace(previous=previous[replica.number])

    def shift(self, seconds: float) -> None:
        """Go on by another clock, which is ahead of that before by so many seconds."""
        self._now += seconds
        self.epoch -= seconds
        if self._kill_at is not None:
            self._kill_at += seconds
        for replica in (*self._replicas, *self._left_out):
            for name in ("due", "kill_at", "deadline"):
                moment = getattr(replica, name)
                if moment is not None:
                    setattr(replica, name, moment + seconds)

    def again(self, tasks: Iterable[ReplicaState]) -> None:
        """Run again what did not succeed of a job that had ended, with budgets as at first."""
        for replica, task in zip(self._replicas, tasks, strict=True):
            if task.status is JobStatus.SUCCEEDED and not self._policy.gang:
                replica.task, replica.phase = task, Phase.OVER
            elif task.attempt:
                replica.task = task._replace(status=JobStatus.PENDING)

    def _interrupted(self, task: ReplicaState) -> ReplicaState:
        message = f"replica {task.replica} was preempted with its host, or its host failed"
        return task._replace(
            status=JobStatus.PENDING,
            reason=ExitReason.PREEMPTED,
            error_message=message,
            finished_at=self._wall,
        )

    def _note_exit(self, replica: Replica, event: Ended) -> None:
        """The job is being ended: how it ends is known, but for the exit code."""
        if replica.phase in ALIVE and event.attempt == replica.task.attempt:
            replica.task = replica.task._replace(
                exit_code=event.end.exit_code,
                peak_memory=event.end.peak_memory,
                cpu_time=event.end.cpu_time,
            )

    # --- the job ---

    def _advance(self) -> None:
        """Do what is due by the time and by what has just happened."""
        if self._phase is JobPhase.ENDING:
            if self._kill_at is not None and self._now >= self._kill_at:
                self._kill_at = None
                self._actions.append(EndTree(0.0, forced=True))
            return
        if self._phase is not JobPhase.RUNNING:
            return
        if any(replica.deadline is not None and self._now >= replica.deadline for replica in self._replicas):
            message = f"ran longer than its timeout of {self._policy.timeout:g} s"
            self._end(JobStatus.FAILED, ExitReason.TIMED_OUT, message, TIMEOUT_GRACE)
            return
        self._kill_late()
        if self._policy.gang:
            self._advance_gang()
        else:
            self._advance_replicas()

    def _kill_late(self) -> None:
        for replica in self._replicas:
            if replica.kill_at is not None and self._now >= replica.kill_at:
                replica.kill_at = None
                self._actions.append(StopReplica(replica.number, replica.task.attempt, 0.0, forced=True))

    def _advance_replicas(self) -> None:
        for replica in self._replicas:
            if self._may_start(replica):
                self._start(replica, replica.task.attempt + 1)
        if all(replica.phase is Phase.OVER for replica in self._replicas):
            self._conclude()

    def _advance_gang(self) -> None:
        if all(replica.phase is Phase.WAITING for replica in self._replicas):
            if all(self._may_start(replica) for replica in self._replicas):
                self._culprit, self._grace = None, PEER_GRACE
                attempt = self._replicas[0].task.attempt + 1
                for replica in self._replicas:
                    self._start(replica, attempt)
            return
        running = [replica for replica in self._replicas if replica.phase in ALIVE]
        if not running:
            self._phase = JobPhase.BETWEEN
            self._actions.append(ClearTree())
        elif self._culprit is not None and not any(each.phase is Phase.SAVING for each in running):
            for replica in running:
                if replica.phase is Phase.RUNNING:
                    replica.phase = Phase.STOPPING
                    self._stop_replica(replica, self._grace)

    def _tree_ended(self) -> None:
        if self._phase is JobPhase.ENDING:
            self._settle()
        elif self._phase is JobPhase.BETWEEN:
            moment = self._next_attempt()
            self._phase = JobPhase.RUNNING
            if moment is None:
                self._conclude()
                return
            for replica in self._replicas:
                self._try_again(replica, moment)

    def _next_attempt(self) -> float | None:
        """Count the end of a gang's attempt; return when to start the next, None where there is none."""
        reason = None if self._culprit is None else self._culprit.task.reason
        if reason in (None, ExitReason.COULD_NOT_START):
            return None
        if reason is ExitReason.STOPPED:  # a user wanted another attempt
            return self._now
        if reason is ExitReason.PREEMPTED:
            self._preemptions += 1
            return self._now if self._preemptions <= self._policy.max_retries_preemption else None
        self._failures += 1
        if self._failures > self._policy.max_retries_failure:
            return None
        return self._now + pause_after(self._failures)

    def _conclude(self) -> None:
        """All replicas are over: what they left behind goes, then the job is settled."""
        failed = sorted(
            (task for task in self.tasks if task.status is JobStatus.FAILED),
            key=lambda task: task.finished_at or 0.0,
        )
        if self._policy.gang and self._culprit is not None:
            message = self._culprit.task.error_message
        else:
            message = first_failure([task.error_message for task in failed], len(self._replicas))
        status = JobStatus.SUCCEEDED if message is None else JobStatus.FAILED
        self._verdict = status, ExitReason.EXITED, message
        self._phase = JobPhase.ENDING
        self._actions.append(ClearTree())  # the jobs below it run on

    def _end(self, status: JobStatus, reason: ExitReason, message: str | None, grace: float) -> None:
        """End what is left of the job; the first request to end it decides its status."""
        if self._verdict is None:
            self._verdict = status, reason, message
            self._phase = JobPhase.ENDING
        elif self._kill_at is None or self._now + grace >= self._kill_at:
            return  # it is being killed, or will be before that
        self._kill_at = self._now + grace if grace else None
        self._actions.append(EndTree(grace, forced=not grace))

    def _settle(self) -> None:
        assert self._verdict is not None
        status, reason, message = self._verdict
        for replica in self._replicas:
            if replica.phase is Phase.OVER:
                continue
            if replica.phase is Phase.WAITING and replica.task.attempt:  # how that one ended stays known
                replica.task = self._next_task(replica, replica.task.attempt + 1)
            finished_at = None if replica.phase is Phase.WAITING else self._wall
            replica.task = replica.task._replace(
                status=status, reason=reason, error_message=message, finished_at=finished_at
            )
        self._phase = JobPhase.FINISHED
        self._actions.append(SettleJob(status, message))


def _attempts_after(attempt: int, task: ReplicaState) -> list[ReplicaState]:
    return [each for each in (*task.previous, task) if each.attempt > attempt]


def _failed_by_itself(task: ReplicaState) -> bool:
    good = (None, ExitReason.PREEMPTED, ExitReason.STOPPED)
    return task.error_message is not None and task.reason not in good


def first_failure(messages: Sequence[str | None], count: int) -> str | None:
    """Return the message of a job of so many replicas whose replicas failed so, in this order."""
    if not messages:
        return None
    others = len(messages) - 1
    more = f"\n({others} more of {count} replicas failed)" if others else ""
    return f"{messages[0]}{more}"
