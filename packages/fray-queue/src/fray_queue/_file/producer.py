"""Names for new items, which no other producer gives and which sort by age."""

import os
import secrets
import threading
from collections.abc import Callable, Sequence

from fray_queue._file.records import ItemAddress

_BUCKET_ITEMS = 256  # one listing shows a bucket: few enough to be quick, many enough to be rare
BATCH_ITEMS, _BATCH_BYTES = 100, 4 << 20  # the most that is pushed as one
_MOST_OPEN = 16  # buckets whose pushes are counted; a thread's may be late
BUCKET_SECONDS = 10.0  # a slow producer's items are not all in the bucket of its first


def batch_sizes(payloads: Sequence[bytes], most: int) -> list[int]:
    """Part payloads, in order, into batches of at most so many items; return the sizes of these."""
    sizes: list[int] = []
    bytes_left = 0
    for payload in payloads:
        if sizes and sizes[-1] < most and len(payload) <= bytes_left:
            sizes[-1] += 1
        else:
            sizes.append(1)
            bytes_left = _BATCH_BYTES
        bytes_left -= len(payload)
    return sizes


class Producer:
    """The names that one client gives; safe among threads and across `fork`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._pid = 0
        self._tag = self._bucket = ""
        self._millis = self._count = 0
        self._stored: dict[str, tuple[int, int]] = {}  # files and items in buckets that are not full
        self._opened = 0.0

    def addresses(self, sizes: Sequence[int]) -> list[ItemAddress]:
        """Return new names, in order: for a size of 1 of an item, for a larger one of a batch."""
        with self._lock:
            return [self._next(size) for size in sizes]

    def stored(self, addresses: Sequence[ItemAddress]) -> list[tuple[str, int, int]]:
        """Note that these are in the store; return buckets that are full now: files and items.

        One that a failed push left a gap in is never full: whether that item is stored nobody knows.
        """
        full: list[tuple[str, int, int]] = []
        with self._lock:
            for address in addresses:
                files, items = self._stored.pop(address.bucket, (0, 0))
                files, items = files + 1, items + (address.count or 1)
                if files == _BUCKET_ITEMS:
                    full.append((address.bucket, files, items))
                else:
                    self._stored[address.bucket] = files, items
            while len(self._stored) > _MOST_OPEN:
                del self._stored[next(iter(self._stored))]
        return full

    def _next(self, size: int) -> ItemAddress:
        now = self._clock()
        if self._pid != os.getpid():  # a forked child would give its parent's names
            self._pid, self._tag, self._bucket = os.getpid(), secrets.token_hex(6), ""
            self._stored = {}
        if not self._bucket or self._count == _BUCKET_ITEMS or now - self._opened >= BUCKET_SECONDS:
            self._millis = max(int(now * 1000), self._millis + 1)  # a clock that goes back must not reorder
            self._bucket, self._count, self._opened = f"{self._millis:012x}-{self._tag}", 0, now
        self._count += 1
        return ItemAddress(self._bucket, f"{self._count - 1:04x}" + (f"x{size:02x}" if size > 1 else ""))
