"""Names for new items, which no other producer gives and which sort by age."""

import os
import secrets
import threading
from collections.abc import Callable

from fray_queue._file.records import Address

_BUCKET_ITEMS = 256  # one listing shows a bucket: few enough to be quick, many enough to be rare
_BUCKET_SECONDS = 10.0  # a slow producer's items are not all in the bucket of its first


class Producer:
    """The names that one client gives; safe among threads and across `fork`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._pid = 0
        self._tag = self._bucket = ""
        self._millis = self._count = 0
        self._opened = 0.0

    def addresses(self, count: int) -> list[Address]:
        """Return new names, in order."""
        with self._lock:
            return [self._next() for _ in range(count)]

    def _next(self) -> Address:
        now = self._clock()
        if self._pid != os.getpid():  # a forked child would give its parent's names
            self._pid, self._tag, self._bucket = os.getpid(), secrets.token_hex(6), ""
        if not self._bucket or self._count == _BUCKET_ITEMS or now - self._opened >= _BUCKET_SECONDS:
            self._millis = max(int(now * 1000), self._millis + 1)  # a clock that goes back must not reorder
            self._bucket, self._count, self._opened = f"{self._millis:012x}-{self._tag}", 0, now
        self._count += 1
        return Address(self._bucket, f"{self._count - 1:04x}")
