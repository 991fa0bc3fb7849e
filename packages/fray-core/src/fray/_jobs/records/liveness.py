"""Whether a job's supervisor lives: known by a lock that the kernel holds for it, never by a process id.

The lock is one of an open file (`F_OFD_SETLK`), so that a launcher hands it to the supervisor that it
starts without a moment in which it is free, and so that testing it (`F_OFD_GETLK`) takes nothing. Where the
system has no such locks, `flock` serves, and a test takes it for a moment.

The text of the lock's file names its holder. It has a fixed length, so that it can be written on a full
disk, and its time of change is renewed while the supervisor lives: a reader that cannot test the lock reports
that time.
"""

from __future__ import annotations

import enum
import errno
import fcntl
import os
import sys
import time

from fray._jobs.process_tree import ProcessIdentity, boot_id
from fray._values.light_json import to_json
from fray._values.light_tuples import NamedTuple

HEARTBEAT = 10.0  # seconds between two renewals
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)
"""What a file system answers that has no such locks."""
_LENGTH = 1024
_LINUX = sys.platform == "linux"
_FLOCK = "hhqqi4x"  # struct flock of linux: type, whence, start, length, pid


class Liveness(enum.Enum):
    """What is known of the holder of a lock."""

    NOT_STARTED = "not started"
    """There was no holder yet."""
    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"
    """The holder is, or was, where this process cannot test the lock."""


class Holder(NamedTuple):
    """The supervisor of a job.

    Args:
        pid: Of the supervisor.
        started: Its start time, which with the id identifies it (`process_tree.identify`).
        guardian: The process that ends the tree when the supervisor is killed, and its start time.
        group: The control group of the tree.
    """

    host: str
    boot: str
    pid: int = 0
    started: float = 0.0
    guardian: int = 0
    guardian_started: float = 0.0
    group: str | None = None

    @property
    def processes(self) -> list[ProcessIdentity]:
        """The supervisor's processes, as far as they are known."""
        known = ((self.pid, self.started), (self.guardian, self.guardian_started))
        return [ProcessIdentity(pid, started, self.boot) for pid, started in known if pid]


def this_host() -> str:
    """Return the name of this host."""
    return os.uname().nodename


class SupervisorLock:
    """The lock of a record, held until `close` or the end of the last process that has it open."""

    def __init__(self, file: int) -> None:
        self._file = file

    @staticmethod
    def _leave_to_parent() -> None:
        """In a forked child: a thread may fork while another one launches, and the child may live long."""
        for lock in list(_taken_here.values()):
            lock.close()

    @classmethod
    def acquire(cls, path: str) -> SupervisorLock | None:
        """Take the lock; None where another process has it."""
        low = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # A number that no shell gives away, between a launcher and what it starts.
            file = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 10)
        finally:
            os.close(low)
        lock = _taken_here[file] = cls(file)
        try:
            taken = lock.take()
        except BaseException:
            lock.close()
            raise
        if taken:
            return lock
        lock.close()
        return None

    def take(self) -> bool:
        """Take the lock of an open file; False where another process has it."""
        return _take(self._file)

    def fileno(self) -> int:
        """Return the file that holds the lock, to be handed to a process that is started."""
        return self._file

    def reserve(self) -> None:
        """Reserve the room for what its holder will write."""
        os.pwrite(self._file, b" " * _LENGTH, 0)

    def say(self, holder: Holder) -> None:
        """Write the holder."""
        os.pwrite(self._file, to_json(holder._asdict()).encode().ljust(_LENGTH), 0)

    def renew(self) -> None:
        """Note that the holder lives; where the file system refuses, this is left out."""
        try:
            os.utime(self._file)
        except OSError:
            return

    def close(self) -> None:
        """Release it, where no other process has it open."""
        if self._file >= 0:
            _taken_here.pop(self._file, None)
            os.close(self._file)
            self._file = -1


_taken_here: dict[int, SupervisorLock] = {}  # by `acquire`, until they are closed
os.register_at_fork(after_in_child=SupervisorLock._leave_to_parent)


def holder_of(path: str) -> Holder | None:
    """Return the holder of a lock, or its last one; None where there was none, or the file is damaged."""
    try:
        return _read_holder(path)
    except OSError:
        return None


def liveness_of(path: str, *, held_by_launcher: bool = False) -> Liveness:
    """Return whether the holder of a lock lives. It changes nothing, and delays no taker of the lock.

    Args:
        held_by_launcher: It is the lock of a draft, whose holder writes nothing about itself.
    """
    try:
        holder = _read_holder(path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        holder = None
    except OSError:  # it cannot be read now, and may be held
        return Liveness.UNKNOWN
    if holder is None:
        return _ask(path) if held_by_launcher else Liveness.NOT_STARTED
    if holder.boot == boot_id():
        return _ask(path)
    # Another start of a kernel: this machine's before it was restarted, or another machine's.
    seen = last_renewed(path)
    restarted = holder.host == this_host() and seen is not None and seen < _booted_at()
    return Liveness.GONE if restarted else Liveness.UNKNOWN


def last_renewed(path: str) -> float | None:
    """Return when the holder of a lock was last known to live, in seconds since the epoch."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None


def _read_holder(path: str) -> Holder | None:
    import json

    with open(path, "rb") as file:
        text = file.read()
    try:
        data = json.loads(text or b"null")
        return None if data is None else Holder(**data)
    except (ValueError, TypeError):
        return None


def _ask(path: str) -> Liveness:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return Liveness.NOT_STARTED
    except OSError:
        return Liveness.UNKNOWN
    try:
        return Liveness.ALIVE if _taken(file) else Liveness.GONE
    except OSError:  # a file system without locks
        return Liveness.UNKNOWN
    finally:
        os.close(file)


def _take(file: int) -> bool:
    try:
        if _LINUX:
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, _whole_file(fcntl.F_WRLCK))
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def _taken(file: int) -> bool:
    if _LINUX:
        answer = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _whole_file(fcntl.F_RDLCK))
        return int.from_bytes(answer[:2], sys.byteorder) != fcntl.F_UNLCK
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False


def _whole_file(kind: int) -> bytes:
    import struct  # a supervisor that was handed its lock needs none

    return struct.pack(_FLOCK, kind, os.SEEK_SET, 0, 0, 0)


def _booted_at() -> float:
    if not _LINUX:
        import psutil

        return float(psutil.boot_time())
    with open("/proc/stat") as file:
        return next((float(line.split()[1]) for line in file if line.startswith("btime ")), time.time())
