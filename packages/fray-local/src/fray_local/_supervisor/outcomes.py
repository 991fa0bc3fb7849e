"""How things ended, in the words of the status: reasons, exit codes, the last lines."""

import os
import signal

from fray_local._supervisor.oom import oom_kills

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from fray_local._supervisor.replicas import Replica


class TimedOut(Exception):  # noqa: N818 - not an error of ours
    """The job ran longer than its request allows."""


class Failure:
    """Why one attempt of a replica did not succeed."""

    def __init__(self, reason: str, exit_code: int | None, message: str) -> None:
        self.reason, self.exit_code, self.message = reason, exit_code, message


class Outcome:
    """How a job ended; status None says that its replicas decide."""

    def __init__(self, status: str | None, reason: str | None, message: str | None) -> None:
        self.given, self.reason, self.message = status, reason, message
        self.status = status or "succeeded"

    @classmethod
    def of_tasks(cls) -> "Outcome":
        return cls(None, None, None)

    def settle(self, task: "dict[str, Any]") -> None:
        """Give a replica that has not finished the job's own end; hear from one that failed."""
        import time

        if task["status"] in ("pending", "running") and self.given is not None:
            task.update(status=self.given, reason=self.reason, error_message=self.message)
            task["finished_at"] = time.time() if task["attempt"] else None
        if task["status"] == "failed" and self.given is None:
            self.status = "failed"


def failure_of_exit(replica: "Replica", code: int) -> Failure | None:
    """Return why an attempt failed, by the exit code of its main process; None where it succeeded."""
    if code == 0:
        return None
    # A shell reports the kill of its child as 137.
    if code in (-signal.SIGKILL, 128 + signal.SIGKILL) and oom_kills() > replica.oom_kills_before:
        reason, how = "out_of_memory", "was killed because memory ran out"
    elif code < 0:
        reason, how = "signalled", f"was ended by {_signal_name(-code)}"
    else:
        reason, how = "exited", f"exited with code {code}"
    which, lines = _which_attempt(replica), last_lines(replica.log, replica.plan)
    return Failure(reason, code, f"replica {replica.number} {how}{which}{lines}")


def _which_attempt(replica: "Replica") -> str:
    allowed, attempt = replica.plan["max_retries_failure"], replica.task["attempt"]
    if not allowed:
        return ""
    if attempt == replica.failures + 1:
        return f" (attempt {attempt} of {allowed + 1})"
    # Attempts that were preempted are not counted here.
    return f" (attempt {attempt}, failure {replica.failures + 1}; max_retries_failure={allowed})"


def failure_of_start(plan: "dict[str, Any]", log: str) -> str:
    """Say that the environment could not be built, and why."""
    return f"the environment could not be built{last_lines(log, plan)}"


def no_program(error: OSError, plan: "dict[str, Any]") -> str:
    """Say which program could not be started, and why."""
    name = plan["command"][0]
    if isinstance(error, FileNotFoundError) and os.sep not in name:
        return f"could not start {name!r}: no such program on the job's PATH"
    return f"could not start {name!r}: {error.strerror}"


def job_error(outcome: Outcome, tasks: "Sequence[dict[str, Any]]") -> str | None:
    """Return the message of a failed job: its own, or that of the replica that failed first."""
    failed = sorted(
        (task for task in tasks if task["status"] == "failed"), key=lambda task: task["finished_at"] or 0.0
    )
    if outcome.status != "failed" or not failed:
        return outcome.message
    if outcome.message is not None:
        return outcome.message
    first, others = failed[0], len(failed) - 1
    message: str = first["error_message"]
    return message + (f"\n({others} more of {len(tasks)} replicas failed)" if others else "")


def last_lines(log: str, plan: "dict[str, Any]") -> str:
    """Return the end of a log as the end of a message, without what is secret."""
    from importlib.util import module_from_spec, spec_from_file_location

    # The core's, by its path: to import `fray` takes longer than all that a supervisor does.
    spec = spec_from_file_location("fray_last_lines", plan["last_lines"])
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    text: str = module.last_lines(log, plan["secrets"])
    return text


def _signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:  # a real-time signal
        return f"signal {number}"
