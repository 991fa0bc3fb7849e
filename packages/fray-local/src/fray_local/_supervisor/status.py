"""The status of a job on disk: one JSON file, replaced as a whole, written by one process at a time."""

import json
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERSION = 1
STATUS = "status.json"


class StatusFile:
    """The status that the supervisor keeps; `tasks` are changed in place and written with `write`."""

    def __init__(self, job_dir: str, data: "dict[str, Any]") -> None:
        self._dir, self._data = job_dir, data

    @property
    def tasks(self) -> "list[dict[str, Any]]":
        tasks: list[dict[str, Any]] = self._data["tasks"]
        return tasks

    def wait_for(self, reason: str) -> None:
        self._data["pending_reason"] = reason
        self.write()

    def start(self) -> None:
        self._data.update(status="running", pending_reason=None, started_at=time.time())

    def finish(self, status: str, error_message: str | None) -> None:
        self._data.update(
            status=status, pending_reason=None, error_message=error_message, finished_at=time.time()
        )
        self.write()

    def write(self) -> None:
        write_json(os.path.join(self._dir, STATUS), self._data | {"version": VERSION})


def read_json(path: "str | os.PathLike[str]") -> "dict[str, Any] | None":
    """Return what a file of ours holds; None where it is missing or was never completed."""
    try:
        with open(path) as file:
            data: dict[str, Any] = json.load(file)
    except (OSError, ValueError):
        return None
    return data


def write_json(path: str, data: "dict[str, Any]") -> None:
    """Write a file that is either as before or complete, and nobody else's to read."""
    new = f"{path}.new"
    with open(new, "w", opener=_private) as file:
        json.dump(data, file, indent=2)
        file.write("\n")
    os.replace(new, path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
