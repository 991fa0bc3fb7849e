"""A queue in a folder, on a disk or an object store: any number of processes and machines, no server."""

import os
import pickle
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from fray.backend import check_seconds
from fray.queue import Attempt, DeadLetter, Lease, QueueBase
from fray_queue._checks import check_count, check_lease
from fray_queue._codec import decode_leases, encode_many
from fray_queue._file.claims import Claims
from fray_queue._file.cleanup import Cleanup
from fray_queue._file.item_log import Claim
from fray_queue._file.listing import Listing, Spot
from fray_queue._file.opening import compare_clocks, enter, open_store
from fray_queue._file.producer import Producer
from fray_queue._file.records import DEAD, new_nonce, seal_payload
from fray_queue._file.stores.local import LocalStore

T = TypeVar("T")
R = TypeVar("R")

_REMOTE_SKEW = (
    2.0  # seconds: many times what synchronised clocks differ by, and beyond a store's whole seconds
)
_SHARE = 0.01  # seconds; on a disk, making a file costs several times what a link to it does
_ASIDE = 16  # claims of one pop_many that run beside each other on an object store
_POLLS_LOCAL, _POLLS_REMOTE = (0.005, 0.25), (0.1, 2.0)  # the first and the longest pause of a waiting pop


class FileQueue(QueueBase[T]):
    """A queue in a folder that workers share.

    Args:
        path: A local folder, or a URL with a protocol that fsspec knows and that creates files exclusively.
        max_attempts: Leases that may end without `done` before an item goes to the dead letters.
        fsync: On a local disk, whether `push` returns only when the item survives a power failure.
        max_clock_skew: Seconds that the clocks of two workers may differ by; a lease is taken over that much
            after its end. 0 on a local disk, 2 on an object store.
        timeout: Seconds that requests are repeated for while an object store is away.
        clock: Seconds since the epoch; tests hand in their own.
        fs_options: Passed on to the fsspec file system.

    Raises:
        UnsupportedError: The file system cannot create a file exclusively.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        max_attempts: int | None = None,
        fsync: bool = True,
        max_clock_skew: float | None = None,
        timeout: float = 30.0,
        clock: Callable[[], float] = time.time,
        **fs_options: Any,
    ) -> None:
        if max_attempts is not None:
            check_count("max_attempts", max_attempts)
        check_seconds("timeout", timeout)
        self._path = _checked_path(path)
        self._options = {
            "max_attempts": max_attempts,
            "fsync": fsync,
            "max_clock_skew": max_clock_skew,
            "timeout": timeout,
            "clock": clock,
            **fs_options,
        }
        self._store = open_store(self._path, fs_options, fsync=fsync, timeout=timeout)
        self._local = isinstance(self._store, LocalStore)
        self._skew = max_clock_skew if max_clock_skew is not None else 0.0 if self._local else _REMOTE_SKEW
        check_seconds("max_clock_skew", self._skew, zero=True)
        self._clock = clock
        self._start(max_attempts)

    def _start(self, max_attempts: int | None) -> None:
        self._entered = False
        self._entering = threading.Lock()
        listing = Listing(self._store, skew=self._skew, chance=random.Random())  # noqa: S311 - spreads clients, hides nothing
        self._cleanup = Cleanup(self._store, background=not self._local)
        self._claims = Claims(
            self._store,
            listing,
            clock=self._clock,
            skew=self._skew,
            max_attempts=max_attempts,
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
        fsync: bool = True,
        max_clock_skew: float | None = None,
        timeout: float = 30.0,
        **fs_options: Any,
    ) -> "FileQueue[Any]":
        """Open `file:/folder`, `gs://bucket/prefix` or `s3://bucket/prefix`."""
        return cls(
            url,
            max_attempts=max_attempts,
            fsync=fsync,
            max_clock_skew=max_clock_skew,
            timeout=timeout,
            **fs_options,
        )

    def push_many(self, items: Iterable[T]) -> list[str]:
        """Store items in order; see `Queue.push_many`."""
        payloads = encode_many(items)
        self._enter()
        addresses = self._producer.addresses(len(payloads))
        self._store.put([(at.path, seal_payload(data)) for at, data in zip(addresses, payloads, strict=True)])
        return [address.item_id for address in addresses]

    def pop_many(self, n: int, lease_timeout: float = 60.0, *, wait: float = 0.0) -> list[Lease[T]]:
        """Lease up to `n` items; see `Queue.pop_many`. A waiting pop looks again, ever less often."""
        check_count("n", n)
        check_seconds("lease_timeout", lease_timeout)
        end = time.monotonic() + check_seconds("wait", wait, zero=True)
        self._enter()
        pause, longest = _POLLS_LOCAL if self._local else _POLLS_REMOTE
        while True:
            claims = self._claim_many(n, lease_timeout)
            left = end - time.monotonic()
            if claims or left <= 0:
                return decode_leases([_lease(claim) for claim in claims], self.release)
            time.sleep(min(left, pause))
            pause = min(longest, pause * 1.5)

    def _claim_many(self, n: int, lease_timeout: float) -> list[Claim]:
        claims: list[Claim] = []
        first = self._claims.take(lease_timeout)
        if first is None:
            return claims
        claims.append(first)
        if self._local or n == 1:
            while len(claims) < n and (claim := self._claims.take(lease_timeout)) is not None:
                claims.append(claim)
            return claims
        with ThreadPoolExecutor(min(_ASIDE, n), thread_name_prefix="fray-queue-pop") as pool:
            more = pool.map(lambda _: self._claims.take(lease_timeout), range(n - 1))
            return claims + sorted((claim for claim in more if claim), key=lambda claim: claim.address.path)

    def done_many(self, leases: Iterable[Lease[T]]) -> None:
        """Finish every item whose lease is good; see `Queue.done_many`."""
        lease_ids = [check_lease(lease).lease_id for lease in leases]
        self._enter()
        errors: list[ValueError] = []

        def one(lease_id: str) -> None:
            try:
                self._claims.finish(lease_id)
            except ValueError as error:
                errors.append(error)

        if self._local or len(lease_ids) < 2:
            for lease_id in lease_ids:
                one(lease_id)
        else:
            with ThreadPoolExecutor(
                min(_ASIDE, len(lease_ids)), thread_name_prefix="fray-queue-done"
            ) as pool:
                list(pool.map(one, lease_ids))
        if errors:
            raise errors[0]

    def release(self, lease: Lease[Any], *, delay: float = 0.0) -> None:
        """Give an item back to its place in line; see `Queue.release`."""
        check_lease(lease)
        check_seconds("delay", delay, zero=True)
        self._enter()
        self._claims.release(lease.lease_id, delay)

    def extend(self, lease: Lease[T], lease_timeout: float) -> Lease[T]:
        """Hold the item for `lease_timeout` seconds from now; see `Queue.extend`."""
        check_lease(lease)
        check_seconds("lease_timeout", lease_timeout)
        self._enter()
        claim = self._claims.extend(lease.lease_id, lease_timeout)
        return Lease(lease.item, lease.lease_id, lease.timestamp, lease.item_id, lease.attempt, claim.until)

    def peek(self) -> T | None:
        """Return the item that a pop would take now; lists the whole queue."""
        for spot, free in self._survey():
            data = self._claims.payload(spot.address) if free else None
            if data is not None:
                return cast(T, pickle.loads(data))
        return None

    def size(self) -> int:
        """Count what waits, is delayed or is leased; lists the whole queue."""
        return sum(not _is_dead(spot) for spot, _ in self._survey())

    def pending(self) -> int:
        """Count what a pop could take now; lists the whole queue."""
        return sum(free for _, free in self._survey())

    def dead_letters(self) -> list[DeadLetter[T]]:
        """List the items that were given up; lists the whole queue."""
        letters: list[DeadLetter[T]] = []
        for spot, _ in self._survey():
            data = self._claims.payload(spot.address) if _is_dead(spot) else None
            if data is not None and spot.record is not None:
                history = tuple(_attempt(*attempt) for attempt in spot.record.attempts)
                letters.append(
                    DeadLetter(pickle.loads(data), spot.address.item_id, spot.record.attempt, history)
                )
        return letters

    def requeue_dead(self, item_ids: Sequence[str] | None = None) -> int:
        """Put dead letters back; see `Queue.requeue_dead`."""
        return sum(self._claims.requeue(spot) for spot in self._dead(item_ids))

    def purge(self) -> int:
        """Remove every item that is not a dead letter, leased ones too; return how many."""
        return sum(self._claims.purge(spot) for spot, _ in self._survey() if not _is_dead(spot))

    def purge_dead(self, item_ids: Sequence[str] | None = None) -> int:
        """Remove dead letters (all, or those of these ids); return how many."""
        return sum(self._claims.purge(spot) for spot in self._dead(item_ids))

    def close(self) -> None:
        """Finish the removal of finished items; an object store's goes on in the background until then."""
        self._cleanup.close()
        if isinstance(self._store, LocalStore):
            self._store.close()

    def __enter__(self) -> "FileQueue[T]":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (type(self), self._path, self._options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._path!r})"

    def _dead(self, item_ids: Sequence[str] | None) -> list[Spot]:
        spots = [spot for spot, _ in self._survey() if _is_dead(spot)]
        return spots if item_ids is None else [spot for spot in spots if spot.address.item_id in item_ids]

    def _survey(self) -> list[tuple[Spot, bool]]:
        self._enter()
        return self._claims.survey()

    def _enter(self) -> None:
        """Look at the store before its first use."""
        if self._entered:
            return
        with self._entering:
            if not self._entered:
                enter(self._store)
                if self._clock is time.time:
                    compare_clocks(self._store, new_nonce(), self._skew)
                self._entered = True


def _checked_path(path: str | Path) -> str:
    text = os.fspath(path)
    if not text or "\0" in text:
        raise ValueError(f"{text!r} is no path for a queue")
    return text


def _reopen(cls: type[FileQueue[Any]], path: str, options: dict[str, Any]) -> FileQueue[Any]:
    return cls(path, **options)


def _lease(claim: Claim) -> Lease[bytes]:
    return Lease(
        claim.payload,
        claim.lease_id,
        claim.record.at,
        claim.address.item_id,
        claim.record.attempt,
        claim.until,
    )


def _attempt(number: int, outcome: str, started_at: float, ended_at: float) -> Attempt:
    return Attempt(number, cast(Literal["released", "expired"], outcome), started_at, ended_at)


def _is_dead(spot: Spot) -> bool:
    return spot.record is not None and spot.record.kind == DEAD
