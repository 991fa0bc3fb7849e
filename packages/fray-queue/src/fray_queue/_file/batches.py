"""Items that one `push_many` stored together, in one file: leased, settled and counted together."""

from collections.abc import Callable, Iterable

from fray import LeaseExpiredError
from fray_queue._errors import DamagedError
from fray_queue._file.batch_log import BatchLog
from fray_queue._file.item_log import Claim
from fray_queue._file.listing import Spot
from fray_queue._file.records import (
    DAMAGED,
    DEAD,
    DONE,
    LEASE,
    RELEASE,
    REQUEUE,
    BatchState,
    ItemAddress,
    Record,
    Slot,
    encode_extension,
    new_nonce,
)
from fray_queue._file.repeats import Repeats


class Batches(BatchLog):
    """What a client does with the items of batches."""

    def _prepare(self) -> None:
        super()._prepare()
        self.repeats = Repeats()

    # --- taking ---

    def _claim_batch(self, spot: Spot, n: int, lease_timeout: float, begun: list[Claim]) -> list[Claim]:
        """Try to lease up to `n` items of a batch."""
        address, nonce, done = spot.address, new_nonce(), False

        def plan(state: BatchState) -> dict[int, Record]:
            nonlocal done
            changes, left = {}, n
            done = all(slot.record is not None and slot.record.kind == DONE for slot in state)
            for index, slot in enumerate(state):
                if not left:
                    break
                now = self._clock()  # before the end is read, as for a single item
                if not self._is_free(address, index, slot, now):
                    continue
                attempts = self._attempts_after(slot.record)
                attempt = 0 if slot.record is None or slot.record.kind == REQUEUE else slot.record.attempt
                extended = _extended(slot)
                if self._max_attempts is not None and len(attempts) >= self._max_attempts:
                    changes[index] = Record(DEAD, new_nonce(), now, 0.0, attempt, attempts, extended)
                    continue
                until = now + lease_timeout
                changes[index] = leased = Record(LEASE, nonce, now, until, attempt + 1, attempts, extended)
                begun.append(Claim(address, 0, leased, until, index=index))
                left -= 1
            return changes

        number, written = self._change(address, plan, confirm=False)
        if done:
            self._clean_old_batch(address, number)
        if not written:
            return []
        claims = [
            Claim(address, number, record, record.until, first=number, index=index)
            for index, record in written.items()
            if record.kind == LEASE
        ]
        return self._receive(address, number, claims)

    @staticmethod
    def _holds(slot: Slot, claim: Claim) -> bool:
        record = slot.record
        return record is not None and record.kind == LEASE and record.lease_nonce == claim.record.lease_nonce

    def _is_free(self, address: ItemAddress, index: int, slot: Slot, now: float) -> bool:
        record = slot.record
        if record is None or record.kind == REQUEUE:
            return True
        if record.kind == RELEASE:
            return now >= record.until
        if record.kind != LEASE or now < record.until + self._skew:
            return False
        until = self._extended_end(address.extension(slot.since, index), record.until)
        if until > record.until:
            with self._lock:
                self._listing.note_end(address, index, until)
        return now >= until + self._skew

    def _receive(self, address: ItemAddress, number: int, claims: list[Claim]) -> list[Claim]:
        """Fetch what was claimed; nothing when the batch was finished, or this took too long."""
        try:
            payloads = self._payloads_of(address, fresh=True)
        except DamagedError as error:
            self._report(address.path, error)
            self._mark_damaged_dead(address, claims, str(error))
            return []
        if payloads is None:
            self._undo(address, number)
            return []
        now = self._clock()
        good = [claim for claim in claims if now < claim.until]
        for claim in good:
            claim.payload = payloads[claim.index]
        self._keep(good)
        return good

    def _mark_damaged_dead(self, address: ItemAddress, claims: list[Claim], error: str) -> None:
        def dead(claim: Claim) -> Record:
            held, now = claim.record, self._clock()
            attempts = (*held.attempts, (held.attempt, "unreadable", held.at, now, error))
            return Record(DEAD, new_nonce(), now, 0.0, held.attempt, attempts, held.extended)

        self._settle_batch(address, claims, dead)

    # --- settling ---

    def _settle_batch(
        self, address: ItemAddress, claims: Iterable[Claim], record_for: Callable[[Claim], Record]
    ) -> list[str]:
        """Write what becomes of leases; return the ids of those that are not good."""
        by_index = {claim.index: claim for claim in claims}
        before: dict[int, Record] = {}  # what a call that failed wrote

        with self.repeats.settling(by_index.values()) as settling:

            def plan(state: BatchState) -> dict[int, Record]:
                changes: dict[int, Record] = {}
                for index, claim in by_index.items():
                    record = record_for(claim)
                    if self._holds(state[index], claim):
                        changes[index] = settling.tries(claim, record)
                    elif settling.wrote(claim, state[index].record, record):
                        before[index] = record
                return changes

            number, written = self._change(address, plan)
            if before and not written and not self._store.exists(address.path):
                before.clear()  # it was finished without us, and our record continued no history
        with self._lock:
            for claim in by_index.values():
                self._held.pop(claim.lease_id, None)
        settled = before | written
        if any(record.kind == DONE for record in settled.values()):
            self._clean_batch(address, number)
        return [claim.lease_id for index, claim in by_index.items() if index not in settled]

    def _clean_old_batch(self, address: ItemAddress, number: int) -> None:
        """Remove a batch whose items are done for so long that who finished the last one is gone."""
        with self._lock:
            spot = self._listing.spot(address)
        if spot is None or spot.ready_at <= self._clock():
            self._clean_batch(address, number)
            self._forget(address)  # until a listing shows it again, because the removal was in vain

    def _clean_batch(self, address: ItemAddress, number: int) -> None:
        """Remove a batch all of whose items are done."""
        with self._lock:
            spot = self._listing.spot(address)
        if spot is None or spot.state is None or spot.number != number:
            return
        records = [slot.record for slot in spot.state]
        if any(record is None or record.kind != DONE for record in records):
            return
        extensions = [
            address.extension(since, index)
            for index, record in enumerate(records)
            if record
            for since in record.extended
        ]
        self._payloads.pop(address, None)
        if self._remove(address.path, [address.record(each) for each in range(1, number + 1)] + extensions):
            self._forget(address)

    def _find_in_batch(
        self, lease_id: str, address: ItemAddress, index: int, first: int, nonce: str
    ) -> Claim:
        """Return the lease of another client of this queue."""
        found = self._newest(address) if index < address.count else None
        while found is not None:
            number, state = found
            record = state[index].record
            if record is not None and record.kind == LEASE and record.lease_nonce == nonce:
                return Claim(address, state[index].since, record, record.until, first=first, index=index)
            found = self._following(address, number, 1)
        raise LeaseExpiredError(lease_id)

    # --- extending ---

    def _extend_in_batch(self, claim: Claim, lease_id: str, lease_timeout: float) -> Claim:
        until = self._clock() + lease_timeout
        if self._clock() < claim.until and until >= claim.record.until:
            self._store.write(claim.address.extension(claim.number, claim.index), encode_extension(until))
            # In time, nobody has taken it over; but the lease may have been settled, here or elsewhere.
            if self._clock() < claim.until and self._is_held(claim):
                with self._lock:
                    self._listing.note_end(claim.address, claim.index, until)
                return self._hold(claim, claim.number, claim.record, until)
        return self._renew_in_batch(claim, lease_id, lease_timeout)

    def _is_held(self, claim: Claim) -> bool:
        found = self._newest(claim.address)
        while found is not None:
            number, state = found
            if not self._holds(state[claim.index], claim):
                return False
            found = self._following(claim.address, number, 1)
        return self._store.exists(claim.address.path)

    def _renew_in_batch(self, claim: Claim, lease_id: str, lease_timeout: float) -> Claim:
        def plan(state: BatchState) -> dict[int, Record]:
            if not self._holds(state[claim.index], claim):
                return {}
            now, held = self._clock(), claim.record
            extended = (*held.extended, state[claim.index].since)
            nonce = f"{held.lease_nonce}-{new_nonce()}"
            record = Record(LEASE, nonce, now, now + lease_timeout, held.attempt, held.attempts, extended)
            return {claim.index: record}

        number, written = self._change(claim.address, plan)
        if not written:
            with self._lock:
                self._held.pop(lease_id, None)
            raise LeaseExpiredError(lease_id)
        record = written[claim.index]
        return self._hold(claim, number, record, record.until)

    # --- looking and mending ---

    def _survey_batch(self, spot: Spot) -> list[tuple[Spot, bool]]:
        """Return the items of a batch that are not finished, and whether a pop could take each."""
        self._mark_due_dead(spot.address)
        found = self._newest(spot.address)
        if found is None:
            return []
        number, state = found
        self._note_batch(spot.address, number, state)
        return [
            (
                Spot(spot.address, number, slot.record, 0.0, index=index),
                self._is_free(spot.address, index, slot, self._clock()),
            )
            for index, slot in enumerate(state)
            if slot.record is None or slot.record.kind != DONE
        ]

    def _mark_due_dead(self, address: ItemAddress) -> None:
        """Make dead letters of the items whose last lease is over."""
        most = self._max_attempts
        if most is None:
            return

        def plan(state: BatchState) -> dict[int, Record]:
            changes: dict[int, Record] = {}
            for index, slot in enumerate(state):
                now, attempts = self._clock(), self._attempts_after(slot.record)
                record = slot.record
                if record and len(attempts) >= most and self._is_free(address, index, slot, now):
                    changes[index] = Record(
                        DEAD, new_nonce(), now, 0.0, record.attempt, attempts, _extended(slot)
                    )
            return changes

        self._change(address, plan)

    def _change_those(self, spots: list[Spot], kind: str) -> int:
        """Requeue, or finish, items of one batch that are as they were seen."""
        address, wanted = spots[0].address, {spot.index: spot.record for spot in spots}

        def plan(state: BatchState) -> dict[int, Record]:
            now = self._clock()
            return {
                index: Record(kind, new_nonce(), now, extended=_extended(state[index]))
                for index, seen in wanted.items()
                if _is_dead(state[index].record) == _is_dead(seen)
                and not _is_kind(state[index].record, DONE, DAMAGED)
            }

        number, written = self._change(address, plan)
        if kind == DONE and written:
            self._clean_batch(address, number)
        return len(written)

    def _restore_batch(self, address: ItemAddress, number: int) -> bool:
        """Put the items of a batch back whose newest record is damaged, as of the last that is not."""
        before: BatchState = (Slot(None, 0),) * address.count
        for each in range(number - 1, 0, -1):
            found = self._state_at(address, each)
            if found is not None and not _is_kind(found[1][0].record, DAMAGED):
                before = found[1]
                break
        state = tuple(self._after_power(slot) for slot in before)
        return self._append_batch(address, number + 1, state) is None


def _extended(slot: Slot) -> tuple[int, ...]:
    """Return the records under which an item was extended, or may have been."""
    if slot.record is None:
        return ()
    since = (slot.since,) if slot.record.kind == LEASE else ()
    return tuple(dict.fromkeys((*slot.record.extended, *since)))


def _is_dead(record: Record | None) -> bool:
    return _is_kind(record, DEAD)


def _is_kind(record: Record | None, *kinds: str) -> bool:
    return record is not None and record.kind in kinds
