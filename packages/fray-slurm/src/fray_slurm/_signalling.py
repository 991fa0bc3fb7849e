"""How Slurm signals the processes of a step, which is the site's choice: `ProctrackType` in slurm.conf.

`proctrack/linuxproc` signals all that descends from the step's process, `proctrack/pgid` its process group,
and `proctrack/cgroup`, which most clusters have, that process alone (`proctrack_p_signal` of Slurm 22.05).
Imports little: every step needs it.
"""

from __future__ import annotations

import re

from fray.backend import NamedTuple

VARIABLE = "_FRAY_SLURM_SIGNALS"
"""A variable of a step: what `Signalling.packed` returns."""
DEFAULT_GRACE = 60
GRACE_WORD = "--grace="  # on the command line of a replica in the batch step
_KILL_WAIT = 30.0  # seconds, Slurm's own default


class Signalling(NamedTuple):
    """How Slurm signals, and ends, the steps of a job.

    Args:
        tracking: `proctrack/...`; "" where it is not known.
        kill_wait: Seconds between the SIGTERM and the SIGKILL of what Slurm ends.
        grace: Seconds before the time limit at which replicas get SIGTERM.
    """

    tracking: str = ""
    kill_wait: float = _KILL_WAIT
    grace: int = DEFAULT_GRACE

    @property
    def reaches_tree(self) -> bool:
        """Whether a signal to a step reaches all that descends from its process."""
        return self.tracking.endswith("linuxproc")

    @property
    def reaches_group(self) -> bool:
        """Whether it reaches the process group of that process."""
        return self.reaches_tree or self.tracking.endswith("pgid")

    @property
    def near_limit(self) -> float:
        """Seconds before the time limit in which a signal is taken for the notice of it."""
        return max(300.0, self.grace + 120.0)  # Slurm sends it up to a minute early

    def packed(self) -> str:
        """Return it as the value of a variable."""
        return f"{self.tracking},{self.kill_wait:g},{self.grace}"


def signalling_in(text: str) -> Signalling:
    """Return what was packed."""
    tracking, kill_wait, grace = text.split(",")
    return Signalling(tracking, float(kill_wait), int(grace))


def read_signalling(shown: str) -> Signalling:
    """Read `scontrol show config`; what is missing has Slurm's own default."""
    tracking = re.search(r"^ProctrackType\s*=\s*([\w/]+)", shown, re.MULTILINE)
    return Signalling(tracking[1] if tracking else "", read_kill_wait(shown))


def read_kill_wait(shown: str) -> float:
    """Read the seconds between SIGTERM and SIGKILL from `scontrol show config`."""
    found = re.search(r"^KillWait\s*=\s*(\d+)", shown, re.MULTILINE)
    return float(found[1]) if found else _KILL_WAIT
