"""Look at the items of a FileQueue without taking one, and change what an operator requests."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from fray_queue._errors import DamagedError
from fray_queue._file.batches import Batches
from fray_queue._file.listing import Spot
from fray_queue._file.records import (
    ALONE,
    DAMAGED,
    DEAD,
    DONE,
    REQUEUE,
    ItemAddress,
    open_payload,
)


class Survey(Batches):
    """What a client sees of a queue."""

    def survey(self) -> list[tuple[Spot, bool]]:
        """Return every item that is not finished, and whether a pop could take it; marks dead what is due."""
        return [found for spot in self._spots() for found in self._look_at(spot)]

    def count(self) -> tuple[int, int]:
        """Count the items that are neither finished, dead nor set aside, and those that a pop could take."""
        with self._lock:
            found = self._listing.countable(self._clock())
        untouched, buckets = found or (0, [])
        size = pending = untouched
        for spot in self._spots() if found is None else self._spots_of(buckets):
            if spot.number == 0:  # what nobody has leased needs no look
                size, pending = size + (spot.address.count or 1), pending + (spot.address.count or 1)
                continue
            for each, free in self._look_at(spot):
                size, pending = size + is_live(each), pending + free
        return size, pending

    def first(self) -> tuple[ItemAddress, int, bytes] | None:
        """Return the item that a pop would take now: its batch, its place in it, and what it holds."""
        return self._first_of(lambda _, free: free)

    def oldest(self) -> bytes | None:
        """Return what the first item in line holds, be it leased or delayed."""
        found = self._first_of(lambda spot, _: is_live(spot))
        return None if found is None else found[2]

    def _first_of(self, wanted: Callable[[Spot, bool], bool]) -> tuple[ItemAddress, int, bytes] | None:
        with self._lock:
            self._listing.refresh(self._clock())
            buckets = self._listing.buckets()
        for spot in self._spots_of(buckets):
            for each, free in self._look_at(spot):
                try:
                    data = self.payload(each) if wanted(each, free) else None
                except DamagedError:  # the pop that finds it gives it up
                    continue
                if data is not None:
                    return each.address, each.index, data
        return None

    def payload(self, spot: Spot) -> bytes | None:
        """Return what an item holds; None when it is finished.

        Raises:
            DamagedError: It is not what was pushed.
        """
        if spot.index == ALONE:
            data = self._store.read(spot.address.path)
            return None if data is None else open_payload(data, spot.address.path)
        payloads = self._payloads_of(spot.address)
        return None if payloads is None else payloads[spot.index]

    def requeue(self, spots: Sequence[Spot]) -> int:
        """Bring dead items back; return how many."""
        return sum(
            self._requeue(group[0]) if group[0].index == ALONE else self._change_those(group, REQUEUE)
            for group in _by_address(spots)
        )

    def purge(self, spots: Sequence[Spot]) -> int:
        """Finish items, held or not; return how many."""
        return sum(
            self._purge(group[0]) if group[0].index == ALONE else self._change_those(group, DONE)
            for group in _by_address(spots)
        )

    def restore(self, spot: Spot) -> bool:
        """Put an item, or a batch, back whose newest record is damaged."""
        if spot.index == ALONE:
            return self._restore(spot)
        return self._restore_batch(spot.address, spot.number)

    def _spots(self) -> list[Spot]:
        tree = self._store.tree()  # which takes long with many items, and `extend` needs the lock
        with self._lock:
            return self._listing.spots(self._clock(), tree)

    def _spots_of(self, buckets: Sequence[str]) -> Iterator[Spot]:
        for bucket in buckets:
            names = self._store.names(bucket)  # without the lock, as above
            with self._lock:
                spots = self._listing.spots_of(bucket, self._clock(), names)
            yield from spots

    def _look_at(self, spot: Spot) -> list[tuple[Spot, bool]]:
        return self._survey_batch(spot) if spot.address.count else self._survey_one(spot)


def is_live(spot: Spot) -> bool:
    """Return whether an item is neither dead nor set aside because its history cannot be read."""
    return spot.record is None or spot.record.kind not in (DEAD, DAMAGED)


def is_dead(spot: Spot) -> bool:
    """Return whether an item was given up."""
    return spot.record is not None and spot.record.kind == DEAD


def _by_address(spots: Iterable[Spot]) -> list[list[Spot]]:
    groups: dict[ItemAddress, list[Spot]] = {}
    for spot in spots:
        groups.setdefault(spot.address, []).append(spot)
    return list(groups.values())
