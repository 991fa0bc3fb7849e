"""The folder that a server keeps its queues in."""

from pathlib import Path

from fray import QueueUnavailableError
from fray_queue._http.protocol.limits import Limits
from fray_queue._sqlite.clocks import LeaseClock
from fray_queue._sqlite.connection import MEMORY, StoreFile
from fray_queue._sqlite.store import QueueStore

_DATABASE = "queues.db"
_OWN = {_DATABASE, *(f"{_DATABASE}-{end}" for end in ("wal", "shm", "journal", "reserve"))}
_FIRST_RELEASE = "journal.db"
_LOCK_SECONDS = 0.2  # another server does not release it while it lives


def open_store(folder: str | Path | None, clock: LeaseClock, limits: Limits) -> QueueStore:
    """Open the store in a folder; None is one in memory.

    Raises:
        ValueError: The folder holds something else, a store of the first release, or one that is in use.
        DamagedError: It cannot be read.
    """
    if folder is None:
        return QueueStore(StoreFile(MEMORY, clock), shared=False)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    names = {path.name for path in folder.iterdir()}
    if _FIRST_RELEASE in names:
        raise ValueError(
            f"{str(folder)!r} holds a store of fray-queue 0.1.0, which this release does not read: let "
            "workers empty it under fray-queue 0.1.0, or give this server another folder"
        )
    if strangers := names - _OWN:
        raise ValueError(
            f"{str(folder)!r} is not a queue server's store: it has {min(strangers)!r}; "
            "give the store a folder of its own"
        )
    try:
        file = StoreFile(str(folder / _DATABASE), clock, timeout=_LOCK_SECONDS, exclusive=True)
    except QueueUnavailableError as error:
        raise ValueError(
            f"{str(folder)!r} is in use by another server; give this one a folder of its own"
        ) from error
    file.free_disk, file.most_bytes = limits.free_disk, limits.store_bytes
    return QueueStore(file, shared=False)
