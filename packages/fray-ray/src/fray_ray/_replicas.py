"""One replica, as the driver of its job sees it: its attempts, one after the other."""

import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray import exceptions as rx

from fray.cluster import ExitReason, JobStatus
from fray_ray._gang import Gang, loss_is_known, node_is_gone
from fray_ray._nodes import is_drained
from fray_ray._progress import Progress
from fray_ray._requests import Plan

_LAST_LINES = 20
_SHORTEST_SECRET = 6  # shorter values are words such as "true", and hiding them would garble every message
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 30.0  # seconds between attempts


@dataclass(frozen=True)
class End:
    """How an attempt ended."""

    reason: ExitReason
    exit_code: int | None
    message: str | None

    @property
    def good(self) -> bool:
        return self.exit_code == 0


class Replica(threading.Thread):
    """Runs a replica until it succeeds, has no retries left, or is stopped."""

    def __init__(self, plan: Plan, number: int, gang: Gang, progress: Progress) -> None:
        super().__init__(name=f"replica-{number}", daemon=True)
        self._plan, self._number, self._gang, self._progress = plan, number, gang, progress
        self._log = _Log(number)
        self._lock = threading.Lock()
        self._host: Any = None
        self._node: str | None = None
        self._stopping: tuple[float, ExitReason] | None = None
        self._failures = 0

    def run(self) -> None:
        """Run attempt after attempt."""
        while True:
            end = self._attempt()
            again = not end.good and self._stopping is None and self._may_retry(end)
            self._settle(end, again)
            if not again:
                return
            self._pause(end)

    def _pause(self, end: End) -> None:
        """Wait before the next attempt: a little longer after each failure, or until a loss is known."""
        if end.reason is not ExitReason.PREEMPTED:
            time.sleep(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(self._failures, 16)))
            return
        while self._stopping is None and not loss_is_known(self._node):
            time.sleep(_FIRST_PAUSE)

    def stop(self, grace: float, reason: ExitReason) -> None:
        """End the attempt that runs, and make no other."""
        with self._lock:
            self._stopping = grace, reason
            host = self._host
        if host is not None:
            host.stop.remote(grace)
        else:
            self._gang.release(self._number)

    def _attempt(self) -> End:
        try:
            self._node = None
            host = self._gang.host(self._number)
            self._node = ray.get(host.node_id.remote())
            with self._lock:
                if self._stopping is not None:
                    return End(self._stopping[1], None, None)
                self._host = host
            self._begin()
            return self._end_of(self._follow(host))
        except Exception as error:  # noqa: BLE001 - a replica that nobody watches must not read running for ever
            return self._broken(error)
        finally:
            with self._lock:
                self._host = None
            self._gang.release(self._number)

    def _begin(self) -> None:
        before = self._progress.task(self._number)
        earlier = before.previous
        if before.attempt:
            earlier = (*earlier, replace(before, status=JobStatus.FAILED, previous=()))
        attempt = before.attempt + 1
        self._log.begin(attempt)
        self._progress.change(
            self._number,
            status=JobStatus.RUNNING,
            attempt=attempt,
            exit_code=None,
            reason=None,
            error_message=None,
            started_at=time.time(),
            finished_at=None,
            previous=earlier,
        )

    def _follow(self, host: Any) -> dict[str, Any]:
        """Copy the output into the job's log, and return the verdict."""
        environ = {**self._plan.environ, "FRAY_REPLICA_ID": str(self._number)}
        plan: dict[str, Any] = {"command": self._plan.command, "cwd": self._plan.cwd, "environ": environ}
        plan["accelerated"] = self._plan.resources.device.chips > 0
        verdict: dict[str, Any] = {"lost": "it ended without a verdict"}
        for ref in host.run.remote(plan, self._plan.payload):
            piece = ray.get(ref)
            if isinstance(piece, bytes):
                self._log.write(piece)
            else:
                verdict = piece
        return verdict

    def _end_of(self, verdict: dict[str, Any]) -> End:
        which = f"replica {self._number}"
        if "not_started" in verdict:
            program = self._plan.command[0] if self._plan.command else "python"
            return End(
                ExitReason.COULD_NOT_START,
                None,
                f"{which} could not start {program!r}: {verdict['not_started']}",
            )
        if "lost" in verdict:
            return End(ExitReason.LOST, None, f"{which} was lost: {verdict['lost']}")
        code: int = verdict["exit_code"]
        if self._stopping is not None:
            return End(self._stopping[1], code, None)
        if code == 0:
            return End(ExitReason.EXITED, 0, None)
        reason, how = ExitReason.EXITED, f"exited with code {code}"
        if verdict["oom"]:
            reason, how = ExitReason.OUT_OF_MEMORY, "was killed because memory ran out"
        elif code < 0:
            reason, how = ExitReason.SIGNALLED, f"was ended by signal {-code}"
        if is_drained(self._node):
            reason, how = ExitReason.PREEMPTED, f"{how} while its node {self._node} was drained"
        return End(reason, code, f"{which} {how}{self._last_lines()}")

    def _broken(self, error: Exception) -> End:
        """Tell a machine that was taken away from all else that can end an attempt from outside."""
        which = f"replica {self._number}"
        if self._stopping is not None:
            return End(self._stopping[1], None, None)
        if isinstance(error, rx.RuntimeEnvSetupError):
            return End(
                ExitReason.COULD_NOT_START, None, f"the environment of {which} could not be built: {error}"
            )
        if isinstance(error, rx.OutOfMemoryError):
            return End(ExitReason.OUT_OF_MEMORY, None, f"{which} was ended by Ray because memory ran out")
        if isinstance(error, rx.NodeDiedError) or node_is_gone(self._node):
            return End(ExitReason.PREEMPTED, None, f"{which} lost its node {self._node}")
        return End(ExitReason.LOST, None, f"{which} was lost: {error}{self._last_lines()}")

    def _may_retry(self, end: End) -> bool:
        if end.reason is ExitReason.PREEMPTED:
            return self._progress.count_preemption() <= self._plan.max_retries_preemption
        if end.reason is ExitReason.COULD_NOT_START:
            return False
        self._failures += 1
        return self._failures <= self._plan.max_retries_failure

    def _settle(self, end: End, again: bool) -> None:
        self._log.end()
        status = JobStatus.SUCCEEDED if end.good else JobStatus.FAILED
        if self._stopping is not None and self._stopping[1] is ExitReason.STOPPED:
            status = JobStatus.STOPPED
        # The last attempt's failure stays to be seen until the next one starts.
        self._progress.change(
            self._number,
            status=JobStatus.PENDING if again else status,
            reason=end.reason,
            exit_code=end.exit_code,
            error_message=end.message,
            finished_at=time.time(),
        )

    def _last_lines(self) -> str:
        lines = [f"  {line}" for line in self._log.last]
        text = "; its last lines:\n" + "\n".join(lines) if lines else "; it wrote nothing"
        for secret in self._plan.secrets:
            if len(secret) >= _SHORTEST_SECRET:
                text = text.replace(secret, "***")
        return text


class _Log:
    """A replica's lines in the log of the job, which is what this process writes to stdout."""

    _one_at_a_time = threading.Lock()

    def __init__(self, number: int) -> None:
        self._prefix, self._number = f"[replica-{number}] ".encode(), number
        self._rest = b""
        self.last: deque[str] = deque(maxlen=_LAST_LINES)

    def begin(self, attempt: int) -> None:
        """Mark where an attempt starts."""
        self.last.clear()
        self._print(f"[fray] replica {self._number} starts, attempt {attempt}\n".encode())

    def write(self, piece: bytes) -> None:
        """Write the lines that a piece of output completes."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        self.last.extend(line.decode(errors="replace") for line in lines)
        if lines:
            self._print(b"".join(self._prefix + line + b"\n" for line in lines))

    def end(self) -> None:
        """Complete a last line without an end."""
        if self._rest:
            self.write(b"\n")

    def _print(self, data: bytes) -> None:
        with self._one_at_a_time:
            sys.stdout.buffer.write(data)
            sys.stdout.flush()
