"""The log of a batch: items that one `push_many` stored together, in one file.

The log of a batch is that of an item, with one difference: each record has the state of all its items. Who
changes some of them creates the next record, with the others as they were; a client that finds it taken reads
it and starts from there. So a hundred items are pushed, leased and finished by three creations, and a single
one can be leased out of the batch by one.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable

from fray_queue._errors import DamagedError
from fray_queue._file.item_log import LOCKS, ItemLog
from fray_queue._file.records import (
    DAMAGED,
    LEASE,
    RELEASE,
    BatchState,
    ItemAddress,
    Record,
    Slot,
    decode_batch,
    encode_batch,
    new_nonce,
    open_batch,
    parse_file,
)

Plan = Callable[[BatchState], dict[int, Record]]
"""From the state of a batch to the records of those of its items that change."""

_MOST_STEPS = 3  # records that are read one after another, before a listing shows which is the newest
_KEPT_BATCHES, _KEPT_BYTES = 4, 8 << 20  # payloads that are not read again for the next item


class BatchLog(ItemLog):
    """How a client reads and continues the logs of batches."""

    def _prepare(self) -> None:
        self._batch_locks = [threading.Lock() for _ in range(LOCKS)]
        self._payloads: OrderedDict[ItemAddress, list[bytes]] = OrderedDict()

    # --- changing ---

    def _change(
        self, address: ItemAddress, plan: Plan, *, confirm: bool = True
    ) -> tuple[int, dict[int, Record]]:
        """Write the records of a plan; return the number of the batch's record, and what was written.

        Args:
            confirm: Make sure that the record continues a history and starts none; else the caller does.
        """
        with self._batch_locks[hash(address) % LOCKS]:
            found, steps = self._newest(address), 0
            while found is not None:
                number, state = found
                self._note_batch(address, number, state)  # before the plan, which may learn of later ends
                changes = plan(state)
                if not changes:
                    return number, {}
                slots = list(state)
                for index, record in changes.items():
                    slots[index] = Slot(record, number + 1)
                instead = self._append_batch(address, number + 1, tuple(slots))
                if instead is None:
                    if confirm and not self._store.exists(address.path):
                        self._undo(address, number + 1)
                        return 0, {}
                    return number + 1, changes
                with self._lock:
                    self._listing.collided()
                steps += 1
                found = self._following(address, number, steps, instead)
        self._forget(address)
        return 0, {}

    def _append_batch(self, address: ItemAddress, number: int, state: BatchState) -> bytes | None:
        """Write the next record of a batch; return None, or the record that another client wrote first."""
        path, data = address.record(number), encode_batch(state, new_nonce())
        if not self._store.create(path, data) and (found := self._store.read(path)) != data:
            return found or b""  # nothing: it is removed already
        self._took_from(address)
        self._note_batch(address, number, state)
        return None

    def _undo(self, address: ItemAddress, number: int) -> None:
        """Remove the record just written: the batch was finished before, and this starts no history."""
        self._store.delete([address.record(number)])
        self._forget(address)

    def _newest(self, address: ItemAddress) -> tuple[int, BatchState] | None:
        """Return the newest record of a batch that this client knows of."""
        with self._lock:
            spot = self._listing.spot(address)
        if spot is None:
            number = self._newest_number(address)
            return None if number is None else self._state_at(address, number)
        if spot.state is not None:
            return spot.number, spot.state
        return self._state_at(address, spot.number)

    def _following(
        self, address: ItemAddress, number: int, steps: int, read: bytes | None = None
    ) -> tuple[int, BatchState] | None:
        """Return the record after one that turned out not to be the newest, or a later one.

        Args:
            read: The next record, where it was read already.
        """
        if steps % _MOST_STEPS == 0:
            newest = self._newest_number(address)
            if newest is None:
                return None
            number = max(number, newest - 1)
        elif read:
            return self._decoded(address, number + 1, read)
        return self._state_at(address, number + 1)

    def _newest_number(self, address: ItemAddress) -> int | None:
        numbers = [
            parsed[1]
            for name in self._store.names(address.bucket)
            if (parsed := parse_file(name)) and parsed[0] == address.item and not name.endswith("+")
        ]
        return max(numbers, default=None)

    def _state_at(self, address: ItemAddress, number: int) -> tuple[int, BatchState] | None:
        if number == 0:
            return 0, (Slot(None, 0),) * address.count
        path = address.record(number)
        try:
            data = self._store.read(path)
        except DamagedError as error:
            return self._damaged(address, number, error)
        return None if data is None else self._decoded(address, number, data)

    def _decoded(self, address: ItemAddress, number: int, data: bytes) -> tuple[int, BatchState] | None:
        path = address.record(number)
        try:
            if not self._is_lost(data):
                return number, decode_batch(data, path, address.count)
            before = self._state_at(address, number - 1)
            return None if before is None else (number, tuple(self._after_power(slot) for slot in before[1]))
        except DamagedError as error:
            return self._damaged(address, number, error)

    def _damaged(self, address: ItemAddress, number: int, error: DamagedError) -> tuple[int, BatchState]:
        self._report(address.record(number), error)
        return number, (Slot(Record(DAMAGED, "", 0.0), number),) * address.count

    def _after_power(self, slot: Slot) -> Slot:
        """Return what an item of a lost record is taken for: its client went with the power."""
        record = slot.record
        if record is None or record.kind != LEASE:
            return slot
        extended = (*record.extended, slot.since)
        attempts = self._attempts_after(record)
        return Slot(Record(RELEASE, "", record.at, 0.0, record.attempt, attempts, extended), slot.since)

    # --- what it holds ---

    def _payloads_of(self, address: ItemAddress, *, fresh: bool = False) -> list[bytes] | None:
        """Return the items of a batch; None when it is finished."""
        with self._lock:
            known = self._payloads.get(address)
        if known is not None:
            return known if not fresh or self._store.exists(address.path) else None
        data = self._store.read(address.path)
        if data is None:
            return None
        payloads = open_batch(data, address.path, address.count)
        if len(data) <= _KEPT_BYTES:
            with self._lock:
                self._payloads[address] = payloads
                while len(self._payloads) > _KEPT_BATCHES:
                    self._payloads.popitem(last=False)
        return payloads

    def _note_batch(self, address: ItemAddress, number: int, state: BatchState) -> None:
        with self._lock:
            self._listing.note_batch(address, number, state)
