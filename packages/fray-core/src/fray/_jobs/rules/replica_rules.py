"""The rules by which one replica of a job is supervised; those of the job build on them.

A replica:   waiting -> running -> over, or waiting again while its budget lasts
             running -> saving (it was notified that its host goes) -> over
             running -> stopping (a peer failed, or the job ends) -> over
             running -> restarting (a user wants another attempt) -> waiting again

`MOVES` is the whole table: what is not in it changes nothing (an event that comes too late).
"""

from __future__ import annotations

import enum

from fray._jobs.rules.events import (
    AttemptEnd,
    ClearReplica,
    Ended,
    Noticed,
    NotifyReplica,
    Policy,
    RestartRequested,
    StartFailed,
    StartReplica,
    StopReplica,
)
from fray._jobs.rules.states import ReplicaState
from fray._values.job_words import ExitReason, JobStatus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fray._jobs.rules.events import Action

PEER_GRACE = 10.0  # seconds from SIGTERM to SIGKILL for the peers of a replica that failed
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0  # seconds between a failure and the next attempt


class Phase(enum.Enum):
    """Where a replica is."""

    WAITING = "waiting"
    RUNNING = "running"
    SAVING = "saving"
    STOPPING = "stopping"
    RESTARTING = "restarting"
    OVER = "over"


ALIVE = (Phase.RUNNING, Phase.SAVING, Phase.STOPPING, Phase.RESTARTING)


class Replica:
    """One replica: its phase, its budget, its part of the status."""

    def __init__(self, number: int) -> None:
        self.phase = Phase.WAITING
        self.placed = False  # asked for where the policy places replicas
        self.task = ReplicaState(replica=number)
        self.due: float | None = 0.0  # the next attempt
        self.kill_at: float | None = None
        self.deadline: float | None = None
        self.failures = 0

    @property
    def number(self) -> int:
        return self.task.replica


class ReplicaRules:
    """What becomes of one replica of a job.

    Args:
        policy: The budgets and limits of the job's request.
        epoch: What turns the time that is given into seconds since the epoch, for the status.
    """

    def __init__(self, policy: Policy, epoch: float) -> None:
        self._policy = policy
        self.epoch = epoch
        """Set again where the wall clock has gone another way than the other; times that were given stay."""
        self._replicas = [Replica(policy.first_replica + n) for n in range(policy.replicas)]
        self._actions: list[Action] = []
        self._now = 0.0
        self._failures = self._preemptions = 0
        self._culprit: Replica | None = None  # the one for which an attempt of the gang ends
        self._grace = PEER_GRACE

    def _replica(self, number: int) -> Replica:
        return self._replicas[number - self._policy.first_replica]

    def _may_start(self, replica: Replica) -> bool:
        return self._is_due(replica) and (replica.placed or not self._policy.places)

    def _is_due(self, replica: Replica) -> bool:
        waits = replica.phase is Phase.WAITING and replica.due is not None
        return waits and replica.due is not None and self._now >= replica.due

    def _move(self, replica: Replica, event: StartFailed | Ended | Noticed | RestartRequested) -> None:
        move = MOVES.get((replica.phase, type(event)))
        if move is not None and event.attempt == replica.task.attempt:
            move(self, replica, event)

    def _start(self, replica: Replica, attempt: int) -> None:
        replica.task = self._next_task(replica, attempt)._replace(
            status=JobStatus.RUNNING, started_at=self._wall
        )
        replica.phase, replica.due, replica.placed = Phase.RUNNING, None, False
        timeout = self._policy.timeout
        replica.deadline = None if timeout is None else self._now + timeout
        self._actions.append(StartReplica(replica.number, attempt))

    def _next_task(self, replica: Replica, attempt: int) -> ReplicaState:
        """Return the state of a replica that is to have another attempt."""
        task = replica.task
        previous = (*task.previous, task._replace(previous=())) if task.attempt else ()
        if previous:  # shown as pending while it waited; it ended as its reason says
            previous = (*previous[:-1], previous[-1]._replace(status=self._ended_as(previous[-1])))
        return ReplicaState(replica=replica.number, attempt=attempt, previous=previous)

    def _notice(self, replica: Replica, event: Noticed) -> None:
        if self._culprit is None:
            self._culprit, self._grace = replica, event.grace
        replica.phase = Phase.SAVING
        self._actions.append(NotifyReplica(replica.number, event.attempt, event.grace))
        self._stop_replica(replica, event.grace)

    def _restart(self, replica: Replica, event: RestartRequested) -> None:
        if self._policy.gang and self._culprit is None:
            self._culprit, self._grace = replica, event.grace
        replica.phase = Phase.RESTARTING
        self._stop_replica(replica, event.grace)

    def _restarted(self, replica: Replica, event: Ended) -> None:
        """An attempt has ended because a user wanted another: that counts against no budget."""
        if event.end.reason is ExitReason.PREEMPTED:
            self._preempted(replica, event)
            return
        end = event.end._replace(reason=ExitReason.STOPPED)
        self._book(replica, end, JobStatus.STOPPED, "stopped to be started again")
        if not self._policy.gang:
            self._try_again(replica, self._now)

    def _notice_again(self, replica: Replica, event: Noticed) -> None:
        self._stop_replica(replica, event.grace)

    def _stop_replica(self, replica: Replica, grace: float) -> None:
        moment = self._now + grace
        replica.kill_at = moment if replica.kill_at is None else min(moment, replica.kill_at)
        self._actions.append(StopReplica(replica.number, replica.task.attempt, grace))

    def _could_not_start(self, replica: Replica, event: StartFailed | Ended) -> None:
        message = f"replica {replica.number} {event.end.how}{event.end.details}"
        self._book(replica, event.end, JobStatus.FAILED, message)
        if self._culprit is None:
            self._culprit = replica

    def _exited(self, replica: Replica, event: Ended) -> None:
        """An attempt ended by itself."""
        end = event.end
        if end.good:
            self._book(replica, end, JobStatus.SUCCEEDED, None)
            return
        if end.reason is ExitReason.PREEMPTED:
            self._preempted(replica, event)
            return
        if end.reason is ExitReason.COULD_NOT_START:  # found out where the program was to run, elsewhere
            self._could_not_start(replica, event)
            return
        self._book(replica, end, JobStatus.FAILED, self._failure_message(replica, end))
        if self._culprit is None:
            self._culprit = replica
        if not self._policy.gang and replica.failures < self._policy.max_retries_failure:
            replica.failures += 1
            self._try_again(replica, self._now + pause_after(replica.failures))

    def _preempted(self, replica: Replica, event: Ended) -> None:
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

    def _stopped(self, replica: Replica, event: Ended) -> None:
        """An attempt was ended because a peer's did."""
        if event.end.reason is ExitReason.PREEMPTED:
            self._preempted(replica, event)
            return
        assert self._culprit is not None
        why = (self._culprit.task.error_message or "").partition("\n")[0]
        end = event.end._replace(reason=ExitReason.STOPPED)
        self._book(replica, end, JobStatus.STOPPED, f"stopped with its gang: {why}")

    def _book(self, replica: Replica, end: AttemptEnd, status: JobStatus, message: str | None) -> None:
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

    def _try_again(self, replica: Replica, at: float) -> None:
        # How the last attempt ended stays to be seen until the next one starts.
        replica.phase, replica.due = Phase.WAITING, at
        replica.task = replica.task._replace(status=JobStatus.PENDING)

    def _failure_message(self, replica: Replica, end: AttemptEnd) -> str:
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

    @property
    def _wall(self) -> float:
        return self.epoch + self._now


def pause_after(failures: int) -> float:
    """Return the seconds before the next attempt after so many failures: each time twice as many."""
    return min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(failures - 1, 16))


MOVES: dict[tuple[Phase, type], Callable[[ReplicaRules, Replica, Any], None]] = {
    (Phase.RUNNING, Ended): ReplicaRules._exited,
    (Phase.RUNNING, StartFailed): ReplicaRules._could_not_start,
    (Phase.RUNNING, Noticed): ReplicaRules._notice,
    (Phase.SAVING, Ended): ReplicaRules._preempted,
    (Phase.RUNNING, RestartRequested): ReplicaRules._restart,
    (Phase.RESTARTING, Ended): ReplicaRules._restarted,
    (Phase.RESTARTING, Noticed): ReplicaRules._notice_again,
    (Phase.SAVING, Noticed): ReplicaRules._notice_again,
    (Phase.STOPPING, Ended): ReplicaRules._stopped,
    (Phase.STOPPING, StartFailed): ReplicaRules._could_not_start,
}
