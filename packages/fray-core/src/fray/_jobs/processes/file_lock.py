"""Locks of files that are there for that: a process holds one by an open file, until it closes it or ends."""

from __future__ import annotations

import fcntl
import os

TYPE_CHECKING = False  # a supervisor loads this, and imports little
if TYPE_CHECKING:
    from collections.abc import Callable


def try_lock(path: str) -> int | None:
    """Return an open file that holds a lock; None where another process has it."""
    return _locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB)


def wait_for_lock(path: str, on_wait: Callable[[], object] | None = None) -> int:
    """Return an open file that holds a lock; `on_wait` is called where another process has it."""
    file = try_lock(path)
    if file is None and on_wait is not None:
        on_wait()
    while file is None:
        file = _locked(path, fcntl.LOCK_EX)
    return file


def release_lock(file: int) -> None:
    """Give a lock back, and close its file.

    Closing alone does not release it where a child that this process has forked meanwhile has the file open.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_UN)
    finally:
        os.close(file)


def _locked(path: str, how: int) -> int | None:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, how)
        if os.path.samestat(os.fstat(file), os.stat(path)):
            return file
    except (BlockingIOError, FileNotFoundError):  # another has it, or has deleted it
        pass
    except OSError:
        os.close(file)
        raise
    os.close(file)
    return None
