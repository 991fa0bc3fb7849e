"""The folder of environments that jobs share: each is locked while it is built, taken or deleted."""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator

from fray._jobs.processes.file_lock import try_lock, wait_for_lock

ENVIRONMENT_LINK = "environment"  # in a record, to the environment of its job
ENVIRONMENT_READY = ".fray-ready"  # in an environment that is complete; its time is that of the last use
_DOOMED = ".old-"


@contextlib.contextmanager
def locked_environment(path: str) -> Iterator[None]:
    """Hold an environment; waits for another job that builds it."""
    lock = wait_for_lock(
        f"{path}.lock", lambda: print("waiting for another job that builds the same environment", flush=True)
    )
    try:
        yield
    finally:
        os.close(lock)


def prune_environments(
    folder: str, records: list[str], unused_for: float, *, dry_run: bool = False
) -> tuple[int, int]:
    """Delete environments that nobody used for so many seconds, and what builds that were killed left.

    Args:
        records: The folders of all records that there are; what one leads to stays.
        dry_run: Delete nothing, and say what would be.

    Returns:
        How many were deleted, and the bytes of their files.
    """
    try:
        names = os.listdir(folder)
    except OSError:
        return 0, 0
    used = {os.path.basename(_linked(record)) for record in records}
    count = size = 0
    for name in sorted({name.removeprefix(_DOOMED).removesuffix(".lock") for name in names} - used):
        path, doomed = os.path.join(folder, name), os.path.join(folder, f"{_DOOMED}{name}")
        freed = _unused(path, unused_for) if dry_run else _delete(path, doomed, unused_for)
        count, size = count + (freed is not None), size + (freed or 0)
    return count, size


def size_of(folder: str) -> int:
    """Return the bytes of the files in a folder."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total


def _linked(record: str) -> str:
    try:
        return os.readlink(os.path.join(record, ENVIRONMENT_LINK))
    except OSError:
        return ""


def _delete(path: str, doomed: str, unused_for: float) -> int | None:
    """Delete an environment and return its size; None where a job takes it, or used it lately."""
    try:
        lock = try_lock(f"{path}.lock")
    except OSError:
        return None
    if lock is None:
        return None
    try:
        if time.time() - _last_used(path) < unused_for:
            return None
        if os.path.exists(path):
            os.rename(path, doomed)  # a reader sees a whole one or none meanwhile
        size = size_of(doomed)
        shutil.rmtree(doomed, ignore_errors=True)
        os.unlink(f"{path}.lock")
    except OSError:
        return None
    finally:
        os.close(lock)
    return size


def _unused(path: str, unused_for: float) -> int | None:
    """Return the size of an environment that nobody used lately; None for another."""
    return size_of(path) if time.time() - _last_used(path) >= unused_for else None


def _last_used(path: str) -> float:
    for name in (os.path.join(path, ENVIRONMENT_READY), path):
        with contextlib.suppress(OSError):
            return os.stat(name).st_mtime
    return 0.0
