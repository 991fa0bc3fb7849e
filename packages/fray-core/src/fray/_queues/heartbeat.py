"""Leases that last as long as the work on their items: one thread extends all that one holder has."""

import contextlib
import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from fray._contracts.queue import Queue
from fray._values.errors import LeaseExpiredError
from fray._values.leases import Lease
from fray._values.threads import start_thread

T = TypeVar("T")

_log = logging.getLogger("fray.queue")
_BEATS_PER_LEASE = 3  # an extension that is late, or lost once, still arrives in time
_LOOKS_PER_BEAT = 2  # a lease is extended at the first look after it is due
_AT_ONCE = 1000  # leases in one call


class Heartbeat:
    """Extends leases, all of them from one thread, until each is dropped.

    Args:
        lease_timeout: Seconds that each extension holds an item; a lease is extended after a third of them.
        lost: Is called, in the heartbeat's thread, with the id of each lease that turned out to be lost.
    """

    def __init__(
        self, queue: Queue[Any], lease_timeout: float, *, lost: Callable[[str], None] | None = None
    ) -> None:
        self._queue, self._lease_timeout, self._lost = queue, lease_timeout, lost
        self._leases: dict[str, tuple[Lease[Any], float]] = {}  # by id; with when it is to be extended
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def keep(self, leases: Iterable[Lease[Any]]) -> None:
        """Extend these from now on."""
        due = time.monotonic() + self._lease_timeout / _BEATS_PER_LEASE
        with self._lock:
            self._leases.update((lease.lease_id, (lease, due)) for lease in leases)
            if self._thread is None and not self._over.is_set():
                thread = threading.Thread(target=self._run, name="fray-heartbeat", daemon=True)
                self._thread = start_thread(thread)

    def drop(self, lease_ids: Iterable[str]) -> None:
        """Extend these no more; an extension that is under way may still arrive."""
        with self._lock:
            for lease_id in lease_ids:
                self._leases.pop(lease_id, None)

    def halt(self) -> None:
        """Extend nothing any more; an extension that is under way may still arrive."""
        self._over.set()

    def stop(self) -> None:
        """Extend nothing any more; returns when no extension is under way."""
        self.halt()
        with self._lock:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        pause = self._lease_timeout / _BEATS_PER_LEASE / _LOOKS_PER_BEAT
        while not self._over.wait(min(pause, threading.TIMEOUT_MAX)):
            try:
                self._extend_due()
            except BaseException:  # noqa: BLE001 - of a filter of the log, or no memory: the next look is made
                with contextlib.suppress(Exception):
                    traceback.print_exc()

    def _extend_due(self) -> None:
        now = time.monotonic()
        with self._lock:
            due = iter([lease for lease, at in self._leases.values() if at <= now])
        while not self._over.is_set() and (part := list(islice(due, _AT_ONCE))):
            self._extend(part)

    def _extend(self, leases: list[Lease[Any]]) -> None:
        started = time.monotonic()
        try:
            outcomes = extend_many(self._queue, leases, self._lease_timeout)
        except BaseException as error:  # noqa: BLE001 - the leases may still be good when the queue is back
            _log.warning("%d leases were not extended: %r", len(leases), error)
            outcomes = list(leases)
        due = started + self._lease_timeout / _BEATS_PER_LEASE
        lost = []
        with self._lock:
            for lease, outcome in zip(leases, outcomes, strict=True):
                if lease.lease_id not in self._leases:  # dropped meanwhile
                    continue
                if isinstance(outcome, LeaseExpiredError):
                    del self._leases[lease.lease_id]
                    lost.append(lease)
                else:
                    self._leases[lease.lease_id] = (lease, due)
        for lease in lost:
            _log.warning("item %s: its lease was lost while it was worked on", lease.item_id)
            if self._lost is not None:
                self._lost(lease.lease_id)


def extend_many(
    queue: Queue[T], leases: list[Lease[T]], lease_timeout: float
) -> list[Lease[T] | LeaseExpiredError]:
    """Extend leases, in one request where the queue can; see `QueueBase.extend_many`."""
    at_once = getattr(queue, "extend_many", None)
    if at_once is not None:
        found: list[Lease[T] | LeaseExpiredError] = at_once(leases, lease_timeout)
        return found
    return extend_each(queue, leases, lease_timeout)


def release_each(queue: Queue[T], leases: Iterable[Lease[T]]) -> None:
    """Release leases one after the other; those that are lost are passed over."""
    for lease in leases:
        with contextlib.suppress(LeaseExpiredError):
            queue.release(lease)


def extend_each(
    queue: Queue[T], leases: Iterable[Lease[T]], lease_timeout: float
) -> list[Lease[T] | LeaseExpiredError]:
    """Extend leases one after the other."""
    found: list[Lease[T] | LeaseExpiredError] = []
    for lease in leases:
        try:
            found.append(queue.extend(lease, lease_timeout))
        except LeaseExpiredError as error:
            found.append(error)
    return found


@contextlib.contextmanager
def kept_alive(queue: Queue[T], lease: Lease[T], lease_timeout: float) -> Iterator[None]:
    """Extend a lease again and again, from a thread, while the block runs."""
    heartbeat = Heartbeat(queue, lease_timeout)
    heartbeat.keep([lease])
    try:
        yield
    finally:
        heartbeat.stop()
