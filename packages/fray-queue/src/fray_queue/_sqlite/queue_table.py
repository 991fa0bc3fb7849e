"""The queues of a store, each a row of a table, and the transactions that change them."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fray_queue._errors import LimitError, QueueExistsError, QueueNotFoundError
from fray_queue._items import Settings
from fray_queue._sqlite.connection import StoreFile
from fray_queue._sqlite.rows import QueueRow, differs
from fray_queue._sqlite.schema import LAST_NUMBER

_COLUMNS = (
    "number, name, tag, max_attempts, pushed, cursor, returned, held, dead, bytes, seen, fresh, max_size, "
    "max_dead, dropped, special"
)


class QueueTable:
    """Read and write the rows of queues; `QueueStore` has what is done to their items.

    Args:
        shared: Whether others write to the file, so that what was read before the transaction is old.
    """

    def __init__(self, file: StoreFile, *, shared: bool) -> None:
        self.file = file
        self._shared = shared
        self._execute: Callable[..., Any] = file.connection.execute
        self._rows: dict[str, QueueRow] = {}
        self._complete = False  # whether all queues are in `_rows`

    # --- transactions ---

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Open a transaction; the changes of a block that raises are undone."""
        if self.file.in_memory:
            yield
            return
        if self._shared:
            self._forget()
        try:
            with self.file.writing():
                yield
                self._flush()
        except BaseException:
            self._forget()
            raise

    @contextmanager
    def reading(self) -> Iterator[None]:
        """See one state of the store."""
        if self.file.in_memory:
            yield
            return
        if self._shared:
            self._forget()
        with self.file.reading():
            yield

    def _forget(self) -> None:
        self._rows.clear()
        self._complete = False

    def _flush(self) -> None:
        for row in self._rows.values():
            if row.changed:
                self._execute(
                    "UPDATE queues SET max_attempts = ?, pushed = ?, cursor = ?, returned = ?, held = ?, "
                    "dead = ?, bytes = ?, seen = ?, fresh = ?, max_size = ?, max_dead = ?, dropped = ?, "
                    "special = ? WHERE number = ?",
                    (
                        row.max_attempts,
                        row.pushed,
                        row.cursor,
                        row.returned,
                        row.held,
                        row.dead,
                        row.bytes,
                        self.file.clock.now(),
                        row.fresh,
                        row.max_size,
                        row.max_dead,
                        row.dropped,
                        row.special,
                        row.number,
                    ),
                )
                row.changed = False

    # --- queues ---

    def queue(self, name: str) -> QueueRow:
        """Return a queue that exists.

        Raises:
            QueueNotFoundError: There is none of that name.
        """
        row = self._rows.get(name)
        if row is None:
            row = self._load(name)
            if row is None:
                raise QueueNotFoundError(name, tuple(self.names()))
            self._rows[name] = row
        return row

    def names(self) -> list[str]:
        """List the queues' names, sorted."""
        return [name for (name,) in self._execute("SELECT name FROM queues ORDER BY name").fetchall()]

    def queues(self) -> list[QueueRow]:
        """Return every queue."""
        if not self._complete:
            for name in self.names():
                self.queue(name)
            self._complete = True
        return list(self._rows.values())

    def create(self, name: str, settings: Settings, *, most: int = LAST_NUMBER) -> QueueRow:
        """Return the queue of that name and those settings, made if need be.

        Raises:
            QueueExistsError: There is one with other settings.
            LimitError: The store has `most` queues.
        """
        row = self._rows.get(name) or self._load(name)
        if row is None:
            row = self._insert(name, settings, most)
        elif (difference := differs(settings, row)) is not None:
            raise QueueExistsError(f"queue {name!r} has {difference}")
        self._rows[name] = row
        return row

    def _load(self, name: str) -> QueueRow | None:
        found = self._execute(f"SELECT {_COLUMNS} FROM queues WHERE name = ?", (name,)).fetchall()
        return QueueRow(*found[0]) if found else None

    def _free_number(self) -> int:
        """Return the number of a queue that was removed."""
        taken = {number for (number,) in self._execute("SELECT number FROM queues").fetchall()}
        return next(number for number in range(1, LAST_NUMBER + 1) if number not in taken)

    def _insert(self, name: str, settings: Settings, most: int) -> QueueRow:
        ((count, last),) = self._execute("SELECT count(*), coalesce(max(number), 0) FROM queues").fetchall()
        if count >= most:
            raise LimitError(
                f"the server has {count} queues and takes no more: raise --queues, or delete a queue"
            )
        number = last + 1 if last < LAST_NUMBER else self._free_number()
        tag = secrets.token_hex(4)
        row = QueueRow(number, name, tag, settings.max_attempts, max_size=settings.max_size)
        if settings.max_dead is not None:
            row.max_dead = settings.max_dead
        self._execute(
            "INSERT INTO queues VALUES (?, ?, ?, ?, 0, 0, 0, 0, 0, 0, ?, 0, ?, ?, 0, 0)",
            (number, name, tag, row.max_attempts, self.file.clock.now(), row.max_size, row.max_dead),
        )
        return row

    def totals(self) -> tuple[int, int]:
        """Return how many items all queues have, dead ones too, and their payloads' size."""
        rows = self.queues()
        return sum(row.live + row.dead for row in rows), sum(row.bytes for row in rows)

    def sizes(self) -> list[tuple[str, int]]:
        """Return each queue's name and how many items it has that are not dead."""
        return [(row.name, row.live) for row in self.queues()]

    def keep_time(self) -> None:
        """Note the time where there are leases: after a crash they have what they had left now."""
        for row in self.queues():
            row.changed = row.changed or row.held > 0

    def delete(self, queue: QueueRow) -> None:
        """Remove a queue with all that is in it."""
        first, last = queue.base, queue.base + queue.pushed
        self._execute("DELETE FROM leases WHERE id > ? AND id <= ?", (first, last))
        self._execute("DELETE FROM replies WHERE id > ? AND id <= ?", (first, last))
        self._execute("DELETE FROM items WHERE id > ? AND id <= ?", (first, last))
        self._execute("DELETE FROM queues WHERE number = ?", (queue.number,))
        self._rows.pop(queue.name, None)
