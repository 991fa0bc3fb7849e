"""Replicas that are one program: they start together, and when one goes all go and start again.

placing    wait for room for all
running    one attempt of all (`_formation`)
over       no actor is left and the room is given back: another machine may have it now. The gang is
           placed anew while its retries last, preemptions and failures counted apart
"""

import threading

from fray.cluster import ExitReason, JobStatus
from fray_ray._head.gang_attempt import GangAttempt
from fray_ray._head.gang_result import GangResult
from fray_ray._head.job_state import Outcome, Progress
from fray_ray._head.placing import STOPPED, find_room
from fray_ray._head.replica_log import ReplicaLog
from fray_ray._head.replicas import pause_after
from fray_ray._head.reservation import Reservation
from fray_ray._plan import Plan


class Gang(threading.Thread):
    """All replicas of one job."""

    def __init__(self, plan: Plan, progress: Progress) -> None:
        super().__init__(name="gang", daemon=True)
        self._plan, self._progress = plan, progress
        self._room = Reservation(plan, progress)
        self._logs = [ReplicaLog(number, plan.secrets) for number in range(plan.replicas)]
        self._stopping = threading.Event()
        self._stop_order: tuple[float, ExitReason] = 0.0, ExitReason.STOPPED
        self._attempts = max((task.attempt for task in progress.tasks), default=0)
        self._failures = progress.record.failures.get(0, 0)
        self._formation: GangAttempt | None = None
        self.outcome = Outcome(JobStatus.FAILED, ExitReason.LOST, "its driver failed; see its log in Ray")
        self.results: list[bytes | None] = []
        """What each replica's entry point returned, or that of the one that failed raised; pickled."""

    def run(self) -> None:
        """Run attempt after attempt."""
        try:
            goes_on = self._progress.record.gang is not None  # which a driver that was killed has started
            while True:
                problem = None if goes_on else self._find_room()
                if problem is not None:
                    self.outcome = problem
                    return
                if not self._run_attempt(goes_on):
                    return
                goes_on = False
        except Exception as error:
            self.outcome = Outcome(JobStatus.FAILED, ExitReason.LOST, f"its driver failed: {error!r}")
            raise  # into the driver's log
        finally:
            self._room.close()

    def stop(self, grace: float, reason: ExitReason) -> None:
        """End the attempt that runs, and make no other."""
        self._stop_order = grace, reason
        self._stopping.set()

    def restart(self, number: int, attempt: int, grace: float) -> None:
        """End an attempt of all replicas, where it is the one that runs, and start the next."""
        formation = self._formation
        if formation is not None and attempt == self._attempts:
            formation.restart(grace)

    def close(self) -> None:
        """End all actors and give back the room."""
        self._room.close()

    def _find_room(self) -> Outcome | None:
        return find_room(self._room, self._plan, self._progress, self._stopping)

    def _run_attempt(self, goes_on: bool) -> bool:
        """Run all replicas once; return whether to do so again.

        Args:
            goes_on: Whether they run, and another driver has started them.
        """
        if not goes_on:
            self._attempts += 1
            self._progress.resize(self._room.replicas)
        formation = GangAttempt(self._plan, self._room, self._progress, self._logs, self._attempts)
        try:
            self._formation = formation
            story = formation.run(self._stopping, lambda: self._stop_order)
            again = self._settle(story, restarting=formation.restarting)
        finally:
            self._formation = None
            self._room.close()
        if again and not formation.restarting and story.reason is not ExitReason.PREEMPTED:
            self._stopping.wait(pause_after(self._failures))
        return again

    def _settle(self, story: GangResult, *, restarting: bool) -> bool:
        """Book the end of an attempt; return whether there is another."""
        stopped = self._stop_order if self._stopping.is_set() else None
        if story.lost:
            self._room.avoid(story.lost)
        with self._progress.recording() as record:
            restarts = restarting and stopped is None
            again = restarts or (not story.good and stopped is None and self._may_retry(story))
            record.gang, record.leaving, record.failures = None, True, {0: self._failures}
            story.settle(self._progress, (0.0, ExitReason.STOPPED) if restarts else stopped, again=again)
            if not again:
                self.outcome, self.results = self._outcome_of(story), story.results()
                record.outcome = self.outcome.as_record() if stopped is None else None
        return again

    def _may_retry(self, story: GangResult) -> bool:
        """Count the end of an attempt; return whether there may be another."""
        if story.reason is ExitReason.COULD_NOT_START:
            return False
        if story.reason is ExitReason.PREEMPTED:
            count, allowed = self._progress.count_preemption(), self._plan.max_retries_preemption
            story.add(f" (preemption {count}; max_retries_preemption={allowed})")
            return count <= allowed
        self._failures += 1
        return self._failures <= self._plan.max_retries_failure

    def _outcome_of(self, story: GangResult) -> Outcome:
        if self._stopping.is_set():
            return STOPPED
        if story.good:
            return Outcome(JobStatus.SUCCEEDED, ExitReason.EXITED, None)
        return Outcome(JobStatus.FAILED, story.reason, story.message)
