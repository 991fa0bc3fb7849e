"""The FileQueue's protocol under thousands of seeded schedules, and broken protocols that they catch."""

import itertools
from typing import Any, ClassVar

import pytest
from queue_simulation import Counted, Schedule, Variant
from simulated_store import SimStore, Violation, World

from fray_queue.testing import (
    LEASE,
    BatchState,
    Claim,
    Claims,
    FullBuckets,
    ItemAddress,
    Plan,
    Record,
    SharedRecord,
    Slot,
    Spot,
    encode_extension,
    file_listing,
    full_buckets,
    item_log,
)

SKEW = 2.0


def run(seed: int, variant: type[Variant] = Variant, *, clients: int = 3, real_skew: float = SKEW) -> World:
    return Schedule(seed, variant, clients=clients, skew=SKEW, real_skew=real_skew).run()


class Sharing(Variant):
    """As on a local disk, where a record may be a link to one that was written just before."""

    share = 5.0


class Batched(Variant):
    """Items that were pushed together, three in a file."""

    batch = 3
    items, pushes = 2, 0.2


@pytest.fixture(autouse=True)
def leases_that_share_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(item_log, "SHORTENED", 0.5)


@pytest.fixture(autouse=True)
def buckets_that_are_counted_and_swept_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_listing, "FEW", 0)
    monkeypatch.setattr(full_buckets, "SWEEP_EVERY", 5.0)


@pytest.mark.timeout(300)
def test_no_schedule_breaks_a_promise(torture: int) -> None:
    totals = dict.fromkeys(("requests", "crashes", "stalls", "lost_answers", "taken"), 0)
    count = 1200 * torture
    for seed in range(count):
        variant = (Variant, Sharing, Batched, Counted)[seed % 4]
        world = run(seed, variant, clients=5 if seed % 8 > 3 else 3)
        for name in totals:
            totals[name] += getattr(world, name)
    print(f"\nsimulation: {count} schedules, {totals}, 0 violations")
    assert totals["crashes"] > count / 10
    assert totals["stalls"] > count / 10


def test_wrong_clocks_double_a_live_lease_at_worst(torture: int) -> None:
    found = [str(violation) for seed in range(500 * torture) if (violation := _violation(seed))]
    assert all("two live leases" in violation for violation in found)
    doubled = len(found)
    print(f"\nsimulation: {500 * torture} schedules with clocks 60 s apart: {doubled} doubled, nothing lost")
    assert doubled


def _violation(seed: int) -> Violation | None:
    try:
        run(seed, real_skew=60.0)
    except Violation as violation:
        return violation
    return None


# --- broken protocols ---


class HistoryFirst(Variant):
    @staticmethod
    def remove(store: Any, payload: str, records: list[str]) -> bool:
        store.delete(records)
        store.delete([payload])
        return True


class _Unconfirmed(Claims):
    def _confirm(self, claim: Claim, lease_id: str) -> None:
        pass


class NoLateCheck(Variant):
    claims = _Unconfirmed


class _PayloadFirst(Claims):
    def _claim(self, spot: Spot, lease_timeout: float, begun: list[Claim]) -> Claim | None:
        self._early = self._store.read(spot.address.path)
        return super()._claim(spot, lease_timeout, begun)

    def _win(self, claim: Claim) -> bool:
        if self._early is None or not self._append(claim.address, claim.number, claim.record):
            return False
        self._held[claim.lease_id] = claim
        return True


class PayloadReadBeforeTheClaim(Variant):
    claims = _PayloadFirst


class _DoneByDelete(Claims):
    def finish(self, lease_id: str) -> None:
        claim = self._find(lease_id)
        self._clean(claim.address, claim.number, claim.record)


class DoneByDelete(Variant):
    claims = _DoneByDelete


class _BlindExtend(Claims):
    def extend(self, lease_id: str, lease_timeout: float) -> Claim:
        claim = self._find(lease_id)
        until = self._clock() + lease_timeout
        self._store.write(claim.address.extension(claim.number), encode_extension(until))
        return self._hold(claim, claim.number, claim.record, until)


class BlindExtend(Variant):
    claims = _BlindExtend
    items, pushes = 1, 0.0


class _ClockAfterTheEnd(Claims):
    def _end_of(self, address: ItemAddress, number: int, record: Record, now: float) -> float:
        until = super()._end_of(address, number, record, now)
        late = self._clock()
        over = record.kind == LEASE and late >= until + self._skew
        return now - self._skew if over else until  # as if `now` were read here


class EndReadBeforeTheClock(Variant):
    claims = _ClockAfterTheEnd
    items, pushes = 1, 0.0


class SkewIgnored(Variant):
    taker_skew = 0.0
    items, pushes = 1, 0.0


class _OneForAll(Claims):
    _everybodys: ClassVar[dict[tuple[str, float], SharedRecord]] = {}

    def _common(self, kind: str, now: float, length: float = 0.0) -> Record:
        self._shared = self._everybodys
        return super()._common(kind, now, length)

    def _is_first(self, path: str, record: Record) -> bool:
        return True


class RecordsOfAnotherClient(Sharing):
    """What a forked child would do that went on with its parent's records."""

    claims = _OneForAll


class _Overwriting(SimStore):
    def create(self, path: str, data: bytes) -> bool:
        there = self._request(lambda: path in self.world.files)
        if not there:
            self._request(lambda: (self.world.files.pop(path, None), self.world.create(path, data)))
        return not there


class LooksFirstAndWritesThen(Variant):
    store = _Overwriting


class _SlowListing(SimStore):
    def _between_pages(self) -> None:
        self.world.stalled[self.client] = self.world.now + self.world.chance.uniform(0, 5)


class OrphansUnchecked(Variant):
    store = _SlowListing
    items, pushes = 0, 0.9

    @staticmethod
    def remove_orphans(store: Any, bucket: str, orphans: dict[str, list[str]]) -> None:
        for names in orphans.values():
            store.delete([f"{bucket}/{name}" for name in names])


# --- broken protocols of batches ---


class _BatchUnconfirmed(Claims):
    def _change(
        self, address: ItemAddress, plan: Plan, *, confirm: bool = True
    ) -> tuple[int, dict[int, Record]]:
        return super()._change(address, plan, confirm=False)


class BatchUnconfirmed(Batched):
    claims = _BatchUnconfirmed
    items, pushes = 1, 0.0


class _BatchOfAnybody(Claims):
    @staticmethod
    def _holds(slot: Slot, claim: Claim) -> bool:
        return slot.record is not None and slot.record.kind == LEASE


class BatchSettledByAnybody(Batched):
    claims = _BatchOfAnybody
    items, pushes = 1, 0.0


class _BatchFromOldState(Claims):
    def _following(
        self, address: ItemAddress, number: int, steps: int, read: bytes | None = None
    ) -> tuple[int, BatchState] | None:
        found, old = super()._following(address, number, steps, read), self._newest(address)
        return (found[0], old[1]) if found and old else found


class BatchFromAnOldState(Batched):
    """Writes the next record without a look at those that others wrote meanwhile."""

    claims = _BatchFromOldState


class _BatchBlindExtend(Claims):
    def _extend_in_batch(self, claim: Claim, lease_id: str, lease_timeout: float) -> Claim:
        until = self._clock() + lease_timeout
        self._store.write(claim.address.extension(claim.number, claim.index), encode_extension(until))
        return self._hold(claim, claim.number, claim.record, until)


class BatchBlindExtend(Batched):
    claims = _BatchBlindExtend
    items, pushes = 1, 0.0


class _BatchExtensionsUnread(Claims):
    def _extended_end(self, path: str, until: float) -> float:
        return until


class BatchExtensionsUnread(Batched):
    claims = _BatchExtensionsUnread
    items, pushes = 1, 0.0


class _BatchUnreceived(Claims):
    def _payloads_of(self, address: ItemAddress, *, fresh: bool = False) -> list[bytes] | None:
        return [b""] * address.count


class BatchClaimedWithoutALook(Batched):
    claims = _BatchUnreceived


class BatchSkewIgnored(Batched):
    taker_skew = 0.0
    batch = 1
    items, pushes = 1, 0.0


class BatchHistoryFirst(Batched):
    remove = HistoryFirst.remove


# --- broken ways to count ---


class _LooksFirst(FullBuckets):
    def took(self, bucket: str) -> None:
        """The look was before the record."""


class _RecordsAfterTheLook(Claims):
    def _append(self, address: ItemAddress, number: int, record: Record) -> bool:
        assert self._full is not None
        FullBuckets.took(self._full, address.bucket)
        return super()._append(address, number, record)


class LooksBeforeItsRecord(Counted):
    claims, full = _RecordsAfterTheLook, _LooksFirst


class NeverTellsThatItTook(Counted):
    full = _LooksFirst


class _Unchecked(FullBuckets):
    def tell(self, bucket: str, files: int, items: int) -> None:
        if self._is_untouched(bucket, files):
            self._store.create(f"{full_buckets.SEALED}/{bucket}", b"")
            self._store.create(f"{full_buckets.FULL}/{bucket}.{items:x}", b"")


class FullWithoutAnotherLook(Counted):
    full = _Unchecked


BROKEN = [
    LooksBeforeItsRecord,
    NeverTellsThatItTook,
    FullWithoutAnotherLook,
    HistoryFirst,
    NoLateCheck,
    PayloadReadBeforeTheClaim,
    DoneByDelete,
    BlindExtend,
    EndReadBeforeTheClock,
    SkewIgnored,
    RecordsOfAnotherClient,
    LooksFirstAndWritesThen,
    OrphansUnchecked,
    BatchUnconfirmed,
    BatchSettledByAnybody,
    BatchFromAnOldState,
    BatchBlindExtend,
    BatchExtensionsUnread,
    BatchClaimedWithoutALook,
    BatchSkewIgnored,
    BatchHistoryFirst,
]


@pytest.mark.parametrize("variant", BROKEN)
def test_a_broken_protocol_is_caught(variant: type[Variant], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_listing, "remove_orphans", variant.remove_orphans)
    for seed in itertools.count():
        assert seed < 4000, "4000 schedules did not notice"
        try:
            run(seed, variant)
        except Violation as violation:
            print(f"\nsimulation: {variant.__name__} caught after {seed + 1} schedules: {violation}")
            return
