"""The folder of environments that jobs share: each is locked while it is built, taken or deleted."""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator

from fray._jobs.processes.file_lock import release_lock, try_lock, wait_for_lock
from fray._jobs.processes.removal import remove_tree

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
        release_lock(lock)


def prune_environments(
    folder: str, records: Callable[[], Iterable[str]], unused_for: float, *, dry_run: bool = False
) -> tuple[int, int]:
    """Delete environments that nobody used for so many seconds, and what builds that were killed left.

    Args:
        records: Returns the folders of all records that there are; what one leads to stays. It is called for
            each deletion again, because a job may have taken an environment during those before it.
        dry_run: Delete nothing, and say what would be.

    Returns:
        How many were deleted, and the bytes of their files.
    """
    try:
        names = os.listdir(folder)
    except OSError:
        return 0, 0

    def used() -> set[str]:
        return {os.path.basename(_linked(record)) for record in records()}

    count = size = 0
    for name in sorted({name.removeprefix(_DOOMED).removesuffix(".lock") for name in names} - used()):
        freed = _unused(folder, name, unused_for) if dry_run else _delete(folder, name, unused_for, used)
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


def _delete(folder: str, name: str, unused_for: float, used: Callable[[], set[str]]) -> int | None:
    """Delete an environment and return its size; None where a job takes it, or used it lately."""
    path, doomed = os.path.join(folder, name), os.path.join(folder, f"{_DOOMED}{name}")
    try:
        lock = try_lock(f"{path}.lock")
    except OSError:
        return None
    if lock is None:
        return None
    try:
        if time.time() - _last_used(path) < unused_for or name in used():
            return None
        size = size_of(path) + size_of(doomed)
        remove_tree(doomed)  # of a deletion that was killed
        if os.path.exists(path):
            os.rename(path, doomed)  # a reader sees a whole one or none meanwhile
            remove_tree(doomed)
        os.unlink(f"{path}.lock")
    except OSError:
        return None
    finally:
        release_lock(lock)
    return size


def _unused(folder: str, name: str, unused_for: float) -> int | None:
    """Return the size of an environment that nobody used lately; None for another."""
    path, doomed = os.path.join(folder, name), os.path.join(folder, f"{_DOOMED}{name}")
    if time.time() - _last_used(path) < unused_for:
        return None
    return size_of(path) + size_of(doomed)


def _last_used(path: str) -> float:
    for name in (os.path.join(path, ENVIRONMENT_READY), path):
        with contextlib.suppress(OSError):
            return os.stat(name).st_mtime
    return 0.0
