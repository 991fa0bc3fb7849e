"""One replica of a job: its attempts, its variables, its log."""

import os
import time

from fray_local._supervisor.oom import oom_kills
from fray_local._supervisor.outcomes import Failure, no_program
from fray_local._supervisor.spawn import start_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0  # seconds between a failure and the next attempt
_NO_VARIABLES: dict[str, str] = {}
_ATTEMPT = ("status", "attempt", "exit_code", "reason", "error_message", "started_at", "finished_at")


class Replica:
    """A replica and the part of the status that is its own (`task`, a dict of `TaskStatus`)."""

    def __init__(self, task: "dict[str, Any]", plan: "dict[str, Any]") -> None:
        self.task, self.plan = task, plan
        self.number: int = task["replica"]
        self.pid: int | None = None
        self.due: float | None = time.monotonic()
        """When to start the next attempt; None while one runs, and at the end."""
        self.failures = 0
        """The attempts that were counted as failures."""
        self.oom_kills_before = 0
        self._environ: dict[str, str] = {}
        self._ended_as = "failed"  # the status of the latest attempt that has ended

    @property
    def finished(self) -> bool:
        return self.pid is None and self.due is None

    @property
    def log(self) -> str:
        return log_path(self.plan["dir"], self.number, self.task["attempt"])

    def prepare(self, gpus: list[str]) -> None:
        """Complete the variables: what the replica is, and the GPUs that are its own."""
        self._environ = self.plan["environ"] | {"FRAY_REPLICA_ID": str(self.number)}
        count = self.plan["gpus_per_replica"]
        if count:
            own = gpus[self.number * count : (self.number + 1) * count]
            self._environ["CUDA_VISIBLE_DEVICES"] = ",".join(own)

    def start(self, variables: dict[str, str] = _NO_VARIABLES) -> None:
        """Start the next attempt, with variables of its own; one that cannot be started ends the replica."""
        task = self.task
        if task["attempt"]:
            earlier = {key: task[key] for key in _ATTEMPT} | {"replica": self.number}
            task["previous"].append(earlier | {"status": self._ended_as})
        task.update(dict.fromkeys(_ATTEMPT))
        task.update(status="running", attempt=len(task["previous"]) + 1, started_at=time.time())
        self.due, self.oom_kills_before = None, oom_kills()
        environ = self._environ | variables
        try:
            self.pid = start_program(self.plan["command"], environ, self.plan["cwd"], self.log)
        except OSError as error:
            message = f"replica {self.number} {no_program(error, self.plan)}"
            self.ended(Failure("could_not_start", None, message))

    def ended(self, failure: "Failure | None", status: str = "failed") -> None:
        """Book the end of the running attempt: its success, or its failure under a status."""
        self.pid = None
        self._ended_as = status if failure else "succeeded"
        self.task.update(
            status=self._ended_as,
            reason=failure.reason if failure else "exited",
            exit_code=failure.exit_code if failure else 0,
            error_message=failure.message if failure else None,
            finished_at=time.time(),
        )

    def try_again(self, at: float) -> None:
        """Plan the next attempt; how the last one ended stays to be seen until then."""
        self.task["status"] = "pending"
        self.due = at


def after_failure(failures: int) -> float:
    """Return the moment of the next attempt after so many failures: each time twice as far away."""
    pause: float = _FIRST_PAUSE * 2 ** min(failures - 1, 16)
    return time.monotonic() + min(_LONGEST_PAUSE, pause)


def log_path(job_dir: str, replica: int, attempt: int) -> str:
    """Return where an attempt writes."""
    return os.path.join(job_dir, "logs", f"replica-{replica}.attempt-{attempt}.log")
