"""Tidy up among records, where there is something to; each job's end asks, so it imports next to nothing."""

import os
import sys

from fray._jobs.records.files import KEEP, SUPERVISOR_LOG
from fray._jobs.records.housekeeping_due import first_line, index_is_due, looked_long_ago

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def keep_house(record: str) -> None:
    """Delete records that are too many or too old, and renew the index of the others.

    Not of jobs below another, or members of a sweep: they go with that, and nobody reads an index of them.
    """
    folder = os.path.dirname(record)
    if os.path.exists(os.path.join(os.path.dirname(folder), SUPERVISOR_LOG)):
        return  # that is a record itself
    kept = first_line(os.path.join(record, KEEP))
    names = [name for name in os.listdir(folder) if not name.startswith(".")]
    if kept is not None and (len(names) > int(kept) or looked_long_ago(folder)):
        from fray._jobs.records.pruning import prune_by

        _try(prune_by, record)
    if index_is_due(folder, len(names)):
        from fray._jobs.records.index import renew

        _try(renew, folder)


def _try(act: "Callable[[str], None]", folder: str) -> None:
    """Do what need not be done now; a failure is logged in the job's supervisor.log."""
    try:
        act(folder)
    except OSError as error:
        print(error, file=sys.stderr)
