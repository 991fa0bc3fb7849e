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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TIMEOUT_GRACE = 10.0  # seconds that replicas have after SIGTERM when their time is up


class JobPhase(enum.Enum):
    """Where a job is."""

    PENDING = "pending"
    RUNNING = "running"
    BETWEEN = "between"
    """No replica of the gang runs; its tree is cleared before the next attempt."""
    ENDING = "ending"
    FINISHED = "finished"


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

    @property
    def phase(self) -> JobPhase:
        """Where the job is."""
        return self._phase

    @property
    def tasks(self) -> tuple[ReplicaState, ...]:
        """The state of each replica."""
        return tuple(replica.task for replica in self._replicas)

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
            for moment in (replica.due, replica.kill_at, replica.deadline)
            if moment is not None
        ]
        return min(moments, default=None)

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take in what happened, and the time; return what is to be done, in this order."""
        self._actions, self._now = [], now
        if self._phase is JobPhase.FINISHED:
            return []
        match event:
            case Begin() if self._phase is JobPhase.PENDING:
                self._phase, self.started_at = JobPhase.RUNNING, self._wall
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
            if task.status is JobStatus.SUCCEEDED and not self._policy.gang:
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
            if replica.phase is Phase.WAITING and replica.due is not None and self._now >= replica.due:
                self._start(replica, replica.task.attempt + 1)
        if all(replica.phase is Phase.OVER for replica in self._replicas):
            self._conclude()

    def _advance_gang(self) -> None:
        if all(replica.phase is Phase.WAITING for replica in self._replicas):
            due = self._replicas[0].due
            if due is not None and self._now >= due:
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
            task = replica.task
            if replica.phase is not Phase.OVER:
                finished_at = self._wall if task.attempt else None
                replica.task = task._replace(
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
