"""One attempt of one replica: its output copied into the log, its verdict put into words."""

import base64
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray import exceptions as rx

from fray.backend import AttemptEnd
from fray.cluster import ExitReason
from fray_ray._head.record import ReplicaActorRecord
from fray_ray._head.replica_log import ReplicaLog
from fray_ray._installing import setup_failure
from fray_ray._plan import Plan

_WAIT = 20.0  # seconds for which an actor is asked for what follows; several times less than its lease


@dataclass(frozen=True)
class AttemptRun:
    """One run of a replica.

    Args:
        scheduler_number: How many schedulers have carried the job before.
        reach: Makes a call of the actor, again where the connection breaks: each may be made twice.
        log_path: Where the job's log is; None where no scheduler goes on with the job.
        on_notice: Called with the reason when the provider announces that it takes the machine away.
        on_ports: Called with the ports that the replica was given.
        on_samples: Called with what the replica has used over time, as `UsageHistory` writes it.
        on_result: Called with what the entry point returned or raised, pickled, where that was asked for.
    """

    plan: Plan
    number: int
    scheduler_number: int
    reach: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
    log: ReplicaLog
    log_path: str | None
    on_notice: Callable[[str], object]
    on_ports: Callable[[dict[str, int]], object]
    on_samples: Callable[[str], object]
    on_result: Callable[[bytes], object]

    async def run(
        self,
        actor: Any,
        environ: Callable[[], Awaitable[dict[str, str]]],
        record: ReplicaActorRecord | None = None,
    ) -> AttemptEnd:
        """Run it on an actor.

        Args:
            environ: Returns its variables; called where it has not begun.
            record: Of an attempt that was begun by another scheduler.

        Raises:
            ActorLostError: The actor was lost; `broken` says what that means.
        """
        position = 0
        began = False
        if record is not None and self.log_path is not None:
            began, position, note = await self.reach(lambda: actor.take_up.remote(self.scheduler_number))
            noted = note or {"log": record.log, "rest": b""}
            self.log.take_up(Path(self.log_path), record.attempt, noted, began=note is not None)
        if not began:
            await self._start(actor, await environ())
        return self._end_of(await self._follow(actor, position))

    def broken(self, error: Exception) -> AttemptEnd:
        """Put into words what ended an attempt from outside."""
        return end_from_outside(error, self.log.last_lines())

    async def _start(self, actor: Any, environ: dict[str, str]) -> None:
        plan: dict[str, Any] = {"command": self.plan.command, "cwd": self.plan.cwd, "environ": environ}
        plan["accelerated"] = self.plan.resources.device.chips > 0
        plan["cpus"] = self.plan.resources.cpu
        plan |= {"gang": self.plan.gang, "returns": self.plan.returns, "ports": self.plan.ports}
        plan["watches"] = self.plan.gang or self.plan.resources.preemptible  # for a provider's notice
        plan |= {"submission": self.plan.submission, "secrets": self.plan.secrets}
        await self.reach(lambda: actor.start.remote(plan, self.plan.payload))

    async def _follow(self, actor: Any, position: int) -> dict[str, Any]:
        """Copy the output into the job's log, and return the verdict, which stays unconfirmed."""
        note = self.log.note()
        while True:
            call = functools.partial(actor.next.remote, self.scheduler_number, position, note, _WAIT)
            events = await self.reach(call)
            for event in events:
                verdict = self._take(event)
                if verdict is not None:
                    return verdict
            position += len(events)
            note = self.log.note()

    def _take(self, event: bytes | str | dict[str, Any]) -> dict[str, Any] | None:
        """Take note of an event; return it where it is the verdict."""
        if isinstance(event, bytes):
            self.log.write(event)
        elif isinstance(event, str):
            self.on_notice(event)
        elif "ports" in event:
            self.on_ports(event["ports"])
        else:
            if event.get("samples"):
                self.on_samples(event["samples"])
            if set(event) != {"samples"}:
                return event
        return None

    def _end_of(self, verdict: dict[str, Any]) -> AttemptEnd:
        if "not_started" in verdict:
            program = self.plan.command[0] if self.plan.command else "python"
            how = f"could not start {program!r}: {verdict['not_started']}"
            return AttemptEnd(ExitReason.COULD_NOT_START, None, how)
        if "lost" in verdict:
            return AttemptEnd(ExitReason.LOST, None, f"was lost: {verdict['lost']}")
        if "result" in verdict:
            self.on_result(base64.b64decode(verdict["result"]))
        code: int = verdict["exit_code"]
        used = verdict["peak_memory"], verdict["cpu_time"]
        if code == 0:
            return AttemptEnd(ExitReason.EXITED, 0, "", "", *used)
        reason, how = ExitReason.EXITED, f"exited with code {code}"
        if verdict["oom"]:
            reason, how = ExitReason.OUT_OF_MEMORY, "was killed because memory ran out"
        elif code < 0:
            reason, how = ExitReason.SIGNALLED, f"was ended by signal {-code}"
        return AttemptEnd(reason, code, how, self.log.last_lines(), *used)


def end_from_outside(error: Exception, last_lines: str = "") -> AttemptEnd:
    """Return how an attempt ended whose actor is gone, or never came up."""
    if isinstance(error, rx.RuntimeEnvSetupError):
        return AttemptEnd(ExitReason.COULD_NOT_START, None, f"could not start: {setup_failure(error)}")
    if isinstance(error, rx.OutOfMemoryError):
        return AttemptEnd(ExitReason.OUT_OF_MEMORY, None, "was ended by Ray because memory ran out")
    return AttemptEnd(ExitReason.LOST, None, f"was lost: {str(error) or repr(error)}", last_lines)
