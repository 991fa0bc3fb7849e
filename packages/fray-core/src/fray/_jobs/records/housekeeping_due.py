"""When there is something to tidy up among records; imports next to nothing."""

import os
import time

COUNT, NOTES = ".index.count", ".pruning.json"
FEW = 200  # records that are read one by one, without an index
BETWEEN = 3600.0  # seconds between two looks at ages
_AGAIN = 600.0  # seconds until those are read again that had not ended


def index_is_due(folder: str, records: int) -> bool:
    """Whether many records are in no index, or many that are in it are gone.

    Those that had not ended when it was made are read again only after a while: each end asks.
    """
    indexed, unfinished = _counts(folder)
    new, many = records - indexed - unfinished, max(FEW, indexed // 10)
    others = not -records // 4 < new < many
    again = unfinished >= many and _is_old(os.path.join(folder, COUNT), _AGAIN)
    return records > FEW and (others or again)


def looked_long_ago(folder: str) -> bool:
    """Whether the last look at the ages of records is long ago."""
    return _is_old(os.path.join(folder, NOTES), BETWEEN)


def _is_old(path: str, seconds: float) -> bool:
    try:
        ago = time.time() - os.stat(path).st_mtime
    except OSError:
        return True
    return not 0 <= ago < seconds


def _counts(folder: str) -> tuple[int, int]:
    """How many records the index has, and how many had not ended when it was made."""
    try:
        with open(os.path.join(folder, COUNT)) as file:
            indexed, unfinished, *_ = [*map(int, file.read().split()), 0, 0]
    except (OSError, ValueError):
        return 0, 0
    return indexed, unfinished


def first_line(path: str) -> str | None:
    """Return the first line of a file; None where there is none."""
    try:
        with open(path) as file:
            return file.readline().strip() or None
    except OSError:
        return None
