"""SQLite itself: a version that is safe, on a file system that is."""

import ctypes
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from fray import FrayError, QueueUnavailableError, UnsupportedError
from fray_queue._errors import DamagedError, LimitError, QueueFullError

# With two connections in WAL mode these may lose commits (the "WAL-reset bug"), but for the releases below
# that carry its fix.
_FIRST_UNSAFE, _FIRST_SAFE = (3, 7, 0), (3, 51, 3)
_FIXED: dict[tuple[int, ...], int] = {(3, 44): 6, (3, 50): 7}  # release -> its first patch with the fix

# The types, as statfs reports them, of file systems on which another machine's locks are not seen, or may not
# be.
_UNSAFE_FILE_SYSTEMS = {
    0x6969: "NFS",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB",
    0x517B: "SMB",
    0x01021997: "9p",
    0x65735546: "FUSE",
    0x5346414F: "AFS",
    0x00C36400: "Ceph",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x7461636F: "OCFS2",
    0x01161970: "GFS2",
    0x19830326: "BeeGFS",
    0x786F4256: "a VirtualBox shared folder",
}
_LONGEST_PAUSE = 0.004  # seconds between two tries for the lock: others hold it for a commit


def check_version() -> None:
    """Refuse an SQLite that may lose commits.

    Raises:
        UnsupportedError: It is one.
    """
    text = apsw.sqlite_lib_version()
    version = tuple(int(part) for part in text.split("."))
    fixed = _FIXED.get(version[:2])
    if _FIRST_UNSAFE <= version < _FIRST_SAFE and (fixed is None or version[2] < fixed):
        raise UnsupportedError(
            f"SQLite {text} may lose commits when several connections write (its WAL-reset bug, fixed in "
            "3.51.3), so no durable queue is kept in it; install a newer apsw: pip install -U apsw"
        )


def check_file_system(folder: Path) -> None:
    """Refuse a file system whose locks do not hold between all machines that can reach it.

    Raises:
        UnsupportedError: It is one.
    """
    kind = _UNSAFE_FILE_SYSTEMS.get(file_system(folder))
    if kind is not None:
        raise UnsupportedError(
            f"{str(folder)!r} is on {kind}, where SQLite's locks do not hold: two workers could take one "
            "item. Use a local disk, a FileQueue (file:), or an HttpQueueServer"
        )


def file_system(folder: Path) -> int:
    """Return the type of a file system as the number of statfs; 0 where statfs fails."""
    if not sys.platform.startswith("linux"):
        return 0
    buffer = ctypes.create_string_buffer(256)
    if ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(folder), buffer) != 0:
        return 0
    return ctypes.c_ulong.from_buffer(buffer).value & 0xFFFFFFFF


class Locked:
    """SQLite's busy handler: tries again soon, at random moments, until `timeout` seconds are over.

    SQLite's own waits ever longer, up to 100 ms, so that a late process wins and others starve.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout, self._end = timeout, 0.0

    def __call__(self, tries: int) -> bool:
        now = time.monotonic()
        if tries == 0:
            self._end = now + self._timeout
        elif now > self._end:
            return False
        time.sleep(random.uniform(0.0002, min(_LONGEST_PAUSE, 0.0005 * (tries + 1))))  # noqa: S311 - no secret
        return True


@contextmanager
def named_errors(path: str) -> Iterator[None]:
    """Turn SQLite's errors into those of queues."""
    try:
        yield
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise DamagedError(
            f"the store {path!r} is damaged, or no database: {error}; its files are left as they are. "
            "`.recover` of SQLite's own program saves what can be read"
        ) from error
    except apsw.FullError as error:
        raise QueueFullError(f"the store {path!r} cannot grow: {error}") from error
    except (apsw.BusyError, apsw.LockedError) as error:
        raise QueueUnavailableError(f"the store {path!r} is locked by another process: {error}") from error
    except apsw.CantOpenError as error:
        raise QueueUnavailableError(f"the store {path!r} cannot be opened: {error}") from error
    except apsw.TooBigError as error:
        raise LimitError(f"the store {path!r} takes no item, answer or failure of 1 GB and more") from error
    except apsw.Error as error:
        raise StoreError(f"the store {path!r} failed: {type(error).__name__}: {error}") from error


class StoreError(FrayError, OSError):
    """SQLite failed in a way that only its own words explain."""
