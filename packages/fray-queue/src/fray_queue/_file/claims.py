"""Claim, settle and extend items by exclusive creations: the protocol of a FileQueue.

Whatever happens to an item next, lease, take-over, release, `done`, burial, needs to create the next
record of its history. The store lets one client do that; all others learn that they came too late.
docs/queue-protocol.md lists the steps, the states between them and what repairs each.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fray import FrayError, LeaseExpiredError
from fray.backend import lease_machine
from fray.queue import Attempt, Lease
from fray_queue._errors import DamagedError
from fray_queue._file.item_log import Claim
from fray_queue._file.listing import Spot
from fray_queue._file.records import (
    ALONE,
    DEAD,
    DONE,
    LEASE,
    RELEASE,
    REQUEUE,
    Attempts,
    ItemAddress,
    Record,
    encode_extension,
    new_nonce,
    open_payload,
    parse_lease_id,
)
from fray_queue._file.survey import Survey

_MOST_LATE = 2  # claims of one call that outlasted their lease: it is shorter than requests take


class Claims(Survey):
    """The claims of one client, by the protocol that the module describes."""

    def _prepare(self) -> None:
        super()._prepare()
        self._finding = threading.Lock()  # of many threads that pop one lists, and the others wait for it

    # --- taking ---

    def take(self, lease_timeout: float) -> Claim | None:
        """Claim the oldest item that can be had."""
        claims = self.take_many(1, lease_timeout)
        return claims[0] if claims else None

    def take_many(self, n: int, lease_timeout: float, begun: list[Claim] | None = None) -> list[Claim]:
        """Claim the oldest item that can be had, and up to `n` that were pushed with it.

        Args:
            begun: Gets each claim before it is tried; what `undo` takes when this call is interrupted.
        """
        begun = [] if begun is None else begun
        refreshed, late = False, 0
        while True:
            spot = self._next(look_now=refreshed)
            if spot is None and not refreshed:
                with self._lock:
                    self._listing.refresh(self._clock())
                refreshed = True
            elif spot is None:
                return []
            else:
                tried = len(begun)
                if claims := self._try(spot, n, lease_timeout, begun):
                    return claims
                late += len(begun) > tried and begun[-1].until <= self._clock()
                if late == _MOST_LATE:
                    return []

    def _try(self, spot: Spot, n: int, lease_timeout: float, begun: list[Claim]) -> list[Claim]:
        if spot.address.count:
            return self._claim_batch(spot, n, lease_timeout, begun)
        try:
            claim = self._claim(spot, lease_timeout, begun)
        except Exception:  # the calls that follow try others first
            raise
        except BaseException:  # an interrupt, of which the item knows nothing
            with self._lock:
                self._listing.put_back(spot)
            raise
        return [] if claim is None else [claim]

    def _next(self, *, look_now: bool) -> Spot | None:
        with self._finding:
            found = self._listing.find(self._clock, look_now=look_now)
            names: list[str] | None = None
            while True:
                with self._lock:
                    try:
                        step = next(found) if names is None else found.send(names)
                    except StopIteration:
                        return None
                if isinstance(step, Spot):
                    return step
                names = self._store.names(step)

    def _claim(self, spot: Spot, lease_timeout: float, begun: list[Claim]) -> Claim | None:
        """Try to lease one item; None when it turns out to be busy, dead or gone."""
        head = self._head(spot)
        if spot.number and head is None:
            return None
        attempts = self._attempts_after(head)
        if self._max_attempts is not None and len(attempts) >= self._max_attempts:
            self._mark_dead(spot.address, spot.number, head, attempts)
            return None
        record = self._lease_after(head, attempts, lease_timeout)
        claim = Claim(spot.address, spot.number + 1, record, record.until, first=spot.number + 1)
        begun.append(claim)
        return claim if self._win(claim) else None

    def _lease_after(self, head: Record | None, attempts: Attempts, lease_timeout: float) -> Record:
        now = self._clock()
        if head is None:
            return self._common(LEASE, now, lease_timeout)
        attempt = 1 if head.kind == REQUEUE else head.attempt + 1
        return Record(LEASE, new_nonce(), now, now + lease_timeout, attempt, attempts, head.extended)

    def _win(self, claim: Claim) -> bool:
        address = claim.address
        if not self._append(address, claim.number, claim.record):
            with self._lock:
                self._listing.collided()
            return False
        data = self._store.read(address.path)
        if data is None:  # finished and removed before we came: ours is the start of no history
            self._store.delete([address.record(claim.number)])
            self._forget(address)
            return False
        try:
            claim.payload = open_payload(data, address.path)
        except DamagedError as error:  # its holder may give it up, and so it stops nobody
            self._report(address.path, error)
            attempts = _ended(claim, "unreadable", self._clock(), str(error))
            self._mark_dead(address, claim.number, claim.record, attempts)
            return False
        if self._clock() >= claim.until:
            return False  # the requests outlasted the lease: others may hold it by now
        self._keep([claim])
        return True

    # --- settling ---

    def finish(self, lease_id: str) -> None:
        """Write `done`, and have the item removed."""
        claim = self._settle(lease_id, self._done)
        if claim.index == ALONE:
            self._clean(claim.address, claim.number + 1, claim.record)

    def finish_batch(self, address: ItemAddress, lease_ids: Sequence[str]) -> list[str]:
        """Write `done` for items of one batch; return the leases that were not good."""
        claims: list[Claim] = []
        lost: list[str] = []
        for lease_id in lease_ids:
            try:
                claims.append(self._find(lease_id))
            except LeaseExpiredError:
                lost.append(lease_id)
        again = {claim.index: claim for claim in reversed(claims)}  # of one that comes twice the first counts
        lost += [claim.lease_id for claim in claims if again[claim.index] is not claim]
        return lost + (self._settle_batch(address, again.values(), self._done_alike()) if again else [])

    def _done_alike(self) -> Callable[[Claim], Record]:
        """Return what makes one record for many items, so that they are one run in their batch's record."""
        common = Record(DONE, new_nonce(), self._clock())
        return lambda claim: (
            replace(common, extended=claim.record.extended) if claim.record.extended else common
        )

    def _done(self, claim: Claim) -> Record:
        extended = claim.record.extended
        return (
            Record(DONE, new_nonce(), self._clock(), extended=extended)
            if extended
            else self._common(DONE, self._clock())
        )

    def release(self, lease_id: str, delay: float) -> None:
        """Give the item back, or make it a dead letter after its last attempt."""
        self._settle(lease_id, lambda claim: self._released(claim, delay))

    def _released(self, claim: Claim, delay: float) -> Record:
        now, held = self._clock(), claim.record
        attempts = held.attempts
        if self._max_attempts is not None:
            attempts = _ended(claim, "released" if now < claim.until else "expired", min(now, claim.until))
        dead = self._max_attempts is not None and len(attempts) >= self._max_attempts
        until = now + delay if delay else 0.0
        kind = DEAD if dead else RELEASE
        return Record(kind, new_nonce(), now, until, held.attempt, attempts, held.extended)

    def give_back(self, leases: Sequence[Lease[Any]]) -> None:
        """Undo leases whose items their taker did not get; these attempts do not count."""
        for lease in leases:
            with contextlib.suppress(FrayError, OSError):  # else it runs out by itself
                self._settle(lease.lease_id, self._not_begun)

    def undo(self, begun: Sequence[Claim], delay: float = 0.0) -> None:
        """Give back, as far as the store lets it, what a call claimed that was interrupted, or failed.

        Args:
            delay: Seconds for which nobody takes the items again, and this client nothing of their batches.
        """
        by_address: dict[ItemAddress, list[Claim]] = {}
        for claim in begun:
            by_address.setdefault(claim.address, []).append(claim)
        for address, claims in by_address.items():
            with contextlib.suppress(FrayError, OSError):  # else their leases run out by themselves
                if address.count:
                    self._settle_batch(address, claims, lambda claim: self._not_begun(claim, delay))
                for claim in () if address.count else claims:
                    if self._store.read(address.record(claim.number)) == claim.record.encode():
                        self._append(address, claim.number + 1, self._not_begun(claim, delay))
            if delay:
                self._hide(address)

    def _not_begun(self, claim: Claim, delay: float = 0.0) -> Record:
        now, held = self._clock(), claim.record
        until = now + delay if delay else 0.0
        return Record(RELEASE, new_nonce(), now, until, held.attempt - 1, held.attempts, held.extended)

    def set_aside(self, lease_id: str, error: str) -> None:
        """Give back an item that cannot be unpickled here: for later, or, after several takers, dead."""
        self._settle(lease_id, lambda claim: self._set_aside(claim, error))

    def _set_aside(self, claim: Claim, error: str) -> Record:
        now, held = self._clock(), claim.record
        state = lease_machine.LeaseState(held.attempt, "held", held.at, claim.until, history=history_of(held))
        after = lease_machine.set_aside(state, "held", error, now, self._max_attempts)
        attempts = tuple(_fields(attempt) for attempt in after.history)
        kind = DEAD if after.dead else RELEASE
        return Record(kind, new_nonce(), now, after.until, held.attempt, attempts, held.extended)

    def _settle(self, lease_id: str, record_for: Callable[[Claim], Record]) -> Claim:
        claim = self._find(lease_id)
        if claim.index != ALONE:
            if self._settle_batch(claim.address, [claim], record_for):
                raise LeaseExpiredError(lease_id)
            return claim
        with self.repeats.settling([claim]) as settling:
            while not self._append(
                claim.address, claim.number + 1, record := settling.tries(claim, record_for(claim))
            ):
                found = self._read_record(claim.address, claim.number + 1)
                if settling.wrote(claim, found, record):
                    break
                claim = self._renewed(claim, lease_id, found)
            self._confirm(claim, lease_id)
        with self._lock:
            self._held.pop(lease_id, None)
        return claim

    def _confirm(self, claim: Claim, lease_id: str) -> None:
        """Make sure that the record just written continues a history, and starts none.

        The client that finished the item removes its files, the payload first, so record n+1 can be made
        again.
        """
        if not self._store.exists(claim.address.path):
            self._store.delete([claim.address.record(claim.number + 1)])
            self._lost(lease_id)

    def _find(self, lease_id: str) -> Claim:
        with self._lock:
            claim = self._held.get(lease_id)
        if claim := claim or self.repeats.claim(lease_id):
            return claim
        parsed = parse_lease_id(lease_id)  # the lease of another client of this queue, or of another queue
        if parsed is None:
            raise LeaseExpiredError(lease_id)
        address, index, number, nonce = parsed
        if index != ALONE:
            return self._find_in_batch(lease_id, address, index, number, nonce)
        record = self._read_record(address, number)
        if record is None or record.lease_nonce != nonce:
            raise LeaseExpiredError(lease_id)
        return Claim(address, number, record, record.until, first=number)

    def _renewed(self, claim: Claim, lease_id: str, record: Record | None) -> Claim:
        """Return the claim as its holder renewed it; its next record may be that."""
        if record is None or record.kind != LEASE or record.lease_nonce != claim.record.lease_nonce:
            self._lost(lease_id)
        assert record is not None
        return Claim(claim.address, claim.number + 1, record, record.until, first=claim.first)

    def _lost(self, lease_id: str) -> None:
        with self._lock:
            self._held.pop(lease_id, None)
        raise LeaseExpiredError(lease_id)

    # --- extending ---

    def extend(self, lease_id: str, lease_timeout: float) -> Claim:
        """Make the lease end `lease_timeout` seconds from now."""
        with self._extending(lease_id):
            claim = self._find(lease_id)
            if claim.index != ALONE:
                return self._extend_in_batch(claim, lease_id, lease_timeout)
            now = self._clock()
            until = now + lease_timeout
            if now < claim.until and until >= claim.record.until:  # an earlier end takes a new record
                self._store.write(claim.address.extension(claim.number), encode_extension(until))
                # In time, nobody has taken it over; but the lease may have been settled, here or elsewhere.
                if self._clock() < claim.until and self._is_open(claim):
                    return self._hold(claim, claim.number, claim.record, until)
            return self._renew(claim, lease_id, lease_timeout)

    def _is_open(self, claim: Claim) -> bool:
        following = claim.address.record(claim.number + 1)
        return not self._store.exists(following) and self._store.exists(claim.address.path)

    def _renew(self, claim: Claim, lease_id: str, lease_timeout: float) -> Claim:
        """Extend a lease that may be over: by the next record, as a taker would."""
        while True:
            now, held = self._clock(), claim.record
            extended = (*held.extended, claim.number)
            nonce = f"{held.lease_nonce}-{new_nonce()}"  # a renewal of before must not pass for this one
            record = Record(LEASE, nonce, now, now + lease_timeout, held.attempt, held.attempts, extended)
            if self._append(claim.address, claim.number + 1, record):
                self._confirm(claim, lease_id)
                return self._hold(claim, claim.number + 1, record, record.until)
            found = self._read_record(claim.address, claim.number + 1)
            claim = self._renewed(claim, lease_id, found)


def _ended(claim: Claim, outcome: str, now: float, *error: str) -> Attempts:
    held = claim.record
    return (*held.attempts, (held.attempt, outcome, held.at, now, *error))


def history_of(record: Record) -> tuple[Attempt, ...]:
    """Return the leases that ended without `done`."""
    return tuple(Attempt(*attempt) for attempt in record.attempts)


def _fields(attempt: Attempt) -> tuple[Any, ...]:
    fields = (attempt.number, attempt.outcome, attempt.started_at, attempt.ended_at)
    return fields if attempt.error is None else (*fields, attempt.error)
