"""The histories of items, as one client reads and writes them.

What happened to an item is a row of records, each the exclusive creation of the next number: the client that
creates it decided; everybody else learns that something else happened first.
"""

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

from fray_queue._errors import DamagedError
from fray_queue._file.full_buckets import FullBuckets
from fray_queue._file.listing import GRACE, Listing, Spot
from fray_queue._file.records import (
    ALONE,
    DAMAGED,
    DEAD,
    DONE,
    LEASE,
    RELEASE,
    REQUEUE,
    Attempts,
    ItemAddress,
    Record,
    SharedRecord,
    decode_extension,
    decode_record,
    is_blank,
    new_nonce,
    parse_lease_id,
    shared,
)
from fray_queue._file.stores.store import Store

_log = logging.getLogger("fray.queue")
SHORTENED = 0.01  # of a lease: what it may lose by a record that was made for another item
_MOST_SHARED = 1000  # names of one file; file systems allow a few ten thousand
LOCKS = 64
_FEW_HELD = 1000
_LENGTHS = 8  # of leases, whose newest common records are kept


@dataclass(slots=True)
class Claim:
    """A lease that this client holds."""

    address: ItemAddress
    number: int  # of the record that holds it now
    record: Record
    until: float  # its end, extensions included
    payload: bytes = b""
    first: int = 0  # the number that its lease id carries
    index: int = ALONE  # of the item in its batch

    @property
    def lease_id(self) -> str:
        return self.address.lease_id(self.first, self.record.lease_nonce, self.index)

    @property
    def item_id(self) -> str:
        return self.address.item_id(self.index)


class ItemLog:
    """The histories of all items of one queue, as one client reads and writes them.

    Args:
        remove: Is handed the files of a finished item, the payload first; returns whether they are gone.
        share: Seconds within which first leases, and `done`s, have one and the same record. A lease is up to
            that much shorter than requested.
    """

    def __init__(
        self,
        store: Store,
        listing: Listing,
        *,
        clock: Callable[[], float],
        skew: float,
        max_attempts: int | None,
        remove: Callable[[str, list[str]], bool],
        share: float = 0.0,
    ) -> None:
        self._store, self._listing, self._clock, self._skew = store, listing, clock, skew
        self._max_attempts = max_attempts
        self._remove = remove
        self._share, self._shared_by = share, os.getpid()
        self._shared: dict[tuple[str, float], SharedRecord] = {}  # by kind and length
        self._held: dict[str, Claim] = {}
        self._reported: set[str] = set()  # damaged files
        self._lock = threading.Lock()  # guards beliefs and holds; never held during a claim's own requests
        self._remember = _FEW_HELD  # claims, before those that are long over are forgotten
        self._item_locks = [threading.Lock() for _ in range(LOCKS)]
        self._full: FullBuckets | None = None
        self._prepare()

    def know_full_buckets(self, full: FullBuckets) -> None:
        """Count full buckets without a look into them, and announce those that this client takes from."""
        self._full = self._listing.full = full

    def _prepare(self) -> None:
        """Make what a subclass needs."""

    # --- looking and mending ---

    def _survey_one(self, spot: Spot) -> list[tuple[Spot, bool]]:
        """Return an item unless it is finished, and whether a pop could take it.

        One whose attempts are over becomes a dead letter here.
        """
        record = spot.record or (self._read_record(spot.address, spot.number) if spot.number else None)
        if spot.number and (record is None or record.kind == DONE):
            return []
        free = spot.number == 0 or self._head(Spot(spot.address, spot.number, record, 0.0)) is not None
        attempts = self._attempts_after(record) if free else ()
        if self._max_attempts is not None and len(attempts) >= self._max_attempts and record:
            dead = self._mark_dead(spot.address, spot.number, record, attempts)
            return [(Spot(spot.address, spot.number + 1, dead, 0.0), False)] if dead else []
        return [(Spot(spot.address, spot.number, record, 0.0), free)]

    def _requeue(self, spot: Spot) -> bool:
        """Bring a dead item back; False when another client did."""
        extended = spot.record.extended if spot.record else ()
        return self._append(
            spot.address, spot.number + 1, Record(REQUEUE, new_nonce(), self._clock(), extended=extended)
        )

    def _restore(self, spot: Spot) -> bool:
        """Put an item back whose newest record is damaged, as of the last one before it that is not."""
        before: Record | None = None
        for number in range(spot.number - 1, 0, -1):
            before = self._read_record(spot.address, number)
            if before is not None and before.kind != DAMAGED:
                break
        if before is None or before.kind not in (LEASE, RELEASE):
            before = Record(RELEASE, "", 0.0)
        extended = tuple(range(1, spot.number + 1))  # it may have been extended under any of them
        now = self._clock()
        record = Record(RELEASE, new_nonce(), now, 0.0, before.attempt, before.attempts, extended)
        return self._append(spot.address, spot.number + 1, record)

    def _purge(self, spot: Spot) -> bool:
        """Finish an item, held or not; False when it was finished first, is dead now, or not any more."""
        number, seen = spot.number, spot.record
        while True:
            extended = seen.extended if seen else ()
            if seen and seen.kind == LEASE:
                extended = (*extended, number)  # its holder may have extended it
            record = Record(DONE, new_nonce(), self._clock(), extended=extended)
            if self._append(spot.address, number + 1, record):
                self._clean(spot.address, number + 1, record)
                return True
            found = self._read_record(spot.address, number + 1)
            if found is None or found.kind in (DONE, DAMAGED):
                return False
            if (found.kind == DEAD) != (seen is not None and seen.kind == DEAD):
                return False
            number, seen = number + 1, found  # it was leased, extended or given back meanwhile

    def _head(self, spot: Spot) -> Record | None:
        """Return the newest record of an item that can be leased now; None notes why it cannot."""
        if spot.number == 0:
            return None
        record = spot.record or self._read_record(spot.address, spot.number)
        if record is None:
            self._forget(spot.address)
            return None
        now = self._clock()  # before the end is read: the holder may write a later one until this one is over
        until = self._end_of(spot.address, spot.number, record, now)
        self._note(spot.address, spot.number, record, until)
        if record.kind == DONE and record.at + GRACE <= now:
            self._clean(spot.address, spot.number, record)
            self._forget(spot.address)  # until a listing shows it again, because the removal was in vain
        if record.kind == REQUEUE:
            return record
        if record.kind == LEASE and now < until + self._skew:
            return None
        if record.kind == RELEASE and now < until:
            return None
        return record if record.kind in (LEASE, RELEASE) else None

    def _end_of(self, address: ItemAddress, number: int, record: Record, now: float) -> float:
        """Return when a record's lease or delay ends; what looks over may have been extended."""
        if record.kind != LEASE or now < record.until:
            return record.until
        return self._extended_end(address.extension(number), record.until)

    def _extended_end(self, path: str, until: float) -> float:
        """Return the end that the file of an extension gives, or the one that there was before."""
        try:
            data = self._store.read(path)
            return until if data is None or self._is_lost(data) else decode_extension(data, path)
        except DamagedError as error:
            self._report(path, error)
            return until

    def _attempts_after(self, head: Record | None) -> Attempts:
        if head is None or head.kind == REQUEUE:
            return ()
        if head.kind == LEASE and self._max_attempts is not None:
            return (*head.attempts, (head.attempt, "expired", head.at, head.until))
        return head.attempts

    # --- records ---

    def _keep(self, claims: list[Claim]) -> None:
        """Remember leases that were had; those of others to settle, or of nobody, are read when needed."""
        with self._lock:
            self._held.update({claim.lease_id: claim for claim in claims})
            self._listing.succeeded()
            if len(self._held) >= self._remember:
                over = self._clock() - GRACE
                self._held = {key: claim for key, claim in self._held.items() if claim.until > over}
                self._remember = max(_FEW_HELD, 2 * len(self._held))

    def _extending(self, lease_id: str) -> threading.Lock:
        """Return what makes the later of two extensions of an item the one that stays."""
        address, index, *_ = parse_lease_id(lease_id) or (None, ALONE)
        return self._item_locks[hash((address, index)) % LOCKS]

    def _hold(self, claim: Claim, number: int, record: Record, until: float) -> Claim:
        if number == claim.number and number not in record.extended:
            record = Record(
                LEASE,
                record.nonce,
                record.at,
                record.until,
                record.attempt,
                record.attempts,
                (*record.extended, number),
            )
        held = Claim(claim.address, number, record, until, claim.payload, claim.first, claim.index)
        with self._lock:
            self._held[held.lease_id] = held
            if held.index == ALONE:
                self._listing.note(held.address, number, record, until)
        return held

    def _mark_dead(
        self, address: ItemAddress, number: int, head: Record | None, attempts: Attempts
    ) -> Record | None:
        assert head is not None
        record = Record(DEAD, new_nonce(), self._clock(), 0.0, head.attempt, attempts, head.extended)
        return record if self._append(address, number + 1, record) else None

    def _append(self, address: ItemAddress, number: int, record: Record) -> bool:
        path = address.record(number)
        try:
            won = self._is_first(path, record) and self._create(path, record.encode())
        except BaseException:
            self._forget_path(path, record)
            raise
        if won:
            self._took_from(address)
            self._note(address, number, record)
        else:
            self._unknown(address, number)
        return won

    def _create(self, path: str, data: bytes) -> bool:
        # The store may have answered another request twice, or lost the answer to ours: the nonce decides.
        return self._store.create(path, data) or self._store.read(path) == data

    def _took_from(self, address: ItemAddress) -> None:
        if self._full is not None:
            self._full.took(address.bucket)

    def _is_first(self, path: str, record: Record) -> bool:
        """Return whether no other thread writes the same record there: both would have its nonce."""
        if not isinstance(record, SharedRecord):
            return True
        with self._lock:
            first = path not in record.paths
            record.paths.add(path)
        return first

    def _forget_path(self, path: str, record: Record) -> None:
        """Let a call that failed be repeated with the same record: it is not another thread's."""
        if isinstance(record, SharedRecord):
            with self._lock:
                record.paths.discard(path)

    def _common(self, kind: str, now: float, length: float = 0.0) -> Record:
        """Return a first lease of that length, or a `done`: the one written just before, where it may do."""
        longest = min(self._share, length * SHORTENED) if length else self._share
        with self._lock:
            if self._shared_by != os.getpid():  # a forked child must not be taken for its parent
                self._shared, self._shared_by = {}, os.getpid()
            known = self._shared.get((kind, length))
            if known and 0 <= now - known.at < longest and len(known.paths) < _MOST_SHARED:
                return known
            record = Record(kind, new_nonce(), now, now + length if length else 0.0, 1 if length else 0)
            if not longest:
                return record
            if len(self._shared) >= _LENGTHS:
                self._shared.clear()
            self._shared[kind, length] = common = shared(record)
            return common

    def _read_record(self, address: ItemAddress, number: int) -> Record | None:
        path = address.record(number)
        try:
            data = self._store.read(path)
            if data is None:
                return None
            if self._is_lost(data):
                return self._instead(address, number)
            return decode_record(data, path)
        except DamagedError as error:
            self._report(path, error)
            return Record(DAMAGED, "", 0.0)

    def _report(self, path: str, error: DamagedError) -> None:
        """Warn once of a file that cannot be read; its item is set aside, the others are delivered."""
        if path not in self._reported:
            self._reported.add(path)
            _log.warning(
                "%s: %s; `fray queue repair` shows it and can restore its item", self._store.name, error
            )

    def _is_lost(self, data: bytes) -> bool:
        """Return whether a power failure took what a file had; a file is visible only when it is complete."""
        return self._store.may_lose and is_blank(data)

    def _instead(self, address: ItemAddress, number: int) -> Record:
        """Return what a lost record is taken for: its client went with the power, so no lease continues."""
        before = self._read_record(address, number - 1) if number > 1 else None
        if before and before.kind in (DEAD, DONE):
            return before
        attempts = self._attempts_after(before)
        extended = (*(before.extended if before else ()), number)
        if before and before.kind == LEASE:  # taken over, or settled: its attempt is over in any case
            return Record(RELEASE, "", before.at, 0.0, before.attempt, attempts, (*extended, number - 1))
        attempt = before.attempt + 1 if before else 1
        return Record(LEASE, "", 0.0, 0.0, attempt, attempts, extended)

    def _clean(self, address: ItemAddress, number: int, record: Record) -> None:
        records = [address.record(each) for each in range(1, number + 1)]
        if self._remove(address.path, records + [address.extension(each) for each in record.extended]):
            self._forget(address)

    def _note(self, address: ItemAddress, number: int, record: Record, until: float | None = None) -> None:
        with self._lock:
            self._listing.note(address, number, record, until)

    def _unknown(self, address: ItemAddress, number: int) -> None:
        with self._lock:
            self._listing.note_unknown(address, number, self._clock())

    def _hide(self, address: ItemAddress) -> None:
        """Try others first for a while."""
        with self._lock:
            if (spot := self._listing.spot(address)) is not None:
                self._listing.note_unknown(address, spot.number, self._clock())

    def _forget(self, address: ItemAddress) -> None:
        with self._lock:
            self._listing.forget(address)
