"""One attempt of one replica: its output copied into the log, its verdict put into words."""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray import exceptions as rx

from fray.cluster import ExitReason
from fray_ray._head.replica_log import ReplicaLog
from fray_ray._installing import setup_failure
from fray_ray._plan import Plan


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

    def run(self, host: Any) -> End:
        """Run it on the actor `host`.

        Raises:
            ray.exceptions.RayError: The actor was lost; `broken` says what that means.
        """
        return self._end_of(self._follow(host))

    def broken(self, error: Exception) -> End:
        """Put into words what ended an attempt from outside."""
        which = f"replica {self._number}"
        if isinstance(error, rx.RuntimeEnvSetupError):
            return End(ExitReason.COULD_NOT_START, None, setup_failure(which, error))
        if isinstance(error, rx.OutOfMemoryError):
            return End(ExitReason.OUT_OF_MEMORY, None, f"{which} was ended by Ray because memory ran out")
        return End(ExitReason.LOST, None, f"{which} was lost: {error}{self._log.last_lines()}")

    def _follow(self, host: Any) -> dict[str, Any]:
        """Copy the output into the job's log, and return the verdict."""
        environ = {**self._plan.environ, "FRAY_REPLICA_ID": str(self._number), **self.variables}
        plan: dict[str, Any] = {"command": self._plan.command, "cwd": self._plan.cwd, "environ": environ}
        plan["accelerated"] = self._plan.resources.device.chips > 0
        plan["cpus"] = self._plan.resources.cpu
        plan |= {"gang": self._plan.gang, "returns": self._plan.returns, "ports": self._plan.ports}
        plan |= {"submission": self._plan.submission, "secrets": self._plan.secrets}
        verdict: dict[str, Any] = {"lost": "it ended without a verdict"}
        for ref in host.run.remote(plan, self._plan.payload):
            piece = ray.get(ref)
            if isinstance(piece, bytes):
                self._log.write(piece)
            elif isinstance(piece, str):
                if self._on_notice is not None:
                    self._on_notice(piece)
            elif "ports" in piece:
                if self._on_ports is not None:
                    self._on_ports(piece["ports"])
            else:
                if piece.get("samples"):
                    self._on_samples(piece["samples"])
                if set(piece) != {"samples"}:
                    verdict = piece
        return verdict

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
