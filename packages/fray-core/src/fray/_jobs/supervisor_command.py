"""The command that starts a job's supervisor."""

from __future__ import annotations

import os
import sys

from fray._jobs.job_tree import SUPERVISOR_MODULE

# `fray` itself imports what programs use, which takes longer than all that a supervisor does.
_BOOT = (
    "import gc, sys; gc.disable(); core, paths = sys.argv[2:4]; sys.path += paths.split(':'); "
    "fray = sys.modules['fray'] = type(sys)('fray'); fray.__path__ = [core]; "
    "from fray._jobs.boot import main; main(*sys.argv[4:])"
)


def supervisor_command(record: str, paths: list[str], lock: int | None = None) -> list[str]:
    """Return the command of a supervisor.

    Args:
        paths: Where it may import from.
        lock: The file that holds the record's lock, where the process inherits it.
    """
    core = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    given = [] if lock is None else [str(lock)]
    return [
        sys.executable,
        "-I",
        "-S",
        "-c",
        _BOOT,
        SUPERVISOR_MODULE,
        core,
        os.pathsep.join(paths),
        record,
        *given,
    ]
