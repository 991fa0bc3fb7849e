"""The command that starts a job's supervisor."""

from __future__ import annotations

from fray._jobs.processes.bare import bare_interpreter, with_bare_package
from fray._jobs.supervisor.job_tree import SUPERVISOR_MODULE

_BOOT = "import gc, sys; gc.disable(); " + with_bare_package(
    "from fray._jobs.supervisor.boot import main; main(*sys.argv[4:])"
)


def supervisor_command(record: str, paths: list[str], lock: int | None = None) -> list[str]:
    """Return the command of a supervisor.

    Args:
        paths: Where it may import from.
        lock: The file that holds the record's lock, where the process inherits it.
    """
    given = [] if lock is None else [str(lock)]
    return [*bare_interpreter(_BOOT, SUPERVISOR_MODULE, paths), record, *given]
