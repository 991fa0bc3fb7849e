"""A queue in an SQLite file, for the processes of one machine."""

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from urllib.parse import unquote

from fray import FrayError, LeaseExpiredError, SpecError
from fray.backend import (
    Answer,
    PushOptions,
    QueueCapabilities,
    check_count,
    check_error,
    check_lease,
    check_seconds,
    dead_letter,
    describe,
    pack_answers,
    pack_failure,
    read_item,
    take_readable,
    with_end,
)
from fray.queue import DeadLetter, Lease, QueueBase, QueueFullError, Reply
from fray_queue._checks import check_bounds, check_name
from fray_queue._codec import encode_many
from fray_queue._errors import NoRoomError
from fray_queue._items import Taken
from fray_queue._leases import extended
from fray_queue._sqlite import looking, replies
from fray_queue._sqlite.opened_queue import OpenedQueue
from fray_queue._sqlite.rows import QueueRow
from fray_queue._sqlite.store import QueueStore

T = TypeVar("T")
R = TypeVar("R")


class SqliteQueue(QueueBase[T]):
    """A queue in a file, shared by the processes of one machine.

    When `push` returns, the item is on the disk. Leases and `done` survive the end of every process. A power
    failure may undo the most recent ones; those items are then delivered again.

    Threads share one connection, and their calls are committed together. A pickled copy is the same queue in
    another process of this machine. A forked child opens the file again.

    Args:
        path: The file, created if it is missing. It must be on a disk of this machine.
        name: The queue's name: one file may hold several queues.
        max_attempts: Leases that may end without `done` before an item goes to the dead letters. The queue
            keeps the value that it was first opened with; None accepts that value.
        max_size: The most items that it holds, not counting dead letters; a push waits for room. Kept
            likewise.
        max_dead: The most dead letters that it keeps (100,000 by default); the first in line are dropped.
            Kept likewise.
        timeout: Seconds that a call waits for other processes' transactions, and that a push waits for room.
        clock: Seconds since the epoch, for tests; by default the time since this machine was started. All its
            processes share that time, and a step of the wall clock does not change it.

    Raises:
        UnsupportedError: The file system's locks are unreliable (NFS, SMB, …), or the installed SQLite is
            unsafe.
        QueueExistsError: The queue exists with another `max_attempts`, `max_size` or `max_dead`.
    """

    capabilities: ClassVar[QueueCapabilities] = QueueCapabilities(
        durable=True,
        shared_between_processes=True,
        steady_clock=True,
        priorities=True,
        delays=True,
        ttl=True,
        keys=True,
        replies=True,
        max_size=True,
        give_back=True,
    )

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str = "default",
        *,
        max_attempts: int | None = None,
        max_size: int | None = None,
        max_dead: int | None = None,
        timeout: float = 30.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        check_seconds("timeout", timeout)
        self._settings = check_bounds(max_attempts, max_size, max_dead)
        self._path = str(Path(path).absolute())
        self._name, self._timeout, self._clock = check_name(name), timeout, clock
        self._opened = OpenedQueue(self._path, self._name, self._settings, timeout, clock)

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        queue: str = "default",
        max_attempts: int | None = None,
        max_size: int | None = None,
        max_dead: int | None = None,
        timeout: float = 30.0,
    ) -> "SqliteQueue[Any]":
        """Open `sqlite:/data/q.db`, `sqlite:relative.db` or `sqlite:///data/q.db`."""
        path = url.partition(":")[2]
        if path.startswith("//"):
            host, slash, rest = path[2:].partition("/")
            if host not in ("", "localhost") or not slash:
                raise SpecError(
                    f"{url!r} names the host {host!r}; a file of this machine is sqlite:/data/q.db, "
                    "and a relative one sqlite:data/q.db"
                )
            path = f"/{rest}"
        if not path:
            raise SpecError(f"{url!r} names no file; a queue in one is sqlite:/data/q.db")
        return cls(
            unquote(path),
            queue,
            max_attempts=max_attempts,
            max_size=max_size,
            max_dead=max_dead,
            timeout=timeout,
        )

    @property
    def name(self) -> str:
        """The queue's name in its file."""
        return self._name

    @property
    def max_attempts(self) -> int | None:
        """Leases that may end without `done`; None for any number."""
        return self._opened.look(lambda _, queue: queue.max_attempts)

    def _store_items(self, items: Iterable[T], options: PushOptions) -> list[str]:
        payloads = encode_many(items)
        if not payloads:
            return []
        records = [(None, payload) for payload in payloads]
        wait = self._timeout if options.wait is None else options.wait
        refused = ""

        def push() -> list[str] | None:
            nonlocal refused
            try:
                return self._opened.run(lambda store, queue: store.push(queue, records, options), grows=True)
            except NoRoomError as error:
                refused = str(error)
                if not error.ever:
                    raise QueueFullError(refused) from None
                return None

        ids = self._opened.poll(push, wait)
        if ids is None:
            raise QueueFullError(refused, waited=wait)
        self._opened.announce()
        return ids

    def pop_many(self, n: int, lease_timeout: float = 60.0, *, wait: float = 0.0) -> list[Lease[T]]:
        """Lease up to `n` items; see `Queue.pop_many`. A waiting pop looks again every 1 to 20 ms."""
        check_count("n", n, 1)
        check_seconds("lease_timeout", lease_timeout)
        check_seconds("wait", wait, zero=True)

        def look() -> list[Lease[T]] | None:
            take = partial(self._take, n, lease_timeout)
            return take_readable(take, set_aside=self._set_aside, give_back=self.give_back) or None

        return self._opened.poll(look, wait) or []

    def _take(self, n: int, lease_timeout: float) -> list[Lease[bytes]]:
        # A look takes no lock from the writers.
        if not self._opened.look(lambda store, queue: looking.counts(store, queue).pending):
            return []
        taken: list[Taken] = []

        def pop(store: QueueStore, queue: QueueRow) -> None:
            taken[:] = store.pop(queue, n, lease_timeout)

        try:
            self._opened.run(pop, durable=False)
        except BaseException:  # perhaps they are leased: an interrupt may come after the commit
            with contextlib.suppress(FrayError, OSError):
                self.give_back([_lease(each) for each in taken])
            raise
        return [_lease(each) for each in taken]

    def _finish(self, leases: Sequence[Lease[T]], answers: Sequence[Answer | None]) -> list[str]:
        if not leases:
            return []
        ids = [lease.lease_id for lease in leases]
        packed = pack_answers(leases, answers)
        # An answer that was lost would be waited for: the item is gone.
        durable = any(packed)
        refused = self._opened.run(lambda store, queue: store.done(queue, ids, packed), durable=durable)
        self._opened.announce()
        return refused

    def release(self, lease: Lease[Any], *, delay: float = 0.0, error: BaseException | None = None) -> None:
        """Give an item back to its place in line; see `Queue.release`."""
        check_lease(lease)
        check_seconds("delay", delay, zero=True)
        check_error(error)
        text, failure = None if error is None else describe(error), pack_failure(lease, error)
        self._opened.run(
            lambda store, queue: store.release(queue, lease.lease_id, delay, error=text, failure=failure),
            durable=False,
        )
        self._opened.announce()

    def _set_aside(self, lease: Lease[bytes], error: str) -> None:
        self._opened.run(
            lambda store, queue: store.release(queue, lease.lease_id, unreadable=error), durable=False
        )

    def extend(self, lease: Lease[T], lease_timeout: float) -> Lease[T]:
        """Hold the item for `lease_timeout` seconds from now; see `Queue.extend`."""
        check_lease(lease)
        check_seconds("lease_timeout", lease_timeout)
        until = self._opened.run(
            lambda store, queue: store.extend(queue, lease.lease_id, lease_timeout), durable=False
        )
        return with_end(lease, until)

    def extend_many(
        self, leases: Iterable[Lease[T]], lease_timeout: float
    ) -> list[Lease[T] | LeaseExpiredError]:
        """Extend leases in one transaction; see `QueueBase.extend_many`."""
        leases = [check_lease(lease) for lease in leases]
        check_seconds("lease_timeout", lease_timeout)
        ids = [lease.lease_id for lease in leases]
        ends = self._opened.run(
            lambda store, queue: store.extend_many(queue, ids, lease_timeout), durable=False
        )
        return extended(leases, ends)

    def give_back(self, leases: Iterable[Lease[Any]]) -> None:
        """Give back items that were not worked on; see `QueueBase.give_back`."""
        ids = [check_lease(lease).lease_id for lease in leases]
        if ids:
            self._opened.run(lambda store, queue: store.give_back(queue, ids), durable=False)
            self._opened.announce()

    def peek(self) -> T | None:
        """Return the item that a pop would take now; see `Queue.peek`."""
        first = self._opened.look(looking.peek)
        return None if first is None else read_item(first.payload, first.item_id)

    def size(self) -> int:
        """Count what waits, is delayed or is leased."""
        return self._opened.look(looking.counts).size

    def oldest_seconds(self) -> float | None:
        """Return the age of the oldest item that waits, is delayed or is leased; None where there is none."""

        def age(store: QueueStore, queue: QueueRow) -> float | None:
            pushed_at = looking.oldest(store, queue)
            clock = store.file.clock
            return None if pushed_at is None else max(0.0, clock.now() + clock.offset() - pushed_at)

        return self._opened.look(age)

    def pending(self) -> int:
        """Count what a pop could take now."""
        return self._opened.look(looking.counts).pending

    def stats(self) -> dict[str, int]:
        """Count what is pending, held (leased or delayed) and dead; no payload is read."""
        counts = self._opened.look(looking.counts)
        return {"pending": counts.pending, "held": counts.in_flight, "dead": counts.dead}

    def dead_letters(self) -> list[DeadLetter[T]]:
        """List the items that were given up."""

        self._opened.run(lambda store, queue: store.sweep(queue, store.file.clock.now()), durable=False)
        # Apart from that: no writer waits while payloads are read.
        dead = self._opened.look(lambda store, queue: looking.dead(store, queue, most_bytes=1 << 62)[0])
        return [
            dead_letter(
                each.payload,
                each.item_id,
                each.attempt,
                each.history,
                "expired" if each.expired else "attempts",
            )
            for each in dead
        ]

    def dead_dropped(self) -> int:
        """Count the dead letters that were dropped because there were more than `max_dead`."""
        return self._opened.look(lambda _, queue: queue.dropped)

    def fetch_replies(self, item_ids: Sequence[str], *, wait: float = 0.0) -> dict[str, Reply]:
        """Return what became of items; see `Queue.fetch_replies`. A waiting call looks every 1 to 20 ms."""
        check_seconds("wait", wait, zero=True)
        ids = list(map(str, item_ids))

        def look() -> list[Reply] | None:
            if not self._opened.look(lambda store, queue: replies.is_settled(store, queue, ids)):
                return None
            return (
                self._opened.run(lambda store, queue: replies.fetch(store, queue, ids), durable=False) or None
            )

        return {reply.item_id: reply for reply in self._opened.poll(look, wait) or []}

    def requeue_dead(self, item_ids: Sequence[str] | None = None) -> int:
        """Put dead letters back; see `Queue.requeue_dead`."""
        wanted = None if item_ids is None else list(item_ids)
        count = self._opened.run(lambda store, queue: store.requeue(queue, wanted))
        self._opened.announce()
        return count

    def purge(self) -> int:
        """Remove every item that is not a dead letter, leased ones too; return how many."""
        count = self._opened.run(lambda store, queue: store.purge(queue))
        self._opened.announce()
        return count

    def purge_dead(self, item_ids: Sequence[str] | None = None) -> int:
        """Remove dead letters (all, or those of these ids); return how many."""
        wanted = None if item_ids is None else list(item_ids)
        return self._opened.run(lambda store, queue: store.purge_dead(queue, wanted))

    def exists(self) -> bool:
        """Return whether the file has the queue; makes neither."""
        return self._opened.exists()

    def delete(self) -> None:
        """Remove the queue with all that is in it; the file stays, with its other queues."""
        self._opened.run(lambda store, queue: store.delete(queue))
        self.close()

    def close(self) -> None:
        """Release the file; the next call opens it again."""
        self._opened.close()

    def __enter__(self) -> "SqliteQueue[T]":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        options = {**asdict(self._settings), "timeout": self._timeout, "clock": self._clock}
        return _reopen, (type(self), self._path, self._name, options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._path!r}, {self._name!r})"


def _reopen(cls: type[SqliteQueue[Any]], path: str, name: str, options: dict[str, Any]) -> SqliteQueue[Any]:
    return cls(path, name, **options)


def _lease(taken: Taken) -> Lease[bytes]:
    return Lease(
        taken.payload,
        taken.lease_id,
        taken.leased_at,
        taken.item_id,
        taken.attempt,
        taken.until,
        taken.reply,
        taken.pushed_at,
    )
