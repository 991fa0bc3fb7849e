"""A folder on a local disk or a network file system as the store of a FileQueue."""

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from fray_queue._errors import DamagedError, QueueRemovedError
from fray_queue._file.stores.store import MARKER
from fray_queue._file.stores.temporary import TemporaryFiles

TEMPORARY = ".tmp"
_KEPT = 4  # temporary files that the next records may be links to
_PIECE = 1 << 16  # bytes read at once
_GRAIN = 0.1  # seconds by which the time of a new file may lag behind the clock
_WHOLE_SECONDS = 2.0  # the same on file systems that keep no fractions (FAT keeps even seconds)
_ABANDONED = 3600.0  # seconds after which a temporary folder belongs to nobody


class LocalStore:
    """A folder of a local disk, or of a network file system whose `link` is atomic.

    Args:
        fsync: Whether `put` waits until the disk has the files and their folders.
    """

    may_lose = True
    is_shared = True

    def __init__(self, root: str, *, fsync: bool = True) -> None:
        self.name = root
        self.is_durable = fsync
        self._root = root
        self._fsync = fsync
        self._start()

    def _start(self) -> None:
        self._temporary = TemporaryFiles(f"{self._root}/{TEMPORARY}")
        self._kept: dict[bytes, str] = {}  # content -> a temporary file that has it, for the next link
        self._lock = threading.Lock()

    def create(self, path: str, data: bytes) -> bool:
        while True:
            temporary = self._file_of(data)
            try:
                os.link(temporary, f"{self._root}/{path}")
            except FileExistsError:
                return False
            except FileNotFoundError:
                self._check_root()
                if os.path.exists(temporary):  # noqa: PTH110
                    return False
                if self._kept.get(data) == temporary:  # a cleanup of the folder took it for abandoned
                    del self._kept[data]
            else:
                return True

    def put(self, files: Sequence[tuple[str, bytes]]) -> None:
        made: list[str] = []
        try:
            for path, data in files:
                self._link_in_folder(path, data)
                made.append(path)
            if self._fsync:
                for folder in {_folder(path) for path in made}:
                    with contextlib.suppress(FileNotFoundError):  # all is done and gone already
                        _fsync_folder(f"{self._root}/{folder}")
        except BaseException:
            with contextlib.suppress(OSError):  # all or none, as far as the disk lets us
                self.delete(made)
            raise

    def write(self, path: str, data: bytes) -> None:
        temporary = self._write(data)
        try:
            os.replace(temporary, f"{self._root}/{path}")  # noqa: PTH105
        except FileNotFoundError:  # the item is finished and its folder gone
            os.unlink(temporary)  # noqa: PTH108

    def read(self, path: str) -> bytes | None:
        try:
            descriptor = os.open(f"{self._root}/{path}", os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            data = os.read(descriptor, _PIECE)
            if len(data) < _PIECE:
                return data
            pieces = [data]
            while piece := os.read(descriptor, _PIECE):
                pieces.append(piece)
            return b"".join(pieces)
        except IsADirectoryError as error:
            raise DamagedError(f"{path!r} in {self._root!r} is a folder, not a file of the queue") from error
        finally:
            os.close(descriptor)

    def exists(self, path: str) -> bool:
        try:  # not os.path.exists: a disk that fails, or a stale handle of NFS, does not say that it is gone
            os.stat(f"{self._root}/{path}")  # noqa: PTH116
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def names(self, folder: str) -> list[str]:
        try:
            return os.listdir(f"{self._root}/{folder}")  # noqa: PTH208
        except (FileNotFoundError, NotADirectoryError):  # finished and removed; or no folder of ours
            return []

    def tree(self) -> dict[str, list[str]]:
        return {name: [] if name.startswith(".") else self.names(name) for name in self.names("")}

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            try:
                os.unlink(f"{self._root}/{path}")  # noqa: PTH108
            except (FileNotFoundError, NotADirectoryError):
                continue
        for folder in {_folder(path) for path in paths}:
            self.remove_if_empty(folder)

    def remove_if_empty(self, folder: str) -> None:
        with contextlib.suppress(OSError):  # it is not, or gone; who puts something in makes it again
            os.rmdir(f"{self._root}/{folder}")  # noqa: PTH106

    def clock_error(self, path: str) -> float | None:
        before = time.time()
        temporary = self._write(b"")
        after = time.time()
        try:
            stamp = Path(temporary).stat().st_mtime_ns
        finally:
            os.unlink(temporary)  # noqa: PTH108
        grain = _GRAIN if stamp % 1_000_000_000 else _WHOLE_SECONDS
        earliest, latest = stamp / 1e9, stamp / 1e9 + grain
        return before - latest if before > latest else min(0.0, after + _GRAIN - earliest)

    def make_root(self) -> None:
        """Make the queue's folder; its parents have it on disk when it returns."""
        new = [Path(self._root)]
        while not new[-1].exists():
            new.append(new[-1].parent)
        new[0].mkdir(parents=True, exist_ok=True)
        if self._fsync:
            for folder in {new[0].parent, *new[1:]}:
                with contextlib.suppress(PermissionError):  # passed through, never read
                    _fsync_folder(str(folder))

    def sync(self, path: str) -> None:
        """Have a file's content on disk; its name in the root is synced with a client's first new folder."""
        if self._fsync:
            _fsync(f"{self._root}/{path}", os.O_RDONLY)

    def sweep(self) -> None:
        """Remove the temporary folders that dead processes left."""
        with contextlib.suppress(FileNotFoundError):
            for folder in Path(self._root, TEMPORARY).iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if time.time() - folder.stat().st_mtime > _ABANDONED:
                        shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Remove this client's temporary folder."""
        self._temporary.remove()

    def _check_root(self) -> None:
        if not self.exists(MARKER):
            raise QueueRemovedError(self.name)

    def _file_of(self, data: bytes) -> str:
        """Return a temporary file of that content: one of those written last, or a new one."""
        known = self._kept.get(data)
        if known is not None and self._temporary.process == os.getpid():
            return known
        temporary = self._write(data)
        with self._lock:
            old = self._kept.pop(data, None)
            if old is None and len(self._kept) >= _KEPT:
                old = self._kept.pop(next(iter(self._kept)))
            self._kept[data] = temporary
        if old is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(old)  # noqa: PTH108
        return temporary

    def _write(self, data: bytes, *, fsync: bool = False) -> str:
        if self._temporary.process != os.getpid():  # a forked child must not meddle with its parent's files
            self._start()
        try:
            return self._temporary.write(data, fsync=fsync)
        except FileNotFoundError:
            self._check_root()
            raise

    def _link_in_folder(self, path: str, data: bytes) -> None:
        while True:
            try:
                return self._link(path, data, fsync=self._fsync)
            except FileNotFoundError:  # a new folder, or one that a consumer just emptied and removed
                self._check_root()
                folder = f"{self._root}/{_folder(path)}"
                os.makedirs(folder, exist_ok=True)  # noqa: PTH103
                if self._fsync:
                    _fsync_folder(self._root)

    def _link(self, path: str, data: bytes, *, fsync: bool) -> None:
        # `link` is the one call that is exclusive and shows the file whole; each client has its own folder
        # for temporary files, as one that all share slows them down fourfold.
        temporary = self._write(data, fsync=fsync)
        try:
            os.link(temporary, f"{self._root}/{path}")
        except FileExistsError:
            # NFS repeats a request whose answer was lost, and the second finds the link that the first made.
            if not _is_link_of(temporary, f"{self._root}/{path}"):
                raise
        finally:
            os.unlink(temporary)  # noqa: PTH108


def _is_link_of(temporary: str, path: str) -> bool:
    """Return whether two names are of one file."""
    try:
        return os.path.samefile(temporary, path)  # noqa: PTH121
    except FileNotFoundError:  # the item is finished already; or the temporary file was removed
        return os.path.exists(temporary)  # noqa: PTH110


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _fsync_folder(path: str) -> None:
    _fsync(path, os.O_RDONLY | os.O_DIRECTORY)


def _fsync(path: str, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
