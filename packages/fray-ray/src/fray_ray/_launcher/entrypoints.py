"""The commands that Ray runs for a job on the head."""

import shlex
import sys
from collections.abc import Mapping

from fray_ray._job_table import MEMBERS

DRIVER, SWEEP = "fray_ray._head.driver", "fray_ray._head.sweep"
_PROCESS = "fray_ray._head.job_process"


def driver(submission: str, *, here: bool) -> str:
    """Return the command of a job: of the process that starts its driver.

    Args:
        here: Whether the head is this machine, whose interpreter is there then.
    """
    return _command(_PROCESS, DRIVER, submission, here=here)


def sweep(submission: str, *, here: bool) -> str:
    """Return the command of a sweep: of the process that starts its coordinator."""
    return _command(_PROCESS, SWEEP, submission, here=here)


def lost(submission: str, *, here: bool) -> str:
    """Return the command that ends what is left of a job which Ray has lost."""
    return _command("fray_ray._head.lost_job", submission, here=here)


def again(first: str, submission: str, metadata: Mapping[str, str], *, here: bool) -> str:
    """Return the command of what runs a job again by the plan that its first run had."""
    return _command(_PROCESS, SWEEP if MEMBERS in metadata else DRIVER, submission, first, here=here)


def _command(module: str, *words: str, here: bool) -> str:
    python = shlex.quote(sys.executable) if here else "python"
    return f"exec {python} -m {module} {' '.join(words)}"
