"""One replica among others that know nothing of each other: its attempts, one after the other."""

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import ray
from ray import exceptions as rx

from fray.cluster import ExitReason, JobStatus
from fray_ray._head.attempts import Attempt, End
from fray_ray._head.job_state import Progress
from fray_ray._head.nodes import is_drained, loss_is_known, node_is_gone
from fray_ray._head.record import HostRecord
from fray_ray._head.replica_log import ReplicaLog, log_size
from fray_ray._head.reservation import Reservation
from fray_ray._plan import Plan

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 30.0  # seconds between attempts
_LOOK = 0.5  # seconds between looks for the node of an actor that comes up


def pause_after(failures: int) -> float:
    """Return the seconds to wait before the next attempt: twice as many after each failure."""
    return float(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(failures, 16)))


class Replica(threading.Thread):
    """Runs a replica until it succeeds, has no retries left, or is stopped."""

    def __init__(self, plan: Plan, number: int, room: Reservation, progress: Progress) -> None:
        super().__init__(name=f"replica-{number}", daemon=True)
        self._plan, self._number, self._room, self._progress = plan, number, room, progress
        self._log = ReplicaLog(number, plan.secrets)
        self._lock = threading.Lock()
        self._host: Any = None
        self._node: str | None = None
        self._stopping: tuple[float, ExitReason] | None = None
        self._wakes = threading.Event()  # set when it is to stop
        self._restarting: int | None = None  # the attempt that is ended for another
        self._noticed = False  # whether this attempt has notice that its node goes
        self._failures = progress.record.failures.get(number, 0)

    @property
    def number(self) -> int:
        """Which replica it is."""
        return self._number

    def run(self) -> None:
        """Run attempt after attempt."""
        self._await_loss()
        while True:
            end = self._run_attempt()
            restarts = self._restarting == self._progress.tasks[self._number].attempt
            if restarts and self._stopping is None:
                end = replace(end, reason=ExitReason.STOPPED, message="stopped to be started again")
                self._settle(end, again=True)
                continue
            again = self._settle(end)
            if not again:
                return
            self._pause(end)
            if self._wakes.is_set():
                return

    def _await_loss(self) -> None:
        """Begin where a driver that was killed may have waited."""
        record = self._room.recorded(self._number)
        if record is not None and self._progress.tasks[self._number].reason is ExitReason.PREEMPTED:
            while not loss_is_known(record.node) and not self._wakes.wait(_FIRST_PAUSE):
                continue

    def _pause(self, end: End) -> None:
        """Wait before the next attempt: a little longer after each failure, or until a loss is known."""
        if end.reason is not ExitReason.PREEMPTED:
            self._wakes.wait(pause_after(self._failures))
            return
        while not loss_is_known(self._node) and not self._wakes.wait(_FIRST_PAUSE):
            continue

    def restart(self, attempt: int, grace: float) -> None:
        """End an attempt, where it is the one that runs, and start the next."""
        with self._lock:
            host = self._host
            if host is None or attempt != self._progress.tasks[self._number].attempt:
                return
            self._restarting = attempt
        with self._progress.recording() as record:
            if (known := record.hosts.get(self._number)) is not None:
                known.restarting = True
        host.stop.remote(grace)

    def notice(self, leaving: Mapping[str, float]) -> None:
        """Tell the attempt that runs where its node is one of those that go, in so many seconds."""
        with self._lock:
            host, seconds = self._host, leaving.get(self._node or "")
            if host is None or seconds is None or self._noticed or self._stopping is not None:
                return
            self._noticed = True
        host.notify.remote(time.time() + seconds)
        host.stop.remote(seconds)

    def stop(self, grace: float, reason: ExitReason) -> None:
        """End the attempt that runs, and make no other."""
        with self._lock:
            self._stopping = grace, reason
            host = self._host
        self._wakes.set()
        if host is not None:
            host.stop.remote(grace)
        elif self._begun() is None:
            self._room.release(self._number)

    def _run_attempt(self) -> End:
        def on_ports(ports: dict[str, int]) -> None:
            self._progress.ports(self._number, ports)

        def on_samples(samples: str) -> None:
            self._progress.used(self._number, samples)

        attempt = Attempt(self._plan, self._number, self._log, {}, on_ports=on_ports, on_samples=on_samples)
        try:
            self._node, self._noticed = None, False
            known = self._begun()
            host = self._new_host() if known is None else self._room.take_up(self._number)
            with self._lock:
                if self._stopping is not None and known is None:
                    return End(self._stopping[1], None, None)
                self._host, stopping = host, self._stopping
            if stopping is not None:
                host.stop.remote(stopping[0])
            number = self._begin() if known is None else known.attempt
            attempt.variables = {"FRAY_ATTEMPT": str(number)}
            return self._ended(attempt.run(host, known))
        except Exception as error:  # noqa: BLE001 - a replica that nobody watches must not read running for ever
            return self._broken(attempt, error)
        finally:
            with self._lock:
                self._host = None

    def _begun(self) -> HostRecord | None:
        """Return what is known of an attempt that a driver began which was killed, where it is to go on."""
        known, task = self._room.recorded(self._number), self._progress.tasks[self._number]
        if known is None or task.status is not JobStatus.RUNNING or known.attempt != task.attempt:
            return None
        self._node = known.node
        if known.restarting:
            self._restarting = known.attempt
        return known

    def _new_host(self) -> Any:
        host = self._room.host(self._number)
        self._node = self._await(host)
        return host

    def _begin(self) -> int:
        with self._progress.recording() as record:
            number = self._progress.begin(self._number)
            if (known := record.hosts.get(self._number)) is not None:
                known.node, known.attempt, known.log = self._node or "", number, log_size()
        self._log.begin(number)
        return number

    def _await(self, host: Any) -> str:
        """Return the node of an actor that is up; until then, know the one on which it comes up."""
        answer = host.node_id.remote()
        while not ray.wait([answer], timeout=_LOOK)[0]:
            node = self._room.nodes().get(self._number)
            if node and not loss_is_known(node):
                self._node = node
        return str(ray.get(answer))

    def _ended(self, end: End) -> End:
        if self._stopping is not None and end.exit_code is not None:
            return End(self._stopping[1], end.exit_code, None)
        if end.good or end.exit_code is None or not is_drained(self._node):
            return end
        message = f"replica {self._number} was preempted, its node {self._node} drained: {end.message}"
        return replace(end, reason=ExitReason.PREEMPTED, message=message)

    def _broken(self, attempt: Attempt, error: Exception) -> End:
        """Tell a machine that was taken away from all else that can end an attempt from outside."""
        if self._stopping is not None:
            return End(self._stopping[1], None, None)
        end = attempt.broken(error)
        from_outside = end.reason in (ExitReason.LOST, ExitReason.COULD_NOT_START)
        if from_outside and (isinstance(error, rx.NodeDiedError) or node_is_gone(self._node)):
            return End(ExitReason.PREEMPTED, None, f"replica {self._number} lost its node {self._node}")
        return end

    def _may_retry(self, end: End) -> bool:
        if end.reason is ExitReason.PREEMPTED:
            return self._progress.count_preemption() <= self._plan.max_retries_preemption
        if end.reason is ExitReason.COULD_NOT_START:
            return False
        self._failures += 1
        return self._failures <= self._plan.max_retries_failure

    def _settle(self, end: End, *, again: bool | None = None) -> bool:
        """Book the end of an attempt, and end its actor; return whether there is another.

        Args:
            again: Whether there is; by default where it failed and retries are left.
        """
        self._log.end()
        status = JobStatus.SUCCEEDED if end.good else JobStatus.FAILED
        if self._stopping is not None and self._stopping[1] is ExitReason.STOPPED:
            status = JobStatus.STOPPED
        used = end.peak_memory, end.cpu_time
        with self._progress.recording() as record:
            if again is None:
                again = not end.good and self._stopping is None and self._may_retry(end)
            record.failures[self._number] = self._failures
            # The last attempt's failure stays to be seen until the next one starts.
            self._progress.end(
                self._number, status, end.reason, end.exit_code, end.message, again=again, used=used
            )
        self._room.release(self._number)
        return again
