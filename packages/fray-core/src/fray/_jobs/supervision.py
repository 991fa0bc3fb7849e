"""The rules by which a job is supervised: events and the time go in, actions come out.

No process, no thread, no clock, no file is known here. The same machine runs replicas that know nothing of
each other and gangs; who performs its actions is the supervisor of a cluster.

A replica:   waiting -> running -> over, or waiting again while its budget lasts
             running -> saving (it was notified that its host goes) -> over
             running -> stopping (a peer failed, or the job ends) -> over
             running -> restarting (somebody wants another attempt) -> waiting again
A job:       pending -> running -> ending (somebody stopped it, or its time is up) -> clearing -> finished

`MOVES` is the whole table of a replica: what is not in it changes nothing (an event that comes too late).
"""

from __future__ import annotations

import enum

from fray._jobs.events import (
    Action,
    AttemptEnd,
    Begin,
    CannotRun,
    ClearReplica,
    ClearTree,
    Ended,
    EndTree,
    Event,
    Noticed,
    NotifyReplica,
    Policy,
    RestartRequested,
    SettleJob,
    StartFailed,
    StartReplica,
    StopReplica,
    StopRequested,
    TreeEnded,
)
from fray._jobs.states import ReplicaState
from fray._values.job_words import ExitReason, JobStatus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

PEER_GRACE = 10.0  # seconds from SIGTERM to SIGKILL for the peers of a replica that failed
TIMEOUT_GRACE = 10.0  # seconds that replicas have after SIGTERM when their time is up
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0  # seconds between a failure and the next attempt


class Phase(enum.Enum):
    """Where a replica is."""

    WAITING = "waiting"
    RUNNING = "running"
    SAVING = "saving"
    STOPPING = "stopping"
    RESTARTING = "restarting"
    OVER = "over"


class JobPhase(enum.Enum):
    """Where a job is."""

    PENDING = "pending"
    RUNNING = "running"
    BETWEEN = "between"
    """No replica of the gang runs; its tree is cleared before the next attempt."""
    ENDING = "ending"
    FINISHED = "finished"


ALIVE = (Phase.RUNNING, Phase.SAVING, Phase.STOPPING, Phase.RESTARTING)


class _Replica:
    """One replica: its phase, its budget, its part of the status."""

    def __init__(self, number: int) -> None:
        self.phase = Phase.WAITING
        self.task = ReplicaState(replica=number)
        self.due: float | None = 0.0  # the next attempt
        self.kill_at: float | None = None
        self.deadline: float | None = None
        self.failures = 0

    @property
    def number(self) -> int:
        return self.task.replica


class Supervision:
    """The life of one job.

    Args:
        policy: What its request says.
        epoch: What turns the time that is given into seconds since the epoch, for the status.
    """

    def __init__(self, policy: Policy, epoch: float = 0.0) -> None:
        self._policy, self._epoch = policy, epoch
        self._replicas = [_Replica(policy.first_replica + n) for n in range(policy.replicas)]
        self._phase = JobPhase.PENDING
        self._actions: list[Action] = []
        self._now = 0.0
        self._failures = self._preemptions = 0
        self._culprit: _Replica | None = None  # the one for which an attempt of the gang ends
        self._grace = PEER_GRACE
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

    # --- a replica ---

    def _replica(self, number: int) -> _Replica:
        return self._replicas[number - self._policy.first_replica]

    def _move(self, replica: _Replica, event: StartFailed | Ended | Noticed | RestartRequested) -> None:
        move = MOVES.get((replica.phase, type(event)))
        if move is not None and event.attempt == replica.task.attempt:
            move(self, replica, event)

    def _note_exit(self, replica: _Replica, event: Ended) -> None:
        """The job is being ended: how it ends is known, but for the exit code."""
        if replica.phase in ALIVE and event.attempt == replica.task.attempt:
            replica.task = replica.task._replace(
                exit_code=event.end.exit_code,
                peak_memory=event.end.peak_memory,
                cpu_time=event.end.cpu_time,
            )

    def _start(self, replica: _Replica, attempt: int) -> None:
        task = replica.task
        previous = (*task.previous, task._replace(previous=())) if task.attempt else ()
        if previous:  # shown as pending while it waited; it ended as its reason says
            previous = (*previous[:-1], previous[-1]._replace(status=self._ended_as(previous[-1])))
        replica.task = ReplicaState(
            replica=replica.number,
            status=JobStatus.RUNNING,
            attempt=attempt,
            started_at=self._wall,
            previous=previous,
        )
        replica.phase, replica.due = Phase.RUNNING, None
        timeout = self._policy.timeout
        replica.deadline = None if timeout is None else self._now + timeout
        self._actions.append(StartReplica(replica.number, attempt))

    def _notice(self, replica: _Replica, event: Noticed) -> None:
        if self._culprit is None:
            self._culprit, self._grace = replica, event.grace
        replica.phase = Phase.SAVING
        self._actions.append(NotifyReplica(replica.number, event.attempt, event.grace))
        self._stop_replica(replica, event.grace)

    def _restart(self, replica: _Replica, event: RestartRequested) -> None:
        if self._policy.gang and self._culprit is None:
            self._culprit, self._grace = replica, event.grace
        replica.phase = Phase.RESTARTING
        self._stop_replica(replica, event.grace)

    def _restarted(self, replica: _Replica, event: Ended) -> None:
        """An attempt has ended because somebody wanted another: that counts against no budget."""
        if event.end.reason is ExitReason.PREEMPTED:
            self._preempted(replica, event)
            return
        end = event.end._replace(reason=ExitReason.STOPPED)
        self._book(replica, end, JobStatus.STOPPED, "stopped to be started again")
        if not self._policy.gang:
            self._try_again(replica, self._now)

    def _notice_again(self, replica: _Replica, event: Noticed) -> None:
        self._stop_replica(replica, event.grace)

    def _stop_replica(self, replica: _Replica, grace: float) -> None:
        moment = self._now + grace
        replica.kill_at = moment if replica.kill_at is None else min(moment, replica.kill_at)
        self._actions.append(StopReplica(replica.number, replica.task.attempt, grace))

    def _could_not_start(self, replica: _Replica, event: StartFailed) -> None:
        self._book(replica, event.end, JobStatus.FAILED, f"replica {replica.number} {event.end.how}")
        if self._culprit is None:
            self._culprit = replica

    def _exited(self, replica: _Replica, event: Ended) -> None:
        """An attempt ended by itself."""
        end = event.end
        if end.good:
            self._book(replica, end, JobStatus.SUCCEEDED, None)
            return
        if end.reason is ExitReason.PREEMPTED:
            self._preempted(replica, event)
            return
        self._book(replica, end, JobStatus.FAILED, self._failure_message(replica, end))
        if self._culprit is None:
            self._culprit = replica
        if not self._policy.gang and replica.failures < self._policy.max_retries_failure:
            replica.failures += 1
            self._try_again(replica, self._now + pause_after(replica.failures))

    def _preempted(self, replica: _Replica, event: Ended) -> None:
        allowed = self._policy.max_retries_preemption
        which = f"preemption {self._preemptions + 1}; max_retries_preemption={allowed}"
        end = event.end._replace(reason=ExitReason.PREEMPTED)
        message = f"replica {replica.number} was preempted ({which}){end.details}"
        self._book(replica, end, JobStatus.FAILED, message)
        # Peers of a host that vanishes fail too, often before its loss is seen: they are not to blame.
        if self._culprit is None or self._culprit.task.reason is not ExitReason.PREEMPTED:
            self._culprit = replica
        if not self._policy.gang:
            self._preemptions += 1
            if self._preemptions <= allowed:
                self._try_again(replica, self._now)

    def _stopped(self, replica: _Replica, event: Ended) -> None:
        """An attempt was ended because a peer's did."""
        if event.end.reason is ExitReason.PREEMPTED:
            self._preempted(replica, event)
            return
        assert self._culprit is not None
        why = (self._culprit.task.error_message or "").partition("\n")[0]
        end = event.end._replace(reason=ExitReason.STOPPED)
        self._book(replica, end, JobStatus.STOPPED, f"stopped with its gang: {why}")

    def _book(self, replica: _Replica, end: AttemptEnd, status: JobStatus, message: str | None) -> None:
        replica.phase, replica.kill_at, replica.deadline = Phase.OVER, None, None
        replica.task = replica.task._replace(
            status=status,
            reason=end.reason,
            exit_code=end.exit_code,
            error_message=message,
            finished_at=self._wall,
            peak_memory=end.peak_memory,
            cpu_time=end.cpu_time,
        )
        self._actions.append(ClearReplica(replica.number, replica.task.attempt))

    def _try_again(self, replica: _Replica, at: float) -> None:
        # How the last attempt ended stays to be seen until the next one starts.
        replica.phase, replica.due = Phase.WAITING, at
        replica.task = replica.task._replace(status=JobStatus.PENDING)

    def _failure_message(self, replica: _Replica, end: AttemptEnd) -> str:
        allowed, attempt = self._policy.max_retries_failure, replica.task.attempt
        failures = self._failures if self._policy.gang else replica.failures
        which = ""
        if allowed and attempt == failures + 1:
            which = f" (attempt {attempt} of {allowed + 1})"
        elif allowed:  # attempts that were preempted are not counted here
            which = f" (attempt {attempt}, failure {failures + 1}; max_retries_failure={allowed})"
        return f"replica {replica.number} {end.how}{which}{end.details}"

    @staticmethod
    def _ended_as(task: ReplicaState) -> JobStatus:
        if task.reason is ExitReason.STOPPED:
            return JobStatus.STOPPED
        return JobStatus.FAILED if task.error_message else JobStatus.SUCCEEDED

    # --- the job ---

    def _advance(self) -> None:
        """Do what the time, and what has just happened, ask for."""
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
        if reason is ExitReason.STOPPED:  # somebody wanted another attempt
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
        """End what is left of the job; the first who wants it to end says how it is to be called."""
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

    @property
    def _wall(self) -> float:
        return self._epoch + self._now


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


def pause_after(failures: int) -> float:
    """Return the seconds before the next attempt after so many failures: each time twice as many."""
    return min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(failures - 1, 16))


MOVES: dict[tuple[Phase, type], Callable[[Supervision, _Replica, Any], None]] = {
    (Phase.RUNNING, Ended): Supervision._exited,
    (Phase.RUNNING, StartFailed): Supervision._could_not_start,
    (Phase.RUNNING, Noticed): Supervision._notice,
    (Phase.SAVING, Ended): Supervision._preempted,
    (Phase.RUNNING, RestartRequested): Supervision._restart,
    (Phase.RESTARTING, Ended): Supervision._restarted,
    (Phase.RESTARTING, Noticed): Supervision._notice_again,
    (Phase.SAVING, Noticed): Supervision._notice_again,
    (Phase.STOPPING, Ended): Supervision._stopped,
    (Phase.STOPPING, StartFailed): Supervision._could_not_start,
}
