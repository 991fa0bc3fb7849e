"""Tidy up among records, where there is something to; each job's end asks, so it imports next to nothing."""

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

KEEP, COUNT, NOTES = "keep", ".index.count", ".pruning.json"
FEW = 200  # records that are read one by one, without an index
BETWEEN = 3600.0  # seconds between two looks at ages


def keep_house(record: str) -> None:
    """Delete records that are too many or too old, and renew the index of the others."""
    folder = os.path.dirname(record)
    kept = _first_line(os.path.join(record, KEEP))
    names = [name for name in os.listdir(folder) if not name.startswith(".")]
    if kept is not None and (len(names) > int(kept) or _looked_long_ago(folder)):
        from fray._jobs.pruning import prune_by

        _try(prune_by, record)
    if index_is_due(folder, len(names)):
        from fray._jobs.record_index import renew

        _try(renew, folder)


def index_is_due(folder: str, records: int) -> bool:
    """Whether many records are in no index, or many that are in it are gone."""
    indexed = int(_first_line(os.path.join(folder, COUNT)) or 0)
    return records > FEW and not -records // 4 < records - indexed < max(FEW, indexed // 10)


def _looked_long_ago(folder: str) -> bool:
    try:
        ago = time.time() - os.stat(os.path.join(folder, NOTES)).st_mtime
    except OSError:
        return True
    return not 0 <= ago < BETWEEN


def _first_line(path: str) -> str | None:
    try:
        with open(path) as file:
            return file.readline().strip() or None
    except OSError:
        return None


def _try(act: "Callable[[str], None]", folder: str) -> None:
    """Do what need not be done now; that it failed is said in the job's supervisor.log."""
    try:
        act(folder)
    except OSError as error:
        print(error, file=sys.stderr)
