"""One attempt of one replica: its output copied into the log, its verdict put into words."""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray import exceptions as rx

from fray.cluster import ExitReason
from fray_ray._head.record import HostRecord
from fray_ray._head.replica_log import ReplicaLog
from fray_ray._installing import setup_failure
from fray_ray._plan import Plan
from fray_ray._ray_internals.processes import driver_log

_WAIT = 20.0  # seconds for which an actor is asked for what follows; several times less than its lease


@dataclass(frozen=True)
class End:
    """How an attempt ended.

    Args:
        result: What the entry point returned or raised, pickled, where that was asked for.
    """

    reason: ExitReason
    exit_code: int | None
    message: str | None
    result: bytes | None = None
    peak_memory: int | None = None
    cpu_time: float | None = None

    @property
    def good(self) -> bool:
        return self.exit_code == 0


class Attempt:
    """One run of a replica.

    Args:
        variables: Variables of its environment; they override those of the plan.
        on_notice: Called with the reason when the provider announces that it takes the machine away.
        on_ports: Called with the ports that the replica was given.
        on_samples: Called with what the replica has used over time, as `UsageHistory` writes it.
    """

    def __init__(
        self,
        plan: Plan,
        number: int,
        log: ReplicaLog,
        variables: Mapping[str, str],
        on_notice: Callable[[str], None] | None = None,
        on_ports: Callable[[dict[str, int]], object] | None = None,
        on_samples: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._plan, self._number, self._log, self.variables = plan, number, log, variables
        self._on_notice, self._on_ports, self._on_samples = on_notice, on_ports, on_samples

    def run(self, host: Any, record: HostRecord | None = None) -> End:
        """Run it on the actor `host`.

        Args:
            record: Of an attempt that another driver began.

        Raises:
            ray.exceptions.RayError: The actor was lost; `broken` says what that means.
        """
        position = 0
        if record is not None:
            began, position, note = ray.get(host.taken_up.remote())
            log = Path(driver_log(self._plan.submission))
            self._log.take_up(
                log, record.attempt, note or {"log": record.log, "rest": b""}, began=note is not None
            )
            if not began:
                self._start(host)
        else:
            self._start(host)
        return self._end_of(self._follow(host, position))

    def broken(self, error: Exception) -> End:
        """Put into words what ended an attempt from outside."""
        which = f"replica {self._number}"
        if isinstance(error, rx.RuntimeEnvSetupError):
            return End(ExitReason.COULD_NOT_START, None, setup_failure(which, error))
        if isinstance(error, rx.OutOfMemoryError):
            return End(ExitReason.OUT_OF_MEMORY, None, f"{which} was ended by Ray because memory ran out")
        return End(ExitReason.LOST, None, f"{which} was lost: {error}{self._log.last_lines()}")

    def _start(self, host: Any) -> None:
        environ = {**self._plan.environ, "FRAY_REPLICA_ID": str(self._number), **self.variables}
        plan: dict[str, Any] = {"command": self._plan.command, "cwd": self._plan.cwd, "environ": environ}
        plan["accelerated"] = self._plan.resources.device.chips > 0
        plan["cpus"] = self._plan.resources.cpu
        plan |= {"gang": self._plan.gang, "returns": self._plan.returns, "ports": self._plan.ports}
        plan |= {"submission": self._plan.submission, "secrets": self._plan.secrets}
        ray.get(host.start.remote(plan, self._plan.payload))

    def _follow(self, host: Any, position: int) -> dict[str, Any]:
        """Copy the output into the job's log, and return the verdict, which stays unconfirmed."""
        note = self._log.note()
        while True:
            events = ray.get(host.next.remote(position, note, _WAIT))
            for event in events:
                verdict = self._take(event)
                if verdict is not None:
                    return verdict
            position += len(events)
            note = self._log.note()

    def _take(self, event: bytes | str | dict[str, Any]) -> dict[str, Any] | None:
        """Take note of an event; return it where it is the verdict."""
        if isinstance(event, bytes):
            self._log.write(event)
        elif isinstance(event, str):
            if self._on_notice is not None:
                self._on_notice(event)
        elif "ports" in event:
            if self._on_ports is not None:
                self._on_ports(event["ports"])
        else:
            if event.get("samples"):
                self._on_samples(event["samples"])
            if set(event) != {"samples"}:
                return event
        return None

    def _end_of(self, verdict: dict[str, Any]) -> End:
        which = f"replica {self._number}"
        if "not_started" in verdict:
            program = self._plan.command[0] if self._plan.command else "python"
            message = f"{which} could not start {program!r}: {verdict['not_started']}"
            return End(ExitReason.COULD_NOT_START, None, message)
        if "lost" in verdict:
            return End(ExitReason.LOST, None, f"{which} was lost: {verdict['lost']}")
        code: int = verdict["exit_code"]
        result = base64.b64decode(verdict["result"]) if "result" in verdict else None
        used = verdict["peak_memory"], verdict["cpu_time"]
        if code == 0:
            return End(ExitReason.EXITED, 0, None, result, *used)
        reason, how = ExitReason.EXITED, f"exited with code {code}"
        if verdict["oom"]:
            reason, how = ExitReason.OUT_OF_MEMORY, "was killed because memory ran out"
        elif code < 0:
            reason, how = ExitReason.SIGNALLED, f"was ended by signal {-code}"
        return End(reason, code, f"{which} {how}{self._log.last_lines()}", result, *used)
