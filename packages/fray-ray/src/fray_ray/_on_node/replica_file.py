"""The output of an attempt as a file among the logs of its node, where Ray's dashboard shows it.

It is bounded as Ray bounds its own logs: a file of `RAY_ROTATION_MAX_BYTES` is put aside for another, and
`RAY_ROTATION_BACKUP_COUNT` of them are kept.
"""

import os
from collections.abc import Iterable, Mapping
from logging import LogRecord, makeLogRecord
from logging.handlers import RotatingFileHandler
from typing import Any

from fray.backend import LineSplitter, PartialLine
from fray.cluster import redacted
from fray_ray._log_names import replica_log_name
from fray_ray._ray_internals.processes import log_folder

_MOST_BYTES, _BACKUPS = "RAY_ROTATION_MAX_BYTES", "RAY_ROTATION_BACKUP_COUNT"
_RAYS = {_MOST_BYTES: 512 << 20, _BACKUPS: 5}  # what they are where nobody set them
_LONGEST_LINE = 1 << 20  # bytes


class ReplicaFile:
    """The file of one attempt; a disk that is full costs the file its lines, not the job.

    Args:
        secrets: Values that are `***` in the file.
        longest: Bytes after which a line is cut.
    """

    def __init__(self, path: str, secrets: Iterable[str], longest: int = _LONGEST_LINE) -> None:
        # Line by line: the pieces of output end anywhere, also within a secret of several lines.
        self._secrets = [line for secret in secrets for line in secret.splitlines()]
        self._overlap = max(map(len, self._secrets), default=0)
        self._longest, self._lines = longest, LineSplitter(longest)
        self._cut = False  # whether what comes next is of a line that was cut
        most, backups = _limit(_MOST_BYTES), _limit(_BACKUPS)
        self._file = _Rotating(path, maxBytes=most, backupCount=backups, encoding="utf-8", delay=True)

    def feed(self, piece: bytes) -> None:
        """Write the lines that a piece of output completes; an empty one is the end."""
        text = "".join(map(self._shown, self._lines.feed(piece) if piece else self._lines.finish()))
        if text:
            self._file.handle(makeLogRecord({"msg": text}))
        if not piece:
            self._file.close()

    def _shown(self, line: str) -> str:
        goes_on, self._cut = self._cut, isinstance(line, PartialLine) and not line.end
        if goes_on:
            return ""
        text = redacted(line, self._secrets)
        if self._cut:  # what it ends with may be half of a secret
            kept = text[: max(0, len(text) - self._overlap)]
            text = f"{kept} [fray] a line of more than {self._longest:,} bytes"
        return f"{text}\n"


class _Rotating(RotatingFileHandler):
    terminator = ""

    def handleError(self, record: LogRecord) -> None:  # noqa: N802 - the standard library's name
        """Go on without the lines that could not be written."""


def replica_file(plan: Mapping[str, Any]) -> ReplicaFile:
    """Return the file of an attempt, by the plan that its actor got, among the logs of this node."""
    environ = plan["environ"]
    name = replica_log_name(plan["submission"], environ["FRAY_REPLICA_ID"], environ["FRAY_ATTEMPT"])
    return ReplicaFile(f"{log_folder()}/{name}", plan["secrets"])


def _limit(variable: str) -> int:
    told = os.environ.get(variable, "")
    return int(told) if told.isdecimal() else _RAYS[variable]
