"""A queue in a folder, on a disk or an object store: any number of processes and machines, no server."""

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast
from weakref import WeakSet

from fray import LeaseExpiredError, UnsupportedError
from fray.backend import (
    Answer,
    AsyncQueue,
    PollingAsyncQueue,
    PushOptions,
    QueueCapabilities,
    check_count,
    check_error,
    check_lease,
    check_seconds,
    dead_letter,
    map_in_threads,
    read_item,
    take_readable,
    with_end,
)
from fray.queue import DeadLetter, Lease, QueueBase, UnreadableItem
from fray_queue._codec import encode_many
from fray_queue._errors import DamagedError, QueueRemovedError
from fray_queue._file.claims import Claims, history_of
from fray_queue._file.cleanup import Cleanup
from fray_queue._file.full_buckets import SWEEP_EVERY, FullBuckets
from fray_queue._file.item_log import Claim
from fray_queue._file.listing import Listing, Spot
from fray_queue._file.opening import compare_clocks, enter, open_store
from fray_queue._file.producer import BATCH_ITEMS, Producer, batch_sizes
from fray_queue._file.records import (
    ALONE,
    ItemAddress,
    new_nonce,
    parse_lease_id,
    seal_batch,
    seal_payload,
)
from fray_queue._file.removal import remove_queue
from fray_queue._file.repair import Damage, find_damage
from fray_queue._file.stores.local import LocalStore
from fray_queue._file.stores.store import MARKER
from fray_queue._file.survey import is_dead, is_live
from fray_queue._file.taking import ASIDE, claim_many
from fray_queue._stamps import stamped, unstamped

T = TypeVar("T")

_REMOTE_SKEW = (
    2.0  # seconds: many times what synchronised clocks differ by, and beyond a store's whole seconds
)
_SHARE = 0.01  # seconds; on a disk, making a file costs several times what a link to it does
_POLLS_LOCAL, _POLLS_REMOTE = (0.005, 0.25), (0.1, 2.0)  # the first and the longest pause of a waiting pop


class _Declared:
    """Of the class, what it can at most; of an instance, as its store keeps items."""

    at_most = QueueCapabilities(
        durable=True, shared_between_processes=True, shared_between_machines=True, exact_order=False
    )

    def __get__(self, queue: "FileQueue[Any] | None", owner: type) -> QueueCapabilities:
        if queue is None:
            return self.at_most
        shared = queue._store.is_shared
        return self.at_most.but(
            durable=queue._store.is_durable, shared_between_processes=shared, shared_between_machines=shared
        )


class FileQueue(QueueBase[T]):
    """A queue in a folder that workers share.

    Args:
        path: A local folder, or the URL of a store that creates files exclusively (`gs:`, `s3:`, `abfs:`).
        max_attempts: Leases that may end without `done` before an item goes to the dead letters. The folder
            does not keep it: give it to every program that opens the queue.
        fsync: On a local disk, whether `push` returns only when the item survives a power failure.
        max_clock_skew: Seconds by which the clocks of two workers may differ. A lease is taken over when that
            much has passed after its end. By default 0 on a local disk, 2 on an object store.
        timeout: Seconds after which a request to an object store that does not answer is given up; one that
            stores an item has a second more for each MiB.
        cleanup_delay: Seconds for which the files of finished items stay in an object store, so that those of
            many are removed by one request; a removal that the store refused is tried again as late.
        clock: Seconds since the epoch; tests pass their own.
        fs_options: Passed on to the fsspec file system.

    Raises:
        UnsupportedError: The file system cannot create a file exclusively.
    """

    capabilities = _Declared()

    def __init__(
        self,
        path: str | Path,
        *,
        max_attempts: int | None = None,
        max_size: int | None = None,
        fsync: bool = True,
        max_clock_skew: float | None = None,
        timeout: float = 30.0,
        cleanup_delay: float = 5.0,
        clock: Callable[[], float] = time.time,
        **fs_options: Any,
    ) -> None:
        if max_size is not None:
            raise UnsupportedError(
                "FileQueue: max_size is not supported by this backend, which would list the queue at each "
                "push; bound the producers, or use a SqliteQueue or a server"
            )
        if max_attempts is not None:
            check_count("max_attempts", max_attempts, 1)
        check_seconds("timeout", timeout)
        self._cleanup_delay = check_seconds("cleanup_delay", cleanup_delay)
        self._path = _checked_path(path)
        self._options = {
            "max_attempts": max_attempts,
            "fsync": fsync,
            "max_clock_skew": max_clock_skew,
            "timeout": timeout,
            "cleanup_delay": cleanup_delay,
            "clock": clock,
            **fs_options,
        }
        self._store = open_store(self._path, fs_options, fsync=fsync, timeout=timeout)
        self._local = isinstance(self._store, LocalStore)
        self._skew = max_clock_skew if max_clock_skew is not None else 0.0 if self._local else _REMOTE_SKEW
        check_seconds("max_clock_skew", self._skew, zero=True)
        self._clock = clock
        self._start()
        _open.add(self)

    def _start(self) -> None:
        self._entered, self._bucket = False, ""
        self._full: FullBuckets | None = None
        # One file for many items saves requests. On a disk a link costs less than the record of a batch.
        self._batch_items = 1 if self._local else BATCH_ITEMS
        self._entering = threading.Lock()
        listing = Listing(self._store, skew=self._skew, chance=random.Random(), marker=MARKER)  # noqa: S311 - spreads clients, hides nothing
        self._cleanup = Cleanup(self._store, background=not self._local, delay=self._cleanup_delay)
        self._claims = Claims(
            self._store,
            listing,
            clock=self._clock,
            skew=self._skew,
            max_attempts=self._options["max_attempts"],
            remove=self._cleanup.remove,
            share=_SHARE if self._local else 0.0,
        )
        self._producer = Producer(self._clock)

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        max_attempts: int | None = None,
        max_size: int | None = None,
        fsync: bool = True,
        max_clock_skew: float | None = None,
        timeout: float = 30.0,
        cleanup_delay: float = 5.0,
        **fs_options: Any,
    ) -> "FileQueue[Any]":
        """Open `file:/folder`, `gs://bucket/prefix`, `s3://bucket/prefix` or `abfs://container/prefix`."""
        return cls(
            url,
            max_attempts=max_attempts,
            max_size=max_size,
            fsync=fsync,
            max_clock_skew=max_clock_skew,
            timeout=timeout,
            cleanup_delay=cleanup_delay,
            **fs_options,
        )

    def _store_items(self, items: Iterable[T], options: PushOptions) -> list[str]:
        pickles = encode_many(items)
        now = self._clock()
        payloads = [stamped(each, now) for each in pickles]
        self._enter()
        sizes = batch_sizes(payloads, self._batch_items)
        addresses = self._producer.addresses(sizes)
        self._check_there(addresses)
        files: list[tuple[str, bytes]] = []
        item_ids: list[str] = []
        for address, size in zip(addresses, sizes, strict=True):
            of_file = payloads[len(item_ids) : len(item_ids) + size]
            if size == 1:
                files.append((address.path, seal_payload(of_file[0])))
                item_ids.append(address.item_id())
            else:
                files.append((address.path, seal_batch(of_file)))
                item_ids += [address.item_id(index) for index in range(size)]
        self._store.put(files)
        self._tell_full(addresses)
        return item_ids

    def _tell_full(self, addresses: list[ItemAddress]) -> None:
        if self._full is None:
            return
        for full in self._producer.stored(addresses):
            with contextlib.suppress(OSError):  # the items are stored; it only makes counting quicker
                self._full.tell(*full)

    def _check_there(self, addresses: list[ItemAddress]) -> None:
        """Refuse to create a removed queue again; checked with each new bucket."""
        if addresses and addresses[-1].bucket != self._bucket:
            if not self._store.exists(MARKER):
                raise QueueRemovedError(self._store.name)
            self._bucket = addresses[-1].bucket

    def pop_many(self, n: int, lease_timeout: float = 60.0, *, wait: float = 0.0) -> list[Lease[T]]:
        """Lease up to `n` items; see `Queue.pop_many`. A waiting pop looks again, ever less often."""
        check_count("n", n, 1)
        check_seconds("lease_timeout", lease_timeout)
        end = time.monotonic() + check_seconds("wait", wait, zero=True)
        self._enter()
        pause, longest = _POLLS_LOCAL if self._local else _POLLS_REMOTE
        while True:
            leases = take_readable(
                lambda: self._claim_many(n, lease_timeout),
                set_aside=self._set_aside,
                give_back=self._claims.give_back,
            )
            left = end - time.monotonic()
            if leases or left <= 0:
                return leases
            time.sleep(min(left, pause))
            pause = min(longest, pause * 1.5)

    def _set_aside(self, lease: Lease[bytes], error: str) -> None:
        self._claims.set_aside(lease.lease_id, error)

    def _claim_many(self, n: int, lease_timeout: float) -> list[Lease[bytes]]:
        claims = claim_many(self._claims, n, lease_timeout, self._clock, beside=not self._local)
        leases = [_lease(claim) for claim in claims]
        for claim in claims:
            claim.payload = b""  # the caller's alone from here on
        return leases

    def _finish(self, leases: Sequence[Lease[T]], answers: Sequence[Answer | None]) -> list[str]:
        groups: dict[Any, list[str]] = {}  # leases of one batch are finished by one record
        self._enter()
        repeats, finished, lost = self._claims.repeats, list[str](), list[str]()
        for lease in leases:
            lease_id = lease.lease_id
            if repeats.was_finished(lease_id):
                finished.append(lease_id)
                continue
            parsed = parse_lease_id(lease_id)
            in_batch = parsed is not None and parsed[1] != ALONE
            groups.setdefault(parsed[0] if parsed and in_batch else lease_id, []).append(lease_id)

        def finish(group: tuple[Any, list[str]]) -> None:
            address, lease_ids = group
            if isinstance(address, ItemAddress):
                refused = self._claims.finish_batch(address, lease_ids)
                finished.extend(set(lease_ids).difference(refused))
                lost.extend(refused)
                return
            for lease_id in lease_ids:
                try:
                    self._claims.finish(lease_id)
                    finished.append(lease_id)
                except LeaseExpiredError:
                    lost.append(lease_id)

        try:
            if self._local or len(groups) < 2:
                for group in groups.items():
                    finish(group)
            else:
                map_in_threads(finish, groups.items(), ASIDE, "fray-queue-done")
        except BaseException:  # the caller repeats the call with all of them
            repeats.finished(finished)
            raise
        return lost

    def release(self, lease: Lease[Any], *, delay: float = 0.0, error: BaseException | None = None) -> None:
        """Give an item back to its place in line; see `Queue.release`. The error is not kept."""
        check_lease(lease)
        check_error(error)
        check_seconds("delay", delay, zero=True)
        self._enter()
        self._claims.release(lease.lease_id, delay)

    def extend(self, lease: Lease[T], lease_timeout: float) -> Lease[T]:
        """Hold the item for `lease_timeout` seconds from now; see `Queue.extend`."""
        check_lease(lease)
        check_seconds("lease_timeout", lease_timeout)
        self._enter()
        claim = self._claims.extend(lease.lease_id, lease_timeout)
        return with_end(lease, claim.until)

    def extend_many(
        self, leases: Iterable[Lease[T]], lease_timeout: float
    ) -> list[Lease[T] | LeaseExpiredError]:
        """Hold items for `lease_timeout` seconds from now; see `QueueBase.extend_many`."""
        one_by_one = super().extend_many
        if self._local:
            return one_by_one(leases, lease_timeout)
        return map_in_threads(
            lambda lease: one_by_one([lease], lease_timeout)[0], list(leases), ASIDE, "fray-queue-extend"
        )

    def _asynchronous(self) -> AsyncQueue[T]:
        return super()._asynchronous() if self._local else PollingAsyncQueue(self, *_POLLS_REMOTE)

    def peek(self) -> T | None:
        """Return the item that a pop would take now.

        Raises:
            UnreadableItemError: It cannot be unpickled in this process.
        """
        self._enter()
        found = self._claims.first()
        if found is None:
            return None
        address, index, data = found
        return cast(T, read_item(data, address.item_id(index)))

    def size(self) -> int:
        """Count what waits, is delayed or is leased; lists the whole queue."""
        self._enter()
        return self._claims.count()[0]

    def oldest_seconds(self) -> float | None:
        """Return the age of the oldest item that waits, is delayed or is leased; None where there is none.

        It is None, too, where a release stored the item that kept no time.
        """
        self._enter()
        payload = self._claims.oldest()
        pushed_at = None if payload is None else unstamped(payload)[1]
        return None if pushed_at is None else max(0.0, self._clock() - pushed_at)

    def pending(self) -> int:
        """Count what a pop could take now; lists the whole queue."""
        self._enter()
        return self._claims.count()[1]

    def stats(self) -> dict[str, int]:
        """Count what is pending, held (leased or delayed) and dead; lists the whole queue, reads no item."""
        self._enter()
        spots = self._claims.survey()
        pending = sum(free for _, free in spots)
        dead = sum(is_dead(spot) for spot, _ in spots)
        return {"pending": pending, "held": sum(is_live(spot) for spot, _ in spots) - pending, "dead": dead}

    def dead_letters(self) -> list[DeadLetter[T]]:
        """List the items that were given up; lists the whole queue."""
        letters = [self._letter(spot) for spot in self._dead(None)]
        return [letter for letter in letters if letter is not None]

    def _letter(self, spot: Spot) -> DeadLetter[Any] | None:
        assert spot.record is not None
        facts = spot.address.item_id(spot.index), spot.record.attempt, history_of(spot.record)
        try:
            data = self._claims.payload(spot)
        except DamagedError as error:
            return DeadLetter(UnreadableItem(self._store.read(spot.address.path) or b"", str(error)), *facts)
        return None if data is None else dead_letter(unstamped(data)[0], *facts)

    def requeue_dead(self, item_ids: Sequence[str] | None = None) -> int:
        """Put dead letters back; see `Queue.requeue_dead`."""
        return self._claims.requeue(self._dead(item_ids))

    def purge(self) -> int:
        """Remove every item that is not a dead letter, leased ones too; return how many."""
        self._enter()
        return self._claims.purge([spot for spot, _ in self._claims.survey() if is_live(spot)])

    def purge_dead(self, item_ids: Sequence[str] | None = None) -> int:
        """Remove dead letters (all, or those of these ids); return how many."""
        return self._claims.purge(self._dead(item_ids))

    def exists(self) -> bool:
        """Return whether there is a queue at the path; makes none."""
        return self._store.exists(MARKER)

    def delete(self) -> None:
        """Remove the queue with all that is in it; clients that have it open get QueueRemovedError.

        Files in its folder that are not the queue's stay.

        Raises:
            ValueError: Something else lies at the path; nothing was removed.
        """
        if isinstance(self._store, LocalStore):
            self.close()
        self._bucket = ""  # the next push looks for the queue
        remove_queue(self._store)

    def repair(self, *, restore: bool = False) -> list[Damage]:
        """List the files that cannot be read, and those that are not the queue's; neither blocks the queue.

        Args:
            restore: Put items back whose history cannot be read, as of the last record that can be.
        """
        self._enter()
        return find_damage(self._store, self._claims, restore=restore)

    def close(self) -> None:
        """Finish the removal of finished items; on an object store it runs in the background until then."""
        self._cleanup.close()
        if isinstance(self._store, LocalStore):
            self._store.close()

    def __enter__(self) -> "FileQueue[T]":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        # A relative path names another folder in a process that works elsewhere.
        path = self._store.name if self._local else self._path
        return _reopen, (type(self), path, self._options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._path!r})"

    def _dead(self, item_ids: Sequence[str] | None) -> list[Spot]:
        wanted = None if item_ids is None else set(item_ids)
        self._enter()
        return [
            spot
            for spot, _ in self._claims.survey()
            if is_dead(spot) and (wanted is None or spot.address.item_id(spot.index) in wanted)
        ]

    def _enter(self) -> None:
        """Look at the store before its first use."""
        if self._entered:
            return
        with self._entering:
            if not self._entered:
                if enter(self._store) < 2:  # clients of 0.1.0 may share it, and know no batches
                    self._batch_items = 1
                elif not self._local:  # a disk lists a million names in a second
                    # Clients that live for a moment sweep as often, together, as one that lives as long.
                    sweep_at = self._clock() + random.uniform(0, SWEEP_EVERY)  # noqa: S311 - no secret
                    self._full = FullBuckets(self._store, self._clock, sweep_at)
                    self._claims.know_full_buckets(self._full)
                if self._clock is time.time:
                    compare_clocks(self._store, new_nonce(), self._skew)
                self._entered = True


_open: "WeakSet[FileQueue[Any]]" = WeakSet()


def _leave_behind() -> None:
    """Have a forked child begin again: a thread of its parent may have held a lock, say for a listing."""
    for queue in list(_open):
        queue._start()


os.register_at_fork(after_in_child=_leave_behind)


def _checked_path(path: str | Path) -> str:
    text = os.fspath(path)
    if not text or "\0" in text:
        raise ValueError(f"{text!r} is not a path for a queue")
    return text


def _reopen(cls: type[FileQueue[Any]], path: str, options: dict[str, Any]) -> FileQueue[Any]:
    return cls(path, **options)


def _lease(claim: Claim) -> Lease[bytes]:
    payload, pushed_at = unstamped(claim.payload)
    return Lease(
        payload,
        claim.lease_id,
        claim.record.at,
        claim.item_id,
        claim.record.attempt,
        claim.until,
        pushed_at=pushed_at,
    )
