"""The status of a job on disk: replaced as a whole, by one process at a time, on a full disk too.

At launch room is reserved for the final status (`RESERVE`). When a disk is full the final status is written
into that file, in place, which takes its name then: neither needs room.

`json` is imported where something is read: a supervisor writes alone, as a rule.
"""

from __future__ import annotations

import errno
import os

from fray._values.light_json import to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

VERSION = 2
"""Raised when records of before cannot be read any more; 0.1.0 wrote 1."""
STATUS, RESERVE = "status.json", "reserve"
_ROOM = 16 * 1024  # bytes of a final status, and for each further replica
_ROOM_OF_A_REPLICA = 6 * 1024
NO_RECORD = (errno.ENOENT, errno.ENOTDIR)


def reserve_room(record: str, replicas: int) -> None:
    """Reserve the room of a job's final status."""
    size = _ROOM + _ROOM_OF_A_REPLICA * (replicas - 1)
    file = os.open(os.path.join(record, RESERVE), os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, size)
        else:
            os.write(file, b" " * size)
    finally:
        os.close(file)


def write_status(record: str, data: Mapping[str, Any], *, final: bool) -> bool:
    """Replace the status of a job (a `JobInfo`, fit for JSON); whether the file system took it.

    Raises:
        OSError: There is no such record any more. Any other error may pass: the caller tries again.
    """
    text = _encoded(data)
    try:
        replace_file(os.path.join(record, STATUS), text)
    except OSError as error:
        if error.errno in NO_RECORD:
            raise
        return final and _write_into_reserve(record, data, text)
    if final:
        remove_file(os.path.join(record, RESERVE))
    return True


def read_json(path: str) -> dict[str, Any] | None:
    """Return what a file of ours holds; None where it is missing or damaged, or cannot be read."""
    try:
        return load_json(path)
    except OSError:
        return None


def load_json(path: str) -> dict[str, Any] | None:
    """Return what a file of ours holds; None where it is damaged.

    Raises:
        OSError: It is missing, or cannot be read.
    """
    with open(path, "rb") as file:
        text = file.read()
    import json

    try:
        data = json.loads(text)
    except (ValueError, RecursionError):  # deeper than anything of ours
        return None
    return data if isinstance(data, dict) else None


def write_json(path: str, data: Mapping[str, Any]) -> None:
    """Write a file that is either as before or complete, and nobody else's to read."""
    replace_file(path, f"{to_json(data)}\n".encode())


def replace_file(path: str, data: bytes) -> None:
    """Write a file so that readers see the old one or the new one, whole; it is nobody else's to read."""
    draft = f"{path}.new"
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with open(file, "wb") as out:
            out.write(data)
        os.replace(draft, path)
    except BaseException:
        remove_file(draft)
        raise


def _write_into_reserve(record: str, data: Mapping[str, Any], text: bytes) -> bool:
    reserve = os.path.join(record, RESERVE)
    try:
        file = os.open(reserve, os.O_WRONLY)
        try:
            room = os.fstat(file).st_size
            for longest in (1000, 100):
                if len(text) > room:
                    text = _encoded(_shortened(data, longest))
            if len(text) > room:
                return False
            os.pwrite(file, text, 0)
            os.ftruncate(file, len(text))
        finally:
            os.close(file)
        os.replace(reserve, os.path.join(record, STATUS))
    except OSError:
        return False
    return True


def _encoded(data: Mapping[str, Any]) -> bytes:
    return f"{to_json({'version': VERSION, **data})}\n".encode()


def _shortened(data: Mapping[str, Any], longest: int) -> dict[str, Any]:
    """A status without its history, and with the beginnings of its messages."""
    tasks = [{**task, "previous": [], **_message(task, longest)} for task in data["tasks"]]
    return {**data, "tasks": tasks, **_message(data, longest)}


def _message(data: Mapping[str, Any], longest: int) -> dict[str, str | None]:
    return {"error_message": (data["error_message"] or "")[:longest] or None}


def remove_file(path: str) -> None:
    """Remove a file, where it is there and the disk lets it go."""
    try:
        os.unlink(path)
    except OSError:
        return
