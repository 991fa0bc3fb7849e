"""The folder of one Ray node's files and sockets on this host, which goes with the process that made it.

Where that is killed, the folder stays until the next node of this user starts on the host.
"""

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

_PREFIX, _LOCK = "fray-ray-", "owner.lock"
_BEING_MADE = 60.0  # seconds in which a folder gets its lock


class OwnFiles:
    """A folder of this process alone.

    Args:
        parent: A short path: those of sockets have at most 107 bytes.
    """

    def __init__(self, parent: Path = Path("/tmp")) -> None:  # noqa: S108 - a folder in it is this user's own
        remove_abandoned(parent)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_abandoned(parent: Path) -> None:
    """Remove the folders of processes of this user that were killed."""
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            if folder.stat().st_uid == os.getuid() and _is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # its owner has just removed it
            continue


def _is_abandoned(folder: Path) -> bool:
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return time.time() - folder.stat().st_mtime > _BEING_MADE
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
