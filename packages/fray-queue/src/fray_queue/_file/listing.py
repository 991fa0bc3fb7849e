"""What a client of a FileQueue believes to be in it, and which item it should try next.

Beliefs come from listings and may be old; a wrong one costs a request, never an item, because the
claim itself is decided by the store. Unknown histories of items that others lease are looked at
late (most are finished by then), or at once when there is nothing else to take.
"""

import contextlib
import math
import random
from bisect import insort
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace

from fray_queue._errors import QueueRemovedError
from fray_queue._file.full_buckets import FullBuckets
from fray_queue._file.producer import BUCKET_SECONDS
from fray_queue._file.records import (
    ALONE,
    DONE,
    LEASE,
    RELEASE,
    REQUEUE,
    BatchState,
    ItemAddress,
    Record,
    is_bucket,
    parse_file,
)
from fray_queue._file.stores.store import Store

GRACE = 60.0  # seconds after which another client removes what the finisher of an item did not
FRESH_FOR = 5.0  # seconds after which listings are taken again, and unknown histories looked at
FEW = 8  # buckets that are counted by a listing of all that there is
_IN_TURN = 4  # old buckets without a free item that are listed after a listing of the root


@dataclass(slots=True)
class Spot:
    """One item as it was last seen."""

    address: ItemAddress
    number: int  # of its newest record; 0: it was never leased
    record: Record | None  # the newest record, where it was read
    ready_at: float  # when it is worth a try
    index: int = ALONE  # of an item of a batch
    state: BatchState | None = None  # of a batch, as of the newest record, where it was read


class View:
    """One bucket as it was last listed.

    `_order` has each item of `spots`. After an interrupt (Ctrl-C), which comes between any two steps, it may
    have others, or one twice.
    """

    def __init__(self, bucket: str) -> None:
        self.bucket = bucket
        self.listed_at = -math.inf
        self.is_due = True  # to be listed before an item is taken
        self.spots: dict[str, Spot] = {}
        self._order: list[str] = []
        self._idle_until = -math.inf

    def note(self, spot: Spot) -> None:
        """Believe what is now known of an item."""
        item = spot.address.item
        if item not in self.spots:
            insort(self._order, item)
        self.spots[item] = spot
        self._idle_until = -math.inf

    def forget(self, item: str) -> None:
        """Believe that an item is gone."""
        if self.spots.pop(item, None) is not None:
            with contextlib.suppress(ValueError):
                self._order.remove(item)

    def is_complete(self, skew: float) -> bool:
        """Return whether it was listed when its producer had stored all that it has there, slowly or not."""
        return self.listed_at > int(self.bucket[:12], 16) / 1000 + BUCKET_SECONDS + GRACE + skew

    def ready(self, now: float, most: int) -> list[Spot]:
        """Return up to `most` items that are worth a try, the oldest first."""
        if now < self._idle_until:
            return []
        found: list[Spot] = []
        for item in self._order:
            spot = self.spots.get(item)
            if spot is not None and spot.ready_at <= now:
                found.append(spot)
                if len(found) == most:
                    return found
        if not found:
            self._idle_until = min((spot.ready_at for spot in self.spots.values()), default=math.inf)
        return found


class Listing:
    """The beliefs of one client about all buckets. Its caller holds a lock.

    Args:
        skew: Seconds that clocks may differ; a lease is taken over that much after its end.
        chance: Spreads clients that collide over the first items in line.
        marker: A file of the root; without it the queue was removed.
    """

    def __init__(self, store: Store, *, skew: float, chance: random.Random, marker: str = "") -> None:
        self._store = store
        self._skew = skew
        self._chance = chance
        self._marker = marker
        self.full: FullBuckets | None = None
        self._views: dict[str, View] = {}  # opened, in order
        self._unopened: list[str] = []  # in reverse order
        self._listed_at = -math.inf
        self._spread = 1.0

    def find(
        self, clock: Callable[[], float], *, look_now: bool = False
    ) -> Generator[Spot | str, list[str], None]:
        """Find an item to try and hide it until `note` is called; without one a `refresh` is due.

        It yields the name of a bucket where it needs a listing of it, which it is sent. Its caller releases
        the lock meanwhile: to list all buckets of a long queue takes minutes, and extensions need the lock.

        Args:
            look_now: Items of which nothing is known are worth a try, too.
        """
        if (now := clock()) - self._listed_at > FRESH_FOR:
            self._list_root(now)
        seen: set[str] = set()
        while views := self._unseen(seen):
            for view in views:
                seen.add(view.bucket)
                now = clock()
                if view.is_due:
                    names = yield view.bucket
                    self._list_bucket(view, now, names, look_now=look_now)
                if spot := self._pick(view, now):
                    yield spot

    def _unseen(self, seen: set[str]) -> list[View]:
        views = list(self._views.values())  # most calls find what they look for in the first
        if seen:
            views = [view for view in views if view.bucket not in seen]
        return views or ([self._open(self._unopened.pop())] if self._unopened else [])

    def refresh(self, now: float) -> None:
        """See what buckets there are; `find` lists them again, and only as many as it needs."""
        self._list_root(now)
        for view in self._views.values():
            view.is_due = True

    def spots(self, now: float, tree: dict[str, list[str]]) -> list[Spot]:
        """Return every item and batch there is, in order, from a listing of all."""
        self._list_root(now, list(tree))
        while self._unopened:
            self._open(self._unopened.pop())
        for view in self._views.values():
            self._list_bucket(view, now, tree.get(view.bucket, []), look_now=True)
        return [view.spots[item] for view in self._views.values() for item in sorted(view.spots)]

    def countable(self, now: float) -> tuple[int, list[str]] | None:
        """Return how many items are in buckets that nobody touched, and the other buckets; None: list all."""
        if self._listed_at == -math.inf:
            self._list_root(now)
        if self.full is None or len(self._views) + len(self._unopened) <= FEW:
            return None
        counts = self.full.counts()
        self._list_root(now)  # after the counts: they hold for what it shows
        buckets = self.buckets()
        others = [bucket for bucket in buckets if bucket not in counts]
        if len(others) > FEW + len(buckets) // 4:  # a bucket a listing; all names are about four a listing
            return None
        return sum(counts.get(bucket, 0) for bucket in buckets), others

    def buckets(self) -> list[str]:
        """Return the buckets of the last listing of the root, in order."""
        return sorted([*self._views, *self._unopened])

    def spots_of(self, bucket: str, now: float, names: list[str]) -> list[Spot]:
        """Return the items and batches of a bucket, in order, from a listing of it."""
        view = self._views.get(bucket) or self._open(bucket)
        self._list_bucket(view, now, names, look_now=True)
        return [view.spots[item] for item in sorted(view.spots)]

    def note(
        self, address: ItemAddress, number: int, record: Record | None, until: float | None = None
    ) -> None:
        """Believe that this is an item's newest record (`until`: the lease was extended)."""
        view = self._views.get(address.bucket)
        if view is not None:
            view.note(Spot(address, number, record, self._ready_at(record, until)))

    def note_batch(self, address: ItemAddress, number: int, state: BatchState) -> None:
        """Believe that this is the newest state of a batch."""
        view = self._views.get(address.bucket)
        if view is not None:
            old = view.spots.get(address.item)
            if old is None or number >= old.number:
                records = [slot.record for slot in state]
                # The items that are done are removed together, when the last one is.
                of_items = [each for each in records if each is None or each.kind != DONE]
                ends = [self._ready_at(each) for each in of_items or records]
                ready_at = min(ends) if of_items else max(ends)
                view.note(Spot(address, number, None, ready_at, state=state))

    def note_end(self, address: ItemAddress, index: int, until: float) -> None:
        """Believe that the lease of an item of a batch was extended."""
        spot = self.spot(address)
        if spot is not None and spot.state is not None and (record := spot.state[index].record):
            slots = list(spot.state)
            slots[index] = slots[index]._replace(record=replace(record, until=until))
            self.note_batch(address, spot.number, tuple(slots))

    def spot(self, address: ItemAddress) -> Spot | None:
        """Return what is believed of an item or a batch."""
        view = self._views.get(address.bucket)
        return None if view is None else view.spots.get(address.item)

    def note_unknown(self, address: ItemAddress, number: int, now: float) -> None:
        """Assume that another client wrote this record; it is read later."""
        view = self._views.get(address.bucket)
        if view is not None:
            view.note(Spot(address, number, None, now + FRESH_FOR))

    def put_back(self, spot: Spot) -> None:
        """Hide an item that `find` returned no longer, unless more is known of it by now."""
        view = self._views.get(spot.address.bucket)
        known = None if view is None else view.spots.get(spot.address.item)
        if view is not None and known is not None and known.number == spot.number:
            view.note(spot)

    def forget(self, address: ItemAddress) -> None:
        """Believe that an item is gone."""
        view = self._views.get(address.bucket)
        if view is not None:
            view.forget(address.item)

    def collided(self) -> None:
        """Aim wider: others try the same items."""
        self._spread = min(64.0, self._spread * 2)

    def succeeded(self) -> None:
        """Aim closer to the head of the line again."""
        self._spread = max(1.0, self._spread * 0.95)

    def _ready_at(self, record: Record | None, until: float | None = None) -> float:
        if record is None or record.kind == REQUEUE:
            return 0.0
        if record.kind == LEASE:
            return (record.until if until is None else until) + self._skew
        if record.kind == DONE:
            return record.at + GRACE
        return record.until if record.kind == RELEASE else math.inf

    def _pick(self, view: View, now: float) -> Spot | None:
        spots = view.ready(now, int(self._spread))
        if not spots:
            if not view.spots and self._views.get(view.bucket) is view:
                del self._views[view.bucket]
            return None
        spot = spots[0] if len(spots) == 1 else self._chance.choice(spots)
        if not spot.address.count:  # another thread tries the next; a batch has items for both
            view.note(Spot(spot.address, spot.number, spot.record, now + FRESH_FOR))
        return spot

    def _list_root(self, now: float, names: list[str] | None = None) -> None:
        buckets = self._list_buckets(names)
        if self.full is not None:
            self.full.sweep_if_due(self._list_buckets)
        for gone in self._views.keys() - buckets:
            del self._views[gone]
        self._make_due(now)
        self._unopened = sorted(buckets - self._views.keys(), reverse=True)
        self._listed_at = now

    def _make_due(self, now: float) -> None:
        """Have buckets listed again: an older one may have grown since, and its items come first.

        One that is complete and has no free item can only get one back: when a lease ends, which is known,
        or when another client gives an item back. There may be many such buckets, so they take turns.
        """
        views = list(self._views.values())
        idle = [view for view in views if view.is_complete(self._skew) and not view.ready(now, 1)]
        first = next((view.bucket for view in views if view.ready(now, 1)), "~")  # `find` goes no further
        idle.sort(key=lambda view: (view.bucket > first, view.listed_at))
        for view in views:
            view.is_due = True
        for view in idle[_IN_TURN:]:
            view.is_due = False

    def _list_buckets(self, names: list[str] | None = None) -> set[str]:
        names = self._store.names("") if names is None else names
        if self._marker and self._marker not in names:
            raise QueueRemovedError(self._store.name)
        return {name for name in names if is_bucket(name)}

    def _open(self, bucket: str) -> View:
        if bucket in self._unopened:
            self._unopened.remove(bucket)
        view = View(bucket)
        views = {**self._views, bucket: view}
        self._views = {name: views[name] for name in sorted(views)}
        return view

    def _list_bucket(self, view: View, now: float, names: list[str], *, look_now: bool) -> None:
        if not names:  # who finished its last item, or made it, was killed before the next step
            self._store.remove_if_empty(view.bucket)
        newest, payloads, orphans = read_listing(names)
        if orphans:
            remove_orphans(self._store, view.bucket, orphans)
        known, view.spots, view._order = view.spots, {}, []
        view.listed_at, view.is_due = now, False
        for item in sorted(payloads):
            number, old = newest.get(item, 0), known.get(item)
            read = old is not None and (old.record is not None or old.state is not None)
            if old is not None and old.number >= number and (number == 0 or read or not look_now):
                view.note(old)
                continue
            ready_at = 0.0 if number == 0 or look_now else now + FRESH_FOR
            view.note(Spot(ItemAddress(view.bucket, item), number, None, ready_at))


def read_listing(names: list[str]) -> tuple[dict[str, int], set[str], dict[str, list[str]]]:
    """Return the newest record of each item, the items with a payload, and the files of those without."""
    newest: dict[str, int] = {}
    payloads: set[str] = set()
    files: dict[str, list[str]] = {}
    for name in names:
        parsed = parse_file(name)
        if parsed is None:
            continue
        item, number = parsed
        if number == 0:
            payloads.add(item)
        else:
            files.setdefault(item, []).append(name)
            if not name.endswith("+"):
                newest[item] = max(number, newest.get(item, 0))
    return newest, payloads, {item: files[item] for item in files.keys() - payloads}


def remove_orphans(store: Store, bucket: str, orphans: dict[str, list[str]]) -> None:
    """Remove what a crash left of finished items: histories whose payload is gone.

    A listing is not a snapshot: it may have missed a payload that came while it ran. A record is written
    after its payload, so a payload that is not there now was removed.
    """
    for item, names in orphans.items():
        if not store.exists(f"{bucket}/{item}"):
            store.delete([f"{bucket}/{name}" for name in names])
