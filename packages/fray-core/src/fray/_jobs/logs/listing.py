"""Which files the logs of a folder have: listed once for all that are read in one look."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from fray._jobs.logs.segments import Segment, log_of, segments_of

# By folder, the names of the files of each log.
_listed: ContextVar[dict[str, dict[str, list[str]]] | None] = ContextVar("fray_listed_logs", default=None)


@contextmanager
def listed_once() -> Iterator[None]:
    """List each folder once within the block: the logs of N replicas are in one, and each looks for its own.

    What was there when the block began is found. What comes later may be found by the next block.
    """
    token = _listed.set({})
    try:
        yield
    finally:
        _listed.reset(token)


def known_segments(log: str) -> list[Segment]:
    """Return the segments and notes of a log, in order; within `listed_once` as its folder was listed."""
    listed = _listed.get()
    if listed is None:
        return segments_of(log)
    folder, name = os.path.split(log)
    if folder not in listed:
        listed[folder] = _files_of_logs(folder)
    return segments_of(log, listed[folder].get(name, ()))


def _files_of_logs(folder: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    try:
        names = os.listdir(folder or ".")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    for name in names:
        found.setdefault(log_of(name), []).append(name)
    return found
