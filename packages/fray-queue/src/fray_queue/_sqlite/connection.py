"""A connection to a store's file, and its transactions."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw

from fray import QueueUnavailableError
from fray_queue._errors import QueueFullError
from fray_queue._sqlite import schema
from fray_queue._sqlite.clocks import LeaseClock
from fray_queue._sqlite.library import Locked, check_file_system, check_version, named_errors

MEMORY = ":memory:"
_fdatasync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)
_CACHE_KB = 16_384
_PAUSE = 0.002  # seconds between two tries to begin the log
_RESERVE = 4 << 20  # bytes; a log begins again at 1,000 pages, and this is as many
_WAL_KEPT = 64 << 20  # bytes that the log keeps after a checkpoint, for the next commits


class StoreFile:
    """One connection to a store.

    Args:
        path: The file; `:memory:` for none.
        timeout: Seconds to wait for another process's transaction.
        exclusive: Whether nobody else may open the file meanwhile.

    Raises:
        UnsupportedError: The SQLite at hand, or the file system, would lose items.
        ValueError: The file is something else's, or, when exclusive, in use.
        DamagedError: The file is not a database, or a damaged one.
    """

    def __init__(
        self, path: str, clock: LeaseClock, *, timeout: float = 30.0, exclusive: bool = False
    ) -> None:
        self.path, self.clock = path, clock
        self.in_memory = path == MEMORY
        self._identity = (0, 0)
        self._log_path, self._log = f"{path}-wal", _Descriptor()
        self._syncing = threading.Lock()
        self.free_disk = 0
        self.most_bytes: int | None = None
        self._reserve = Path(f"{path}-reserve")
        if not self.in_memory:
            check_version()
            folder = Path(path).parent
            folder.mkdir(parents=True, exist_ok=True)
            check_file_system(folder)
            _make_private(path)
        with named_errors(path):
            self.connection = apsw.Connection(path)
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            with named_errors(path):
                self.connection.set_busy_handler(Locked(timeout))
                schema.is_store(self.connection, path)  # before anything is set in a database of others
                self._configure(exclusive, timeout)
                self._prepare()
                if not self.in_memory:
                    self._identity = _identity(path)
                    self.sync()
                    self._empty_log()
                    self.keep_reserve()
            undo.pop_all()

    def _configure(self, exclusive: bool, timeout: float) -> None:
        connection = self.connection
        connection.pragma("cache_size", -_CACHE_KB)
        connection.pragma("temp_store", "MEMORY")
        # Else a statement with `LIMIT ?` is compiled again at each call, which takes as long as all of a pop.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        if self.in_memory:
            # Nobody else sees it and nothing outlasts it: it is one transaction for its life.
            connection.pragma("journal_mode", "OFF")
            return
        if exclusive:
            connection.pragma("locking_mode", "EXCLUSIVE")
        self._begin_log(timeout)
        connection.pragma("synchronous", "NORMAL")  # and `sync`
        connection.pragma("journal_size_limit", _WAL_KEPT)

    def _begin_log(self, timeout: float) -> None:
        end = time.monotonic() + timeout
        while True:
            try:
                self.connection.pragma("journal_mode", "WAL")
            except apsw.BusyError:
                # Two that do it at once could wait for each other: SQLite asks no busy handler then.
                if time.monotonic() >= end:
                    raise
            else:
                return
            time.sleep(_PAUSE)

    def _prepare(self) -> None:
        new = False
        with self.writing():
            if not schema.check(self.connection, self.path):
                schema.create(self.connection, self.clock.axis)
                new = True
            self._translate_times()
        if self.in_memory:
            self.connection.execute("BEGIN IMMEDIATE")
        if new and not self.in_memory:
            os.chmod(self.path, 0o600)  # noqa: PTH101 - items are their owner's, in a file that was there, too
            _sync_folder(Path(self.path).parent)

    def _translate_times(self) -> None:
        """Move times of another axis to this one: each lease and delay keeps what was left of it."""
        connection, axis = self.connection, self.clock.axis
        if connection.execute("SELECT axis FROM store").get == axis:
            return
        now = self.clock.now()
        queues: list[tuple[Any, ...]] = connection.execute("SELECT number, seen FROM queues").fetchall()
        for number, seen in queues:
            connection.execute(
                "UPDATE leases SET until = until + ?1, leased_at = leased_at + ?1, deadline = deadline + ?1 "
                "WHERE queue = ?2",
                (now - seen, number),
            )
            connection.execute("UPDATE replies SET until = until + ? WHERE queue = ?", (now - seen, number))
        connection.execute("UPDATE queues SET seen = ?", (now,))
        connection.execute("UPDATE store SET axis = ?", (axis,))

    def _empty_log(self) -> None:
        """Move what the log has into the database, and flush that: the log itself may not be on the disk.

        After a flush that failed, the kernel has what was to be written in its memory, and takes it for
        written.
        """
        try:
            self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
        except apsw.BusyError:  # others have the file open; a flush that fails fails for each of them
            pass
        except apsw.FullError:
            self.make_room()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Be the only writer; if the block raises, what it wrote is undone.

        What it wrote outlasts a killed process, and, after `sync`, a power failure.
        """
        execute = self.connection.execute
        self._check_identity()
        try:
            # A transaction that reads first could not be made to write afterwards. An interrupt may come when
            # it is open and before this call returns.
            execute("BEGIN IMMEDIATE")
            yield
            execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:
                execute("ROLLBACK")
            raise

    def sync(self) -> None:
        """Have on disk what was committed until now.

        Called without SQLite's lock, which a commit under `synchronous = FULL` holds until the disk answers:
        so others write meanwhile, and the file system has one wait for all.
        """
        if self.in_memory:
            return
        with self._syncing:
            try:
                status = os.stat(self._log_path)  # noqa: PTH116 - asked at each commit
            except FileNotFoundError:  # the log was moved into the file, which was synced for that
                return
            if (status.st_dev, status.st_ino) != self._log.identity:
                # SQLite has no locks on the log: closing another descriptor of it takes none away.
                self._log = _Descriptor(self._log_path)
                _sync_folder(Path(self.path).parent)
            log = self._log
        _fdatasync(log.number)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """See one state of the store, also while others write."""
        execute = self.connection.execute
        self._check_identity()
        try:
            execute("BEGIN")  # with the same care for an interrupt
            yield
        finally:
            if self.connection.in_transaction:
                execute("COMMIT")

    def _check_identity(self) -> None:
        if self._identity != (0, 0) and _identity(self.path) != self._identity:
            raise QueueUnavailableError(
                f"the store {self.path!r} was removed or replaced while it was open; open the queue again"
            )

    # --- space ---

    def check_space(self, size: int) -> None:
        """Refuse to store so many bytes where workers that take items would not have room any more.

        Raises:
            QueueFullError: The file may not grow so far, or the disk has too little left.
        """
        if self.in_memory:
            return
        if self.most_bytes is not None:
            pragma: Callable[[str], Any] = self.connection.pragma
            used = (pragma("page_count") - pragma("freelist_count")) * pragma("page_size")
            if used + size > self.most_bytes:
                raise QueueFullError(
                    f"the store is full: it has {used} of store_bytes={self.most_bytes} bytes"
                )
        if self.free_disk:
            disk = os.statvfs(self.path)
            free = disk.f_bavail * disk.f_frsize
            if free < self.free_disk + 2 * size:  # once in the log, once in the database
                raise QueueFullError(
                    f"the disk is full: {free} bytes are free, and free_disk={self.free_disk} of them stay so"
                )

    def keep_reserve(self) -> None:
        """Hold some of the disk back, for workers that take items when it is full."""
        if self.in_memory or self._has_reserve():
            return
        with contextlib.suppress(OSError), self._reserve.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, _RESERVE)

    def make_room(self) -> bool:
        """Give the reserve up, and begin the log again; return whether another try is worth it."""
        if self.in_memory:
            return False
        had = self._has_reserve()
        with contextlib.suppress(OSError):
            self._reserve.unlink(missing_ok=True)
        with contextlib.suppress(apsw.Error):
            self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
            return True
        return had

    def _has_reserve(self) -> bool:
        try:
            return self._reserve.stat().st_size >= _RESERVE
        except OSError:  # it is asked for after a commit, which stands in any case
            return False

    def close(self) -> None:
        """Release the file."""
        self.connection.close()
        self._log = _Descriptor()


class _Descriptor:
    """An open file that is closed when nobody uses it any more; without a path, none."""

    def __init__(self, path: str = "") -> None:
        self.number, self.identity = -1, (0, 0)
        if path:
            self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            status = os.fstat(self.number)
            self.identity = (status.st_dev, status.st_ino)

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


def _make_private(path: str) -> None:
    """Make an empty file that only its user can read; SQLite gives its log the same rights.

    No descriptor of it is closed, which would release the locks that this process has on it by then.
    """
    with contextlib.suppress(OSError):  # it is there; or SQLite cannot make it either, and says why
        os.mknod(path, 0o600)


def _identity(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)  # noqa: PTH116 - asked at each transaction
    except FileNotFoundError:
        return (-1, -1)
    return status.st_dev, status.st_ino


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
