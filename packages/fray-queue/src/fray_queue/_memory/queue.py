"""A queue in this process's memory, for threads."""

import contextlib
import itertools
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar, cast
from weakref import WeakSet

from fray import LeaseExpiredError, WrongProcessError
from fray.backend import (
    Answer,
    PushOptions,
    QueueCapabilities,
    check_count,
    check_error,
    check_lease,
    check_seconds,
    describe,
    steady_time,
)
from fray.queue import DeadLetter, Lease, QueueBase, QueueFullError, Reply
from fray_queue._checks import MOST_DEAD, full_message
from fray_queue._memory.line import Entry, Line
from fray_queue._memory.replies import Replies

T = TypeVar("T")

_FULL_INBOX = 1000  # pushes that one other call may have to sort in: half a millisecond
_PAUSE = 0.0001  # seconds between two looks at a lock that is taken
_PAUSES = 20  # looks before a call stands in line for it


class MemoryQueue(QueueBase[T]):
    """A queue for the threads of one process; items are passed on as they are, never copied.

    A push takes no lock. It appends to an inbox, which the next holder of the lock passes to the lease
    machine. If producers and consumers took the same lock, the interpreter would switch threads at each call,
    which takes twice as long as all the rest.

    Args:
        max_attempts: Leases that may end without `done` before an item goes to the dead letters.
        max_size: The most items that it holds, not counting dead letters; a push waits for room.
        max_dead: The most dead letters that it keeps; the first in line are dropped.
        timeout: Seconds that a push waits for room, unless `wait` is given.
        clock: Seconds that a step of the wall clock does not change; tests pass their own.
    """

    capabilities: ClassVar[QueueCapabilities] = QueueCapabilities(
        waiting=True,
        give_back=True,
        steady_clock=True,
        priorities=True,
        delays=True,
        ttl=True,
        keys=True,
        replies=True,
        max_size=True,
    )

    _shared: ClassVar[dict[str, "MemoryQueue[Any]"]] = {}
    _shared_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(
        self,
        *,
        max_attempts: int | None = None,
        max_size: int | None = None,
        max_dead: int = MOST_DEAD,
        timeout: float = 30.0,
        clock: Callable[[], float] = steady_time,
    ) -> None:
        for name, count in (("max_attempts", max_attempts), ("max_size", max_size), ("max_dead", max_dead)):
            if count is not None or name == "max_dead":
                check_count(name, count, 1)
        self._timeout = check_seconds("timeout", timeout)
        self._max_size = max_size
        self._waiters: dict[str, list[threading.Event]] = {}  # of the calls that wait for answers, by item
        # When each call that sleeps looks again by itself: by what it waits for.
        self._sleepers: dict[object, float] = {}
        self._room_waiters: dict[object, float] = {}
        self._askers: dict[object, float] = {}
        self._line: Line[T] = Line(max_attempts, max_dead, Replies(self._tell))
        self._clock = clock
        self._tag = uuid.uuid4().hex[:8]  # so that a lease of another queue is never taken for one of ours
        self._numbers = itertools.count(1)
        self._inbox: deque[tuple[str, T, float]] = deque()  # with the time of its push
        self._lock = threading.Lock()
        self._arrival = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        _here.add(self)

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        max_attempts: int | None = None,
        max_size: int | None = None,
        max_dead: int | None = None,
        timeout: float = 30.0,
    ) -> "MemoryQueue[Any]":
        """Open `memory:` (a new queue) or `memory://name` (one queue of that name in this process)."""
        name = url.partition(":")[2].strip("/")
        most_dead = MOST_DEAD if max_dead is None else max_dead
        new: MemoryQueue[Any] = cls(
            max_attempts=max_attempts, max_size=max_size, max_dead=most_dead, timeout=timeout
        )
        if not name:
            return new
        with cls._shared_lock:
            queue = cls._shared.setdefault(name, new)
        for option, has, given in (
            ("max_attempts", queue._line.max_attempts, max_attempts),
            ("max_size", queue._max_size, max_size),
            ("max_dead", queue._line.max_dead, max_dead),
        ):
            if given is not None and has != given:
                raise ValueError(f"{url!r} is open with {option}={has}, not {given}")
        return queue

    @property
    def max_attempts(self) -> int | None:
        """Leases that may end without `done`; None for any number."""
        return self._line.max_attempts

    @property
    def max_size(self) -> int | None:
        """Items that it holds at most; None for any number."""
        return self._max_size

    if not TYPE_CHECKING:  # the types are those of QueueBase

        def push(self, item, **options):
            """Store an item; see `Queue.push`."""
            if options or self._max_size is not None:
                return super().push(item, **options)
            item_id = f"{self._tag}-{next(self._numbers)}"
            self._inbox.append((item_id, item, self._clock()))
            if self._sleepers or len(self._inbox) > _FULL_INBOX:
                self._announce(1)
            return item_id

        def done(self, lease, **answer):
            """Finish an item; see `Queue.done`."""
            if answer:
                super().done(lease, **answer)
                return
            if lease.__class__ is not Lease:
                check_lease(lease)
            if self._lock.locked():
                self._keep_out_of_line()
            with self._lock:
                try:
                    self._line.done(lease.item_id, lease.lease_id, self._clock())
                    if self._room_waiters:
                        self._room.notify_all()
                except BaseException as error:  # as `with self._line` does, which takes a tenth of a call
                    self._line.failed(error)
                    raise

    def _store_items(self, items: Iterable[T], options: PushOptions) -> list[str]:
        if self._max_size is not None or not options.is_plain:
            return self._store_with(list(items), options)
        now = self._clock()
        entries = [(f"{self._tag}-{next(self._numbers)}", item, now) for item in items]
        self._inbox.extend(entries)
        if self._sleepers or len(self._inbox) > _FULL_INBOX:
            self._announce(len(entries))
        return [item_id for item_id, *_ in entries]

    def _store_with(self, items: list[T], options: PushOptions) -> list[str]:
        if self._lock.locked():
            self._keep_out_of_line()
        with self._lock, self._line:
            self._sort_in()
            if self._max_size is not None:
                self._await_room(len(items), options)
            now = self._clock()
            ids = []
            for index, item in enumerate(items):
                item_id = f"{self._tag}-{next(self._numbers)}"
                ids.append(self._line.push_with(item_id, item, options.key_of(index), options, now))
            self._arrival.notify(len(items))
            self._have_one_look()
            return ids

    def _await_room(self, count: int, options: PushOptions) -> None:
        """Return when so many items fit; the caller has the lock."""
        most = self._max_size or 0
        wait = self._timeout if options.wait is None else options.wait
        end = time.monotonic() + wait
        while True:
            now = self._clock()
            new = count - self._known(count, options, now)
            size = self._line.size(now)
            if not new or size + new <= most:
                return
            left = end - time.monotonic()
            if new > most or left <= 0:
                raise QueueFullError(full_message(size, new, most), waited=wait if new <= most else 0.0)
            with self._asleep(self._room_waiters, left) as seconds:  # an item that expires makes room
                self._room.wait(seconds)
            self._sort_in()

    @contextlib.contextmanager
    def _asleep(self, sleepers: dict[object, float], longest: float) -> Iterator[float]:
        """Give the seconds that a call may sleep, until something changes by itself; the caller has the lock.

        Args:
            sleepers: Those that sleep for the same thing.
        """
        now, change = self._clock(), self._line.next_change()
        at = now + longest if change is None else min(now + longest, change)
        call = object()
        try:
            sleepers[call] = at
            yield max(0.0, min(at - now, threading.TIMEOUT_MAX))
        finally:
            sleepers.pop(call, None)
            if sleepers:  # it may have been the only one that knew of the change, and may not sleep again
                self._have_one_look()

    def _have_one_look(self) -> None:
        """Wake a call that sleeps for longer than until the next change, where all of them do.

        It sleeps again, until then. The caller has the lock.
        """
        change = self._line.next_change()
        if change is None:
            return
        if self._sleepers and change < min(self._sleepers.values()):
            self._arrival.notify()
        if self._room_waiters and change < min(self._room_waiters.values()):
            self._room.notify()
        if self._askers and change < min(self._askers.values()):
            for waiters in self._waiters.values():
                waiters[0].set()
                break

    def _known(self, count: int, options: PushOptions, now: float) -> int:
        """Count those of so many items that a key keeps from being stored."""
        keys = [key for key in options.keys or () if key is not None]
        known = sum(self._line.has_key(key, now) for key in dict.fromkeys(keys))
        return known + len(keys) - len(set(keys))

    def _keep_out_of_line(self) -> None:
        """Wait a little for a lock that is taken, without standing in line for it.

        A thread that stands in line gets the lock while another has the interpreter, which then stands in
        line as well: from there on every call of every thread costs a change of threads, five times the
        call itself. The lock is held for microseconds, so a caller that finds it taken met a thread that the
        interpreter interrupted. After `_PAUSES` looks the caller does stand in line: nobody starves.
        """
        for _ in range(_PAUSES):
            time.sleep(_PAUSE)
            if not self._lock.locked():
                return

    def _announce(self, count: int) -> None:
        if self._lock.locked():
            self._keep_out_of_line()
        with self._lock, self._line:
            self._sort_in()
            self._arrival.notify(count)

    def _sort_in(self) -> None:
        """Hand the inbox to the machine; the caller has the lock."""
        inbox, push = self._inbox, self._line.push
        while inbox:
            push(*inbox[0])  # an interrupt here must lose nothing: a second push of an id changes nothing
            inbox.popleft()

    def pop(self, lease_timeout: float = 60.0, *, wait: float = 0.0) -> Lease[T] | None:
        """Lease the oldest item that waits; see `Queue.pop`."""
        check_seconds("lease_timeout", lease_timeout)
        if wait != 0:
            check_seconds("wait", wait, zero=True)
        if self._lock.locked():
            self._keep_out_of_line()
        with self._lock:
            try:
                if self._inbox:
                    self._sort_in()
                entry = self._line.take(lease_timeout, self._clock())
                if self._sleepers or self._room_waiters or self._askers:
                    self._have_one_look()
            except BaseException as error:
                self._line.failed(error)
                raise
        if entry is not None:
            return _lease(entry)
        return next(iter(self.pop_many(1, lease_timeout, wait=wait)), None) if wait else None

    def pop_many(self, n: int, lease_timeout: float = 60.0, *, wait: float = 0.0) -> list[Lease[T]]:
        """Lease up to `n` items; see `Queue.pop_many`."""
        check_count("n", n, 1)
        check_seconds("lease_timeout", lease_timeout)
        end = time.monotonic() + check_seconds("wait", wait, zero=True)
        with self._lock, self._line:
            woken = True
            try:
                while True:
                    leases = self._take(n, lease_timeout)
                    if not woken:  # what came back by itself notified nobody
                        self._arrival.notify(self._line.pending(self._clock()))
                    left = end - time.monotonic()
                    if leases or left <= 0:
                        self._have_one_look()
                        return leases
                    woken = self._sleep(left)
            except BaseException:  # an interrupt may have taken a notification with it
                self._arrival.notify()
                raise

    def _take(self, n: int, lease_timeout: float) -> list[Lease[T]]:
        self._sort_in()
        now = self._clock()
        leases: list[Lease[T]] = []
        while len(leases) < n and (entry := self._line.take(lease_timeout, now)) is not None:
            leases.append(_lease(entry))
        return leases

    def _sleep(self, longest: float) -> bool:
        """Wait for a push, a release, or the next lease or delay to end; False when it was for the last."""
        with self._asleep(self._sleepers, longest) as seconds:
            # The inbox may have a push that saw no sleeper yet; one that comes later wakes us.
            return bool(self._inbox) or self._arrival.wait(seconds)

    def _finish(self, leases: Sequence[Lease[T]], answers: Sequence[Answer | None]) -> list[str]:
        lost = []
        for lease, answer in zip(leases, answers, strict=True):
            try:
                with self._lock, self._line:
                    self._line.done(lease.item_id, lease.lease_id, self._clock(), answer)
                    if self._room_waiters:
                        self._room.notify_all()
            except LeaseExpiredError:
                lost.append(lease.lease_id)
        return lost

    def release(self, lease: Lease[Any], *, delay: float = 0.0, error: BaseException | None = None) -> None:
        """Give an item back to its place in line; see `Queue.release`."""
        check_lease(lease)
        check_seconds("delay", delay, zero=True)
        check_error(error)
        text = None if error is None else describe(error)
        with self._lock, self._line:
            self._line.release(lease.item_id, lease.lease_id, delay, self._clock(), text, error)
            self._arrival.notify()
            self._room.notify_all()
            self._have_one_look()

    def give_back(self, leases: Iterable[Lease[T]]) -> None:
        """Give back items that were not worked on; see `QueueBase.give_back`."""
        leases = [check_lease(lease) for lease in leases]
        with self._lock, self._line:
            now = self._clock()
            for lease in leases:
                with contextlib.suppress(LeaseExpiredError):
                    self._line.give_back(lease.item_id, lease.lease_id, now)
            self._arrival.notify(len(leases))

    def extend(self, lease: Lease[T], lease_timeout: float) -> Lease[T]:
        """Hold the item for `lease_timeout` seconds from now; see `Queue.extend`."""
        check_lease(lease)
        check_seconds("lease_timeout", lease_timeout)
        with self._lock, self._line:
            entry = self._line.extend(lease.item_id, lease.lease_id, lease_timeout, self._clock())
            self._have_one_look()
            return _lease(entry)

    def peek(self) -> T | None:
        """Return the item that a pop would take now; see `Queue.peek`."""
        with self._lock, self._line:
            self._sort_in()
            entry = self._line.peek(self._clock())
            return None if entry is None else entry.item

    def size(self) -> int:
        """Count what waits, is delayed or is leased."""
        with self._lock, self._line:
            self._sort_in()
            return self._line.size(self._clock())

    def oldest_seconds(self) -> float | None:
        """Return the age of the oldest item that waits, is delayed or is leased; None where there is none."""
        with self._lock, self._line:
            self._sort_in()
            now = self._clock()
            pushed_at = self._line.oldest(now)
            return None if pushed_at is None else max(0.0, now - pushed_at)

    def pending(self) -> int:
        """Count what a pop could take now."""
        with self._lock, self._line:
            self._sort_in()
            return self._line.pending(self._clock())

    def dead_letters(self) -> list[DeadLetter[T]]:
        """List the items that were given up."""
        with self._lock, self._line:
            return [
                DeadLetter(
                    entry.item,
                    entry.item_id,
                    entry.state.attempt,
                    entry.state.history,
                    "expired" if entry.state.expired else "attempts",
                )
                for entry in self._line.dead_letters(self._clock())
            ]

    def requeue_dead(self, item_ids: Sequence[str] | None = None) -> int:
        """Put dead letters back; see `Queue.requeue_dead`."""
        with self._lock, self._line:
            count = self._line.requeue(item_ids, self._clock())
            self._arrival.notify(count)
            return count

    def purge(self) -> int:
        """Remove every item that is not a dead letter, leased ones too; return how many."""
        with self._lock, self._line:
            self._sort_in()
            self._room.notify_all()
            return self._line.purge()

    def purge_dead(self, item_ids: Sequence[str] | None = None) -> int:
        """Remove dead letters (all, or those of these ids); return how many."""
        with self._lock, self._line:
            return self._line.purge_dead(item_ids, self._clock())

    def dead_dropped(self) -> int:
        """Count the dead letters that were dropped because there were more than `max_dead`."""
        with self._lock, self._line:
            self._line.size(self._clock())
            return self._line.dead_dropped

    # --- answers ---

    def fetch_replies(self, item_ids: Sequence[str], *, wait: float = 0.0) -> dict[str, Reply]:
        """Return what became of items; see `Queue.fetch_replies`."""
        end = time.monotonic() + check_seconds("wait", wait, zero=True)
        answered = threading.Event()
        ids = list(map(str, item_ids))
        with self._lock, self._line, self._watching(ids, answered):
            while True:
                self._sort_in()
                now = self._clock()
                found = {item_id: self._line.fetch(item_id, now) for item_id in ids}
                replies = {item_id: reply for item_id, reply in found.items() if reply is not None}
                left = end - time.monotonic()
                if replies or left <= 0:
                    return replies
                with self._asleep(self._askers, left) as seconds:  # an item may be given up by itself
                    self._lock.release()
                    try:
                        answered.wait(seconds)
                    finally:
                        self._lock.acquire()
                    answered.clear()

    @contextlib.contextmanager
    def _watching(self, item_ids: Sequence[str], answered: threading.Event) -> Iterator[None]:
        """Have an event set when one of these is answered; the caller has the lock."""
        for item_id in item_ids:
            self._waiters.setdefault(item_id, []).append(answered)
        try:
            yield
        finally:
            for item_id in item_ids:
                waiters = self._waiters[item_id]
                waiters.remove(answered)
                if not waiters:
                    del self._waiters[item_id]

    def _tell(self, item_id: str) -> None:
        for answered in self._waiters.get(item_id, ()):
            answered.set()

    def __reduce__(self) -> NoReturn:
        _refuse()


def _refuse(*_: object) -> NoReturn:
    raise WrongProcessError(
        "a MemoryQueue lives in the memory of one process and cannot be passed to another; "
        "use SqliteQueue, FileQueue or HttpQueue for that"
    )


class _Elsewhere:
    """The lock and the inbox of a queue that a fork copied: every call needs one of them."""

    __enter__ = locked = append = extend = _refuse

    def __exit__(self, *error: object) -> None: ...


_here: WeakSet[MemoryQueue[Any]] = WeakSet()


def _leave_behind() -> None:
    """Make a forked child's copies refuse, at no cost for a queue's own process."""
    for queue in list(_here):
        queue._lock = queue._inbox = cast(Any, _Elsewhere())
    _here.clear()
    MemoryQueue._shared.clear()
    MemoryQueue._shared_lock = threading.Lock()


os.register_at_fork(after_in_child=_leave_behind)


def _lease(entry: Entry[T]) -> Lease[T]:
    attempt, lease_id, leased_at, until, *_ = entry.state
    reply = entry.extra is not None and entry.wants_reply
    return Lease(entry.item, lease_id, leased_at, entry.item_id, attempt, until, reply, entry.pushed_at)
