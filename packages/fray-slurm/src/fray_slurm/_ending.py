"""Why Slurm ends a batch step: read by the job's supervisor when it gets SIGTERM.

Imports little: a job's supervisor runs in a bare interpreter.
"""

import os
import re
import subprocess
from typing import TYPE_CHECKING, NamedTuple

from fray_slurm._allocation import array_id
from fray_slurm._signalling import read_kill_wait

if TYPE_CHECKING:
    from fray.backend import HostEnding

TAKEN_AWAY = {
    "NODE_FAIL": ("lost", "one of its nodes failed"),
    "PREEMPTED": ("preempted", "had to make room for another job, and is not requeued"),
}
"""States of a job that Slurm took from its nodes: the reason and the words where it does not run again."""


class SlurmEnd(NamedTuple):
    """The `HostEnd` of jobs on Slurm; `may_resume` is whether Slurm requeues the job."""

    may_resume: bool = True

    def why(self) -> "HostEnding | None":
        """See `fray.backend.HostEnd`."""
        from fray.backend import HostEnding
        from fray.cluster import ExitReason

        job_id = array_id(os.environ)
        shown = _ask("scontrol", "show", "job", "-o", job_id)
        state, reason = _field(shown, "JobState"), _field(shown, "Reason")
        grace = kill_wait() / 2  # what is left after it is for the last status
        if state == "TIMEOUT" or reason == "TimeLimit" or "DUE TO TIME LIMIT" in shown:
            limit = _field(shown, "TimeLimit")
            message = f"Slurm job {job_id} reached the time limit of its allocation ({limit})"
            return HostEnding(ExitReason.TIMED_OUT, message, grace)
        if state == "CANCELLED" or (state == "COMPLETING" and _is_over(shown)):
            return HostEnding(ExitReason.STOPPED, f"Slurm job {job_id} was cancelled", grace)
        if not self.may_resume and state in TAKEN_AWAY:
            value, text = TAKEN_AWAY[state]
            return HostEnding(ExitReason(value), f"Slurm job {job_id} {text}", grace)
        return None


def _is_over(shown: str) -> bool:
    """Whether a job that Slurm is ending is neither requeued nor taken from its nodes, but was cancelled.

    Slurm prints no other state of it until all of its processes have ended.
    """
    runs = _field(shown, "Restarts") == os.environ.get("SLURM_RESTART_COUNT", "0")
    taken = _field(shown, "Reason") != "None" or _field(shown, "PreemptTime") not in ("", "None")
    return runs and not taken


def kill_wait() -> float:
    """Return the seconds between the SIGTERM and the SIGKILL of a job that Slurm ends."""
    return read_kill_wait(_ask("scontrol", "show", "config"))


def _ask(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=5).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _field(text: str, name: str) -> str:
    found = re.search(rf"(?:^|\s){name}=(\S*)", text)
    return found[1] if found else ""
