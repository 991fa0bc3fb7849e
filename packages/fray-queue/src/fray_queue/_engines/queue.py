"""A queue on an engine: what is the same for all of them."""

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, Self, TypeVar

from fray import FrayError, LeaseExpiredError, QueueUnavailableError
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
    retry_delays,
    take_readable,
    with_end,
)
from fray.queue import DeadLetter, Lease, QueueBase, QueueFullError, Reply
from fray_queue._checks import check_bounds, check_name
from fray_queue._codec import encode_many
from fray_queue._engines.idempotency import IdempotencyKey, KeyPool
from fray_queue._engines.letters import read_letters
from fray_queue._engines.store import Counts, DeletedQueueError, EngineStore, Letter, TransientError, Wanted
from fray_queue._errors import NoRoomError
from fray_queue._items import Settings
from fray_queue._leases import extended

T = TypeVar("T")
R = TypeVar("R")
LOOK_AGAIN = 2.0
"""Seconds after which a waiting call looks at the latest. An engine does not report expired leases."""
_SHORTEST_WAIT = 0.001
_LONGEST_REQUEST = 10.0  # seconds
_PAGE = 200  # dead letters that are read at once
_PAGE_BYTES = 8 << 20  # of them: an answer must arrive within _LONGEST_REQUEST on a slow network too
_OF_ENGINES = QueueCapabilities(
    durable=True,
    shared_between_processes=True,
    shared_between_machines=True,
    priorities=True,
    delays=True,
    ttl=True,
    keys=True,
    replies=True,
    max_size=True,
    waiting=True,
    give_back=True,
)


class _Declared:
    """Of the class, what it can at most; of an instance, as its engine is set: that may not keep on disk."""

    def __get__(self, queue: "EngineQueue[Any] | None", owner: type) -> QueueCapabilities:
        if queue is None:
            return _OF_ENGINES
        try:
            return replace(_OF_ENGINES, durable=queue._stored()[0])
        except QueueUnavailableError:
            return replace(_OF_ENGINES, durable=False)  # nobody knows


class EngineQueue(QueueBase[T]):
    """A queue whose items and leases an engine keeps, which others run; leases run on the engine's clock.

    Every request is made again while the engine is away, for `timeout` seconds, and is done once.
    """

    capabilities = _Declared()

    def __init__(
        self,
        url: str,
        name: str = "default",
        *,
        max_attempts: int | None = None,
        max_size: int | None = None,
        max_dead: int | None = None,
        timeout: float = 30.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._url, self._name = url, check_name(name)
        self._timeout, self._clock = check_seconds("timeout", timeout), clock
        self._given = check_bounds(max_attempts, max_size, max_dead)
        self._settings: Settings | None = None
        self._is_stored: tuple[bool, str] | None = None
        self._opening, self._pid = threading.Lock(), os.getpid()
        self._idempotency_keys = KeyPool()
        self._store: EngineStore = self._connect()

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
    ) -> Self:
        """Open the queue that a URL names, `…?queue=name`."""
        return cls(
            url, queue, max_attempts=max_attempts, max_size=max_size, max_dead=max_dead, timeout=timeout
        )

    def _connect(self) -> EngineStore:
        """Check the address, and make the store; without a request to the engine."""
        raise NotImplementedError

    @property
    def _request_seconds(self) -> float:
        """How long one request may take; then its answer is taken for lost, and it is made again."""
        return min(_LONGEST_REQUEST, max(self._timeout / 2, 0.5))

    @property
    def name(self) -> str:
        """The queue's name on its engine."""
        return self._name

    @property
    def max_attempts(self) -> int | None:
        """Leases that may end without `done`; None for any number."""
        return self._open().max_attempts

    # --- requests ---

    def _ask(self, request: Callable[[EngineStore], R]) -> R:
        """Make a request, again and again while the engine is away."""
        if self._settings is None:
            self._open()
        try:
            return self._patiently(request)
        except DeletedQueueError:
            self._note_deleted()
            raise

    def _change(self, request: Callable[[EngineStore, IdempotencyKey], R]) -> R:
        """Make a request that the engine does once, though it is repeated."""
        if self._settings is None:
            self._open()
        key = self._idempotency_keys.take()
        try:
            try:
                answer = request(self._store, key)
            except TransientError as error:
                answer = self._again(lambda store: request(store, key), error)
        except Exception as error:
            self._idempotency_keys.give_back_after(key, error)
            if isinstance(error, DeletedQueueError):
                self._note_deleted()
            raise
        self._idempotency_keys.give_back(key)
        return answer

    def _note_deleted(self) -> None:
        """Have the next call open the queue that has the name of a deleted one by now; it makes none."""
        with suppress(FrayError):
            if self._store.exists():
                self._settings = None

    def _patiently(self, request: Callable[[EngineStore], R]) -> R:
        try:
            return request(self._store)
        except TransientError as error:
            return self._again(request, error)

    def _again(self, request: Callable[[EngineStore], R], last: TransientError) -> R:
        end = time.monotonic() + self._timeout
        for pause in retry_delays(0.02, 0.5):
            left = end - time.monotonic()
            if left <= 0:
                break
            time.sleep(min(pause, left))
            try:
                return request(self._store)
            except TransientError as error:
                last = error
        raise QueueUnavailableError(
            f"{self!r}: the engine did not answer within {self._timeout:g} s ({last}); "
            "what was asked may have been done or not"
        ) from last

    def _open(self) -> Settings:
        if self._pid != os.getpid():  # forked, perhaps while another thread waited for the engine
            self._opening, self._pid = threading.Lock(), os.getpid()
        with self._opening:
            if self._settings is None:
                self._settings = self._patiently(lambda store: store.open(self._given))
            return self._settings

    def _stored(self) -> tuple[bool, str]:
        if self._is_stored is None:
            self._is_stored = self._ask(lambda store: store.stored())
        return self._is_stored

    # --- storing ---

    def _store_items(self, items: Iterable[T], options: PushOptions) -> list[str]:
        payloads = encode_many(items)
        if not payloads:
            return []
        wait = self._timeout if options.wait is None else options.wait
        end = time.monotonic() + wait
        while True:
            try:
                return self._change(lambda store, key: store.push(key, payloads, options))
            except NoRoomError as error:
                left = end - time.monotonic()
                if not error.ever or left <= 0:
                    raise QueueFullError(str(error), waited=wait if error.ever else 0.0) from None
                self._doze(Wanted(room=True), left)

    def _doze(self, wanted: Wanted, left: float, change: float | None = None) -> None:
        """Wait until the engine notifies, or it is time to look again."""
        seconds = min(left, LOOK_AGAIN, LOOK_AGAIN if change is None else max(change, _SHORTEST_WAIT))
        try:
            self._store.wait(wanted, seconds)
        except TransientError:
            time.sleep(min(seconds, 0.05))  # the next look finds out, and has patience

    # --- taking and settling ---

    def pop_many(self, n: int, lease_timeout: float = 60.0, *, wait: float = 0.0) -> list[Lease[T]]:
        """Lease up to `n` items; see `Queue.pop_many`."""
        check_count("n", n, 1)
        check_seconds("lease_timeout", lease_timeout)
        end = time.monotonic() + check_seconds("wait", wait, zero=True)
        woken, change = False, None

        def take() -> list[Lease[bytes]]:
            nonlocal change
            token = secrets.token_hex(8)
            taken, change = self._change(
                lambda store, key: store.pop(key, n, lease_timeout, token=token, woken=woken)
            )
            return taken

        while True:
            leases: list[Lease[T]] = take_readable(take, set_aside=self._set_aside, give_back=self.give_back)
            left = end - time.monotonic()
            if leases or left <= 0:
                return leases
            self._doze(Wanted(items=True), left, change)
            woken = True

    def _set_aside(self, lease: Lease[bytes], error: str) -> None:
        held = self._change(lambda store, key: store.release(key, lease.lease_id, 0.0, unreadable=error))
        if not held:
            raise LeaseExpiredError(lease.lease_id)

    def _finish(self, leases: Sequence[Lease[T]], answers: Sequence[Answer | None]) -> list[str]:
        if not leases:
            return []
        ids = [lease.lease_id for lease in leases]
        packed = pack_answers(leases, answers)
        return self._change(lambda store, key: store.done(key, ids, packed))

    def release(self, lease: Lease[Any], *, delay: float = 0.0, error: BaseException | None = None) -> None:
        """Give an item back to its place in line; see `Queue.release`."""
        check_lease(lease)
        check_seconds("delay", delay, zero=True)
        check_error(error)
        text, failure = None if error is None else describe(error), pack_failure(lease, error)
        held = self._change(
            lambda store, key: store.release(key, lease.lease_id, delay, error=text, failure=failure)
        )
        if not held:
            raise LeaseExpiredError(lease.lease_id)

    def extend(self, lease: Lease[T], lease_timeout: float) -> Lease[T]:
        """Hold the item for `lease_timeout` seconds from now; see `Queue.extend`."""
        check_lease(lease)
        check_seconds("lease_timeout", lease_timeout)
        (until,) = self._ask(lambda store: store.extend([lease.lease_id], lease_timeout))
        if until is None:
            raise LeaseExpiredError(lease.lease_id)
        return with_end(lease, until)

    def extend_many(
        self, leases: Iterable[Lease[T]], lease_timeout: float
    ) -> list[Lease[T] | LeaseExpiredError]:
        """Extend leases in one request; see `QueueBase.extend_many`."""
        leases = [check_lease(lease) for lease in leases]
        check_seconds("lease_timeout", lease_timeout)
        ids = [lease.lease_id for lease in leases]
        return extended(leases, self._ask(lambda store: store.extend(ids, lease_timeout)) if ids else [])

    def give_back(self, leases: Iterable[Lease[Any]]) -> None:
        """Give back items that were not worked on; see `QueueBase.give_back`."""
        ids = [check_lease(lease).lease_id for lease in leases]
        if ids:  # one that was given back is given back no second time: its lease is lost
            self._ask(lambda store: store.give_back(ids))

    # --- looking ---

    def peek(self) -> T | None:
        """Return the item that a pop would take now; see `Queue.peek`."""
        first = self._ask(lambda store: store.peek())
        return None if first is None else read_item(first[1], first[0])

    def _counts(self) -> Counts:
        return self._ask(lambda store: store.counts())

    def size(self) -> int:
        """Count what waits, is delayed or is leased."""
        counts = self._counts()
        return counts.pending + counts.held

    def pending(self) -> int:
        """Count what a pop could take now."""
        return self._counts().pending

    def oldest_seconds(self) -> float | None:
        """Return the age of the oldest item that waits, is delayed or is leased; None where there is none.

        The engine looks at every leased and delayed item for it, a thousand at a time.
        """
        return self._ask(lambda store: store.oldest_seconds())

    def stats(self) -> dict[str, Any]:
        """Return counts, the bounds, and under `stored` what the engine's settings make of a push."""
        durable, stored = self._stored()
        settings = asdict(self._open())
        return {**asdict(self._counts()), **settings, "durable": durable, "stored": stored}

    def dead_letters(self) -> list[DeadLetter[T]]:
        """List the items that were given up."""
        return [
            dead_letter(
                letter.payload,
                letter.item_id,
                letter.attempt,
                letter.history,
                "expired" if letter.expired else "attempts",
            )
            for letter in self._letters()
        ]

    def _letters(self) -> Iterator[Letter]:
        after: int | None = 0
        while after is not None:
            place = after
            letters, after = self._ask(
                lambda store, place=place: read_letters(store, place, _PAGE, _PAGE_BYTES)  # type: ignore[misc]
            )
            yield from letters

    def dead_dropped(self) -> int:
        """Count the dead letters that were dropped because there were more than `max_dead`."""
        return self._counts().dropped

    def fetch_replies(self, item_ids: Sequence[str], *, wait: float = 0.0) -> dict[str, Reply]:
        """Return what became of items; see `Queue.fetch_replies`."""
        end = time.monotonic() + check_seconds("wait", wait, zero=True)
        ids = [str.__str__(item_id) for item_id in item_ids]
        while True:
            found, change = self._change(lambda store, key: store.fetch(key, ids))
            left = end - time.monotonic()
            if found or left <= 0:
                return {reply.item_id: reply for reply in found}
            self._doze(Wanted(answers=tuple(ids)), left, change)

    # --- what an operator does ---

    def requeue_dead(self, item_ids: Sequence[str] | None = None) -> int:
        """Put dead letters back; see `Queue.requeue_dead`."""
        wanted = None if item_ids is None else [str(item_id) for item_id in item_ids]
        return self._change(lambda store, key: store.operate(key, "requeue", wanted))

    def purge(self) -> int:
        """Remove every item that is not a dead letter, leased ones too; return how many."""
        return self._change(lambda store, key: store.operate(key, "purge"))

    def purge_dead(self, item_ids: Sequence[str] | None = None) -> int:
        """Remove dead letters (all, or those of these ids); return how many."""
        wanted = None if item_ids is None else [str(item_id) for item_id in item_ids]
        return self._change(lambda store, key: store.operate(key, "purge_dead", wanted))

    def exists(self) -> bool:
        """Return whether the engine has the queue; makes none."""
        return self._patiently(lambda store: store.exists())

    def delete(self) -> None:
        """Remove the queue with all that is in it."""
        self._patiently(lambda store: store.delete())
        self.close()

    def close(self) -> None:
        """Release what only this queue holds; the next call opens it again."""
        self._settings = self._is_stored = None
        self._store.close()

    def __enter__(self) -> "EngineQueue[T]":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        options = {**asdict(self._given), "timeout": self._timeout, "clock": self._clock}
        return _reopen, (type(self), self._url, self._name, options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r}, {self._name!r})"


def _reopen(
    cls: Callable[..., EngineQueue[Any]], url: str, name: str, options: dict[str, Any]
) -> EngineQueue[Any]:
    return cls(url, name, **options)
