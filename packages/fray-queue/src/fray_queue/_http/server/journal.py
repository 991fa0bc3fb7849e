"""The server's memory on disk: one SQLite file, written by one thread that commits requests in groups.

What is on disk is checked when it is read: SQLite's own check, a checksum per row, the number of rows,
and the number of commits, which a file beside the database witnesses. SQLite drops a damaged end of its
write-ahead log without a word; the witness notices.
"""

import contextlib
import json
import logging
import os
import sqlite3
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fray import QueueUnavailableError
from fray_queue._errors import DamagedError, QueueFullError
from fray_queue._http.server.rows import DELETE, INSERT, SCHEMA, UPDATE, Statement, Stored, entry_of, queue_of

_log = logging.getLogger("fray.queue")
_DATABASE, _WITNESS = "journal.db", "commits"
_OWN = {_DATABASE, f"{_DATABASE}-wal", f"{_DATABASE}-shm", f"{_DATABASE}-journal", _WITNESS}
_VERSION = 1
_WORKERS_PAGES = 256


class WriterEndedError(QueueUnavailableError):
    """The writer is gone, and what it did not write with it."""

    def __str__(self) -> str:
        return "the server can write its store no more; its log says why. Start it again"


class Journal:
    """A folder that holds what a server must not forget.

    Args:
        largest: Bytes that the database may grow to; None for no limit but the disk's.
        settled: Called in the writer's thread with the tokens of a group, each with what went wrong or None.

    Raises:
        ValueError: The folder is not a journal's, or another server has it.
        DamagedError: What it holds is not what was written.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        settled: Callable[[list[tuple[Any, Exception | None]]], None],
        largest: int | None = None,
    ) -> None:
        self._folder = Path(folder)
        self._settled = settled
        self._commits = self._items = 0
        self._check_folder()
        self._connection = self._connect(largest)
        self._witness = os.open(self._folder / _WITNESS, os.O_RDWR | os.O_CREAT, 0o600)
        self._pending: list[tuple[list[Statement], Any]] = []
        self._group: list[tuple[list[Statement], Any]] = []  # what is being written
        self._changed = threading.Condition()
        self._closing = self._broken = self._ended = False
        self._thread = threading.Thread(target=self._run, name="fray-queue-journal")

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def submit(self, statements: list[Statement], token: Any) -> None:
        """Have statements committed together, in the order of the calls; `settled` gets the token after.

        Raises:
            QueueUnavailableError: The writer ended.
        """
        with self._changed:
            if self._ended:
                raise WriterEndedError
            self._pending.append((statements, token))
            self._changed.notify()

    def drop_pending(self) -> list[Any]:
        """Forget, after a failure, what was submitted since, and go on; return its tokens."""
        with self._changed:
            pending, self._pending = self._pending, []
            self._broken = False
        return [token for _, token in pending]

    def close(self) -> None:
        """Write what is pending and let go of the folder."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()
        self._connection.close()
        os.close(self._witness)

    # --- writing ---

    def _run(self) -> None:
        try:
            self._write()
        except BaseException:  # noqa: BLE001 - nobody may wait for a writer that is gone
            _log.exception("the store %r can be written no more", str(self._folder))
            with self._changed:
                self._ended = True
                waiting, self._pending = self._group + self._pending, []
            self._settled([(token, WriterEndedError()) for _, token in waiting])

    def _write(self) -> None:
        while True:
            with self._changed:
                # What follows a failed group rests on it: nothing is written until `drop_pending`.
                self._changed.wait_for(lambda: (self._pending and not self._broken) or self._closing)
                if self._broken or not self._pending:
                    return
                self._group, self._pending = self._pending, []
            self._settled(self._commit_group(self._group))
            self._group = []

    def _commit_group(self, group: list[tuple[list[Statement], Any]]) -> list[tuple[Any, Exception | None]]:
        """Commit requests together; when that fails, one by one, so that a push too many fails alone."""
        with contextlib.suppress(Exception):  # not SQLite's alone: a number may be beyond what it takes
            self._commit([statement for statements, _ in group for statement in statements])
            return [(token, None) for _, token in group]
        results: list[tuple[Any, Exception | None]] = []
        for statements, token in group:
            try:
                self._commit(statements)
                results.append((token, None))
            except Exception as failure:  # noqa: BLE001 - it belongs to whoever asked
                with self._changed:
                    self._broken = True
                results.append((token, QueueFullError(f"the store cannot be written: {failure}")))
        return results

    def _commit(self, statements: list[Statement]) -> None:
        execute = self._connection.execute
        added = 0
        self._limit_size(any(sql == INSERT for sql, _ in statements))
        execute("BEGIN IMMEDIATE")
        try:
            for sql, values in statements:
                changed = execute(sql, values).rowcount
                if sql in (UPDATE, DELETE) and changed == 0:
                    raise sqlite3.IntegrityError("it rests on a request that failed")  # noqa: TRY301
                added += changed if sql == INSERT else -changed if sql == DELETE else 0
            execute("UPDATE meta SET commits = ?, items = ?", (self._commits + 1, self._items + added))
            execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                execute("ROLLBACK")
            raise
        self._commits += 1
        self._items += added
        # Not synced: it is read after a crash of the process, and is allowed to be behind, never ahead. So
        # what is committed stays so, though the witness cannot be written.
        with contextlib.suppress(OSError):
            data = b"%016x %08x\n" % (self._commits, zlib.crc32(b"%016x" % self._commits))
            os.pwrite(self._witness, data, 0)

    def _limit_size(self, pushes: bool) -> None:
        """Keep some pages that pushes do not get, so that workers can go on in a full store."""
        if self._pages is not None:
            self._connection.execute(
                f"PRAGMA max_page_count = {self._pages + (0 if pushes else _WORKERS_PAGES)}"
            )

    # --- opening ---

    def _check_folder(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        names = {path.name for path in self._folder.iterdir()}
        if strangers := names - _OWN:
            raise ValueError(
                f"{str(self._folder)!r} is no queue server's store: it has {min(strangers)!r}; "
                "give the store a folder of its own"
            )
        if _DATABASE not in names:
            if _WITNESS in names:
                raise DamagedError(f"the store {str(self._folder)!r} is damaged: {_DATABASE} is gone")
            return
        # Read-only: a connection that may write would tidy a damaged log away when it is closed. Without a
        # witness nothing was answered yet, and what is half made has to be tidied before it can be read.
        mode = "ro" if _WITNESS in names else "rw"
        with self._damage_named():
            uri = f"{(self._folder / _DATABASE).absolute().as_uri()}?mode={mode}"
            with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=0.2)) as connection:
                if _WITNESS in names or not _is_empty(connection):
                    self._check(connection)

    def _check(self, connection: sqlite3.Connection) -> None:
        problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if problem != "ok":
            raise DamagedError(f"the store {str(self._folder)!r} is damaged: {problem}")
        version, commits, items = connection.execute("SELECT version, commits, items FROM meta").fetchone()
        if version != _VERSION:
            raise ValueError(
                f"{str(self._folder)!r} is a store of version {version}; this is version {_VERSION}"
            )
        witnessed = self._witnessed()
        if commits < witnessed:
            raise DamagedError(
                f"the store {str(self._folder)!r} is damaged: of {witnessed} commits "
                f"the last {witnessed - commits} cannot be read; its files are left as they are"
            )
        found = connection.execute("SELECT count(*) FROM items").fetchone()[0]
        if found != items:
            raise DamagedError(
                f"the store {str(self._folder)!r} is damaged: {found} of {items} items are there"
            )

    def _witnessed(self) -> int:
        try:
            data = (self._folder / _WITNESS).read_bytes()
        except FileNotFoundError:
            return 0
        if not data:
            return 0
        count, _, crc = data.strip().partition(b" ")
        if crc != b"%08x" % zlib.crc32(count):
            raise DamagedError(f"the store {str(self._folder)!r} is damaged: {_WITNESS!r} cannot be read")
        return int(count, 16)

    @contextlib.contextmanager
    def _damage_named(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            if "locked" in str(error):
                raise ValueError(f"{str(self._folder)!r} is in use by another server") from error
            raise DamagedError(f"the store {str(self._folder)!r} is damaged: {error}") from error

    def _connect(self, largest: int | None) -> sqlite3.Connection:
        path = self._folder / _DATABASE
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0.2)
        with self._damage_named(), contextlib.ExitStack() as undo:
            undo.callback(connection.close)
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            size = connection.execute("PRAGMA page_size").fetchone()[0]
            self._pages = None if largest is None else max(1, largest // size)
            connection.execute(
                "BEGIN IMMEDIATE"
            )  # two servers on one folder would forget each other's leases
            if _is_empty(connection):
                for statement in SCHEMA.split(";")[:-1]:
                    connection.execute(statement)
                connection.execute("INSERT INTO meta VALUES (?, 0, 0)", (_VERSION,))
            connection.execute("COMMIT")
            undo.pop_all()
        path.chmod(0o600)
        self._commits, self._items = connection.execute("SELECT commits, items FROM meta").fetchone()
        return connection

    # --- reading ---

    def load(self) -> Stored:
        """Return what is stored; every row's checksum is checked."""
        stored = Stored()
        with self._damage_named():
            for name, number, max_attempts in self._connection.execute("SELECT * FROM queues"):
                stored.queues[name] = (number, max_attempts)
            for row in self._connection.execute("SELECT * FROM items ORDER BY id"):
                stored.items.setdefault(queue_of(row[0]), []).append(entry_of(*row))
            for slot, number, at, reply in self._connection.execute("SELECT * FROM slots"):
                stored.slots[slot] = (number, at, json.loads(reply))
        return stored


def _is_empty(connection: sqlite3.Connection) -> bool:
    """Tell whether the tables were never made: the server died first, or is about to make them."""
    return connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None
