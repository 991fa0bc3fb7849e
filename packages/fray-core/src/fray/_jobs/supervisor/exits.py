"""How things ended, in the words of the status."""

import errno
import os
import signal

from fray._jobs.records.status_file import read_json
from fray._jobs.rules.events import AttemptEnd
from fray._values.job_words import ExitReason


def end_of_exit(code: int, *, out_of_memory: bool, details: str) -> AttemptEnd:
    """Describe how an attempt ended, by the exit code of its main process.

    Args:
        out_of_memory: Whether the system has killed a process to regain memory meanwhile.
    """
    # A shell reports the kill of its child as 137.
    if out_of_memory and code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        reason, how = ExitReason.OUT_OF_MEMORY, "was killed because memory ran out"
    elif code < 0:
        reason, how = ExitReason.SIGNALLED, f"was ended by {_signal_name(-code)}"
    else:
        reason, how = ExitReason.EXITED, f"exited with code {code}"
    return AttemptEnd(reason, code, how, details)


def amended(end: AttemptEnd, record: str, replica: int, attempt: int) -> AttemptEnd:
    """Return an end with the report of the program that ran a replica's command elsewhere, if there is one.

    It writes this file before it ends: any of {"reason", "exit_code", "how"}, "peak_memory", "cpu_time". See
    `is_held` for what else it may report.
    """
    said = read_json(ends_path(record, replica, attempt)) or {}
    if "reason" in said:
        reason = ExitReason(said["reason"])
        end = end._replace(reason=reason, exit_code=said.get("exit_code"), how=said.get("how", ""))
    return end._replace(**{name: said[name] for name in ("peak_memory", "cpu_time") if name in said})


def is_held(record: str, replica: int, attempt: int) -> bool:
    """Whether the program of an attempt knows that its host is taken away, and waits (`"held": true`).

    When it is killed meanwhile, so will be the supervisor, and the attempt has not ended by itself.
    """
    return bool((read_json(ends_path(record, replica, attempt)) or {}).get("held"))


def ends_path(record: str, replica: int, attempt: int) -> str:
    """Return the file in which a replica's program may write how an attempt ended."""
    return os.path.join(record, "ends", f"replica-{replica}.attempt-{attempt}")


def no_program(error: OSError, name: str) -> str:
    """Describe which program could not be started, and why."""
    if error.errno == errno.ENOENT and os.sep not in name and error.filename == name:
        return f"could not start {name!r}: no such program on the job's PATH"
    where = f" ({error.filename})" if error.filename not in (None, name) else ""
    return f"could not start {name!r}: {error.strerror}{where}"


def _signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:  # a real-time signal
        return f"signal {number}"
