"""When there is something to tidy up among records; imports next to nothing."""

import os
import time

COUNT, NOTES = ".index.count", ".pruning.json"
FEW = 200  # records that are read one by one, without an index
BETWEEN = 3600.0  # seconds between two looks at ages


def index_is_due(folder: str, records: int) -> bool:
    """Whether many records are in no index, or many that are in it are gone."""
    indexed = int(first_line(os.path.join(folder, COUNT)) or 0)
    return records > FEW and not -records // 4 < records - indexed < max(FEW, indexed // 10)


def looked_long_ago(folder: str) -> bool:
    """Whether the last look at the ages of records is long ago."""
    try:
        ago = time.time() - os.stat(os.path.join(folder, NOTES)).st_mtime
    except OSError:
        return True
    return not 0 <= ago < BETWEEN


def first_line(path: str) -> str | None:
    """Return the first line of a file; None where there is none."""
    try:
        with open(path) as file:
            return file.readline().strip() or None
    except OSError:
        return None
