"""Where the parts of a log are: the names of its files. Imports little: each supervisor loads this."""

from __future__ import annotations

import os

from fray._values.light_tuples import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_DIGITS = 15  # of an offset in a name: a petabyte
_DROPPED = ".dropped"
_INDEXED = 1.0  # seconds between two rows of an index
_ROWS_AT_THAT_RATE = 10_000  # after so many they come more rarely, so that an index stays small


class Segment(NamedTuple):
    """A file that holds the bytes of a log from `start` on; of a note, text about bytes that are gone."""

    start: int
    size: int
    path: str
    note: bool

    @property
    def end(self) -> int:
        return self.start + self.size


def segment_path(log: str, start: int) -> str:
    """Return the name of the segment that begins at an offset."""
    return f"{log}.{start:0{_DIGITS}}" if start else log


def note_path(log: str, start: int) -> str:
    """Return the name of the note about what is missing from an offset on."""
    return f"{log}.{start:0{_DIGITS}}{_DROPPED}"


def index_path(log: str) -> str:
    """Return the name of a log's index."""
    return f"{log.removesuffix('.log')}.index"


def row_interval(rows: int) -> float:
    """Return for how many seconds an index gets no further row, if it has so many."""
    return _INDEXED * max(1, rows // _ROWS_AT_THAT_RATE)


def log_of(file: str) -> str:
    """Return the name of the log that a file is a segment or a note of; its own where it is the first one."""
    log, _, digits = file.removesuffix(_DROPPED).rpartition(".")
    return log if digits.isdigit() and len(digits) >= _DIGITS else file


def segments_of(log: str, names: Iterable[str] | None = None) -> list[Segment]:
    """Return the segments and notes of a log that are there, in order.

    Args:
        names: Those of the files in its folder that may be among them, where they are known.
    """
    folder, name = os.path.split(log)
    found = []
    if names is None:
        try:
            names = os.listdir(folder or ".")
        except (FileNotFoundError, NotADirectoryError):
            return []
    for each in names:
        if each.startswith(name) and (start := _start(each[len(name) :])) is not None:
            path = os.path.join(folder, each)
            try:
                size = os.stat(path).st_size
            except FileNotFoundError:  # dropped meanwhile
                continue
            found.append(Segment(start, size, path, each.endswith(_DROPPED)))
    return sorted(found)


def _start(rest: str) -> int | None:
    """The offset in what follows a log's name; None where the name is another's."""
    digits = rest.removesuffix(_DROPPED)
    if not rest:
        return 0
    return int(digits[1:]) if digits[:1] == "." and digits[1:].isdigit() and len(digits) > _DIGITS else None
