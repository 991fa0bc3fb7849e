"""Which buckets are as they were pushed, so that their items are counted without a look into them.

    .sealed/<bucket>      its producer adds no more to it
    .full/<bucket>.<n>    after that was written, all its n items (in hex) were there, and no record
    .taken/<bucket>       a client may have written a record since

A client looks for `.sealed` after its first record in a bucket, and writes `.taken` before it continues. If
it finds nothing, its record was there before the producer looked for records, so that there is no `.full`.
Nobody has therefore finished an item of a bucket that is full and not taken. The files are hints for those
that count: nothing else depends on them.
"""

import threading
from collections.abc import Callable, Collection

from fray_queue._file.records import is_bucket, parse_file
from fray_queue._file.stores.store import Store

SEALED, FULL, TAKEN = ".sealed", ".full", ".taken"
SWEEP_EVERY = 300.0  # seconds of one client
_MOST_KNOWN = 10_000


class FullBuckets:
    """What one client knows of them, and writes about them.

    Args:
        sweep_at: When it first removes what is left of buckets that are gone.
    """

    def __init__(self, store: Store, clock: Callable[[], float], sweep_at: float) -> None:
        self._store, self._clock, self._sweep_at = store, clock, sweep_at
        self._looked: set[str] = set()
        self._lock = threading.Lock()

    def tell(self, bucket: str, files: int, items: int) -> None:
        """Announce a bucket that its producer adds no more to, unless workers have reached it already."""
        if self._is_untouched(bucket, files):
            self._store.create(f"{SEALED}/{bucket}", b"\n")
            if self._is_untouched(bucket, files):
                self._store.create(f"{FULL}/{bucket}.{items:x}", b"\n")

    def _is_untouched(self, bucket: str, files: int) -> bool:
        names = self._store.names(bucket)
        return len(names) == files and all((parse_file(name) or ("", 1))[1] == 0 for name in names)

    def took(self, bucket: str) -> None:
        """Make sure that nobody counts a bucket as untouched; called after this client wrote a record."""
        if bucket in self._looked:
            return
        if self._store.exists(f"{SEALED}/{bucket}"):
            self._store.create(f"{TAKEN}/{bucket}", b"\n")
        with self._lock:
            if len(self._looked) >= _MOST_KNOWN:
                self._looked.clear()
            self._looked.add(bucket)

    def counts(self) -> dict[str, int]:
        """Return how many items are in each full bucket that nobody took from.

        They hold for buckets that a listing of the root shows that is made afterwards: one that is not there
        is finished, and its marks may be half removed.
        """
        counts = {bucket: items for bucket, items in map(_parsed, self._store.names(FULL)) if bucket}
        if counts:
            for bucket in self._store.names(TAKEN):
                counts.pop(bucket, None)
        return counts

    def sweep_if_due(self, list_buckets: Callable[[], Collection[str]]) -> None:
        """Remove, now and then, what is left of buckets that are gone."""
        now = self._clock()
        if now < self._sweep_at:
            return
        self._sweep_at = now + SWEEP_EVERY
        found = [(folder, self._store.names(folder)) for folder in (FULL, TAKEN, SEALED)]
        if any(names for _, names in found):
            there = list_buckets()  # after the others: one that is sealed and not there is finished
            for folder, names in found:
                gone = [name for name in names if name.partition(".")[0] not in there]
                self._store.delete([f"{folder}/{name}" for name in gone])


def _parsed(name: str) -> tuple[str, int]:
    """Return the bucket and the number of items that the name of a full one gives; None for another file."""
    bucket, _, items = name.partition(".")
    try:
        return (bucket, int(items, 16)) if is_bucket(bucket) else ("", 0)
    except ValueError:
        return "", 0
