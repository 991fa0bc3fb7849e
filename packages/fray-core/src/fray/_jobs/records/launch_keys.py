"""Keys of launches: a second launch with the same key finds the first one's job."""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from fray._jobs.processes.file_lock import release_lock, try_lock, wait_for_lock
from fray._values.checks import invalid
from fray._values.job_states import JobId


class HeldKey(Protocol):
    """The key of a launch, held against other launches, wherever a cluster keeps keys.

    Attributes:
        job_id: The job that it has started; None where there is none.
    """

    job_id: JobId | None

    def record(self, job_id: JobId) -> None:
        """Note the id of the job that is about to start: before it starts, so that no crash starts two."""


class LaunchKey:
    """A key in a file."""

    def __init__(self, file: int, job_id: JobId | None) -> None:
        self._file, self.job_id = file, job_id

    def record(self, job_id: JobId) -> None:
        """Note the id of the job that is about to start: before it starts, so that no crash starts two."""
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, job_id.encode(), 0)


def check_key(key: str) -> None:
    """Refuse a value that is not a key."""
    if not isinstance(key, str) or not key:
        raise invalid("key", "a text that names this launch", key)


@contextlib.contextmanager
def held_key(
    folder: Path, key: str, parent: str | None, exists: Callable[[str], bool]
) -> Iterator[LaunchKey]:
    """Hold a key while a job is launched; of several processes one at a time has it.

    Args:
        folder: Where the keys of a cluster are.
        parent: The job that launches: its keys are its own, so that a program may run twice at once.
        exists: Whether there is a job of an id; a key whose job was removed, or never came to be, is free.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / hashlib.sha256(f"{parent or ''}\0{key}".encode()).hexdigest()
    file = wait_for_lock(os.fspath(path))
    try:
        job_id = os.pread(file, 4096, 0).decode()
        yield LaunchKey(file, JobId(job_id) if job_id and exists(job_id) else None)
    finally:
        release_lock(file)


def prune_keys(folder: Path, exists: Callable[[str], bool]) -> None:
    """Delete the keys whose jobs are no more."""
    with contextlib.suppress(FileNotFoundError):
        for path in folder.iterdir():
            file = try_lock(os.fspath(path))
            if file is None:  # a launch holds it
                continue
            try:
                if not exists(os.pread(file, 4096, 0).decode() or "?"):
                    path.unlink()
            finally:
                release_lock(file)
