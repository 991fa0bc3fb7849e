"""All queues of one server, its journal and the answers it remembers. Lives in one event loop."""

import asyncio
import contextlib
import itertools
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from fray import LeaseExpiredError, QueueUnavailableError
from fray_queue._checks import check_name
from fray_queue._errors import (
    LimitError,
    QueueExistsError,
    QueueFullError,
    QueueNotFoundError,
)
from fray_queue._http.protocol.limits import Limits
from fray_queue._http.server.journal import Journal, WriterEndedError
from fray_queue._http.server.machine import Entry
from fray_queue._http.server.named_queue import NamedQueue
from fray_queue._http.server.rows import LAST_NUMBER, Statement, Stored, statement_for
from fray_queue._http.server.slots import Slots

_log = logging.getLogger("fray.queue")

Results = list[tuple["asyncio.Future[None]", Exception | None]]


class Hub:
    """The server's queues; every method is called in the loop's thread.

    Args:
        store: The journal's folder; None keeps everything in memory.
    """

    def __init__(self, *, store: str | Path | None, limits: Limits, clock: Callable[[], float]) -> None:
        self.limits, self.clock, self._store = limits, clock, store
        self.queues: dict[str, NamedQueue] = {}
        self.closing = False
        self.lost = False  # whether the store can be written no more: every change is refused
        self._dirty: list[Statement] = []
        self._numbers: set[int] = set()  # of queues, and of rows in the store
        self._loop = asyncio.get_running_loop()
        self.slots = Slots(clock, None if store is None else lambda statement: self._dirty.append(statement))
        self._journal = (
            None if store is None else Journal(store, settled=self._settled, largest=limits.store_bytes)
        )
        if self._journal is not None:
            with contextlib.ExitStack() as undo:
                undo.callback(self._journal.close)
                self._restore(self._journal.load())
                undo.pop_all()
            self._journal.start()

    async def close(self) -> None:
        """Write what is pending."""
        self.wake_all()
        if self._journal is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._journal.close)

    def wake_all(self) -> None:
        """Let every waiting pop look again, and see that the server is closing."""
        for queue in self.queues.values():
            queue.wake(1 << 60)

    # --- queues ---

    def get(self, name: str) -> NamedQueue:
        """Return a queue that exists."""
        try:
            return self.queues[name]
        except KeyError:
            raise QueueNotFoundError(name, tuple(self.queues)) from None

    def create(self, name: str, max_attempts: int | None) -> NamedQueue:
        """Return the queue of that name and those settings, made if need be."""
        check_name(name)
        queue = self.queues.get(name)
        if queue is not None:
            if queue.machine.max_attempts != max_attempts:
                raise QueueExistsError(
                    f"queue {name!r} has max_attempts={queue.machine.max_attempts}, not {max_attempts}"
                )
            return queue
        if len(self.queues) >= self.limits.queues:
            raise LimitError(f"the server has {len(self.queues)} queues, and takes no more")
        number = next(number for number in itertools.count(1) if number not in self._numbers)
        if number > LAST_NUMBER:
            raise LimitError(f"the server has {len(self.queues)} queues, and its store numbers no more")
        queue = self._add(name, number, max_attempts)
        self._dirty.append(("INSERT INTO queues VALUES (?, ?, ?)", (name, number, max_attempts)))
        return queue

    def delete(self, name: str) -> None:
        """Remove a queue with all that is in it."""
        queue = self.get(name)
        now = self.clock()
        queue.machine.purge_dead(None, now)
        queue.machine.purge()
        del self.queues[name]
        self._numbers.discard(queue.number)  # its rows go in the same commit, or in one before the next use
        self._dirty.append(("DELETE FROM queues WHERE name = ?", (name,)))
        queue.wake(1 << 60)

    def _add(self, name: str, number: int, max_attempts: int | None) -> NamedQueue:
        self._numbers.add(number)
        changed = (
            None if self._store is None else lambda entry: self._dirty.append(statement_for(number, entry))
        )
        self.queues[name] = NamedQueue(name, number, max_attempts, changed)
        return self.queues[name]

    # --- items ---

    def push(self, queue: NamedQueue, records: Iterable[tuple[str, bytes]]) -> int:
        """Store records of id and payload; those that are there already are not stored again."""
        records = list(records)
        self._check_space(sum(len(payload) for _, payload in records))
        now = self.clock()
        stored = sum(queue.machine.push(item_id, payload, now) is not None for item_id, payload in records)
        queue.rates.pushed += stored
        queue.wake(stored)
        return stored

    async def pop(
        self, queue: NamedQueue, n: int, lease_timeout: float, wait: float, gone: Callable[[], bool]
    ) -> list[Entry[bytes]]:
        """Lease up to `n` items, waiting for the first; nothing for a client that is gone."""
        end = self._loop.time() + wait if wait else 0.0
        while True:
            if gone():
                queue.wake()  # whoever woke this pop meant to wake one that takes
                return []
            if self.queues.get(queue.name) is not queue:  # what it holds is no longer what the store has
                raise QueueUnavailableError("the queue was deleted, or read anew from the store")
            entries = self._take(queue, n, lease_timeout)
            if entries or not wait or (left := end - self._loop.time()) <= 0:
                return entries
            if self.lost:
                raise WriterEndedError
            if self.closing:
                raise QueueUnavailableError("the server is stopping")
            change = queue.machine.next_change()
            await queue.sleep(left if change is None else min(left, max(0.001, change - self.clock())))

    def _take(self, queue: NamedQueue, n: int, lease_timeout: float) -> list[Entry[bytes]]:
        now, size = self.clock(), 0
        entries: list[Entry[bytes]] = []
        while len(entries) < n and size < self.limits.item_bytes:
            entry = queue.machine.take(lease_timeout, now)
            if entry is None:
                break
            entries.append(entry)
            size += len(entry.payload)
        queue.rates.popped += len(entries)
        return entries

    def finish(self, queue: NamedQueue, leases: Iterable[tuple[str, str]]) -> list[str]:
        """Finish items by their ids and lease ids; return the lease ids that are not good."""
        refused: list[str] = []
        for item_id, lease_id in leases:
            try:
                queue.machine.finish(item_id, lease_id)
                queue.rates.done += 1
            except LeaseExpiredError:
                refused.append(lease_id)
        return refused

    def release(self, queue: NamedQueue, item_id: str, lease_id: str, delay: float) -> None:
        """Give an item back."""
        queue.machine.release(item_id, lease_id, delay, self.clock())
        queue.wake()

    def dead_page(self, queue: NamedQueue, after: int) -> tuple[list[Entry[bytes]], bool]:
        """Return the dead behind a place in line, as many as one answer holds, and whether there are more."""
        dead, size = queue.machine.dead_letters(self.clock(), after), 0
        for count, entry in enumerate(dead):
            if count >= self.limits.batch or size >= self.limits.item_bytes:
                return dead[:count], True
            size += len(entry.payload)
        return dead, False

    def requeue(self, queue: NamedQueue, item_ids: list[str] | None) -> int:
        """Bring dead letters back."""
        count = queue.machine.requeue(item_ids, self.clock())
        queue.wake(count)
        return count

    def _check_space(self, size: int) -> None:
        if self._store is None:
            return
        disk = os.statvfs(self._store)
        free = disk.f_bavail * disk.f_frsize
        if free < self.limits.free_disk + 2 * size:  # once in the log, once in the database
            raise QueueFullError(
                f"the server's disk is full: {free} bytes are free, and {self.limits.free_disk} are kept"
            )

    # --- the journal ---

    async def commit(self) -> None:
        """Return when everything that happened so far is on disk.

        Raises:
            QueueFullError: It is not, and did not happen: memory is again what the disk has.
            QueueUnavailableError: The same, and nothing can be written any more.
        """
        if self._journal is None:
            self._dirty.clear()
            return
        if self.lost:
            raise WriterEndedError
        if not self._dirty:
            return
        statements, self._dirty = self._dirty, []
        written: asyncio.Future[None] = self._loop.create_future()
        self._journal.submit(statements, written)
        await written

    def _settled(self, results: Results) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._answer_all, results)

    def _answer_all(self, results: Results) -> None:
        if any(error for _, error in results):
            assert self._journal is not None
            # What was decided after a failure rests on it: memory becomes what the disk has.
            failure = QueueFullError("the store could not be written just before")
            results = results + [(token, failure) for token in self._journal.drop_pending()]
            self._dirty.clear()
            self._return_to_disk(self._journal, results)
        for token, error in results:
            if token.done():
                continue
            if error is None:
                token.set_result(None)
            else:
                token.set_exception(error)

    def _return_to_disk(self, journal: Journal, results: Results) -> None:
        self.lost |= any(isinstance(error, WriterEndedError) for _, error in results)
        try:
            self._restore(journal.load())
        except Exception:  # noqa: BLE001 - memory is not what the disk has, and nothing may rest on it
            _log.exception("the store cannot be read back after a failed write")
            self.lost = True

    def _restore(self, stored: Stored) -> None:
        before, self.queues = self.queues, {}
        self._numbers = set(stored.items)
        for name, (number, max_attempts) in stored.queues.items():
            queue = self._add(name, number, max_attempts)
            for entry in stored.items.get(number, []):
                queue.machine.restore(entry)
        for queue in before.values():
            queue.wake(1 << 60)
        self.slots.restore(stored.slots)

    def each(self) -> Iterator[NamedQueue]:
        """Iterate over the queues by name."""
        return iter([self.queues[name] for name in sorted(self.queues)])
