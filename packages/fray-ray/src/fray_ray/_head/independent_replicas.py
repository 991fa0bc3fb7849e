"""Replicas that know nothing of each other: each ends, and is started again, alone."""

import threading

from fray.cluster import ExitReason, JobStatus, TaskStatus
from fray_ray._head.job_state import Outcome, Progress
from fray_ray._head.nodes import draining
from fray_ray._head.placing import find_room
from fray_ray._head.replicas import Replica
from fray_ray._head.reservation import Reservation
from fray_ray._plan import Plan

_LOOKS_FOR_NOTICES = 1.0  # seconds


class IndependentReplicas(threading.Thread):
    """The replicas of a job, each with its own retries."""

    def __init__(self, plan: Plan, progress: Progress) -> None:
        super().__init__(name="independent-replicas", daemon=True)
        self._plan, self._progress = plan, progress
        self._room = Reservation(plan, progress)
        self._stopping = threading.Event()
        self._stop_order: tuple[float, ExitReason] = 0.0, ExitReason.STOPPED
        self._lock = threading.Lock()
        self._replicas: list[Replica] = []
        self.outcome = Outcome(JobStatus.FAILED, ExitReason.LOST, "its driver failed; see its log in Ray")

    def run(self) -> None:
        """Carry the replicas from their placing to their end."""
        try:
            self._carry()
        except Exception as error:
            self.outcome = Outcome(JobStatus.FAILED, ExitReason.LOST, f"its driver failed: {error!r}")
            raise  # into the driver's log

    def _carry(self) -> None:
        if not any(map(self._runs, self._progress.tasks)):
            problem = find_room(self._room, self._plan, self._progress, self._stopping)
            if problem is not None:
                self.outcome = problem
                return
        with self._lock:
            self._replicas = [
                Replica(self._plan, task.replica, self._room, self._progress)
                for task in self._progress.tasks
                if not task.status.finished  # by now, or in a run before this one
                and (self._runs(task) or not self._stopping.is_set())
            ]
            for replica in self._replicas:
                if self._stopping.is_set():
                    replica.stop(*self._stop_order)
                replica.start()
        while any(replica.is_alive() for replica in self._replicas):
            leaving = draining()
            for replica in self._replicas:
                if leaving:
                    replica.notice(leaving)
                replica.join(_LOOKS_FOR_NOTICES / len(self._replicas))
        self.outcome = self._progress.outcome()

    def _runs(self, task: TaskStatus) -> bool:
        """Whether a replica runs, which another driver has started."""
        return task.status is JobStatus.RUNNING and self._room.recorded(task.replica) is not None

    def stop(self, grace: float, reason: ExitReason) -> None:
        """End what runs, and start nothing any more."""
        self._stop_order = grace, reason
        self._stopping.set()
        with self._lock:
            replicas = list(self._replicas)
        for replica in replicas:
            replica.stop(grace, reason)

    def restart(self, number: int, attempt: int, grace: float) -> None:
        """End an attempt of a replica, where it is the one that runs, and start the next."""
        with self._lock:
            replicas = {replica.number: replica for replica in self._replicas}
        if number in replicas:
            replicas[number].restart(attempt, grace)

    def close(self) -> None:
        """End all actors and give back the room."""
        self._room.close()
