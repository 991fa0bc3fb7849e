"""Files that are written before they get their names: each client's own, below a queue's folder."""

import array
import contextlib
import itertools
import os
import shutil
import sys
import threading
import uuid

_FILES = 500  # in one folder
_GETFLAGS, _SETFLAGS, _TOPDIR = 0x80086601, 0x40086602, 0x00020000  # of linux/fs.h


class TemporaryFiles:
    """Temporary files of one client in one process.

    ext4 takes a new inode from the block group of its folder and passes over those that were freed lately,
    one by one: where thousands of items were finished, a file costs ten times what it costs elsewhere. So
    the folder changes, and its parent is marked to have its folders spread over the disk (`chattr +T`).
    """

    def __init__(self, parent: str) -> None:
        self.process = os.getpid()
        self._parent = parent
        self._numbers = itertools.count()
        self._name = uuid.uuid4().hex
        self._folders: list[str] = []  # the last is in use; the others were not empty when they were left
        self._lock = threading.Lock()

    def write(self, data: bytes, *, fsync: bool) -> str:
        """Write a file and return its path; what cannot be written whole is not there."""
        path, descriptor = self._open()
        try:
            _write_all(descriptor, data)
            if fsync:
                os.fsync(descriptor)
        except OSError:
            os.unlink(path)  # noqa: PTH108 - a full disk must not stay full of halves
            raise
        finally:
            os.close(descriptor)
        return path

    def remove(self) -> None:
        """Remove what is left; in a forked child nothing: it is the parent's."""
        if self.process != os.getpid():
            return
        with self._lock:
            for folder in self._folders:
                shutil.rmtree(folder, ignore_errors=True)
            self._folders.clear()

    def _open(self) -> tuple[str, int]:
        while True:
            number = next(self._numbers)
            path = f"{self._folder(number)}/{number}"
            try:
                return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            except FileNotFoundError:  # it was left by another thread, or taken for abandoned
                with self._lock, contextlib.suppress(ValueError):
                    self._folders.remove(path.rpartition("/")[0])

    def _folder(self, number: int) -> str:
        current = self._folders[-1:]  # in one step: another thread may change it
        if current and number % _FILES:
            return current[0]
        with self._lock:
            for old in self._folders[:]:
                with contextlib.suppress(OSError):  # not empty yet
                    os.rmdir(old)  # noqa: PTH106
                    self._folders.remove(old)
            with contextlib.suppress(FileExistsError):  # not makedirs: a removed queue stays so
                os.mkdir(self._parent)  # noqa: PTH102
            _spread(self._parent)
            new = f"{self._parent}/{self._name}-{number}"
            os.mkdir(new)  # noqa: PTH102
            self._folders.append(new)
            return new


def _spread(folder: str) -> None:
    """Request that the folders in this one are spread over the disk; most file systems know no such thing."""
    if sys.platform != "linux":
        return
    import fcntl

    flags = array.array("l", [0])
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, _GETFLAGS, flags)
            if not flags[0] & _TOPDIR:
                flags[0] |= _TOPDIR
                fcntl.ioctl(descriptor, _SETFLAGS, flags)
        finally:
            os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    written = os.write(descriptor, data)
    while written < len(data):
        written += os.write(descriptor, memoryview(data)[written:])
